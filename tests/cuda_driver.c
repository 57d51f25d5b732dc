/* SPDX-License-Identifier: MIT */
/* tests/cuda_driver.c: a caller's own CUDA context, stream and memory, and drivers that
 * are absent or too old, against the emulator of tests/emulator. */
#include "tests/check.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/cuda.h>

enum { H = 2, L = 37, D = 20, N = H * L * D, THREADS = 4 };

/* The emulator's side of a caller: what an application has of <cuda.h>. */
static struct {
    int (*retain)(CUcontext *, int);
    int (*release)(int);
    int (*push)(CUcontext);
    int (*pop)(CUcontext *);
    int (*make_stream)(void **, unsigned);
    int (*alloc)(CUdeviceptr *, size_t);
    int (*release_block)(CUdeviceptr);
    CUcontext (*second)(void);
} cu;

static CUcontext context;
static void *stream;
static char folder[4096];

static void *find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    if (!symbol)
        fail_msg("the emulator has no %s", name);
    return symbol;
}

#define FIND(field, name) *(void **)&cu.field = find(library, name)

static int open_emulator(void **state)
{
    char path[4200];
    void *library;

    (void)state;
    snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    library = dlopen(path, RTLD_NOW);
    if (!library)
        fail_msg("%s", dlerror());
    FIND(retain, "cuDevicePrimaryCtxRetain");
    FIND(release, "cuDevicePrimaryCtxRelease_v2");
    FIND(push, "cuCtxPushCurrent_v2");
    FIND(pop, "cuCtxPopCurrent_v2");
    FIND(make_stream, "cuStreamCreate");
    FIND(alloc, "cuMemAlloc_v2");
    FIND(release_block, "cuMemFree_v2");
    FIND(second, "emulated_second_context");
    assert_int_equal(cu.retain(&context, 0), 0);
    assert_int_equal(cu.push(context), 0);
    assert_int_equal(cu.make_stream(&stream, 0), 0);
    assert_int_equal(cu.pop(&context), 0);
    return 0;
}

/* A library is opened once in a process, so each test names it anew: by other spellings
 * of its path. */
static void name_library(int slashes, const char *end)
{
    char path[8400];

    snprintf(path, sizeof path, "%s%.*s%s", folder, slashes, "////////////////", end);
    setenv("ATTN_CUDA_LIB", path, 1);
}

static void drivers_that_do_not_do(void **state)
{
    static const struct {
        const char *variable, *value, *says;
    } cases[] = {
        { "EMULATED_VERSION", "12040",
          "the driver is of CUDA 12.4, the kernels here want" },
        { "EMULATED_DEVICES", "0", "cuInit = 100 (CUDA_ERROR_NO_DEVICE" },
        { "EMULATED_CAPABILITY", "70", "none of compute capability 7.5" },
    };
    attn_ctx *ctx = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        name_library((int)i + 2, "");
        setenv(cases[i].variable, cases[i].value, 1);
        check_error(attn_ctx_create("cuda:0", &ctx), ATTN_ERR_NO_DEVICE, cases[i].says);
        assert_null(ctx);
        unsetenv(cases[i].variable);
    }
    setenv("ATTN_CUDA_LIB", "/nowhere/libcuda.so.1", 1);
    check_error(attn_ctx_create("cuda:0", &ctx), ATTN_ERR_NO_DEVICE,
                "/nowhere/libcuda.so.1");
    check_error(attn_ctx_create_cuda(context, &ctx), ATTN_ERR_NO_DEVICE, "no usable CUDA");
    name_library(1, "libcuda.so.1");
    check_ok(attn_ctx_create("cuda:0", &ctx));
    attn_ctx_destroy(&ctx);
}

static void auto_takes_cuda_first(void **state)
{
    attn_ctx *ctx = NULL;
    attn_device_info info;

    (void)state;
    name_library(0, "");
    check_ok(attn_ctx_create("auto", &ctx));
    check_ok(attn_ctx_info(ctx, &info));
    assert_string_equal(info.selector, "cuda:0");
    assert_string_equal(info.isa, "sm_90");
    assert_int_equal(info.kind, ATTN_DEVICE_GPU);
    attn_ctx_destroy(&ctx);
}

/* One problem in the caller's memory, and the host's answer to it. */
typedef struct fixture {
    attn_ctx *ctx;
    attn_plan *plan;
    attn_args args;
    CUdeviceptr q, k, v, o;
    float in[3][N], want[N], have[N];
} fixture;

static const int64_t size[4] = { 1, H, L, D }, stride[4] = { H * L * D, L *D, D, 1 };

static CUdeviceptr block(fixture *f, const float *data)
{
    CUdeviceptr at = 0;

    assert_int_equal(cu.push(context), 0);
    assert_int_equal(cu.alloc(&at, sizeof f->want), 0);
    assert_int_equal(cu.pop(&context), 0);
    if (data)
        check_ok(
            attn_memory_upload(f->ctx, (void *)(uintptr_t)at, 0, data, sizeof f->want));
    return at;
}

static void open_fixture(fixture *f)
{
    static const char problem[] = "softmax_fwd:f32,b1,hq2,hkv2,lq37,lk37,d20,causal";
    attn_softmax_desc desc;
    attn_ctx *host = NULL;

    memset(f, 0, sizeof *f);
    name_library(0, "");
    check_ok(attn_ctx_create_cuda(context, &f->ctx));
    check_ok(attn_softmax_parse(problem, &desc));
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < N; i++)
            f->in[t][i] = sinf((float)(i * (t + 3)));
    check_ok(attn_ctx_create("host", &host));
    check_ok(attn_softmax_forward_host(host, &desc, f->in[0], f->in[1], f->in[2], f->want,
                                       NULL));
    attn_ctx_destroy(&host);
    check_ok(attn_plan_softmax(f->ctx, &desc, &f->plan));
    f->q = block(f, f->in[0]);
    f->k = block(f, f->in[1]);
    f->v = block(f, f->in[2]);
    f->o = block(f, NULL);
    f->args = (attn_args){ .size = sizeof f->args,
                           .q = attn_tensor_cuda(f->q, ATTN_F32, size, stride),
                           .k = attn_tensor_cuda(f->k, ATTN_F32, size, stride),
                           .v = attn_tensor_cuda(f->v, ATTN_F32, size, stride),
                           .o = attn_tensor_cuda(f->o, ATTN_F32, size, stride) };
}

static void close_fixture(fixture *f)
{
    const CUdeviceptr all[] = { f->q, f->k, f->v, f->o };

    for (int i = 0; i < 4; i++)
        cu.release_block(all[i]);
    attn_plan_destroy(&f->plan);
    attn_ctx_destroy(&f->ctx);
}

static void check_answer(fixture *f)
{
    check_ok(
        attn_memory_download(f->ctx, f->have, (void *)(uintptr_t)f->o, 0, sizeof f->have));
    for (int i = 0; i < N; i++)
        assert_true(fabsf(f->have[i] - f->want[i]) < 1e-5f);
}

static void callers_objects(void **state)
{
    CUcontext other = NULL;
    uint64_t ns = 0;
    fixture f;

    (void)state;
    open_fixture(&f);
    check_error(attn_execute(f.plan, &f.args, NULL), ATTN_ERR_INVALID, "stream is NULL");
    check_ok(attn_execute(f.plan, &f.args, stream));
    check_answer(&f);
    check_ok(attn_execute_timed(f.plan, &f.args, stream, &ns));
    assert_true(ns > 0);
    assert_int_not_equal(cu.pop(&other), 0); /* no context was left behind */
    close_fixture(&f);
}

static void wrong_objects(void **state)
{
    CUdeviceptr foreign = 0;
    CUcontext popped = NULL;
    void *foreign_stream = NULL;
    attn_ctx *none = NULL;
    attn_args args;
    fixture f;

    (void)state;
    open_fixture(&f);
    assert_int_equal(cu.push(cu.second()), 0);
    assert_int_equal(cu.alloc(&foreign, sizeof f.want), 0);
    assert_int_equal(cu.make_stream(&foreign_stream, 0), 0);
    assert_int_equal(cu.pop(&popped), 0);

    check_error(attn_execute(f.plan, &f.args, foreign_stream), ATTN_ERR_INVALID,
                "belongs to another CUcontext");
    args = f.args;
    args.k.data = (void *)(uintptr_t)foreign;
    check_error(attn_execute(f.plan, &args, stream), ATTN_ERR_INVALID, "k.data: ");
    args.k.data = f.in[1];
    check_error(attn_execute(f.plan, &args, stream), ATTN_ERR_INVALID,
                "no memory that CUDA knows of");
    args = f.args;
    args.v.data = (void *)(uintptr_t)(f.v + 4); /* one element on: reaches past the end */
    check_error(attn_execute(f.plan, &args, stream), ATTN_ERR_INVALID, "reaches byte");
    args.v = attn_tensor_cuda(f.v + 4, ATTN_F32, (int64_t[]){ 1, H, L, D },
                              (int64_t[]){ 0, 0, 0, 1 });
    check_error(attn_execute(f.plan, &args, stream), ATTN_ERR_INVALID,
                "v starts at a byte that is no multiple");
    args.v.data = (void *)(uintptr_t)(f.v + 2);
    check_error(attn_execute(f.plan, &args, stream), ATTN_ERR_INVALID, "multiple of its");
    args = f.args;
    args.o.data = args.q.data;
    check_error(attn_execute(f.plan, &args, stream), ATTN_ERR_INVALID, "overlaps");
    check_error(attn_ctx_create_cuda(NULL, &none), ATTN_ERR_INVALID, "context is NULL");
    check_error(attn_ctx_create_cuda((CUcontext)&f, &none), ATTN_ERR_INVALID, "= 201");

    /* nothing that failed is felt afterwards */
    check_ok(attn_execute(f.plan, &f.args, stream));
    check_answer(&f);
    close_fixture(&f);
    cu.release_block(foreign);
}

static void *run_often(void *arg)
{
    fixture *const f = arg;

    for (int i = 0; i < 5; i++)
        if (attn_execute(f->plan, &f->args, stream) != ATTN_OK)
            return NULL;
    return arg;
}

static void any_thread(void **state)
{
    pthread_t thread[THREADS];
    void *good;
    fixture f;

    (void)state;
    open_fixture(&f);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, run_often, &f), 0);
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(thread[i], &good), 0);
        assert_ptr_equal(good, &f);
    }
    check_answer(&f);
    close_fixture(&f);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drivers_that_do_not_do),
        cmocka_unit_test(auto_takes_cuda_first),
        cmocka_unit_test(callers_objects),
        cmocka_unit_test(wrong_objects),
        cmocka_unit_test(any_thread),
    };

    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER_OF_THE_EMULATOR\n", argv[0]);
        return 2;
    }
    snprintf(folder, sizeof folder, "%s", argv[1]);
    return cmocka_run_group_tests(tests, open_emulator, NULL);
}
