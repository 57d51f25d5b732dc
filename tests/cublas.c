/* SPDX-License-Identifier: MIT */
/* tests/cublas.c: softmax_fwd_math in rounds, and with a cuBLAS that is absent, that fails,
 * and that many threads call, against the libraries of tests/emulator. */
#include "tests/check.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

enum { N_Q = 2 * 9 * 257, N_K = 300 * 257, THREADS = 4 };

/* The keys are more than one call of cuBLAS sums up, and only it takes such a D. */
static const char problem[] = "softmax_fwd:f32,b1,hq2,hkv1,lq9,lk300,d257,causal,align=br";

static const attn_options by_name = { .size = sizeof by_name,
                                      .variant = "softmax_fwd_math" };

static const char *folder;
static float q[N_K], k[N_K], v[N_K], want[N_Q];

static attn_softmax_desc desc_of(const char *text)
{
    attn_softmax_desc desc;

    check_ok(attn_softmax_parse(text, &desc));
    return desc;
}

/* The host's answer, from the inputs' first elements. */
static void ask_the_host(const char *text, float *o)
{
    const attn_softmax_desc desc = desc_of(text);
    attn_ctx *host = NULL;

    check_ok(attn_ctx_create("host", &host));
    check_ok(attn_softmax_forward_host(host, &desc, q, k, v, o, NULL));
    attn_ctx_destroy(&host);
}

static int fill(void **state)
{
    (void)state;
    for (int i = 0; i < N_K; i++) {
        q[i] = sinf((float)i);
        k[i] = cosf((float)(3 * i));
        v[i] = sinf((float)(7 * i));
    }
    ask_the_host(problem, want);
    return 0;
}

static attn_ctx *open_with(const char *library)
{
    attn_ctx *ctx = NULL;

    setenv("ATTN_CUBLAS_LIB", library, 1);
    check_ok(attn_ctx_create("cuda:0", &ctx));
    return ctx;
}

static void absent(void **state)
{
    const char *const names[] = { "/nowhere/libcublas.so", "/", "/dev/null" };

    (void)state;
    for (int i = 0; i < 3; i++) {
        attn_ctx *ctx = open_with(names[i]);
        const attn_softmax_desc desc = desc_of(problem);
        attn_device_info info;
        attn_plan *plan = NULL;

        check_ok(attn_ctx_info(ctx, &info));
        assert_string_equal(info.blas, "");
        check_error(attn_plan_softmax_with(ctx, &desc, &by_name, &plan),
                    ATTN_ERR_UNSUPPORTED, "cuBLAS was not found (ATTN_CUBLAS_LIB");
        check_error(attn_plan_softmax(ctx, &desc, &plan), ATTN_ERR_UNSUPPORTED,
                    "cuBLAS was not found (ATTN_CUBLAS_LIB");
        assert_null(plan);
        attn_ctx_destroy(&ctx);
    }
}

/* Only where no other takes the problem. */
static void last_resort(void **state)
{
    const attn_softmax_desc large = desc_of(problem);
    const attn_softmax_desc usual = desc_of("softmax_fwd:f32,b1,hq2,hkv1,lq9,lk300,d256");
    attn_ctx *ctx = open_with(folder);
    attn_device_info info;
    attn_plan *plan = NULL;
    char text[256];

    (void)state;
    check_ok(attn_ctx_info(ctx, &info));
    assert_non_null(strstr(info.blas, "cuBLAS "));
    check_ok(attn_plan_softmax(ctx, &large, &plan));
    check_ok(attn_plan_text(plan, text, sizeof text, NULL));
    assert_non_null(strstr(text, "cuda:softmax_fwd_math["));
    attn_plan_destroy(&plan);
    check_ok(attn_plan_softmax(ctx, &usual, &plan));
    check_ok(attn_plan_text(plan, text, sizeof text, NULL));
    assert_null(strstr(text, "softmax_fwd_math"));
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

/* By name, so that a failed self-test fails here. */
static void check_answer(attn_ctx *ctx, const char *text)
{
    static float have[N_K], expected[N_K];
    const attn_softmax_desc d = desc_of(text);
    const attn_args args = {
        .size = sizeof args,
        .q = attn_tensor_bhld(q, d.type, d.batch, d.heads_q, d.len_q, d.dim_qk),
        .k = attn_tensor_bhld(k, d.type, d.batch, d.heads_kv, d.len_kv, d.dim_qk),
        .v = attn_tensor_bhld(v, d.type, d.batch, d.heads_kv, d.len_kv, d.dim_qk),
        .o = attn_tensor_bhld(have, d.type, d.batch, d.heads_q, d.len_q, d.dim_qk),
    };

    ask_the_host(text, expected);
    check_ok(attn_softmax_forward_host_args(ctx, &d, &by_name, &args));
    for (int64_t i = 0; i < d.batch * d.heads_q * d.len_q * d.dim_qk; i++)
        assert_true(fabsf(have[i] - expected[i]) < 2e-6f);
}

/* Neither all heads share a round nor all queries of one. */
static void rounds(void **state)
{
    attn_ctx *ctx;

    (void)state;
    setenv("EMULATED_MEMORY_KIB", "4300", 1); /* 4 MiB are cuBLAS's */
    ctx = open_with(folder);
    unsetenv("EMULATED_MEMORY_KIB");
    check_answer(ctx, "softmax_fwd:f32,b2,hq4,hkv2,lq40,lk200,d32");
    check_answer(ctx, "softmax_fwd:f32,b2,hq4,hkv2,lq40,lk200,d32,causal,align=br");
    attn_ctx_destroy(&ctx);
}

/* The self-test's groups are sized for the plan's rows, of which it has more. */
static void fewer_rows_than_the_self_test(void **state)
{
    attn_ctx *ctx = open_with(folder);

    (void)state;
    check_answer(ctx, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk9,d257");
    attn_ctx_destroy(&ctx);
}

static void fails(void **state)
{
    static const char says[] = "cublasGemmStridedBatchedEx = 13 (CUBLAS_STATUS_EXECUTION_"
                               "FAILED: an error of the emulator)";
    const attn_softmax_desc desc = desc_of(problem);
    attn_ctx *ctx = open_with(folder);
    static float o[N_Q];
    attn_plan *plan = NULL;

    (void)state;
    setenv("EMULATED_CUBLAS", "13", 1);
    check_error(attn_plan_softmax(ctx, &desc, &plan), ATTN_ERR_UNSUPPORTED, says);
    attn_ctx_destroy(&ctx);
    unsetenv("EMULATED_CUBLAS");
    ctx = open_with(folder);
    check_ok(attn_softmax_forward_host(ctx, &desc, q, k, v, o, NULL)); /* it is proven */
    setenv("EMULATED_CUBLAS", "13", 1);
    check_error(attn_softmax_forward_host(ctx, &desc, q, k, v, o, NULL), ATTN_ERR_DEVICE,
                says);
    setenv("EMULATED_CUBLAS", "3", 1);
    check_error(attn_softmax_forward_host(ctx, &desc, q, k, v, o, NULL), ATTN_ERR_NO_MEMORY,
                "cublasGemmStridedBatchedEx = 3");
    unsetenv("EMULATED_CUBLAS");
    attn_ctx_destroy(&ctx);
}

static void *run_often(void *ctx)
{
    const attn_softmax_desc desc = desc_of(problem);
    static _Thread_local float o[N_Q];

    for (int run = 0; run < 3; run++) {
        if (attn_softmax_forward_host(ctx, &desc, q, k, v, o, NULL) != ATTN_OK) {
            fprintf(stderr, "%s\n", attn_last_error());
            return NULL;
        }
        for (int i = 0; i < N_Q; i++)
            if (!(fabsf(o[i] - want[i]) < 2e-6f)) {
                fprintf(stderr, "o[%d] = %g, want %g\n", i, (double)o[i], (double)want[i]);
                return NULL;
            }
    }
    return ctx;
}

/* One handle, whose stream and room are set for each product. */
static void any_thread(void **state)
{
    attn_ctx *ctx = open_with(folder);
    pthread_t thread[THREADS];
    void *good;

    (void)state;
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_often, ctx), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], &good), 0);
        assert_ptr_equal(good, ctx);
    }
    attn_ctx_destroy(&ctx);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent), cmocka_unit_test(last_resort),
        cmocka_unit_test(rounds), cmocka_unit_test(fewer_rows_than_the_self_test),
        cmocka_unit_test(fails),  cmocka_unit_test(any_thread),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER_OF_THE_EMULATOR\n", argv[0]);
        return 2;
    }
    folder = argv[1];
    return cmocka_run_group_tests(tests, fill, NULL);
}
