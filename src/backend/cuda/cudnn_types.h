/* SPDX-License-Identifier: MIT */
/* backend/cuda/cudnn_types.h: what is called of cuDNN 9. The build needs none of its
 * headers: enumerations are ints to a caller, descriptors opaque. */
#ifndef ATTN_CUDA_CUDNN_TYPES_H
#define ATTN_CUDA_CUDNN_TYPES_H

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

#include "backend/cuda/cudnn_numbers.h"

enum {
#define X(name, value) name = value,
    ATTN_CUDNN_NUMBERS(X)
#undef X
};

typedef struct cudnnContext *cudnnHandle_t;
typedef void *cudnnBackendDescriptor_t;
typedef int cudnnStatus_t;

/* Major, minor, patch: 9.19.0 is 91900. */
size_t cudnnGetVersion(void);
const char *cudnnGetErrorString(cudnnStatus_t status);

/* Of this thread's last failure, in words; it may have several lines. */
void cudnnGetLastErrorString(char *message, size_t cap);

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle);
cudnnStatus_t cudnnDestroy(cudnnHandle_t handle);
cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, CUstream stream);

cudnnStatus_t cudnnBackendCreateDescriptor(int type, cudnnBackendDescriptor_t *descriptor);
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor);
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, int name,
                                       int type, int64_t count, const void *elements);
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, int name,
                                       int type, int64_t cap, int64_t *count,
                                       void *elements);
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                  cudnnBackendDescriptor_t pack);

#endif
