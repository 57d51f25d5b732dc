/* SPDX-License-Identifier: MIT */
/* tools/ceiling_cuda.c: copies by the CUDA driver, products by cuBLAS where it is there. */
#include "ceiling.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "library.h"

/* cublas_api.h's and library_types.h's numbers. */
enum { OP_N = 0, COMPUTE_32F = 68, GEMM_DEFAULT = -1 };
enum { R_32F = 0, R_16F = 2, R_16BF = 14 };

enum { SIZE = 8192 };

typedef struct cublas {
    void *library, *handle;
    int (*create)(void **);
    int (*destroy)(void *);
    int (*set_stream)(void *, void *stream);
    int (*sgemm)(void *, int, int, int m, int n, int k, const float *alpha, const float *a,
                 int lda, const float *b, int ldb, const float *beta, float *c, int ldc);
    int (*gemm_ex)(void *, int, int, int m, int n, int k, const void *alpha, const void *a,
                   int type_a, int lda, const void *b, int type_b, int ldb,
                   const void *beta, void *c, int type_c, int ldc, int compute,
                   int algorithm);
} cublas;

/* One thing to run again and again. */
typedef struct job {
    const lane_cuda *lane;
    const cublas *blas;
    attn_type type;
    int64_t n; /* of a copy, f32 numbers */
    void *block[3];
} job;

static CUdeviceptr address(const void *block)
{
    return (CUdeviceptr)(uintptr_t)block;
}

static bool run_copies(void *with, int n, double *ms)
{
    const job *j = with;
    bool good = lane_cuda_begin(j->lane);

    if (!good)
        return false;
    for (int i = 0; i < n && good; i++)
        good = !j->lane->copy(address(j->block[1]), address(j->block[0]),
                              (size_t)j->n * sizeof(float), j->lane->stream);
    return lane_cuda_end(j->lane, ms) && good;
}

/* f32 by sgemm: exact products, not TF32. */
static bool multiply(const job *j)
{
    const float one = 1, zero = 0;
    const int type = j->type == ATTN_BF16 ? R_16BF : R_16F;
    const cublas *b = j->blas;

    if (j->type == ATTN_F32)
        return !b->sgemm(b->handle, OP_N, OP_N, SIZE, SIZE, SIZE, &one, j->block[0], SIZE,
                         j->block[1], SIZE, &zero, j->block[2], SIZE);
    return !b->gemm_ex(b->handle, OP_N, OP_N, SIZE, SIZE, SIZE, &one, j->block[0], type,
                       SIZE, j->block[1], type, SIZE, &zero, j->block[2], type, SIZE,
                       COMPUTE_32F, GEMM_DEFAULT);
}

static bool run_products(void *with, int n, double *ms)
{
    const job *j = with;
    bool good = lane_cuda_begin(j->lane);

    if (!good)
        return false;
    for (int i = 0; i < n && good; i++)
        good = multiply(j);
    return lane_cuda_end(j->lane, ms) && good;
}

static bool find_functions(cublas *b, char *absent, size_t cap)
{
    const struct {
        void *to;
        const char *name;
    } functions[] = {
        { &b->create, "cublasCreate_v2" },        { &b->destroy, "cublasDestroy_v2" },
        { &b->set_stream, "cublasSetStream_v2" }, { &b->sgemm, "cublasSgemm_v2" },
        { &b->gemm_ex, "cublasGemmEx" },
    };

    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *found = dlsym(b->library, functions[i].name);

        if (!found) {
            snprintf(absent, cap, "libcublas has no %s", functions[i].name);
            return false;
        }
        memcpy(functions[i].to, &found, sizeof found);
    }
    return true;
}

static bool open_cublas(cublas *b, const lane_cuda *l, char *absent, size_t cap)
{
    static const char *const usual[] = { "libcublas.so.13", "libcublas.so.12",
                                         "libcublas.so", NULL };
    CUcontext popped;
    bool made;

    b->library = library_open("ATTN_CUBLAS_LIB", usual, absent, cap);
    if (!b->library || !find_functions(b, absent, cap))
        return false;
    made = !l->push(l->context);
    if (made) {
        made = !b->create(&b->handle) && !b->set_stream(b->handle, l->stream);
        l->pop(&popped);
    }
    if (!made)
        snprintf(absent, cap, "cublasCreate or cublasSetStream failed");
    return made;
}

static void close_cublas(cublas *b, const lane_cuda *l)
{
    CUcontext popped;

    if (b->handle && !l->push(l->context)) {
        b->destroy(b->handle);
        l->pop(&popped);
    }
    if (b->library)
        dlclose(b->library);
}

static void free_blocks(attn_ctx *ctx, job *j)
{
    for (int i = 0; i < 3; i++)
        attn_memory_free(ctx, &j->block[i]);
}

static void measure_copy(ceiling *c, const ceiling_how *how)
{
    job j = { .lane = how->lane, .n = ceiling_copy_size(how->info) };

    for (int i = 0; i < 2; i++)
        j.block[i] = ceiling_numbers(how->ctx, ATTN_F32, j.n);
    if (j.block[0] && j.block[1])
        c->copy_gb_s =
            2 * sizeof(float) * (double)j.n / ceiling_ms(run_copies, &j, how->blocks) / 1e6;
    if (isnan(c->copy_gb_s))
        snprintf(c->copy_absent, sizeof c->copy_absent, "%s",
                 j.block[0] && j.block[1] ? "the driver's copy failed"
                                          : "no memory for it");
    free_blocks(how->ctx, &j);
}

static void measure_products(ceiling *c, const ceiling_how *how, const cublas *b)
{
    for (int type = ATTN_F32; type < CEILING_TYPES; type++) {
        job j = { .lane = how->lane, .blas = b, .type = (attn_type)type };
        bool made = true;

        if (!(how->types & 1u << type))
            continue;
        for (int i = 0; i < 3; i++)
            made = (j.block[i] = ceiling_numbers(how->ctx, j.type, (int64_t)SIZE * SIZE)) &&
                   made;
        if (made)
            c->product_gflop_s[type] = ceiling_product_flop(SIZE) /
                                       ceiling_ms(run_products, &j, how->blocks) / 1e6;
        if (isnan(c->product_gflop_s[type]))
            snprintf(c->product_absent, sizeof c->product_absent, "%s",
                     made ? "a product of cuBLAS failed" : "no memory for matrices");
        free_blocks(how->ctx, &j);
    }
}

void ceiling_cuda(ceiling *c, const ceiling_how *how)
{
    cublas b = { 0 };

    if (!how->lane) {
        snprintf(c->copy_absent, sizeof c->copy_absent, "the CUDA driver was not opened");
        snprintf(c->product_absent, sizeof c->product_absent, "%s", c->copy_absent);
        return;
    }
    measure_copy(c, how);
    if (open_cublas(&b, how->lane, c->product_absent, sizeof c->product_absent)) {
        c->product_absent[0] = '\0';
        c->size = SIZE;
        snprintf(c->product_name, sizeof c->product_name, "cuBLAS");
        measure_products(c, how, &b);
    }
    close_cublas(&b, how->lane);
}
