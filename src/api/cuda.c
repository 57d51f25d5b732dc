/* SPDX-License-Identifier: MIT */
/* api/cuda.c: the caller's own CUDA objects, handed through the table. */
#include <attn/cuda.h>

#include "api/context.h"
#include "core/status.h"

attn_status attn_ctx_create_cuda(CUcontext context, attn_ctx **out)
{
    const attn_backend *backend = attn_backend_find("cuda");
    attn_device *adopted = NULL;
    attn_device_info info = { .selector = "" };
    attn_env_storage s;
    attn_status st;

    if (!out)
        return attn_fail(ATTN_ERR_INVALID, "out is NULL");
    *out = NULL;
    if (!context)
        return attn_fail(ATTN_ERR_INVALID, "context is NULL");
    attn_env_read(&s);
    if ((st = backend->adopt(&s.env, context, NULL, &info, &adopted)) != ATTN_OK)
        return st;
    return attn_ctx_wrap(backend, adopted, &info, true, out);
}

attn_tensor attn_tensor_cuda(CUdeviceptr memory, attn_type type, const int64_t size[4],
                             const int64_t stride[4])
{
    return attn_tensor_strided((void *)(uintptr_t)memory, type, size, stride);
}
