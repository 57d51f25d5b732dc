/* SPDX-License-Identifier: MIT */
/* gpu/launch_cost.c: what the host pays: for the first use of a variant in a process, and
 * for one launch of a plan that is there, beside the driver's own calls that it is made of:
 * the floor is an empty kernel that the driver alone launches.
 *
 *   cc -O2 -Iinclude tools/gpu/launch_cost.c -Lbuild/src -Wl,-rpath,$PWD/build/src \
 *      -lattn -ldl -lm -o launch_cost && ./launch_cost [VARIANT PROBLEM]...
 *
 * A launch: attn_execute() without waiting, LAUNCHES in a row, ROUNDS times with a wait
 * between; least and median of the rounds. Each row runs in a process of its own, since
 * the first use is the first of the process; the context is timed apart, but on a machine
 * whose driver is not kept awake it has the driver's start in it. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <attn/attn.h>
#include <attn/cuda.h>

enum { LAUNCHES = 200, ROUNDS = 50, CALLS = 10000 };

#define CHECK(call)                                       \
    do {                                                  \
        if ((call) != ATTN_OK) {                          \
            printf("%s: %s\n", #call, attn_last_error()); \
            exit(1);                                      \
        }                                                 \
    } while (0)

static const char *const usual[] = {
    "softmax_fwd_tile",      "softmax_fwd:f16,b1,hq8,hkv8,lq64,lk64,d64,causal",
    "softmax_fwd_tile",      "softmax_fwd:f16,b1,hq8,hkv8,lq64,lk64,d64,causal,lens,lse",
    "softmax_fwd_split",     "softmax_fwd:f32,b1,hq8,hkv2,lq1,lk512,d64,lens",
    "softmax_fwd_split_mma", "softmax_fwd:f16,b1,hq8,hkv2,lq1,lk512,d128,lens",
    "softmax_fwd_math",      "softmax_fwd:f16,b1,hq8,hkv8,lq64,lk64,d64,causal",
    "softmax_fwd_naive",     "softmax_fwd:f16,b1,hq8,hkv8,lq64,lk64,d64,causal",
};
enum { N_USUAL = sizeof usual / sizeof usual[0] };

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Zeros. */
static attn_tensor tensor(attn_ctx *ctx, attn_type type, int64_t b, int64_t h, int64_t l,
                          int64_t d)
{
    const size_t bytes = (size_t)(b * h * l * d) * attn_type_bytes(type);
    void *const zeros = calloc(bytes, 1);
    void *memory = NULL;

    CHECK(attn_memory_alloc(ctx, bytes, &memory));
    CHECK(attn_memory_upload(ctx, memory, 0, zeros, bytes));
    free(zeros);
    return attn_tensor_bhld(memory, type, b, h, l, d);
}

static attn_args make_args(attn_ctx *ctx, const attn_softmax_desc *d)
{
    const int64_t dv = d->dim_v ? d->dim_v : d->dim_qk;
    attn_args a = { .size = sizeof a };

    a.q = tensor(ctx, d->type, d->batch, d->heads_q, d->len_q, d->dim_qk);
    a.k = tensor(ctx, d->type, d->batch, d->heads_kv, d->len_kv, d->dim_qk);
    a.v = tensor(ctx, d->type, d->batch, d->heads_kv, d->len_kv, dv);
    a.o = tensor(ctx, d->type, d->batch, d->heads_q, d->len_q, dv);
    if (d->use & ATTN_USE_LSE)
        a.lse = tensor(ctx, ATTN_F32, d->batch, d->heads_q, d->len_q, 1);
    if (d->use & ATTN_USE_LENS_KV)
        a.lens_kv = tensor(ctx, ATTN_I32, d->batch, 1, 1, 1);
    return a;
}

static void add_workspace(attn_ctx *ctx, const attn_plan *plan, attn_args *a)
{
    a->workspace_bytes = attn_plan_workspace_bytes(plan);
    if (a->workspace_bytes)
        CHECK(attn_memory_alloc(ctx, a->workspace_bytes, &a->workspace));
}

/* What is launched and waited for; other than 0: failed. */
typedef struct launches {
    int (*launch)(void *), (*wait)(void *);
    void *with;
    bool failed;
    double least, median; /* microseconds of a launch */
} launches;

static void time_launches(launches *l)
{
    double us[ROUNDS];

    for (int r = 0; r < ROUNDS; r++) {
        const double start = now();

        for (int i = 0; i < LAUNCHES; i++)
            l->failed |= l->launch(l->with) != 0;
        us[r] = (now() - start) * 1e6 / LAUNCHES;
        l->failed |= l->wait(l->with) != 0;
    }
    qsort(us, ROUNDS, sizeof us[0], ascending);
    l->least = us[0];
    l->median = us[ROUNDS / 2];
}

/* A plan of ours. */
typedef struct planned_launch {
    attn_ctx *ctx;
    attn_plan *plan;
    attn_args args;
} planned_launch;

static int launch_plan(void *with)
{
    const planned_launch *p = with;

    return attn_execute(p->plan, &p->args, NULL);
}

static int wait_for_plan(void *with)
{
    const planned_launch *p = with;

    return attn_ctx_wait(p->ctx);
}

static void measure(const char *variant, const char *problem)
{
    const attn_options options = { .size = sizeof options, .variant = variant };
    const double start = now();
    planned_launch p = { 0 };
    launches l = { launch_plan, wait_for_plan, &p, false, 0, 0 };
    double made, planned, ran;
    attn_softmax_desc desc;

    CHECK(attn_softmax_parse(problem, &desc));
    CHECK(attn_ctx_create("cuda:0", &p.ctx));
    made = now();
    CHECK(attn_plan_softmax_with(p.ctx, &desc, &options, &p.plan));
    planned = now();
    p.args = make_args(p.ctx, &desc);
    add_workspace(p.ctx, p.plan, &p.args);
    ran = now();
    CHECK(launch_plan(&p));
    CHECK(wait_for_plan(&p));
    ran = now() - ran;
    time_launches(&l);
    if (l.failed) {
        printf("%s: %s\n", variant, attn_last_error());
        exit(1);
    }
    printf("%-22s %8.2f %8.2f %8.2f %8.2f %8.2f  %s\n", variant, (made - start) * 1e3,
           (planned - made) * 1e3, ran * 1e3, l.least, l.median, problem);
}

/* Microseconds of a call, mean. */
#define PER_CALL(call)                                                \
    do {                                                              \
        const double start = now();                                   \
        int failed = 0;                                               \
                                                                      \
        for (int i = 0; i < CALLS; i++)                               \
            failed |= (call);                                         \
        printf("%8.3f  %s%s\n", (now() - start) * 1e6 / CALLS, #call, \
               failed ? "  FAILED" : "");                             \
    } while (0)

static void *find(void *library, const char *name)
{
    void *const symbol = dlsym(library, name);

    if (!symbol) {
        printf("the CUDA driver has no %s\n", name);
        exit(1);
    }
    return symbol;
}

/* A kernel that does nothing, by the driver alone. */
typedef struct empty_launch {
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  unsigned, void *, void **, void **);
    int (*wait)(void *);
    void *kernel, *stream, *params[1];
} empty_launch;

static int launch_empty(void *with)
{
    empty_launch *e = with;

    return e->launch(e->kernel, 1, 1, 1, 128, 1, 1, 0, e->stream, e->params, NULL);
}

static int wait_for_empty(void *with)
{
    const empty_launch *e = with;

    return e->wait(e->stream);
}

/* What a launch costs without us: of a kernel that does nothing, with as many bytes of
 * parameters as those of softmax have, and with none. The context is current. */
static void measure_empty(void *library)
{
    enum { PARAMETERS = 1072, NON_BLOCKING = 1 };
    static const char ptx[] =
        ".version 7.0\n.target sm_75\n.address_size 64\n"
        ".visible .entry takes(.param .align 8 .b8 p[1072]) { ret; }\n"
        ".visible .entry bare() { ret; }\n";
    static const char *const names[] = { "takes", "bare" };
    int (*load)(void **, const void *), (*get)(void **, void *, const char *);
    int (*create)(void **, unsigned);
    empty_launch e = { .params = { (char[PARAMETERS]){ 0 } } };
    void *module;

    *(void **)&load = find(library, "cuModuleLoadData");
    *(void **)&get = find(library, "cuModuleGetFunction");
    *(void **)&create = find(library, "cuStreamCreate");
    *(void **)&e.wait = find(library, "cuStreamSynchronize");
    *(void **)&e.launch = find(library, "cuLaunchKernel");
    printf("\nmicroseconds of a launch by the driver alone, least and median\n");
    if (load(&module, ptx) || create(&e.stream, NON_BLOCKING)) {
        printf("it does not take the empty kernels\n");
        return;
    }
    for (int i = 0; i < 2; i++) {
        launches l = { launch_empty, wait_for_empty, &e, false, 0, 0 };

        l.failed = get(&e.kernel, module, names[i]) != 0;
        time_launches(&l);
        printf("%8.2f %8.2f  an empty kernel, %d bytes of parameters%s\n", l.least,
               l.median, i ? 0 : PARAMETERS, l.failed ? "  FAILED" : "");
    }
}

/* What each launch asks of the driver for each tensor, and less of it; numbers as in
 * <cuda.h>. */
static void measure_driver(void)
{
    enum {
        CONTEXT = 1,
        TYPE = 2,
        POINTER = 3,
        BUFFER_ID = 7,
        MANAGED,
        ORDINAL,
        START = 11,
        SIZE
    };
    const char *const name = getenv("ATTN_CUDA_LIB");
    char path[4200] = "libcuda.so.1";
    const int all[] = { TYPE, MANAGED, ORDINAL, CONTEXT, POINTER, START, SIZE };
    const int bounds[] = { START, SIZE }, id[] = { BUFFER_ID };
    uint64_t answer[7];
    void *const where[] = { &answer[0], &answer[1], &answer[2], &answer[3],
                            &answer[4], &answer[5], &answer[6] };
    int (*attributes)(unsigned, const int *, void *const *, CUdeviceptr);
    int (*push)(CUcontext), (*pop)(CUcontext *), (*current)(CUcontext *);
    int (*context_of)(void *, CUcontext *);
    CUcontext context = NULL;
    void *library, *memory = NULL;
    CUdeviceptr at;
    attn_ctx *ctx = NULL;

    if (name)
        snprintf(path, sizeof path, "%s/libcuda.so.1", name);
    if (!(library = dlopen(path, RTLD_NOW)))
        exit(1);
    *(void **)&attributes = find(library, "cuPointerGetAttributes");
    *(void **)&push = find(library, "cuCtxPushCurrent_v2");
    *(void **)&pop = find(library, "cuCtxPopCurrent_v2");
    *(void **)&current = find(library, "cuCtxGetCurrent");
    *(void **)&context_of = find(library, "cuStreamGetCtx");
    CHECK(attn_ctx_create("cuda:0", &ctx));
    CHECK(attn_memory_alloc(ctx, 1 << 20, &memory));
    at = (CUdeviceptr)(uintptr_t)memory;
    attributes(1, (const int[]){ CONTEXT }, (void *const[]){ &context }, at);
    push(context);
    measure_empty(library);
    printf("\nmicroseconds of a call of the driver\n");
    PER_CALL(push(context) | pop(&context));
    PER_CALL(current(&context));
    PER_CALL(context_of(NULL, &context));
    PER_CALL(attributes(7, all, where, at));
    PER_CALL(attributes(2, bounds, where, at));
    PER_CALL(attributes(1, id, where, at));
}

static void in_a_process(const char *variant, const char *problem)
{
    const pid_t child = fork();

    if (!child) {
        if (variant)
            measure(variant, problem);
        else
            measure_driver();
        exit(0);
    }
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
    const char *const *rows = argc > 1 ? (const char *const *)argv + 1 : usual;
    const int n = argc > 1 ? argc - 1 : N_USUAL;

    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%-22s %8s %8s %8s %8s %8s  problem\n", "variant", "ctx ms", "plan ms",
           "first ms", "least us", "us");
    for (int i = 0; i + 1 < n; i += 2)
        in_a_process(rows[i], rows[i + 1]);
    in_a_process(NULL, NULL);
    return 0;
}
