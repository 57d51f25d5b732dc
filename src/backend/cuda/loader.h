/* SPDX-License-Identifier: MIT */
/* backend/cuda/loader.h: the CUDA driver's library, opened at run time. */
#ifndef ATTN_CUDA_LOADER_H
#define ATTN_CUDA_LOADER_H

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>

#include "core/library.h"

/* Every function that is called. cuda.h turns names into those of the version that
 * its types are of (cuMemAlloc is cuMemAlloc_v2): wherever such a name is written,
 * also below, it means that version. */
#define ATTN_CUDA_FUNCTIONS(X)    \
    X(cuInit)                     \
    X(cuDriverGetVersion)         \
    X(cuGetErrorName)             \
    X(cuGetErrorString)           \
    X(cuDeviceGetCount)           \
    X(cuDeviceGet)                \
    X(cuDeviceGetName)            \
    X(cuDeviceGetAttribute)       \
    X(cuDeviceTotalMem)           \
    X(cuDevicePrimaryCtxRetain)   \
    X(cuDevicePrimaryCtxRelease)  \
    X(cuCtxPushCurrent)           \
    X(cuCtxPopCurrent)            \
    X(cuCtxGetDevice)             \
    X(cuModuleLoadData)           \
    X(cuModuleUnload)             \
    X(cuModuleGetFunction)        \
    X(cuFuncGetAttribute)         \
    X(cuFuncSetAttribute)         \
    X(cuLaunchKernel)             \
    X(cuLaunchKernelEx)           \
    X(cuStreamCreate)             \
    X(cuStreamDestroy)            \
    X(cuStreamSynchronize)        \
    X(cuStreamGetCtx)             \
    X(cuStreamIsCapturing)        \
    X(cuEventCreate)              \
    X(cuEventDestroy)             \
    X(cuEventRecord)              \
    X(cuEventSynchronize)         \
    X(cuEventElapsedTime)         \
    X(cuMemAlloc)                 \
    X(cuMemFree)                  \
    X(cuMemcpyHtoDAsync)          \
    X(cuMemcpyDtoHAsync)          \
    X(cuMemsetD32Async)           \
    X(cuPointerGetAttributes)     \
    X(cuTensorMapEncodeTiled)

typedef struct attn_cu {
#define X(name) __typeof__(name) *name;
    ATTN_CUDA_FUNCTIONS(X)
#undef X
} attn_cu;

/* The driver's library of that name, which may also be the folder that holds it;
 * NULL: the usual name. Each is opened once in a process, initialised, and never
 * closed; the table lives as long as the process. NULL on failure (absent, too old
 * for the images of this build, or it does not start), with the reason. Threads:
 * safe. */
const attn_cu *attn_cu_load(const char *name, char *reason, size_t cap);

#endif
