/* SPDX-License-Identifier: MIT */
/* attn/cuda.h: a caller's own CUDA context, stream and device memory. */
#ifndef ATTN_CUDA_H
#define ATTN_CUDA_H

#include <attn/attn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* As <cuda.h> has them, which may be included too, before or after: this header needs
 * no toolkit. */
typedef struct CUctx_st *CUcontext;
typedef unsigned long long CUdeviceptr;

/* Makes a context for the device of a CUcontext, which is borrowed: it must outlive
 * the attn_ctx. The runtime API's is the primary one: cuCtxGetCurrent() after any call
 * that uses the device, or cuDevicePrimaryCtxRetain(). Such a context has no stream for
 * the caller's work: attn_execute() needs one.
 *
 *   out  receives the context; NULL on failure
 *
 * attn_execute() and attn_execute_timed() take a CUstream (cudaStream_t) of that
 * CUcontext as `stream`; CU_STREAM_LEGACY and CU_STREAM_PER_THREAD are streams too, and
 * stand for what the runtime calls stream 0. Work is ordered by the stream alone;
 * nothing waits and nothing is allocated, so attn_execute() can be captured into a
 * graph, and a replay reads lengths, boundaries and tables as they are then. Planning, the
 * first attn_merge() of a type and attn_memory_alloc() do allocate: a capture in the global
 * mode, in any thread, forbids that (INVALID, and the capture is lost). For
 * softmax_fwd_cudnn so does the first execution with lengths other than the planned ones, or
 * tensors that are not contiguous (INVALID, and the capture goes on). The calling thread's
 * current CUcontext is not used, and is the same afterwards.
 *
 * ATTN_ERR_INVALID    context is NULL, or the driver knows no such context
 * ATTN_ERR_NO_DEVICE  no usable driver, a device below compute capability 7.5, or a
 *                     library that was built without CUDA
 * ATTN_ERR_DEVICE     the context is broken by an error before; the text says which
 * Threads: safe. */
ATTN_API attn_status attn_ctx_create_cuda(CUcontext context, attn_ctx **out);

/* A view of device memory: `stride` in elements, order [B, H, L, D]. Any memory that
 * kernels of the context can address will do: the device's own, managed, and host memory
 * that was registered or allocated by CUDA and has the same address on the device. Other
 * addresses are INVALID when the view is used. */
ATTN_API attn_tensor attn_tensor_cuda(CUdeviceptr memory, attn_type type,
                                      const int64_t size[4], const int64_t stride[4]);

#ifdef __cplusplus
}
#endif

#endif
