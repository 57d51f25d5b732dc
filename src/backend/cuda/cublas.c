/* SPDX-License-Identifier: MIT */
/* backend/cuda/cublas.c: the matrix products that cuBLAS computes, and the library
 * itself. */
#include "backend/cuda/cublas.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/rounds.h"
#include "common/work.h"
#include "core/library.h"
#include "core/size.h"
#include "core/status.h"

enum { SPAN = 256 };      /* rows of A and B that one call sums up  */
enum { ALIGNMENT = 256 }; /* of the room that cuBLAS is given       */

#define TEXT(name) #name
#define NAME(name) TEXT(name)

static const attn_library_function functions[] = {
#define X(name) { NAME(name), offsetof(attn_cublas, name) },
    ATTN_CUBLAS_FUNCTIONS(X)
#undef X
};
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

typedef struct library {
    attn_cublas blas;
    char shown[64];
} library;

/* A handle has one stream at a time, so `lock` is held from setting it to the last call
 * that wants it. */
struct attn_cu_products {
    pthread_mutex_t lock;
    cublasHandle_t handle;
};

/* The library is of the toolkit's own major version: its types are those of the headers. */
static bool open_library(const char *name, void *table, attn_text *reason)
{
    library *const l = table;
    char usual[32], path[ATTN_PATH_BYTES];
    int version[3] = { 0 };
    void *handle;

    snprintf(usual, sizeof usual, "libcublas.so.%d", CUDA_VERSION / 1000);
    handle = attn_library_open(name, usual, path, reason);
    if (!handle || attn_library_functions(handle, functions, N_FUNCTIONS, &l->blas))
        return false;
    for (int i = 0; i < 3; i++)
        l->blas.cublasGetProperty((libraryPropertyType)(MAJOR_VERSION + i), &version[i]);
    snprintf(l->shown, sizeof l->shown, "cuBLAS %d.%d.%d", version[0], version[1],
             version[2]);
    return true;
}

const attn_cublas *attn_cublas_load(const char *name, char *shown, size_t cap)
{
    static attn_libraries opened = ATTN_LIBRARIES(library, open_library);
    attn_text nowhere = attn_text_in(NULL, 0);
    const library *const l = attn_library_load(&opened, name, &nowhere);

    snprintf(shown, cap, "%s", l ? l->shown : "");
    return l ? &l->blas : NULL;
}

/* Records "call = code (name: text)" and returns the status that goes with the code. */
static attn_status fail_with(const attn_cublas *blas, cublasStatus_t code, const char *call)
{
    const attn_status st = code == CUBLAS_STATUS_ALLOC_FAILED    ? ATTN_ERR_NO_MEMORY
                           : code == CUBLAS_STATUS_ARCH_MISMATCH ? ATTN_ERR_UNSUPPORTED
                                                                 : ATTN_ERR_DEVICE;

    return attn_fail(st, "%s = %d (%s: %s)", call, (int)code,
                     blas->cublasGetStatusName(code), blas->cublasGetStatusString(code));
}

/* Needs `attn_status st`, `blas` and the label `fail` around it. */
#define BLAS(name, ...)                                      \
    do {                                                     \
        const cublasStatus_t code = blas->name(__VA_ARGS__); \
        if (code != CUBLAS_STATUS_SUCCESS) {                 \
            st = fail_with(blas, code, #name);               \
            goto fail;                                       \
        }                                                    \
    } while (0)

attn_status attn_cublas_open(attn_device *dev)
{
    const attn_cublas *blas = dev->blas;
    attn_cu_products *products;
    attn_status st = ATTN_OK;

    assert(blas); /* the planner was told */
    if (dev->products)
        return ATTN_OK;
    if (!(products = calloc(1, sizeof *products)))
        return attn_fail(ATTN_ERR_NO_MEMORY, "cuBLAS: %zu bytes", sizeof *products);
    BLAS(cublasCreate, &products->handle);
    pthread_mutex_init(&products->lock, NULL);
    dev->products = products;
    return ATTN_OK;

fail:
    free(products);
    return st;
}

void attn_cublas_close(attn_device *dev, bool current)
{
    if (!dev->products)
        return;
    if (current)
        dev->blas->cublasDestroy(dev->products->handle);
    pthread_mutex_destroy(&dev->products->lock);
    free(dev->products);
    dev->products = NULL;
}

/* The matrices of a round (common/work.h); rows are those of one pair. */
typedef struct matrices {
    float *work;
    int64_t pairs, rows, keys, d, dv;
} matrices;

static matrices matrices_of(const attn_cu_job *job)
{
    const attn_call *call = job->call;
    const int64_t group = call->heads_q / call->heads_kv;

    return (matrices){ .work = call->args->workspace,
                       .pairs = job->heads / group,
                       .rows = group * job->queries,
                       .keys = attn_max(call->len_kv, 1),
                       .d = job->step->d,
                       .dv = job->step->dv };
}

/* Where matrix WHICH (K, V, S, ...) begins. */
#define AT(x, which)                                                                     \
    ((x)->work + WORK_##which((x)->pairs * (x)->rows, (x)->pairs * (x)->keys, (x)->keys, \
                              (x)->d, (x)->dv))

/* As cuBLAS sees it, column after column: C = op(A) op(B) for each pair, C [n][m]; A is
 * [k][m], or [m][k] and transposed; B is [n][k], or [k][n] and transposed. `more`: it is
 * added to C. */
typedef struct factors {
    bool a_transposed, b_transposed, more;
    int64_t pairs, m, n, k;
    const float *a, *b;
    float *c;
} factors;

/* In spans, lest errors grow with the number of keys. Pedantic: f32 throughout, whatever
 * the library's defaults and its environment say. The planner chose rounds whose sizes fit
 * ints. The handle is ours, its stream is set. */
static attn_status multiply(const attn_device *dev, const factors *f)
{
    const attn_cublas *blas = dev->blas;
    const cublasOperation_t op_a = f->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = f->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const int64_t a_step = f->a_transposed ? 1 : f->m, b_step = f->b_transposed ? f->n : 1;
    const int a_ld = (int)(f->a_transposed ? f->k : f->m);
    const int b_ld = (int)(f->b_transposed ? f->n : f->k);
    const float one = 1.0f, zero = 0.0f;
    attn_status st = ATTN_OK;

    assert(f->pairs * f->n * f->k <= INT32_MAX && f->pairs * f->n * f->m <= INT32_MAX);
    for (int64_t i = 0; i < f->k; i += SPAN)
        BLAS(cublasGemmStridedBatchedEx, dev->products->handle, op_a, op_b, (int)f->m,
             (int)f->n, (int)attn_min(SPAN, f->k - i), &one, f->a + i * a_step, CUDA_R_32F,
             a_ld, f->k * f->m, f->b + i * b_step, CUDA_R_32F, b_ld, f->k * f->n,
             i || f->more ? &one : &zero, f->c, CUDA_R_32F, (int)f->m, f->m * f->n,
             (int)f->pairs, CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_GEMM_DEFAULT);
fail:
    return st;
}

/* n products, after one another. cuBLAS's room is the caller's, behind the matrices, which
 * end there: one of the handle would be shared by all streams. Setting the stream takes it
 * away, so it is set after that. */
static attn_status products(attn_device *dev, const attn_cu_job *job, const float *end,
                            const factors f[], int n)
{
    const attn_cublas *blas = dev->blas;
    attn_cu_products *const products = dev->products;
    const uintptr_t after = (uintptr_t)end;
    void *const room = (void *)(after + (ALIGNMENT - after % ALIGNMENT) % ALIGNMENT);
    attn_status st = ATTN_OK;

    pthread_mutex_lock(&products->lock);
    BLAS(cublasSetStream, products->handle, job->stream);
    BLAS(cublasSetWorkspace, products->handle, room, (size_t)job->step->scratch_bytes);
    for (int i = 0; i < n && st == ATTN_OK; i++)
        st = multiply(dev, &f[i]);
fail:
    pthread_mutex_unlock(&products->lock);
    return st;
}

static attn_status scores(attn_device *dev, const attn_cu_job *job)
{
    const matrices x = matrices_of(job);
    const factors f = { .a_transposed = true,
                        .pairs = x.pairs,
                        .m = x.keys,
                        .n = x.rows,
                        .k = x.d,
                        .a = AT(&x, K),
                        .b = x.work,
                        .c = AT(&x, S) };

    return products(dev, job, AT(&x, END), &f, 1);
}

static attn_status output(attn_device *dev, const attn_cu_job *job)
{
    const matrices x = matrices_of(job);
    const factors f = { .pairs = x.pairs,
                        .m = x.dv,
                        .n = x.rows,
                        .k = x.keys,
                        .a = AT(&x, V),
                        .b = AT(&x, S),
                        .c = AT(&x, O) };

    if (job->call->args->o.type == ATTN_TYPE_NONE) /* V was not packed */
        return ATTN_OK;
    return products(dev, job, AT(&x, END), &f, 1);
}

/* The matrices of a round of gradients, and where they end. */
typedef struct gradients {
    int64_t pairs, rows, keys, d, dv;
#define PLACE(name, rows, columns) float *name;
    WORK_GRADIENTS(PLACE)
#undef PLACE
    float *end;
} gradients;

static gradients gradients_of(const attn_cu_job *job)
{
    const attn_call *call = job->call;
    const matrices x = matrices_of(job);
    float *at = x.work + WORK_DELTA(call->batch * call->heads_q * call->len_q);
    gradients g = {
        .pairs = x.pairs, .rows = x.rows, .keys = x.keys, .d = x.d, .dv = x.dv
    };

#define PLACE(name, rows, columns) \
    g.name = at;                   \
    at += g.pairs * g.rows * g.columns;
    WORK_GRADIENTS(PLACE)
#undef PLACE
    g.end = at;
    return g;
}

/* Scores of the queries, and of the gradients of O. */
static attn_status bwd_scores(attn_device *dev, const attn_cu_job *job)
{
    const attn_args *t = job->call->args;
    const gradients g = gradients_of(job);
    const bool both = attn_is_there(&t->grad_o) &&
                      (attn_is_there(&t->grad_q) || attn_is_there(&t->grad_k) ||
                       attn_is_there(&t->grad_bias));
    const factors f[] = {
        { true, false, false, g.pairs, g.keys, g.rows, g.d, g.k, g.q, g.w },
        { true, false, false, g.pairs, g.keys, g.rows, g.dv, g.v, g.g, g.s },
    };

    return products(dev, job, g.end, f, both ? 2 : 1);
}

static attn_status bwd_q(attn_device *dev, const attn_cu_job *job)
{
    const gradients g = gradients_of(job);
    const factors f = {
        false, false, false, g.pairs, g.d, g.rows, g.keys, g.k_f, g.s, g.dq
    };

    return products(dev, job, g.end, &f, 1);
}

/* Added to those of the rounds before it that had other queries of the same heads. */
static attn_status bwd_kv(attn_device *dev, const attn_cu_job *job)
{
    const attn_args *t = job->call->args;
    const gradients g = gradients_of(job);
    const bool more = job->query > 0;
    factors f[2];
    int n = 0;

    if (attn_is_there(&t->grad_k))
        f[n++] =
            (factors){ false, true, more, g.pairs, g.d, g.keys, g.rows, g.q_f, g.s, g.dk };
    if (attn_is_there(&t->grad_v) && attn_is_there(&t->grad_o))
        f[n++] =
            (factors){ false, true, more, g.pairs, g.dv, g.keys, g.rows, g.g, g.w, g.dvs };
    return products(dev, job, g.end, f, n);
}

attn_cu_library *attn_cublas_step(const char *kernel)
{
    static const struct {
        const char *name;
        attn_cu_library *library;
    } steps[] = { { "cublas_scores", scores },
                  { "cublas_output", output },
                  { "cublas_bwd_scores", bwd_scores },
                  { "cublas_bwd_q", bwd_q },
                  { "cublas_bwd_kv", bwd_kv } };

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (!strcmp(kernel, steps[i].name))
            return steps[i].library;
    return NULL;
}
