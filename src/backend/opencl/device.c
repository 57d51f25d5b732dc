/* SPDX-License-Identifier: MIT */
/* backend/opencl/device.c: opens and closes devices; the table of this back end. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "backend/opencl/clblast.h"
#include "backend/opencl/opencl.h"
#include "core/status.h"

/* PoCL keeps compiled work-groups on disk itself, and asking it for binaries
 * makes it compile every kernel once more, without its local size. */
static bool caches_itself(const attn_device_info *info)
{
    static const char pocl[] = "Portable Computing Language";
    return !strncmp(info->platform, pocl, sizeof pocl - 1);
}

/* Accepts NULL and a half-built device. */
static void close_device(attn_device **dev)
{
    attn_device *d = dev ? *dev : NULL;

    if (!d)
        return;
    if (d->queue) {
        attn_cl_wait(d);
        d->cl->clReleaseCommandQueue(d->queue);
    }
    while (d->kernels) {
        attn_kernel *k = d->kernels;
        if (k->library)
            attn_clblast_clear(d->blas);
        d->kernels = k->next;
        attn_cl_kernel_free(d, k);
    }
    if (d->context)
        d->cl->clReleaseContext(d->context);
    free(d->cache_dir);
    free(d);
    *dev = NULL;
}

/* All that both ways of opening share; takes over one reference to `context`,
 * also on failure. */
static attn_status make_device(const attn_env *env, const attn_cl *cl, cl_context context,
                               cl_device_id id, int index, attn_device **out)
{
    attn_device *dev = calloc(1, sizeof *dev);
    cl_uint address_bits = 0;
    attn_status st;

    if (!dev) {
        cl->clReleaseContext(context);
        return attn_fail(ATTN_ERR_NO_MEMORY, "OpenCL device: %zu bytes", sizeof *dev);
    }
    dev->cl = cl;
    dev->id = id;
    dev->context = context;
    if ((st = attn_cl_info(cl, id, index, &dev->info)) != ATTN_OK)
        goto fail;
    dev->blas = attn_clblast_load(env->clblast_lib, dev->info.blas, sizeof dev->info.blas);
    CL(cl->clGetDeviceInfo(id, CL_DEVICE_ADDRESS_BITS, sizeof address_bits, &address_bits,
                           NULL));
    dev->address_bits = address_bits;
    CL_NEW(dev->queue,
           cl->clCreateCommandQueue(context, id, CL_QUEUE_PROFILING_ENABLE, &code));
    if (env->cache_dir && !caches_itself(&dev->info) &&
        !(dev->cache_dir = strdup(env->cache_dir))) {
        st = attn_fail(ATTN_ERR_NO_MEMORY, "name of the kernel cache");
        goto fail;
    }
    *out = dev;
    return ATTN_OK;

fail:
    close_device(&dev);
    return st;
}

static attn_status open_device(const attn_env *env, int index, attn_device **out)
{
    cl_context_properties properties[] = { CL_CONTEXT_PLATFORM, 0, 0 };
    cl_platform_id platform = NULL;
    cl_context context = NULL;
    const attn_cl *cl;
    cl_device_id id;
    attn_status st;

    *out = NULL;
    if ((st = attn_cl_find(env, index, &cl, &id)) != ATTN_OK)
        return st;
    CL(cl->clGetDeviceInfo(id, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL));
    properties[1] = (cl_context_properties)platform;
    CL_NEW(context, cl->clCreateContext(properties, 1, &id, NULL, NULL, &code));
    return make_device(env, cl, context, id, index, out);

fail:
    return st;
}

static bool in_list(const cl_device_id *list, size_t n, cl_device_id id)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == id)
            return true;
    return false;
}

/* A sub-device may stand in the context's list under its parent's name (PoCL);
 * whether it is taken there, the first queue made for it tells. */
static attn_status has_device(const attn_cl *cl, cl_context context, cl_device_id id)
{
    cl_device_id *list = NULL, device = id;
    size_t bytes = 0, n;
    attn_status st = ATTN_OK;

    CL(cl->clGetContextInfo(context, CL_CONTEXT_DEVICES, 0, NULL, &bytes));
    if (!(list = malloc(bytes)))
        return attn_fail(ATTN_ERR_NO_MEMORY, "devices of a cl_context: %zu bytes", bytes);
    CL(cl->clGetContextInfo(context, CL_CONTEXT_DEVICES, bytes, list, NULL));
    n = bytes / sizeof *list;
    while (device && !in_list(list, n, device))
        if (cl->clGetDeviceInfo(device, CL_DEVICE_PARENT_DEVICE, sizeof device, &device,
                                NULL))
            device = NULL;
    if (!device)
        st = attn_fail(ATTN_ERR_INVALID, "device = %p is none of the %zu of context = %p",
                       (void *)id, n, (void *)context);
fail:
    free(list);
    return st;
}

static attn_status adopt(const attn_env *env, void *context, void *device,
                         attn_device_info *info, attn_device **out)
{
    const cl_device_id id = device;
    char reason[256];
    const attn_cl *cl;
    attn_status st;

    *out = NULL;
    if (!context || !device)
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", context ? "device" : "context");
    cl = attn_cl_load(env->opencl_lib, reason, sizeof reason);
    if (!cl)
        return attn_fail(ATTN_ERR_NO_DEVICE, "%s", reason);
    if ((st = has_device(cl, context, id)) != ATTN_OK)
        return st;
    CL(cl->clRetainContext(context));
    if ((st = make_device(env, cl, context, id, attn_cl_index(cl, id), out)) != ATTN_OK)
        return st;
    *info = (*out)->info;
fail:
    return st;
}

const attn_backend attn_backend_opencl = {
    .name = "opencl",
    .count = attn_cl_count,
    .describe = attn_cl_describe,
    .open = open_device,
    .adopt = adopt,
    .close = close_device,
    .kernel = attn_cl_kernel,
    .launch = attn_cl_launch,
    .merge = attn_cl_merge,
    .wait = attn_cl_wait,
    .alloc = attn_cl_alloc,
    .free = attn_cl_free,
    .upload = attn_cl_upload,
    .download = attn_cl_download,
    .buffer_bytes = attn_cl_buffer_bytes,
    .buffer_place = attn_cl_buffer_place,
    .on_host = false,
};
