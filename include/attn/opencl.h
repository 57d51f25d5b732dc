/* SPDX-License-Identifier: MIT */
/* attn/opencl.h: a caller's own OpenCL context, queue, buffers and events. */
#ifndef ATTN_OPENCL_H
#define ATTN_OPENCL_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>

#include <attn/attn.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a context for one device of a cl_context. Both are borrowed (the
 * cl_context is retained until attn_ctx_destroy()). Such a context has no queue
 * for the caller's work: attn_execute() needs a stream.
 *
 *   out  receives the context; NULL on failure
 *
 * ATTN_ERR_INVALID    the device does not belong to the cl_context
 * ATTN_ERR_NO_DEVICE  the OpenCL loader was not found
 * Threads: safe. */
ATTN_API attn_status attn_ctx_create_opencl(cl_context context, cl_device_id device,
                                            attn_ctx **out);

/* A view of a cl_mem: `offset` and `stride` in elements, order [B, H, L, D]; neither array
 * may be NULL. A sub-buffer is its part of the whole buffer: views of both may overlap. Of a
 * buffer with CL_MEM_USE_HOST_PTR the caller's address counts where a layout or a workspace
 * has to begin at a multiple of so many bytes. */
ATTN_API attn_tensor attn_tensor_cl(cl_mem memory, int64_t offset, attn_type type,
                                    const int64_t size[4], const int64_t stride[4]);

/* As attn_execute(), on the caller's queue.
 *
 *   queue   of the context's cl_context and device; in order or out of order
 *   n_wait  events of `wait` that must complete before the work starts; `wait`
 *           is NULL if and only if n_wait is 0
 *   done    receives an event that completes with the work, and fails where one of
 *           `wait` has, owned by the caller; or NULL
 *
 * Nothing is flushed and nothing waits: flush the queue before another queue
 * waits for `done`, as OpenCL asks. If there is nothing to compute, `done`
 * completes after the wait list. Threads: safe. */
ATTN_API attn_status attn_execute_opencl(const attn_plan *plan, const attn_args *args,
                                         cl_command_queue queue, cl_uint n_wait,
                                         const cl_event *wait, cl_event *done);

/* As attn_merge(), on the caller's queue; queue, events and `done` as above. */
ATTN_API attn_status attn_merge_opencl(attn_ctx *ctx, const attn_merge_args *args,
                                       cl_command_queue queue, cl_uint n_wait,
                                       const cl_event *wait, cl_event *done);

#ifdef __cplusplus
}
#endif

#endif
