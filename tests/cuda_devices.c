/* SPDX-License-Identifier: MIT */
/* tests/cuda_devices.c: two devices of one process, used by several threads at once. */
#include "tests/cuda_app.h"

#include <pthread.h>

enum { DEVICES = 2, THREADS = 4, RUNS = 5 };

static const char problem[] =
    "softmax_fwd:f32,b1,hq4,hkv2,lq37,lk70,d40,causal,align=br,lens,lse";

static CUcontext context[DEVICES];
static CUstream stream[DEVICES];
static attn_ctx *borrowed[DEVICES], *own[DEVICES];

static int open_all(void **state)
{
    (void)state;
    for (int d = 0; d < DEVICES; d++) {
        char selector[16];

        snprintf(selector, sizeof selector, "cuda:%d", d);
        context[d] = app_context(d);
        stream[d] = app_stream(context[d], CU_STREAM_DEFAULT);
        check_ok(attn_ctx_create(selector, &own[d]));
        check_ok(attn_ctx_create_cuda(context[d], &borrowed[d]));
    }
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    for (int d = 0; d < DEVICES; d++) {
        attn_ctx_destroy(&borrowed[d]);
        attn_ctx_destroy(&own[d]);
    }
    return 0;
}

static void each_knows_its_device(void **state)
{
    attn_device_info info;

    (void)state;
    for (int d = 0; d < DEVICES; d++) {
        char selector[16];

        snprintf(selector, sizeof selector, "cuda:%d", d);
        check_ok(attn_ctx_info(own[d], &info));
        assert_string_equal(info.selector, selector);
        check_ok(attn_ctx_info(borrowed[d], &info));
        assert_string_equal(info.selector, selector);
    }
}

/* Memory, plan and stream of the caller, several times in a row; plans of another shape
 * and copies on the context's own stream in between. */
typedef struct work {
    int device;
    job j;
    trial t;
} work;

static void *run_often(void *arg)
{
    work *const w = arg;

    for (int i = 0; i < RUNS; i++) {
        attn_plan *plan = NULL;

        if (attn_execute(w->j.plan, &w->j.args, w->j.stream) != ATTN_OK ||
            attn_softmax_forward_host_args(own[w->device], &w->t.desc, NULL, &w->t.args) !=
                ATTN_OK ||
            attn_plan_softmax(borrowed[w->device], &w->t.desc, &plan) != ATTN_OK)
            return NULL;
        attn_plan_destroy(&plan);
    }
    return arg;
}

/* What the threads wrote into host memory, against the oracle. */
static void check_host(trial *t)
{
    float *const o = floats(t->no), *const lse = floats(t->nlse);
    trial want = *t;

    want.o = o;
    want.lse = lse;
    want.args.o.data = o;
    want.args.lse.data = lse;
    trial_run(&want);
    trial_compare_to(t, o, lse);
    free(o);
    free(lse);
}

static void several_threads_on_both(void **state)
{
    static work w[THREADS];
    pthread_t thread[THREADS];
    void *good;

    (void)state;
    for (int i = 0; i < THREADS; i++) {
        const int d = i % DEVICES;

        w[i].device = d;
        job_open(&w[i].j, borrowed[d], context[d], stream[d], NULL, problem);
        trial_make(&w[i].t, &fault_oracle, problem);
    }
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_often, &w[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], &good), 0);
        assert_ptr_equal(good, &w[i]);
        job_check(&w[i].j);
        check_host(&w[i].t);
        job_close(&w[i].j);
        trial_free(&w[i].t);
    }
}

/* Its memory, also that of its pool, and its streams. */
static void one_refuses_what_is_the_others(void **state)
{
    CUdeviceptr pooled = 0;
    void *memory = NULL;
    attn_args args;
    job j;

    (void)state;
    check_ok(attn_memory_alloc(own[1], 1 << 20, &memory));
    app_enter(context[1]);
    cu_ok(cuMemAllocAsync(&pooled, 1 << 20, stream[1]));
    cu_ok(cuStreamSynchronize(stream[1]));
    app_leave();
    job_open(&j, borrowed[0], context[0], stream[0], NULL, problem);
    args = j.args;
    args.q.data = memory;
    check_error(attn_execute(j.plan, &args, stream[0]), ATTN_ERR_INVALID, "q.data: ");
    args.q.data = (void *)(uintptr_t)pooled;
    check_error(attn_execute(j.plan, &args, stream[0]), ATTN_ERR_INVALID,
                "is memory of CUDA device 1");
    check_error(attn_execute(j.plan, &j.args, stream[1]), ATTN_ERR_INVALID,
                "belongs to another CUcontext");
    job_run(&j);
    job_close(&j);
    check_error(attn_memory_upload(own[0], memory, 0, "", 1), ATTN_ERR_INVALID, "");
    app_enter(context[1]);
    cu_ok(cuMemFreeAsync(pooled, stream[1]));
    app_leave();
    attn_memory_free(own[1], &memory);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_knows_its_device),
        cmocka_unit_test(several_threads_on_both),
        cmocka_unit_test(one_refuses_what_is_the_others),
    };
    int absent, n = 0;

    setenv("EMULATED_DEVICES", "2", 1);
    if ((absent = app_open(argc, argv)))
        return absent;
    if (cu.cuDeviceGetCount(&n) || n < DEVICES) {
        printf("%d CUDA device here, the test wants %d\n", n, DEVICES);
        return EXIT_SKIPPED;
    }
    return cmocka_run_group_tests(tests, open_all, close_all);
}
