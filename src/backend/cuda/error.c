/* SPDX-License-Identifier: MIT */
/* backend/cuda/error.c: the driver's codes, and whose context a call runs in. */
#include <string.h>

#include "backend/cuda/cuda.h"
#include "core/status.h"

/* All others are DEVICE. INVALID are those that only a caller's own object can cause. */
static const struct {
    CUresult code;
    attn_status status;
} codes[] = {
    { CUDA_ERROR_OUT_OF_MEMORY, ATTN_ERR_NO_MEMORY },
    { CUDA_ERROR_NO_DEVICE, ATTN_ERR_NO_DEVICE },
    { CUDA_ERROR_INVALID_CONTEXT, ATTN_ERR_INVALID },
    { CUDA_ERROR_CONTEXT_IS_DESTROYED, ATTN_ERR_INVALID },
    { CUDA_ERROR_INVALID_HANDLE, ATTN_ERR_INVALID },
    { CUDA_ERROR_INVALID_IMAGE, ATTN_ERR_BUILD },
    { CUDA_ERROR_INVALID_PTX, ATTN_ERR_BUILD },
    { CUDA_ERROR_UNSUPPORTED_PTX_VERSION, ATTN_ERR_BUILD },
    { CUDA_ERROR_JIT_COMPILER_NOT_FOUND, ATTN_ERR_BUILD },
    { CUDA_ERROR_JIT_COMPILATION_DISABLED, ATTN_ERR_BUILD },
    { CUDA_ERROR_NO_BINARY_FOR_GPU, ATTN_ERR_BUILD },
    { CUDA_ERROR_NOT_FOUND, ATTN_ERR_BUILD },
    { CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, ATTN_ERR_INVALID },
    { CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ATTN_ERR_INVALID },
    { CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, ATTN_ERR_INVALID },
    { CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, ATTN_ERR_INVALID },
    { CUDA_ERROR_CAPTURED_EVENT, ATTN_ERR_INVALID },
};
enum { N_CODES = sizeof codes / sizeof codes[0] };

attn_status attn_cu_fail(const attn_cu *cu, CUresult code, const char *call)
{
    attn_status status = ATTN_ERR_DEVICE;
    const char *name = NULL, *text = NULL;

    for (size_t i = 0; i < N_CODES; i++)
        if (codes[i].code == code)
            status = codes[i].status;
    if (cu->cuGetErrorName(code, &name) != CUDA_SUCCESS || !name)
        name = "unknown code";
    if (cu->cuGetErrorString(code, &text) != CUDA_SUCCESS || !text)
        text = "no text";
    if (!strncmp(call, "cu->", 4))
        call += 4;
    return attn_fail(status, "%.*s = %d (%s: %s)", (int)strcspn(call, "("), call, (int)code,
                     name, text);
}

/* Whose context this thread is in, and how many times over; of another device meanwhile
 * nobody keeps count, since that is pushed and popped each time. */
static _Thread_local struct {
    const attn_device *dev;
    int depth;
} inside;

attn_status attn_cu_enter(const attn_device *dev)
{
    CUresult code;

    if (inside.dev == dev) {
        inside.depth++;
        return ATTN_OK;
    }
    code = dev->cu->cuCtxPushCurrent(dev->context);
    if (code != CUDA_SUCCESS)
        return attn_cu_fail(dev->cu, code, "cuCtxPushCurrent");
    if (!inside.dev) {
        inside.dev = dev;
        inside.depth = 1;
    }
    return ATTN_OK;
}

void attn_cu_leave(const attn_device *dev)
{
    CUcontext context = NULL;

    if (inside.dev == dev) {
        if (--inside.depth)
            return;
        inside.dev = NULL;
    }
    dev->cu->cuCtxPopCurrent(&context);
}
