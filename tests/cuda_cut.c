/* SPDX-License-Identifier: MIT */
/* tests/cuda_cut.c: tiles that are cut along their keys, since the last ones would not fill
 * the device (cuda_kernels/common/cut.h), give the bits of tiles that are not. */
#include "tests/cuda_app.h"

#include "src/core/size.h"

static int64_t units;

static int open_all(void **state)
{
    attn_device_info info;

    if (app_begin(state))
        return 1;
    check_ok(attn_ctx_info(app.ctx, &info));
    units = info.compute_units;
    return 0;
}

/* Queries `first` .. `first` + n - 1 of the job's. */
static void execute(const job *j, int64_t first, int64_t n)
{
    attn_args args = j->args;

    args.q.offset += first * args.q.stride[2];
    args.o.offset += first * args.o.stride[2];
    args.lse.offset += first * args.lse.stride[2];
    args.q.size[2] = args.o.size[2] = args.lse.size[2] = n;
    check_ok(attn_execute(j->plan, &args, app.stream));
}

/* All tiles at once, and as many at a time as all run whole. */
static void same_bits(const char *type, int64_t rows, int64_t slots, int64_t tiles,
                      int64_t lk, int64_t d)
{
    const int64_t lq = rows * tiles - 3;
    char problem[128];
    job j;
    float *o, *lse;

    snprintf(problem, sizeof problem, "softmax_fwd:%s,b1,hq1,hkv1,lq%lld,lk%lld,d%lld,lse",
             type, (long long)lq, (long long)lk, (long long)d);
    job_open(&j, app.ctx, app.context, app.stream, "softmax_fwd_tile", problem);
    job_run(&j);
    assert_true(attn_plan_workspace_bytes(j.plan) > 0);
    o = malloc((size_t)j.t.no * sizeof *o);
    lse = malloc((size_t)j.t.nlse * sizeof *lse);
    assert_non_null(o);
    assert_non_null(lse);
    memcpy(o, j.t.o, (size_t)j.t.no * sizeof *o);
    memcpy(lse, j.t.lse, (size_t)j.t.nlse * sizeof *lse);
    job_send(&j);
    for (int64_t at = 0; at < lq; at += rows * slots)
        execute(&j, at, attn_min(rows * slots, lq - at));
    job_check_to(&j, o, lse);
    assert_memory_equal(j.t.o, o, (size_t)j.t.no * sizeof *o);
    assert_memory_equal(j.t.lse, lse, (size_t)j.t.nlse * sizeof *lse);
    free(o);
    free(lse);
    job_close(&j);
}

/* Heads and tails, then middles too; D 64 has two groups on a multiprocessor. */
static void cuts_change_no_bit(void **state)
{
    (void)state;
    same_bits("f32", 128, units, units + (units + 3) / 4, 1000, 72);
    same_bits("f32", 128, units, 2 * units + (3 * units + 3) / 4, 1000, 68);
    same_bits("f32", 128, 2 * units, 4 * units + (3 * units + 1) / 2, 500, 8);
    same_bits("bf16", 128, 2 * units, 4 * units + (3 * units + 1) / 2, 600, 8);
    same_bits("f32", 64, units, 2 * units + (3 * units + 3) / 4, 520, 132);
}

/* What goes from part to part is more where sums are compensated. */
static void rests_too(void **state)
{
    (void)state;
    same_bits("f32", 128, 2 * units, 2 * units + 1, 8200, 4);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_change_no_bit),
        cmocka_unit_test(rests_too),
    };
    const int absent = app_open(argc, argv);

    return absent ? absent : cmocka_run_group_tests(tests, open_all, app_end);
}
