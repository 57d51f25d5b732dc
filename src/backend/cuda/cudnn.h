/* SPDX-License-Identifier: MIT */
/* backend/cuda/cudnn.h: cuDNN 9, opened at run time, for softmax_fwd_cudnn: its C backend
 * ("graph") API, in which attention is described operation by operation. */
#ifndef ATTN_CUDA_CUDNN_H
#define ATTN_CUDA_CUDNN_H

#include "backend/cuda/cuda.h"
#include "backend/cuda/cudnn_types.h"

/* Every function that is called. */
#define ATTN_CUDNN_FUNCTIONS(X)      \
    X(cudnnGetVersion)               \
    X(cudnnGetErrorString)           \
    X(cudnnGetLastErrorString)       \
    X(cudnnCreate)                   \
    X(cudnnDestroy)                  \
    X(cudnnSetStream)                \
    X(cudnnBackendCreateDescriptor)  \
    X(cudnnBackendDestroyDescriptor) \
    X(cudnnBackendFinalize)          \
    X(cudnnBackendSetAttribute)      \
    X(cudnnBackendGetAttribute)      \
    X(cudnnBackendExecute)

typedef struct attn_cudnn {
#define X(name) __typeof__(name) *name;
    ATTN_CUDNN_FUNCTIONS(X)
#undef X
} attn_cudnn;

/* The library of that name, as attn_cublas_load() finds cuBLAS; also one that is too old to
 * be asked. *version: 91900 is 9.19.0, 0: there is none. Threads: safe. */
const attn_cudnn *attn_cudnn_load(const char *name, int64_t *version);

/* Whether a step is cuDNN's, and what computes it. */
attn_cu_library *attn_cudnn_step(const char *kernel);

/* Makes the device's handle, once: that loads code and allocates. Context lock held, the
 * device's context is current. */
attn_status attn_cudnn_open(attn_device *dev);

/* Makes cuDNN's plan for a step's planned sizes, tensors row after row as
 * attn_tensor_bhld() lays them out. UNSUPPORTED with cuDNN's own words if it makes none.
 * Context lock held, the device's context is current. */
attn_status attn_cudnn_prepare(attn_device *dev, const attn_step *step,
                               const attn_kernel *kernel);

/* Lets go of the plans and the handle. As attn_cublas_close(). */
void attn_cudnn_close(attn_device *dev, bool current);

/* cudnn_graph.c */

/* What one plan of cuDNN's computes. Zeroed first: what is equal is equal byte for byte.
 * Strides in elements, of the batch, the head and the row; elements of a row lie side by
 * side. */
typedef struct attn_cudnn_shape {
    int64_t b, hq, hkv, lq, lk, d, dv;
    int64_t q[3], k[3], v[3], o[3], lse[3]; /* lse 0, 0, 0: is not wanted        */
    int32_t type;                           /* attn_type, a 16-bit one           */
    int32_t causal;                         /* query i sees keys 0 .. i + shift  */
    int64_t shift;
} attn_cudnn_shape;

enum { ATTN_CUDNN_DESCRIPTORS = 96 };

typedef struct attn_cudnn_graph {
    struct attn_cudnn_graph *next;
    attn_cudnn_shape shape;
    int64_t workspace_bytes;       /* that its plan wants                   */
    cudnnBackendDescriptor_t plan; /* one of `made`                         */
    cudnnBackendDescriptor_t made[ATTN_CUDNN_DESCRIPTORS]; /* live as long      */
    int32_t n_made;
} attn_cudnn_graph;

/* Describes the shape to cuDNN and takes the first plan of its heuristics that can be made
 * and wants at most that many bytes of workspace. */
attn_status attn_cudnn_graph_make(const attn_cudnn *dnn, cudnnHandle_t handle,
                                  const attn_cudnn_shape *shape, int64_t most_bytes,
                                  attn_cudnn_graph **out);

/* Accepts NULL and half-built ones; sets *graph to NULL. */
void attn_cudnn_graph_free(const attn_cudnn *dnn, attn_cudnn_graph **graph);

/* Where the tensors of one execution begin. */
typedef struct attn_cudnn_memory {
    void *q, *k, *v, *o, *lse, *workspace;
    float scale;
} attn_cudnn_memory;

/* Enqueues it on the handle's stream. The handle is ours. */
attn_status attn_cudnn_graph_run(const attn_cudnn *dnn, cudnnHandle_t handle,
                                 const attn_cudnn_graph *graph,
                                 const attn_cudnn_memory *memory);

/* Records "call = code (name: text)", `what` being what the call was about, and returns the
 * status that goes with the code. */
attn_status attn_cudnn_fail(const attn_cudnn *dnn, cudnnStatus_t code, const char *call,
                            const char *what);

#endif
