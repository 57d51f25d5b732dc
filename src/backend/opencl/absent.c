/* SPDX-License-Identifier: MIT */
/* backend/opencl/absent.c: a build without OpenCL: zero devices, and why. */
#include <stdio.h>

#include "backend/backend.h"
#include "core/status.h"

static const char why[] = "this library was built without OpenCL (option opencl "
                          "disabled, or CL/cl.h or xxhash.h not found)";

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
    return attn_fail(ATTN_ERR_NO_DEVICE, "opencl:%d: %s", index, why);
}

static attn_status open_device(const attn_env *env, int index, attn_device **out)
{
    (void)env;
    *out = NULL;
    return attn_fail(ATTN_ERR_NO_DEVICE, "opencl:%d: %s", index, why);
}

/* No device is ever opened, so the verbs that take one stay empty. */
const attn_backend attn_backend_opencl = {
    .name = "opencl",
    .count = count,
    .describe = describe,
    .open = open_device,
};
