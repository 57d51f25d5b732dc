/* SPDX-License-Identifier: MIT */
/* tests/cuda_broken.c: contexts that a kernel broke, or that are gone: every call answers
 * with the driver's error, and all that the library holds can be destroyed. Each case in a
 * process of its own, which is lost to CUDA afterwards. */
#include "tests/cuda_app.h"

#include <sys/wait.h>
#include <unistd.h>

static const char problem[] = "softmax_fwd:f32,b1,hq2,hkv2,lq9,lk40,d24,lens,lse";
static const char other_problem[] = "softmax_fwd:f32,b1,hq2,hkv2,lq9,lk40,d24,sinks,lse";

/* Writes where no memory is. */
static const char poke[] = ".version 7.0\n"
                           ".target sm_75\n"
                           ".address_size 64\n"
                           ".visible .entry poke()\n"
                           "{\n"
                           "    .reg .u32 %one;\n"
                           "    .reg .u64 %at;\n"
                           "    mov.u32 %one, 1;\n"
                           "    mov.u64 %at, 64;\n"
                           "    st.global.u32 [%at], %one;\n"
                           "    ret;\n"
                           "}\n";

static void break_context(CUcontext context, CUstream stream)
{
    CUfunction function = NULL;
    CUmodule module = NULL;

    if (cu.break_context) {
        cu.break_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
        return;
    }
    app_enter(context);
    cu_ok(cuModuleLoadData(&module, poke));
    cu_ok(cuModuleGetFunction(&function, module, "poke"));
    cu_ok(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    assert_int_equal(cu.cuStreamSynchronize(stream), CUDA_ERROR_ILLEGAL_ADDRESS);
    app_leave();
}

/* `says` is the driver's name of the error. */
static void every_call_fails(attn_ctx *ctx, const job *j, attn_status want,
                             const char *says)
{
    static const char *const variants[] = { "softmax_fwd_naive", "softmax_fwd_math", NULL };
    void *memory = NULL;
    attn_plan *plan = NULL;
    attn_ctx *again = NULL;
    attn_softmax_desc desc;
    attn_device_info info;
    uint64_t ns = 1;
    float x = 0;

    for (int i = 0; i < 2; i++) /* a second call is no worse */
        check_error(attn_execute(j->plan, &j->args, j->stream), want, says);
    check_error(attn_execute_timed(j->plan, &j->args, j->stream, &ns), want, says);
    assert_int_equal(ns, 0);
    check_error(attn_ctx_wait(ctx), want, says);
    check_error(attn_memory_alloc(ctx, 64, &memory), want, says);
    assert_null(memory);
    check_error(attn_memory_upload(ctx, j->args.q.data, 0, &x, sizeof x), want, says);
    check_error(attn_memory_download(ctx, &x, j->args.o.data, 0, sizeof x), want, says);
    check_ok(attn_softmax_parse(other_problem, &desc));
    for (int i = 0; i < 3; i++) {
        const attn_options options = { .size = sizeof options, .variant = variants[i] };

        check_error(attn_plan_softmax_with(ctx, &desc, &options, &plan), want, says);
        assert_null(plan);
    }
    check_error(attn_ctx_create_cuda(j->context, &again), want, says);
    assert_null(again);
    check_ok(attn_ctx_info(ctx, &info));
}

static void a_broken_context(void **state)
{
    CUcontext context = app_context(0);
    const CUstream stream = app_stream(context, CU_STREAM_DEFAULT);
    attn_ctx *borrowed = NULL, *own = NULL; /* of the same context, the primary one */
    job j;

    (void)state;
    check_ok(attn_ctx_create_cuda(context, &borrowed));
    check_ok(attn_ctx_create("cuda:0", &own));
    job_open(&j, borrowed, context, stream, NULL, problem);
    job_run(&j);
    break_context(context, stream);
    every_call_fails(borrowed, &j, ATTN_ERR_DEVICE, "CUDA_ERROR_ILLEGAL_ADDRESS");
    every_call_fails(own, &j, ATTN_ERR_DEVICE, "CUDA_ERROR_ILLEGAL_ADDRESS");
    attn_plan_destroy(&j.plan);
    attn_ctx_destroy(&own);
    attn_ctx_destroy(&borrowed);
    assert_null(borrowed);
}

/* cuBLAS and cuDNN keep things of their own in a context. */
static void a_broken_context_with(const char *variant, const char *text)
{
    CUcontext context = app_context(0);
    const CUstream stream = app_stream(context, CU_STREAM_DEFAULT);
    attn_ctx *ctx = NULL;
    job j;

    check_ok(attn_ctx_create_cuda(context, &ctx));
    job_open(&j, ctx, context, stream, variant, text);
    job_run(&j);
    break_context(context, stream);
    every_call_fails(ctx, &j, ATTN_ERR_DEVICE, "CUDA_ERROR_ILLEGAL_ADDRESS");
    attn_plan_destroy(&j.plan);
    attn_ctx_destroy(&ctx);
    assert_null(ctx);
}

static void a_broken_context_with_cublas(void **state)
{
    (void)state;
    a_broken_context_with("softmax_fwd_math", problem);
}

static void a_broken_context_with_cudnn(void **state)
{
    attn_device_info info;
    attn_ctx *ctx = NULL;

    (void)state;
    check_ok(attn_ctx_create("cuda:0", &ctx));
    check_ok(attn_ctx_info(ctx, &info));
    attn_ctx_destroy(&ctx);
    if (!info.cudnn_version || info.capability < 80)
        skip();
    a_broken_context_with("softmax_fwd_cudnn",
                          "softmax_fwd:bf16,b1,hq2,hkv2,lq9,lk40,d24,causal,lse");
}

/* The caller destroyed it too early, against the rule in attn/cuda.h: where the driver still
 * answers, that is an error. The real one (580.159) follows the handle and crashes. */
static void a_context_that_is_gone(void **state)
{
    const CUcontext primary = app_context(0);
    const CUstream stream = app_stream(primary, CU_STREAM_DEFAULT);
    CUcontext context = NULL;
    attn_ctx *ctx = NULL;
    job j, after;

    (void)state;
    assert_int_equal(cu.create(&context, 0, 0), CUDA_SUCCESS);
    app_leave();
    check_ok(attn_ctx_create_cuda(context, &ctx));
    job_open(&j, ctx, context, app_stream(context, CU_STREAM_DEFAULT), NULL, problem);
    job_run(&j);
    cu_ok(cuCtxDestroy(context));
    every_call_fails(ctx, &j, ATTN_ERR_INVALID, "cuCtxPushCurrent = ");
    attn_plan_destroy(&j.plan);
    attn_ctx_destroy(&ctx);
    assert_null(ctx);

    check_ok(attn_ctx_create_cuda(primary, &ctx));
    job_open(&after, ctx, primary, stream, NULL, problem);
    job_run(&after);
    job_close(&after);
    attn_ctx_destroy(&ctx);
}

/* What it returned; also of a crash, which prints the signal. */
static int run_alone(const struct CMUnitTest *test, int argc, char **argv)
{
    const pid_t child = fork();
    int status = 1;

    if (!child) {
        const struct CMUnitTest alone[] = { *test };
        const int absent = app_open(argc, argv);
        const int result = absent ? absent : cmocka_run_group_tests(alone, NULL, NULL);

        fflush(NULL);
        _exit(result);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 1;
    if (WIFEXITED(status))
        return WEXITSTATUS(status);
    printf("%s: ended by signal %d\n", test->name, WTERMSIG(status));
    return 1;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_context),
        cmocka_unit_test(a_broken_context_with_cublas),
        cmocka_unit_test(a_broken_context_with_cudnn),
        cmocka_unit_test(a_context_that_is_gone),
    };
    int failed = 0;

    for (size_t i = 0; i < sizeof tests / sizeof tests[0]; i++) {
        if (tests[i].test_func == a_context_that_is_gone && argc < 2)
            continue;

        const int result = run_alone(&tests[i], argc, argv);

        if (result == EXIT_SKIPPED)
            return result;
        failed += result != 0;
    }
    return failed;
}
