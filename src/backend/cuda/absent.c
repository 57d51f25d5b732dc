/* SPDX-License-Identifier: MIT */
/* backend/cuda/absent.c: no CUDA in this build: zero devices, and why. */
#include <stdio.h>

#include "backend/backend.h"
#include "core/status.h"

static const char why[] = "this version of the library has no CUDA back end yet";

static attn_status cuda_count(const attn_env *env, int *n, char *reason, size_t cap)
{
    (void)env;
    *n = 0;
    snprintf(reason, cap, "%s", why);
    return ATTN_OK;
}

static attn_status cuda_describe(const attn_env *env, int index, attn_device_info *info)
{
    (void)env;
    (void)info;
    return attn_fail(ATTN_ERR_NO_DEVICE, "cuda:%d: %s", index, why);
}

static attn_status cuda_open(const attn_env *env, int index, attn_device **out)
{
    (void)env;
    *out = NULL;
    return attn_fail(ATTN_ERR_NO_DEVICE, "cuda:%d: %s", index, why);
}

/* No device is ever opened, so the verbs that take one stay empty. */
const attn_backend attn_backend_cuda = {
    .name = "cuda",
    .count = cuda_count,
    .describe = cuda_describe,
    .open = cuda_open,
};
