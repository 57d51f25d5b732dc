/* SPDX-License-Identifier: MIT */
/* tests/cuda_app.c: the driver, and a problem in memory of the caller, for cuda_*.c. */
#include "tests/cuda_app.h"

#include <dlfcn.h>

#include "src/core/float16.h"

#define TEXT(name) #name
#define NAME(name) TEXT(name)

app_driver cu;
app_group app;

static attn_device_info host;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define X(name) { NAME(name), offsetof(app_driver, name) },
    APP_FUNCTIONS(X)
#undef X
        { "cuCtxCreate_v2", offsetof(app_driver, create) },
};

static bool find_functions(void *library)
{
    void *symbol;

    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (!(symbol = dlsym(library, functions[i].name)))
            return false;
        memcpy((char *)&cu + functions[i].offset, &symbol, sizeof symbol);
    }
    symbol = dlsym(library, "emulated_break");
    memcpy(&cu.break_context, &symbol, sizeof symbol);
    return true;
}

int app_open(int argc, char **argv)
{
    char path[4200] = "libcuda.so.1";
    const char *folder = argc > 1 ? argv[1] : getenv("ATTN_CUDA_LIB");
    attn_ctx *oracle = NULL;
    void *library;
    int n = 0;

    if (folder)
        snprintf(path, sizeof path, "%s/libcuda.so.1", folder);
    if (argc > 1) {
        setenv("ATTN_CUDA_LIB", folder, 1);
        setenv("ATTN_CUBLAS_LIB", folder, 1);
        setenv("ATTN_CUDNN_LIB", folder, 1);
    }
    if (!(library = dlopen(path, RTLD_NOW)) || !find_functions(library)) {
        printf("no CUDA driver here: %s\n", dlerror());
        return EXIT_SKIPPED;
    }
    if (cu.cuInit(0) || cu.cuDeviceGetCount(&n) || !n) {
        printf("%s finds no device\n", path);
        return EXIT_SKIPPED;
    }
    if (attn_ctx_create("host", &oracle) || attn_ctx_info(oracle, &host))
        abort();
    fault_oracle = (subject){ oracle, &host, "softmax_fwd_reference", 0 };
    return 0;
}

CUcontext app_context(int device)
{
    CUcontext context = NULL;

    cu_ok(cuDevicePrimaryCtxRetain(&context, device));
    return context;
}

void app_enter(CUcontext context)
{
    cu_ok(cuCtxPushCurrent(context));
}

void app_leave(void)
{
    CUcontext context;

    cu_ok(cuCtxPopCurrent(&context));
}

CUstream app_stream(CUcontext context, unsigned flags)
{
    CUstream stream = NULL;

    app_enter(context);
    cu_ok(cuStreamCreate(&stream, flags));
    app_leave();
    return stream;
}

CUdeviceptr app_alloc(CUcontext context, size_t bytes)
{
    CUdeviceptr at = 0;

    app_enter(context);
    cu_ok(cuMemAlloc(&at, bytes));
    app_leave();
    return at;
}

void app_free(CUcontext context, CUdeviceptr memory)
{
    app_enter(context);
    cu_ok(cuMemFree(memory));
    app_leave();
}

int app_begin(void **state)
{
    (void)state;
    app.context = app_context(0);
    app.stream = app_stream(app.context, CU_STREAM_DEFAULT);
    check_ok(attn_ctx_create_cuda(app.context, &app.ctx));
    return 0;
}

int app_end(void **state)
{
    (void)state;
    attn_ctx_destroy(&app.ctx);
    app_enter(app.context);
    cu_ok(cuStreamDestroy(app.stream));
    app_leave();
    return 0;
}

/* Where attn_args has the tensors that a trial fills. */
static const size_t places[] = {
#define AT(field) offsetof(attn_args, field)
    AT(q),       AT(k),       AT(v),     AT(o),     AT(lse),
    AT(bias),    AT(mask),    AT(alibi), AT(sinks), AT(lens_q),
    AT(lens_kv), AT(offsets), AT(cu_q),  AT(cu_k),  AT(block_table),
#undef AT
};
enum { N_PLACES = sizeof places / sizeof places[0] };

static attn_tensor *tensor(attn_args *args, int i)
{
    return (attn_tensor *)(void *)((char *)args + places[i]);
}

static int64_t elements(const attn_tensor *t)
{
    return t->size[0] * t->size[1] * t->size[2] * t->size[3];
}

static size_t bytes_of(const attn_tensor *t)
{
    return (size_t)elements(t) * attn_type_bytes(t->type);
}

static CUdeviceptr address(const attn_tensor *t)
{
    return (CUdeviceptr)(uintptr_t)t->data;
}

void job_open(job *j, attn_ctx *ctx, CUcontext context, CUstream stream,
              const char *variant, const char *problem)
{
    const attn_options options = { .size = sizeof options, .variant = variant };
    size_t bytes;

    memset(j, 0, sizeof *j);
    j->context = context;
    j->stream = stream;
    trial_make(&j->t, &fault_oracle, problem);
    snprintf(j->t.name, sizeof j->t.name, "%s %s", variant ? variant : "chosen", problem);
    if (attn_plan_softmax_with(ctx, &j->t.desc, &options, &j->plan) != ATTN_OK)
        fail_msg("%s: %s", j->t.name, attn_last_error());
    j->args = j->t.args;
    for (int i = 0; i < N_PLACES; i++) {
        attn_tensor *const t = tensor(&j->args, i);

        if (t->type != ATTN_TYPE_NONE)
            t->data = (void *)(uintptr_t)app_alloc(context, bytes_of(t));
    }
    if ((bytes = attn_plan_workspace_bytes(j->plan))) {
        j->args.workspace = (void *)(uintptr_t)app_alloc(context, bytes);
        j->args.workspace_bytes = bytes;
    }
    job_send(j);
}

void job_close(job *j)
{
    for (int i = 0; i < N_PLACES; i++)
        if (tensor(&j->args, i)->data)
            app_free(j->context, address(tensor(&j->args, i)));
    if (j->args.workspace)
        app_free(j->context, (CUdeviceptr)(uintptr_t)j->args.workspace);
    attn_plan_destroy(&j->plan);
    trial_free(&j->t);
}

static void send(const job *j, const attn_tensor *to, const attn_tensor *from)
{
    const bool is_16 = to->type == ATTN_BF16;
    const int64_t n = elements(from);
    uint16_t *const copy = malloc((size_t)n * sizeof *copy);

    assert_non_null(copy);
    for (int64_t i = 0; is_16 && i < n; i++)
        copy[i] = attn_bf16_from_f32(((const float *)from->data)[i]);
    app_enter(j->context);
    cu_ok(cuMemcpyAsync(address(to), (CUdeviceptr)(uintptr_t)(is_16 ? copy : from->data),
                        bytes_of(to), j->stream));
    cu_ok(cuStreamSynchronize(j->stream));
    app_leave();
    free(copy);
}

void job_send(job *j)
{
    fill(j->t.o, j->t.no, NAN);
    fill(j->t.lse, j->t.nlse, NAN);
    for (int i = 0; i < N_PLACES; i++)
        if (tensor(&j->args, i)->type != ATTN_TYPE_NONE)
            send(j, tensor(&j->args, i), tensor(&j->t.args, i));
}

static void receive(const job *j, const attn_tensor *from, float *to)
{
    uint16_t *const copy = (uint16_t *)to;

    app_enter(j->context);
    cu_ok(cuMemcpyAsync((CUdeviceptr)(uintptr_t)to, address(from), bytes_of(from),
                        j->stream));
    cu_ok(cuStreamSynchronize(j->stream));
    app_leave();
    for (int64_t i = elements(from) - 1; from->type == ATTN_BF16 && i >= 0; i--)
        to[i] = attn_f32_from_bf16(copy[i]);
}

void job_check_to(job *j, const float *o, const float *lse)
{
    receive(j, &j->args.o, j->t.o);
    receive(j, &j->args.lse, j->t.lse);
    trial_compare_to(&j->t, o, lse);
}

void job_check(job *j)
{
    const size_t o_bytes = (size_t)j->t.no * sizeof(float);
    const size_t lse_bytes = (size_t)j->t.nlse * sizeof(float);
    float *const o = floats(j->t.no), *const lse = floats(j->t.nlse);

    trial_run(&j->t);
    memcpy(o, j->t.o, o_bytes);
    memcpy(lse, j->t.lse, lse_bytes);
    job_check_to(j, o, lse);
    free(o);
    free(lse);
}

void job_run(job *j)
{
    job_send(j);
    check_ok(attn_execute(j->plan, &j->args, j->stream));
    job_check(j);
}
