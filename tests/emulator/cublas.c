/* SPDX-License-Identifier: MIT */
/* emulator/cublas.c: a libcublas for the emulator: the calls that the back end makes, on
 * memory that is the host's, each checked for what the true library asks of its caller.
 * EMULATED_CUBLAS is the status that every product returns. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cublas_types.h"

enum { LEAST_ROOM = 16 * 1024 };

struct cublasContext {
    CUcontext context;
    cudaStream_t stream;
    void *room;
    size_t room_bytes;
    pthread_t owner; /* who set the stream last */
};

/* graph.cpp */
CUresult emulated_enqueue(CUstream stream, void (*run)(const void *), const void *with,
                          size_t bytes);

/* The calls are the context's in which the handle was made. */
static CUcontext current(void)
{
    CUcontext context = NULL;

    if (cuCtxPopCurrent(&context) == CUDA_SUCCESS)
        cuCtxPushCurrent(context);
    return context;
}

cublasStatus_t cublasCreate(cublasHandle_t *handle)
{
    CUcontext context = current();

    if (!context)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    if (!*handle)
        return CUBLAS_STATUS_ALLOC_FAILED;
    (*handle)->context = context;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy(cublasHandle_t handle)
{
    if (handle->context != current())
        abort();
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value)
{
    *value = type == MAJOR_VERSION ? CUDA_VERSION / 1000 : 0;
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                                    : "CUBLAS_STATUS_EMULATED";
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    (void)status;
    return "an error of the emulator";
}

/* Takes the room away, as the true one does. */
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream)
{
    handle->stream = stream;
    handle->owner = pthread_self();
    handle->room = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes)
{
    if ((uintptr_t)workspace % 256)
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->room = workspace;
    handle->room_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* C = alpha op(A) op(B) + beta C for each pair, column after column, f32 sums; without beta C
 * is not read. */
typedef struct product {
    bool transposed, b_transposed;
    int m, n, k, pairs;
    float alpha, beta;
    const float *a, *b;
    float *c;
    int64_t a_ld, b_ld, c_ld, a_stride, b_stride, c_stride;
    void *room;
    size_t room_bytes;
} product;

static void multiply(const product *p, const float *a, const float *b, float *c)
{
    for (int j = 0; j < p->n; j++)
        for (int i = 0; i < p->m; i++) {
            float *const at = &c[i + j * p->c_ld];
            float sum = 0.0f;

            for (int x = 0; x < p->k; x++)
                sum += a[p->transposed ? x + i * p->a_ld : i + x * p->a_ld] *
                       b[p->b_transposed ? j + x * p->b_ld : x + j * p->b_ld];
            *at = p->alpha * sum + (p->beta != 0.0f ? p->beta * *at : 0.0f);
        }
}

static void multiply_all(const void *with)
{
    const product *const p = with;

    memset(p->room, 0x7f, p->room_bytes);
    for (int i = 0; i < p->pairs; i++)
        multiply(p, p->a + i * p->a_stride, p->b + i * p->b_stride, p->c + i * p->c_stride);
}

cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t a_transpose, cublasOperation_t b_transpose,
    int m, int n, int k, const void *alpha, const void *a, cudaDataType a_type, int a_ld,
    long long int a_stride, const void *b, cudaDataType b_type, int b_ld,
    long long int b_stride, const void *beta, void *c, cudaDataType c_type, int c_ld,
    long long int c_stride, int batch_count, cublasComputeType_t compute,
    cublasGemmAlgo_t algorithm)
{
    const char *const told = getenv("EMULATED_CUBLAS");
    const bool transposed = a_transpose == CUBLAS_OP_T;
    const bool b_transposed = b_transpose == CUBLAS_OP_T;

    if (told)
        return (cublasStatus_t)atoi(told);
    if (m < 0 || n < 0 || k < 0 || batch_count < 0 || a_ld < (transposed ? k : m) ||
        b_ld < (b_transposed ? n : k) || c_ld < m || a_type != CUDA_R_32F ||
        b_type != CUDA_R_32F || c_type != CUDA_R_32F ||
        compute != CUBLAS_COMPUTE_32F_PEDANTIC || algorithm != CUBLAS_GEMM_DEFAULT)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!handle->room || handle->room_bytes < LEAST_ROOM || !handle->stream ||
        handle->context != current() || !pthread_equal(handle->owner, pthread_self()))
        return CUBLAS_STATUS_INTERNAL_ERROR;
    return emulated_enqueue(handle->stream, multiply_all,
                            &(product){ .transposed = transposed,
                                        .b_transposed = b_transposed,
                                        .m = m,
                                        .n = n,
                                        .k = k,
                                        .pairs = batch_count,
                                        .alpha = *(const float *)alpha,
                                        .beta = *(const float *)beta,
                                        .a = a,
                                        .b = b,
                                        .c = c,
                                        .a_ld = a_ld,
                                        .b_ld = b_ld,
                                        .c_ld = c_ld,
                                        .a_stride = a_stride,
                                        .b_stride = b_stride,
                                        .c_stride = c_stride,
                                        .room = handle->room,
                                        .room_bytes = handle->room_bytes },
                            sizeof(product)) == CUDA_SUCCESS
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
