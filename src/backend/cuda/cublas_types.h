/* SPDX-License-Identifier: MIT */
/* backend/cuda/cublas_types.h: what is called of cuBLAS: its own header where the toolkit
 * has it, else the same declarations. */
#ifndef ATTN_CUDA_CUBLAS_TYPES_H
#define ATTN_CUDA_CUBLAS_TYPES_H

#include <cuda.h>

#if __has_include(<cublas_v2.h>)
#include <cublas_v2.h>
#else

typedef struct cublasContext *cublasHandle_t;
typedef int cublasStatus_t, cublasOperation_t, cublasComputeType_t, cublasGemmAlgo_t;
typedef int cudaDataType, libraryPropertyType;
typedef CUstream cudaStream_t;

enum {
    CUBLAS_STATUS_SUCCESS = 0,
    CUBLAS_STATUS_NOT_INITIALIZED = 1,
    CUBLAS_STATUS_ALLOC_FAILED = 3,
    CUBLAS_STATUS_INVALID_VALUE = 7,
    CUBLAS_STATUS_ARCH_MISMATCH = 8,
    CUBLAS_STATUS_EXECUTION_FAILED = 13,
    CUBLAS_STATUS_INTERNAL_ERROR = 14
};
enum { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum { CUBLAS_COMPUTE_32F_PEDANTIC = 69, CUBLAS_GEMM_DEFAULT = -1, CUDA_R_32F = 0 };
enum { MAJOR_VERSION = 0, MINOR_VERSION = 1, PATCH_LEVEL = 2 };

/* As the header does it: names of the version that its types are of. */
#define cublasCreate cublasCreate_v2
#define cublasDestroy cublasDestroy_v2
#define cublasSetStream cublasSetStream_v2
#define cublasSetWorkspace cublasSetWorkspace_v2

cublasStatus_t cublasCreate(cublasHandle_t *handle);
cublasStatus_t cublasDestroy(cublasHandle_t handle);
cublasStatus_t cublasGetProperty(libraryPropertyType type, int *value);
const char *cublasGetStatusName(cublasStatus_t status);
const char *cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream);
cublasStatus_t cublasSetWorkspace(cublasHandle_t handle, void *workspace, size_t bytes);
cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t a_transpose, cublasOperation_t b_transpose,
    int m, int n, int k, const void *alpha, const void *a, cudaDataType a_type, int a_ld,
    long long int a_stride, const void *b, cudaDataType b_type, int b_ld,
    long long int b_stride, const void *beta, void *c, cudaDataType c_type, int c_ld,
    long long int c_stride, int batch_count, cublasComputeType_t compute,
    cublasGemmAlgo_t algorithm);

#endif
#endif
