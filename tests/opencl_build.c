/* SPDX-License-Identifier: MIT */
/* tests/opencl_build.c: kernels that do not compile, or want what the device does
 * not have. Straight at the back end's table, since the planner asks for none. */
#include "tests/check.h"

#include <stdio.h>

#include "backend/list.h"

static attn_device *device;
static attn_device_info info;

/* A step as the planner makes them, small. */
static attn_step step_of(const char *kernel)
{
    static const attn_define defines[] = {
        { "TYPE", 0 },
        { "D", 8 },
        { "DV", 8 },
        { "FEAT_RANGE_LEFT", 0 },
        { "FEAT_RANGE_RIGHT", 0 },
        { "FEAT_ALIGN_BR", 0 },
        { "FEAT_LENS", 0 },
        { "FEAT_LSE", 0 },
        { "CONTIG_Q", 1 },
        { "CONTIG_K", 1 },
        { "CONTIG_V", 1 },
        { "CONTIG_O", 1 },
        { "VW", 4 },
        { "NV", 1 },
        { "MR", 4 },
        { "BR", 4 },
        { "BC", 8 },
    };
    attn_step s = { .kernel = kernel,
                    .tile_q = 4,
                    .tile_k = 8,
                    .block = 1,
                    .type = ATTN_F32,
                    .d = 8,
                    .dv = 8 };

    for (size_t i = 0; i < sizeof defines / sizeof defines[0]; i++)
        s.define[s.n_defines++] = defines[i];
    return s;
}

static attn_status build(const attn_step *step, int64_t *limit)
{
    const attn_kernel *kernel;

    return attn_backend_opencl.kernel(device, step, &kernel, limit);
}

static void a_right_step_builds_once(void **state)
{
    const attn_step s = step_of("softmax_fwd_tile_cpu");
    const attn_kernel *first, *second;
    int64_t limit = 0;

    (void)state;
    check_ok(attn_backend_opencl.kernel(device, &s, &first, &limit));
    assert_true(limit >= 1);
    check_ok(attn_backend_opencl.kernel(device, &s, &second, &limit));
    assert_ptr_equal(first, second);
}

static void a_source_that_does_not_compile_gives_the_log(void **state)
{
    attn_step s = step_of("softmax_fwd_tile_cpu");
    int64_t limit;

    (void)state;
    s.define[s.n_defines++] = (attn_define){ "attn_range", 7 }; /* breaks a type's name */
    check_error(build(&s, &limit), ATTN_ERR_BUILD, "error");
    check_error(build(&s, &limit), ATTN_ERR_BUILD, "error"); /* not remembered as good */
    s = step_of("softmax_fwd_tile_cpu");
    check_ok(build(&s, &limit)); /* the device still works */
}

static void an_unknown_kernel_is_named(void **state)
{
    const attn_step s = step_of("softmax_fwd_magic");
    int64_t limit;

    (void)state;
    check_error(build(&s, &limit), ATTN_ERR_BUILD, "softmax_fwd_magic");
}

static void too_much_local_memory_is_no_crash(void **state)
{
    attn_step s = step_of("softmax_fwd_tile_cpu");
    int64_t limit = 77;
    attn_status st;

    (void)state;
    for (int i = 0; i < s.n_defines; i++)
        if (!strcmp(s.define[i].name, "BR"))
            s.define[i].value = (int32_t)(info.fast_bytes / 16 / 4 * 4);
    st = build(&s, &limit);
    assert_true((st == ATTN_OK && limit == 0 && attn_last_error()[0]) ||
                st == ATTN_ERR_BUILD || st == ATTN_ERR_NO_MEMORY);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_right_step_builds_once),
        cmocka_unit_test(a_source_that_does_not_compile_gives_the_log),
        cmocka_unit_test(an_unknown_kernel_is_named),
        cmocka_unit_test(too_much_local_memory_is_no_crash),
    };
    char reason[256];
    int n = 0, failed;

    if (attn_backend_opencl.count(&(attn_env){ 0 }, &n, reason, sizeof reason) != ATTN_OK ||
        !n) {
        printf("no OpenCL device here: %s\n", reason);
        return EXIT_SKIPPED;
    }
    if (attn_backend_opencl.describe(&(attn_env){ 0 }, 0, &info) != ATTN_OK ||
        attn_backend_opencl.open(&(attn_env){ 0 }, 0, &device) != ATTN_OK) {
        printf("%s\n", attn_last_error());
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    attn_backend_opencl.close(&device);
    return failed;
}
