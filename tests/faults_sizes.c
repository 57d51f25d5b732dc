/* SPDX-License-Identifier: MIT */
/* tests/faults_sizes.c: nothing at all, very much, and indices beyond 32 bits, over
 * mappings that are mostly not there (C sizes, H nothing, U2 every yes runs, U7). */
#define _GNU_SOURCE
#include "tests/fault.h"

#include <sys/mman.h>
#include <sys/resource.h>

/* H1: no keys, no queries, no batch, no heads. */
static void nothing_at_all(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b1,hq2,hkv2,lq4,lk0,d8,lse",
        "softmax_fwd:f32,b1,hq2,hkv2,lq4,lk0,d8,causal,align=br,lse",
        "softmax_fwd:f32,b1,hq2,hkv2,lq4,lk0,d8,bias=f32,mask,alibi,lse",
        "softmax_fwd:f32,b2,hq2,hkv2,lq0,lk4,d8,lse",
        "softmax_fwd:f32,b0,hq2,hkv2,lq4,lk4,d8,lse",
        "softmax_fwd:f32,b2,hq0,hkv0,lq4,lk4,d8,lse",
        "softmax_fwd:f32,b2,hq2,hkv2,lq4,lk0,d8,packed,lse",
        "softmax_fwd:f32,b2,hq2,hkv2,lq4,lk0,d8,pages=4,lse",
    };

    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        trial t;

        if (!takes(who, problems[i]))
            continue;
        trial_make(&t, who, problems[i]);
        trial_run(&t);
        for (int64_t r = 0; r < t.nlse; r++)
            row_is_empty(&t, r, -INFINITY);
        trial_free(&t);
    }
}

/* A broadcast view of more elements than an address space has bytes, and nothing to
 * compute from it. */
static void views_of_2_to_the_62(const subject *who)
{
    const int64_t size[4] = { 1 << 16, 1 << 14, 1 << 30, 4 }, none[4] = { 0 };
    float one = 1;
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b65536,hq16384,hkv16384,lq0,lk0,d4");
    t.desc.len_kv = 1 << 30;
    t.args.lse = (attn_tensor){ 0 };
    t.args.k = t.args.v = attn_tensor_strided(&one, ATTN_F32, size, none);
    t.args.k.data_bytes = t.args.v.data_bytes = sizeof one;
    trial_run(&t);
    trial_free(&t);
}

/* More batches and heads than a grid dimension of 16 bits has. */
static void many_heads(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b3,hq22000,hkv11000,lq1,lk3,d4,lse");
    trial_compare(&t);
    trial_free(&t);
}

/* U7: one query, few and more batches. */
static void one_query(const subject *who)
{
    for (int b = 1; b <= 9; b++) {
        char problem[NAME_BYTES];
        trial t;

        snprintf(problem, sizeof problem, "softmax_fwd:f32,b%d,hq4,hkv2,lq1,lk77,d32,lse",
                 b);
        trial_make(&t, who, problem);
        trial_compare(&t);
        trial_free(&t);
    }
}

/* C5: all zero gives zero, where L * L passes 2^30: the last queries, and then all of
 * them behind a window that keeps it short (but not for variants that compute every score,
 * nor on processors behind a driver, where it takes minutes). */
static void all_zero(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b1,hq1,hkv1,lq20,lk33728,d512,causal,align=br",
        "softmax_fwd:f32,b1,hq1,hkv1,lq33728,lk33728,d512,window=3:0",
    };

    for (int i = 0; i < 2; i++) {
        trial t;

        if (!takes(who, problems[i]) ||
            (i == 1 && (who->traits & (ATTN_TRAIT_BY_NAME | ATTN_TRAIT_VENDOR) ||
                        who->device->kind == ATTN_DEVICE_CPU)))
            continue;
        trial_make(&t, who, problems[i]);
        fill(t.q, t.nq, 0);
        fill(t.k, t.nk, 0);
        fill(t.v, t.nv, 0);
        t.args.lse = (attn_tensor){ 0 };
        trial_run(&t);
        for (int64_t e = 0; e < t.no; e++)
            near(&t, "o", e, t.o[e], 0, 0);
        trial_free(&t);
    }
}

/* U2: every yes of the planner runs, and is right. */
static void every_yes_runs(const subject *who)
{
    static const char *const features[] = {
        "",
        ",causal",
        ",causal,align=br,lens",
        ",bias=f16,softcap=5",
        ",mask,sinks",
        ",window=5:2,offset=3,qlens",
        ",packed",
        ",pages=4,lens",
        ",alibi,offsets",
    };
    static const char *const types[] = { "f32", "f16", "bf16" };
    static const int dims[] = { 1, 8, 40, 300 };

    for (size_t f = 0; f < sizeof features / sizeof features[0]; f++)
        for (size_t y = 0; y < 3; y++)
            for (size_t d = 0; d < sizeof dims / sizeof dims[0]; d++) {
                char problem[NAME_BYTES];
                trial t;

                /* each type and size with some features, each feature with some */
                if ((f + y + d) % 3)
                    continue;
                snprintf(problem, sizeof problem,
                         "softmax_fwd:%s,b2,hq2,hkv1,lq3,lk9,d%d%s,lse", types[y], dims[d],
                         features[f]);
                if (!takes(who, problem))
                    continue;
                trial_make(&t, who, problem);
                trial_compare(&t);
                trial_free(&t);
            }
}

/* --- over sparse mappings, on the host ------------------------------------------ */

/* Runs a test on the host's variants alone. */
static void on_host(const char *problem, fault_fn *fn)
{
    const size_t n = fault_devices;
    attn_ctx *const first = fault_ctx[0];
    const attn_device_info info = fault_device[0];

    fault_ctx[0] = fault_ctx[n - 1];
    fault_device[0] = fault_device[n - 1];
    fault_devices = 1;
    on_each(problem, fn);
    fault_devices = n;
    fault_ctx[0] = first;
    fault_device[0] = info;
}

#define ON_HOST(name, problem)            \
    static void test_##name(void **state) \
    {                                     \
        (void)state;                      \
        on_host(problem, name);           \
    }

/* C4: batches, heads, then rows that lie 2^31 + 64 elements apart, for each tensor in turn;
 * the answer is that of compact ones, bit for bit. */
static void strides_beyond_2_to_the_31(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b2,hq1,hkv1,lq16,lk16,d64,bias=f32,mask,lse",
        "softmax_fwd:f32,b1,hq2,hkv2,lq16,lk16,d64,bias=f32,mask,lse",
        "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk2,d64,bias=f32,mask,lse",
    };
    const size_t bytes = (size_t)(FAR + 16 * 64) * sizeof(float);

    for (int axis = 0; axis < 3; axis++)
        for (int which = 0; which < 7; which++) {
            char *memory = sparse(bytes);
            trial plain, t;

            trial_make(&plain, who, problems[axis]);
            trial_make(&t, who, problems[axis]);
            for (int64_t e = 0; e < t.nbias; e++) {
                plain.bias[e] = t.bias[e] = cosf((float)e);
                plain.mask[e] = t.mask[e] = e % 5 != 0;
            }
            trial_run(&plain);
            attn_tensor *const list[] = { &t.args.q,   &t.args.k,    &t.args.v,   &t.args.o,
                                          &t.args.lse, &t.args.bias, &t.args.mask };
            attn_tensor *x = list[which];
            const size_t elem = attn_type_bytes(x->type);
            const size_t half = (size_t)((axis < 2 ? x->size[2] : 1) * x->size[3]) * elem;
            char *near_half = x->data, *far_half = memory + (size_t)FAR * elem;

            memcpy(memory, near_half, half);
            memcpy(far_half, near_half + half, half);
            x->data = memory;
            x->stride[axis] = FAR;
            trial_run(&t);
            if (which == 3 || which == 4) {
                memcpy(near_half, memory, half);
                memcpy(near_half + half, far_half, half);
            }
            assert_memory_equal(t.o, plain.o, (size_t)t.no * sizeof(float));
            assert_memory_equal(t.lse, plain.lse, (size_t)t.nlse * sizeof(float));
            assert_int_equal(munmap(memory, bytes), 0);
            trial_free(&plain);
            trial_free(&t);
        }
}

/* C4, C6, C7: rows of K and V, then of bias and mask, so far apart that the row times
 * its stride passes 2^31 and 2^32 elements. */
static void row_strides_beyond_2_to_the_31(const subject *who)
{
    enum { LK = 24000, LQ = 64, D = 8 };
    static const int64_t row = 90000, term = 70000000;
    const size_t bytes = (size_t)LK * row * sizeof(float);
    float *memory = sparse(bytes);
    trial plain, t;

    trial_make(&plain, who, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk24000,d8,lse");
    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk24000,d8,lse");
    trial_run(&plain);
    for (int64_t j = 0; j < LK; j++) {
        memcpy(memory + j * row, t.k + j * D, D * sizeof(float));
        memcpy(memory + j * row + D, t.v + j * D, D * sizeof(float));
    }
    t.args.k.data = t.args.v.data = memory;
    t.args.v.offset = D;
    t.args.k.stride[2] = t.args.v.stride[2] = row;
    trial_run(&t);
    assert_memory_equal(t.o, plain.o, (size_t)t.no * sizeof(float));
    assert_int_equal(munmap(memory, bytes), 0);
    trial_free(&plain);
    trial_free(&t);

    for (int is_mask = 0; is_mask < 2; is_mask++) {
        const size_t elem = is_mask ? 1 : sizeof(float), all = (size_t)(LQ * term) * elem;
        const char *problem = is_mask
                                  ? "softmax_fwd:f32,b1,hq1,hkv1,lq64,lk40,d8,mask,lse"
                                  : "softmax_fwd:f32,b1,hq1,hkv1,lq64,lk40,d8,bias=f32,lse";
        char *far;

        if (!takes(who, problem))
            continue;
        far = sparse(all);
        trial_make(&plain, who, problem);
        trial_make(&t, who, problem);
        for (int64_t e = 0; e < t.nbias; e++)
            if (is_mask)
                plain.mask[e] = t.mask[e] = e % 3 == 0;
            else
                plain.bias[e] = t.bias[e] = cosf((float)e);
        trial_run(&plain);
        attn_tensor *x = is_mask ? &t.args.mask : &t.args.bias;
        for (int64_t i = 0; i < LQ; i++)
            memcpy(far + (size_t)(i * term) * elem,
                   (char *)x->data + (size_t)(i * 40) * elem, 40 * elem);
        x->data = far;
        x->stride[2] = term;
        trial_run(&t);
        assert_memory_equal(t.o, plain.o, (size_t)t.no * sizeof(float));
        assert_int_equal(munmap(far, all), 0);
        trial_free(&plain);
        trial_free(&t);
    }
}

/* C6: the last rows of a mask of 46400 x 46400, a band. */
static void a_mask_of_2_gigabytes(const subject *who)
{
    enum { L = 46400, ROWS = 40 };
    const size_t bytes = (size_t)L * L;
    unsigned char *memory = sparse(bytes);
    trial t, window;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq40,lk46400,d4,mask,lse");
    trial_make(&window, &fault_oracle,
               "softmax_fwd:f32,b1,hq1,hkv1,lq40,lk46400,d4,align=br,window=9:9,lse");
    for (int64_t i = L - ROWS; i < L; i++)
        for (int64_t j = i - 9; j <= i + 9 && j < L; j++)
            memory[i * L + j] = 1;
    t.args.mask = attn_tensor_bhld(memory, ATTN_BOOL, 1, 1, ROWS, L);
    t.args.mask.offset = (int64_t)(L - ROWS) * L;
    t.args.mask.data_bytes = bytes;
    trial_run(&t);
    trial_run(&window);
    trial_compare_to(&t, window.o, window.lse);
    assert_int_equal(munmap(memory, bytes), 0);
    trial_free(&t);
    trial_free(&window);
}

/* C7: a pool of pages of more than 2^31 elements, those in use in its last part. */
static void a_pool_beyond_2_to_the_31(const subject *who)
{
    enum { PAGE = 16, D = 64, USED = 3 };
    const int64_t pages = FAR / (PAGE * D) + USED, page = PAGE * D;
    const size_t bytes = (size_t)(pages * page) * sizeof(float);
    float *k = sparse(bytes), *v = sparse(bytes);
    trial plain, t;

    trial_make(&plain, who, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk48,d64,pages=16,lse");
    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk48,d64,pages=16,lse");
    trial_run(&plain);
    for (int64_t i = 0; i < USED; i++) {
        t.table[i] = (int32_t)(pages - 1 - i * 2);
        memcpy(k + t.table[i] * page, t.k + i * page, (size_t)page * sizeof(float));
        memcpy(v + t.table[i] * page, t.v + i * page, (size_t)page * sizeof(float));
    }
    t.args.k = attn_tensor_bhld(k, ATTN_F32, pages, 1, PAGE, D);
    t.args.v = attn_tensor_bhld(v, ATTN_F32, pages, 1, PAGE, D);
    trial_run(&t);
    assert_memory_equal(t.o, plain.o, (size_t)t.no * sizeof(float));
    assert_memory_equal(t.lse, plain.lse, (size_t)t.nlse * sizeof(float));
    assert_int_equal(munmap(k, bytes), 0);
    assert_int_equal(munmap(v, bytes), 0);
    trial_free(&plain);
    trial_free(&t);
}

/* C3: four batches 2^30 elements of f16 apart; what lies between is not touched. */
static void f16_batches_2_to_the_30_apart(const subject *who)
{
    enum { L = 20, D = 16, B = 4 };
    static const int64_t apart = (int64_t)1 << 30;
    const size_t bytes = (size_t)(3 * apart + 4096) * 2;
    uint16_t *k = sparse(bytes), *v = sparse(bytes), *o = sparse(bytes);
    static uint16_t q[B * L * D], compact[3][B * L * D];
    attn_args a = { .size = sizeof a };
    attn_softmax_desc desc;
    const attn_options options = { .size = sizeof options, .variant = who->variant };

    check_ok(attn_softmax_parse("softmax_fwd:f16,b4,hq1,hkv1,lq20,lk20,d16", &desc));
    for (int i = 0; i < B * L * D; i++) {
        q[i] = (uint16_t)(0x3800 + i * 37 % 0x400);
        compact[0][i] = (uint16_t)(0xb800 + i * 53 % 0x400);
        compact[1][i] = (uint16_t)(0x3c00 + i * 71 % 0x800);
        k[i / (L * D) * apart + i % (L * D)] = compact[0][i];
        v[i / (L * D) * apart + i % (L * D)] = compact[1][i];
    }
    a.q = attn_tensor_bhld(q, ATTN_F16, B, 1, L, D);
    a.k = attn_tensor_bhld(compact[0], ATTN_F16, B, 1, L, D);
    a.v = attn_tensor_bhld(compact[1], ATTN_F16, B, 1, L, D);
    a.o = attn_tensor_bhld(compact[2], ATTN_F16, B, 1, L, D);
    check_ok(attn_softmax_forward_host_args(who->ctx, &desc, &options, &a));
    a.k.data = k, a.v.data = v, a.o.data = o;
    a.k.stride[0] = a.v.stride[0] = a.o.stride[0] = apart;
    check_ok(attn_softmax_forward_host_args(who->ctx, &desc, &options, &a));
    for (int b = 0; b < B; b++) {
        assert_memory_equal(o + b * apart, compact[2] + b * L * D, L * D * 2);
        for (int i = 0; i < 64; i++)
            assert_true(o[b * apart + L * D + i] == 0 && (!b || o[b * apart - 1 - i] == 0));
    }
    assert_int_equal(munmap(k, bytes) | munmap(v, bytes) | munmap(o, bytes), 0);
}

/* C4 on a device that has the memory: one tensor's batches 2^31 + 64 elements apart. */
static void far_batches_on_a_device(const subject *who)
{
    static const char problem[] =
        "softmax_fwd:f32,b2,hq1,hkv1,lq16,lk16,d64,bias=f32,mask,lse";
    const size_t most = (size_t)(FAR + 16 * 64) * sizeof(float);

    if (who->device->kind == ATTN_DEVICE_HOST ||
        (uint64_t)who->device->max_alloc_bytes < most ||
        (uint64_t)who->device->memory_bytes < most + most / 2)
        return;
    for (int which = 0; which < 7; which++) {
        trial plain, t;
        attn_args a = { .size = sizeof a };
        attn_plan *plan = NULL;

        trial_make(&plain, who, problem);
        trial_make(&t, who, problem);
        for (int64_t e = 0; e < t.nbias; e++) {
            plain.bias[e] = t.bias[e] = cosf((float)e);
            plain.mask[e] = t.mask[e] = e % 5 != 0;
        }
        trial_run(&plain);
        attn_tensor *const from[] = { &t.args.q,   &t.args.k,    &t.args.v,   &t.args.o,
                                      &t.args.lse, &t.args.bias, &t.args.mask };
        attn_tensor *const to[] = { &a.q, &a.k, &a.v, &a.o, &a.lse, &a.bias, &a.mask };
        for (int i = 0; i < 7; i++)
            if (i != which)
                *to[i] = fault_upload(who->ctx, from[i]);
        attn_tensor *x = to[which];
        *x = *from[which];
        const size_t elem = attn_type_bytes(x->type), far = (size_t)FAR * elem;
        const size_t half = (size_t)(x->size[2] * x->size[3]) * elem;
        char *compact = x->data;
        x->data = NULL;
        x->stride[0] = FAR;
        check_ok(attn_memory_alloc(who->ctx, far + half, &x->data));
        check_ok(attn_memory_upload(who->ctx, x->data, 0, compact, half));
        check_ok(attn_memory_upload(who->ctx, x->data, far, compact + half, half));
        check_ok(attn_plan_softmax_with(who->ctx, &t.desc, &t.options, &plan));
        a.workspace_bytes = attn_plan_workspace_bytes(plan);
        check_ok(attn_memory_alloc(who->ctx, a.workspace_bytes, &a.workspace));
        check_ok(attn_execute(plan, &a, NULL));
        for (int i = 3; i < 5; i++) /* o, lse */
            for (size_t b = 0; b < 2; b++) {
                const size_t n = (size_t)(to[i]->size[2] * to[i]->size[3]) * sizeof(float);
                check_ok(attn_memory_download(
                    who->ctx, (char *)from[i]->data + b * n, to[i]->data,
                    b * (size_t)to[i]->stride[0] * sizeof(float), n));
            }
        trial_compare_to(&t, plain.o, plain.lse);
        attn_plan_destroy(&plan);
        attn_memory_free(who->ctx, &a.workspace);
        for (int i = 0; i < 7; i++)
            attn_memory_free(who->ctx, &to[i]->data);
        trial_free(&plain);
        trial_free(&t);
    }
}

/* C8: memory grows with L, not with L squared (a score matrix would be 16 GiB). */
static void test_memory_is_linear_in_length(void **state)
{
    struct rusage before, after;
    subject host = fault_oracle;
    trial t;

    (void)state;
    host.variant = "softmax_fwd_tile";
    trial_make(&t, &host, "softmax_fwd:f32,b1,hq1,hkv1,lq65536,lk65536,d8,causal,lse");
    t.keep = true;
    fill(t.o, t.no, 0);
    fill(t.lse, t.nlse, 0);
    getrusage(RUSAGE_SELF, &before);
    trial_run(&t);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 * 1024); /* KiB */
    near(&t, "o", 0, t.o[0], t.v[0], 1e-6);
    trial_free(&t);
}

EACH(nothing_at_all, "softmax_fwd:f32,b1,hq2,hkv2,lq4,lk0,d8,lse")
EACH(views_of_2_to_the_62, "softmax_fwd:f32,b65536,hq16384,hkv16384,lq0,lk1073741824,d4")
EACH(many_heads, "softmax_fwd:f32,b3,hq22000,hkv11000,lq1,lk3,d4,lse")
EACH(one_query, "softmax_fwd:f32,b9,hq4,hkv2,lq1,lk77,d32,lse")
EACH(all_zero, "softmax_fwd:f32,b1,hq1,hkv1,lq20,lk33728,d512,causal,align=br")
EACH(every_yes_runs, "softmax_fwd:f32,b2,hq2,hkv1,lq3,lk9,d8,lse")
EACH(far_batches_on_a_device, "softmax_fwd:f32,b2,hq1,hkv1,lq16,lk16,d64,bias=f32,mask,lse")
ON_HOST(strides_beyond_2_to_the_31,
        "softmax_fwd:f32,b2,hq1,hkv1,lq16,lk16,d64,bias=f32,mask,lse")
ON_HOST(row_strides_beyond_2_to_the_31, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk24000,d8,lse")
ON_HOST(a_mask_of_2_gigabytes, "softmax_fwd:f32,b1,hq1,hkv1,lq40,lk46400,d4,mask,lse")
ON_HOST(a_pool_beyond_2_to_the_31, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk48,d64,pages=16,lse")
ON_HOST(f16_batches_2_to_the_30_apart, "softmax_fwd:f16,b4,hq1,hkv1,lq20,lk20,d16")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nothing_at_all),
        cmocka_unit_test(test_views_of_2_to_the_62),
        cmocka_unit_test(test_many_heads),
        cmocka_unit_test(test_one_query),
        cmocka_unit_test(test_all_zero),
        cmocka_unit_test(test_every_yes_runs),
        cmocka_unit_test(test_strides_beyond_2_to_the_31),
        cmocka_unit_test(test_row_strides_beyond_2_to_the_31),
        cmocka_unit_test(test_a_mask_of_2_gigabytes),
        cmocka_unit_test(test_a_pool_beyond_2_to_the_31),
        cmocka_unit_test(test_f16_batches_2_to_the_30_apart),
        cmocka_unit_test(test_far_batches_on_a_device),
        cmocka_unit_test(test_memory_is_linear_in_length),
    };

    return FAULTS_RUN(tests);
}
