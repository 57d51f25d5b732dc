/* SPDX-License-Identifier: MIT */
/* backend/cuda/device.c: the usable devices; opens and closes them; the table of this
 * back end. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cublas.h"
#include "backend/cuda/cudnn.h"
#include "backend/cuda/image.h"
#include "core/status.h"
#include "core/text.h"

enum { LEAST_CAPABILITY = 75 }; /* 10 * major + minor; what the images are made for */

/* 10 * major + minor; 0 if it can't be had. */
static int capability(const attn_cu *cu, CUdevice id)
{
    int major = 0, minor = 0;

    if (cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                                 id) ||
        cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, id))
        return 0;
    return 10 * major + minor;
}

/* Counts the usable devices, in the driver's order; *id becomes that of place `index`,
 * *all the number of those that are there. */
static attn_status walk(const attn_cu *cu, int index, CUdevice *id, int *usable, int *all)
{
    attn_status st = ATTN_OK;
    CUdevice device;

    *usable = *all = 0;
    CU(cu->cuDeviceGetCount(all));
    for (int i = 0; i < *all; i++) {
        CU(cu->cuDeviceGet(&device, i));
        if (capability(cu, device) < LEAST_CAPABILITY)
            continue;
        if ((*usable)++ == index && id)
            *id = device;
    }
fail:
    return st;
}

attn_status attn_cu_count(const attn_env *env, int *n, char *reason, size_t cap)
{
    const attn_cu *cu = attn_cu_load(env->cuda_lib, reason, cap);
    attn_status st;
    attn_text text;
    int all;

    *n = 0;
    if (!cu)
        return ATTN_OK;
    text = attn_text_in(reason, cap); /* which is empty from here on */
    if ((st = walk(cu, -1, NULL, n, &all)) != ATTN_OK)
        return st;
    if (!all)
        attn_text_add(&text, "the CUDA driver is there, but it found no device");
    else if (!*n)
        attn_text_add(&text, "%d CUDA device%s, none of compute capability %d.%d or more",
                      all, all == 1 ? "" : "s", LEAST_CAPABILITY / 10,
                      LEAST_CAPABILITY % 10);
    return ATTN_OK;
}

attn_status attn_cu_find(const attn_env *env, int index, const attn_cu **cu, CUdevice *id)
{
    char reason[256];
    attn_status st;
    int usable, all;

    *cu = attn_cu_load(env->cuda_lib, reason, sizeof reason);
    if (!*cu)
        return attn_fail(ATTN_ERR_NO_DEVICE, "cuda:%d: %s", index, reason);
    if ((st = walk(*cu, index, id, &usable, &all)) != ATTN_OK)
        return st;
    if (index < 0 || index >= usable)
        return attn_fail(ATTN_ERR_NO_DEVICE, "cuda:%d: %d CUDA device%s can be used", index,
                         usable, usable == 1 ? "" : "s");
    return ATTN_OK;
}

int attn_cu_index(const attn_cu *cu, CUdevice id)
{
    CUdevice at = -1;
    int usable, all;

    for (int i = 0; walk(cu, i, &at, &usable, &all) == ATTN_OK && i < usable; i++)
        if (at == id)
            return i;
    return -1;
}

/* The driver API tells the version of CUDA, not the number that nvidia-smi shows. */
attn_status attn_cu_info(const attn_cu *cu, CUdevice id, int index, attn_device_info *info)
{
    static const struct {
        CUdevice_attribute what;
        const char *name;
        size_t offset;
    } numbers[] = {
#define ROW(what, field)                                             \
    { CU_DEVICE_ATTRIBUTE_##what, "cuDeviceGetAttribute(" #what ")", \
      offsetof(attn_device_info, field) }
        ROW(MULTIPROCESSOR_COUNT, compute_units),
        ROW(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, fast_bytes),
        ROW(MAX_THREADS_PER_BLOCK, max_group),
        ROW(WARP_SIZE, subgroup),
        ROW(CLOCK_RATE, clock_mhz), /* kHz */
#undef ROW
    };
    attn_text selector = attn_text_in(info->selector, sizeof info->selector);
    attn_text vendor = attn_text_in(info->vendor, sizeof info->vendor);
    attn_text driver = attn_text_in(info->driver, sizeof info->driver);
    attn_text platform = attn_text_in(info->platform, sizeof info->platform);
    attn_text isa = attn_text_in(info->isa, sizeof info->isa);
    attn_status st = ATTN_OK;
    int version = 0;
    size_t bytes = 0;

    attn_text_add(&selector, index < 0 ? "cuda" : "cuda:%d", index);
    CU(cu->cuDeviceGetName(info->name, (int)sizeof info->name, id));
    CU(cu->cuDriverGetVersion(&version));
    CU(cu->cuDeviceTotalMem(&bytes, id));
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        int value = 0;
        const CUresult code = cu->cuDeviceGetAttribute(&value, numbers[i].what, id);
        if (code != CUDA_SUCCESS)
            return attn_cu_fail(cu, code, numbers[i].name);
        *(int64_t *)(void *)((char *)info + numbers[i].offset) = value;
    }
    attn_text_add(&vendor, "NVIDIA Corporation");
    attn_text_add(&driver, "CUDA %d.%d", version / 1000, version % 1000 / 10);
    attn_text_add(&platform, "NVIDIA CUDA %d.%d", version / 1000, version % 1000 / 10);
    info->capability = capability(cu, id);
    info->generic_code = !attn_cu_image_exact(info->capability);
    attn_text_add(&isa, "sm_%d", (int)info->capability);
    info->kind = ATTN_DEVICE_GPU;
    info->clock_mhz /= 1000;
    info->vector_width = 1;
    info->max_loops = 0;
    info->memory_bytes = info->max_alloc_bytes =
        bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes;
fail:
    return st;
}

attn_status attn_cu_describe(const attn_env *env, int index, attn_device_info *info)
{
    const attn_cu *cu;
    CUdevice id = 0;
    attn_status st;

    if ((st = attn_cu_find(env, index, &cu, &id)) != ATTN_OK)
        return st;
    attn_cublas_load(env->cublas_lib, info->blas, sizeof info->blas);
    attn_cudnn_load(env->cudnn_lib, &info->cudnn_version);
    return attn_cu_info(cu, id, index, info);
}

/* Accepts NULL and a half-built device. A context that is broken fails every call here;
 * what it held is freed with it. Of one that is gone the handles mean nothing any more. */
static void close_device(attn_device **dev)
{
    attn_device *d = dev ? *dev : NULL;
    attn_error_text before;

    if (!d)
        return;
    attn_error_save(&before);
    if (d->context && attn_cu_enter(d) == ATTN_OK) {
        if (d->stream) {
            d->cu->cuStreamSynchronize(d->stream);
            d->cu->cuStreamDestroy(d->stream);
        }
        attn_cublas_close(d, true);
        attn_cudnn_close(d, true);
        attn_cu_kernels_drop(d, true);
        attn_cu_leave(d);
    } else {
        attn_cublas_close(d, false);
        attn_cudnn_close(d, false);
        attn_cu_kernels_drop(d, false);
    }
    if (d->context && !d->borrowed)
        d->cu->cuDevicePrimaryCtxRelease(d->id);
    attn_error_restore(&before);
    free(d);
    *dev = NULL;
}

/* All that both ways of opening share. Takes over the reference to a primary context,
 * also on failure. */
static attn_status make_device(const attn_env *env, const attn_cu *cu, CUcontext context,
                               CUdevice id, int index, bool borrowed, attn_device **out)
{
    attn_device *dev = calloc(1, sizeof *dev);
    attn_status st;

    if (!dev) {
        if (!borrowed)
            cu->cuDevicePrimaryCtxRelease(id);
        return attn_fail(ATTN_ERR_NO_MEMORY, "CUDA device: %zu bytes", sizeof *dev);
    }
    dev->cu = cu;
    dev->id = id;
    dev->context = context;
    dev->borrowed = borrowed;
    dev->blas = attn_cublas_load(env->cublas_lib, dev->info.blas, sizeof dev->info.blas);
    dev->dnn = attn_cudnn_load(env->cudnn_lib, &dev->info.cudnn_version);
    if ((st = attn_cu_info(cu, id, index, &dev->info)) != ATTN_OK)
        goto fail;
    if ((st = attn_cu_enter(dev)) != ATTN_OK)
        goto fail;
    {
        const CUresult code = cu->cuStreamCreate(&dev->stream, CU_STREAM_NON_BLOCKING);
        if (code != CUDA_SUCCESS)
            st = attn_cu_fail(cu, code, "cuStreamCreate");
    }
    attn_cu_leave(dev);
    if (st != ATTN_OK)
        goto fail;
    *out = dev;
    return ATTN_OK;

fail:
    close_device(&dev);
    return st;
}

static attn_status open_device(const attn_env *env, int index, attn_device **out)
{
    CUcontext context = NULL;
    const attn_cu *cu;
    CUdevice id = 0;
    attn_status st;

    *out = NULL;
    if ((st = attn_cu_find(env, index, &cu, &id)) != ATTN_OK)
        return st;
    CU(cu->cuDevicePrimaryCtxRetain(&context, id));
    return make_device(env, cu, context, id, index, false, out);

fail:
    return st;
}

/* The context alone is enough: it knows its device. */
static attn_status adopt(const attn_env *env, void *context, void *device,
                         attn_device_info *info, attn_device **out)
{
    CUcontext popped = NULL;
    char reason[256];
    const attn_cu *cu;
    CUdevice id = 0;
    CUresult asked;
    attn_status st = ATTN_OK;

    (void)device;
    *out = NULL;
    if (!context)
        return attn_fail(ATTN_ERR_INVALID, "context is NULL");
    cu = attn_cu_load(env->cuda_lib, reason, sizeof reason);
    if (!cu)
        return attn_fail(ATTN_ERR_NO_DEVICE, "%s", reason);
    CU(cu->cuCtxPushCurrent(context));
    asked = cu->cuCtxGetDevice(&id);
    cu->cuCtxPopCurrent(&popped);
    if (asked != CUDA_SUCCESS)
        return attn_cu_fail(cu, asked, "cuCtxGetDevice");
    if (capability(cu, id) < LEAST_CAPABILITY)
        return attn_fail(ATTN_ERR_NO_DEVICE,
                         "context = %p is on a device of compute capability %d.%d, want "
                         "%d.%d or more",
                         context, capability(cu, id) / 10, capability(cu, id) % 10,
                         LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
    if ((st = make_device(env, cu, context, id, attn_cu_index(cu, id), true, out)) ==
        ATTN_OK)
        *info = (*out)->info;
fail:
    return st;
}

const attn_backend attn_backend_cuda = {
    .name = "cuda",
    .count = attn_cu_count,
    .describe = attn_cu_describe,
    .open = open_device,
    .adopt = adopt,
    .close = close_device,
    .enter = attn_cu_enter,
    .leave = attn_cu_leave,
    .kernel = attn_cu_kernel,
    .launch = attn_cu_launch,
    .merge = attn_cu_merge,
    .wait = attn_cu_wait,
    .alloc = attn_cu_alloc,
    .free = attn_cu_free,
    .upload = attn_cu_upload,
    .download = attn_cu_download,
    .buffer_bytes = attn_cu_buffer_bytes,
    .on_host = false,
    .addresses = true,
};
