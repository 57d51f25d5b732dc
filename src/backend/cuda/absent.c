/* SPDX-License-Identifier: MIT */
/* backend/cuda/absent.c: a build without CUDA: zero devices, and why. */
#include <stdio.h>

#include "backend/backend.h"
#include "core/status.h"

static const char why[] = "this library was built without CUDA (option cuda disabled, "
                          "nvcc not found, or auto where no NVIDIA GPU was)";

static attn_status count(const attn_env *env, int *n, char *reason, size_t cap)
{
    (void)env;
    *n = 0;
    snprintf(reason, cap, "%s", why);
    return ATTN_OK;
}

static attn_status describe(const attn_env *env, int index, attn_device_info *info)
{
    (void)env;
    (void)info;
    return attn_fail(ATTN_ERR_NO_DEVICE, "cuda:%d: %s", index, why);
}

static attn_status open_device(const attn_env *env, int index, attn_device **out)
{
    (void)env;
    *out = NULL;
    return attn_fail(ATTN_ERR_NO_DEVICE, "cuda:%d: %s", index, why);
}

static attn_status adopt(const attn_env *env, void *context, void *device,
                         attn_device_info *info, attn_device **out)
{
    (void)env;
    (void)context;
    (void)device;
    (void)info;
    *out = NULL;
    return attn_fail(ATTN_ERR_NO_DEVICE, "%s", why);
}

/* No device is ever opened, so the verbs that take one stay empty. */
const attn_backend attn_backend_cuda = {
    .name = "cuda",
    .count = count,
    .describe = describe,
    .open = open_device,
    .adopt = adopt,
};
