/* SPDX-License-Identifier: MIT */
/* backend/cuda/cublas.h: cuBLAS, opened at run time, for the steps of softmax_fwd_math and
 * softmax_bwd_math that are products of matrices. */
#ifndef ATTN_CUDA_CUBLAS_H
#define ATTN_CUDA_CUBLAS_H

#include "backend/cuda/cublas_types.h"
#include "backend/cuda/cuda.h"

/* Every function that is called; names mean their version as in loader.h. */
#define ATTN_CUBLAS_FUNCTIONS(X) \
    X(cublasCreate)              \
    X(cublasDestroy)             \
    X(cublasGetProperty)         \
    X(cublasGetStatusName)       \
    X(cublasGetStatusString)     \
    X(cublasSetStream)           \
    X(cublasSetWorkspace)        \
    X(cublasGemmStridedBatchedEx)

typedef struct attn_cublas {
#define X(name) __typeof__(name) *name;
    ATTN_CUBLAS_FUNCTIONS(X)
#undef X
} attn_cublas;

/* The library of that name, which may also be the folder that holds it; NULL: the usual
 * one. Opened once in a process and never closed. NULL if there is none. `shown` receives
 * what to call it, "" if there is none. Threads: safe. */
const attn_cublas *attn_cublas_load(const char *name, char *shown, size_t cap);

/* Whether a step is cuBLAS's, and what computes it. */
attn_cu_library *attn_cublas_step(const char *kernel);

/* Makes the device's handle, once: that loads code and allocates. Context lock held, the
 * device's context is current. */
attn_status attn_cublas_open(attn_device *dev);

/* Lets go of the handle, if there is one. The device's context is current; or not to be
 * had, and then what the library keeps on the host stays: it would look for a context. */
void attn_cublas_close(attn_device *dev, bool current);

#endif
