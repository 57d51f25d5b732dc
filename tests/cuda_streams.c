/* SPDX-License-Identifier: MIT */
/* tests/cuda_streams.c: a caller's own CUDA context and streams of every kind, from any
 * thread. */
#include "tests/cuda_app.h"

#include <pthread.h>

enum { THREADS = 4, RUNS = 5 };

static const char problem[] = "softmax_fwd:f32,b1,hq2,hkv2,lq37,lk37,d20,causal,lse";

/* Left as it was: none, or another one. */
static void the_current_context_stays(void **state)
{
    CUcontext other = NULL, found = NULL;
    job j;

    (void)state;
    job_open(&j, app.ctx, app.context, app.stream, NULL, problem);
    job_run(&j);
    assert_int_equal(cu.cuCtxPopCurrent(&found), CUDA_ERROR_INVALID_CONTEXT);
    assert_int_equal(cu.create(&other, 0, 0), CUDA_SUCCESS); /* and makes it current */
    job_run(&j);
    cu_ok(cuCtxPopCurrent(&found));
    assert_ptr_equal(found, other);
    cu_ok(cuCtxDestroy(other));
    job_close(&j);
}

static void streams_of_every_kind(void **state)
{
    const CUstream kinds[] = { app.stream, app_stream(app.context, CU_STREAM_NON_BLOCKING),
                               CU_STREAM_LEGACY, CU_STREAM_PER_THREAD };
    uint64_t ns;

    (void)state;
    for (int i = 0; i < 4; i++) {
        job j;

        job_open(&j, app.ctx, app.context, kinds[i], NULL, problem);
        job_run(&j);
        check_ok(attn_execute_timed(j.plan, &j.args, kinds[i], &ns));
        assert_true(ns > 0);
        job_check(&j);
        job_close(&j);
    }
    app_enter(app.context);
    cu_ok(cuStreamDestroy(kinds[1]));
    app_leave();
}

static void streams_that_will_not_do(void **state)
{
    CUcontext other = NULL;
    CUstream foreign = NULL;
    attn_ctx *none = NULL;
    uint64_t ns = 1;
    job j;

    (void)state;
    assert_int_equal(cu.create(&other, 0, 0), CUDA_SUCCESS);
    app_leave();
    foreign = app_stream(other, CU_STREAM_DEFAULT);
    job_open(&j, app.ctx, app.context, app.stream, NULL, problem);
    check_error(attn_execute(j.plan, &j.args, NULL), ATTN_ERR_INVALID, "stream is NULL");
    check_error(attn_execute(j.plan, &j.args, foreign), ATTN_ERR_INVALID,
                "belongs to another CUcontext");
    check_error(attn_execute_timed(j.plan, &j.args, foreign, &ns), ATTN_ERR_INVALID,
                "belongs to another CUcontext");
    assert_int_equal(ns, 0);
    check_error(attn_ctx_create_cuda(NULL, &none), ATTN_ERR_INVALID, "context is NULL");
    assert_null(none);
    job_run(&j); /* nothing that failed is felt afterwards */
    job_close(&j);
    cu_ok(cuCtxDestroy(other));
}

static void *run_often(void *arg)
{
    const job *const j = arg;

    for (int i = 0; i < RUNS; i++)
        if (attn_execute(j->plan, &j->args, j->stream) != ATTN_OK)
            return NULL;
    return arg;
}

/* One context and one stream; memory and plans of their own. */
static void any_thread(void **state)
{
    pthread_t thread[THREADS];
    job j[THREADS];
    void *good;

    (void)state;
    for (int i = 0; i < THREADS; i++)
        job_open(&j[i], app.ctx, app.context, app.stream, i % 2 ? "softmax_fwd_math" : NULL,
                 problem);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_often, &j[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], &good), 0);
        assert_ptr_equal(good, &j[i]);
        job_check(&j[i]);
        job_close(&j[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_current_context_stays),
        cmocka_unit_test(streams_of_every_kind),
        cmocka_unit_test(streams_that_will_not_do),
        cmocka_unit_test(any_thread),
    };
    const int absent = app_open(argc, argv);

    return absent ? absent : cmocka_run_group_tests(tests, app_begin, app_end);
}
