/* SPDX-License-Identifier: MIT */
/* backend/cuda/kernel.c: from a step to a function that is ready to launch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cublas.h"
#include "backend/cuda/cudnn.h"
#include "common/params.h"
#include "core/status.h"

static const struct {
    const char *name;
    uint32_t bit;
} features[] = {
#define X(name) { #name, name },
    KFEATURE_LIST(X) LFEATURE_LIST(X)
#undef X
};
enum { N_FEATURES = sizeof features / sizeof features[0] };

/* The step's defines that a function takes as data; those it was compiled with are in
 * its name. */
static void read_defines(const attn_step *step, attn_kernel *k)
{
    k->name = step->kernel;
    k->d = (int32_t)step->d;
    k->dv = (int32_t)step->dv;
    k->fast_bytes = step->fast_bytes;
    k->linear = step->linear;
    for (int i = 0; i < step->n_defines; i++) {
        const attn_define *d = &step->define[i];

        if (!strcmp(d->name, "BIAS_TYPE"))
            k->bias_type = d->value;
        for (size_t f = 0; f < N_FEATURES && d->value; f++)
            if (!strcmp(d->name, features[f].name))
                k->features |= features[f].bit;
    }
}

static bool same(const attn_kernel *a, const attn_kernel *b)
{
    return !strcmp(a->name, b->name) && a->features == b->features &&
           a->bias_type == b->bias_type && a->d == b->d && a->dv == b->dv &&
           a->fast_bytes == b->fast_bytes;
}

/* Loads the best part that the driver takes. PTX comes after machine code that it has no use
 * for, and is compiled by it. The context is current. */
static attn_status load_module(const attn_device *dev, const attn_cu_image *image,
                               CUmodule *out)
{
    const attn_cu_part *parts[ATTN_CU_MOST_PARTS];
    const int n = attn_cu_image_parts(image, dev->info.capability, parts);
    const attn_cu *cu = dev->cu;
    CUresult code = CUDA_ERROR_NO_BINARY_FOR_GPU;
    attn_status st = ATTN_OK;

    for (int i = 0; i < n && code == CUDA_ERROR_NO_BINARY_FOR_GPU; i++) {
        char *data = NULL;

        if ((st = attn_cu_image_unpack(parts[i], &data)) != ATTN_OK)
            return st;
        code = cu->cuModuleLoadData(out, data);
        free(data);
    }
    return code == CUDA_SUCCESS ? ATTN_OK : attn_cu_fail(cu, code, "cuModuleLoadData");
}

/* Loads an image once. The context is current. */
static attn_status load(attn_device *dev, const char *kernel, CUmodule *out)
{
    const attn_cu_image *image = attn_cu_image_find(kernel);
    attn_cu_module *m;
    attn_status st = ATTN_OK;

    if (!image)
        return attn_fail(ATTN_ERR_BUILD, "kernel %s: this build has no image of it",
                         kernel);
    for (m = dev->modules; m && m->image != image; m = m->next)
        ;
    if (!m) {
        if (!(m = calloc(1, sizeof *m)))
            return attn_fail(ATTN_ERR_NO_MEMORY, "module: %zu bytes", sizeof *m);
        m->image = image;
        if ((st = load_module(dev, image, &m->module)) != ATTN_OK)
            goto fail;
        m->next = dev->modules;
        dev->modules = m;
    }
    *out = m->module;
    return ATTN_OK;

fail:
    free(m);
    return attn_fail_in(st, "image %s on %s (%s)", image->name, dev->info.name,
                        dev->info.isa);
}

static attn_status read_attribute(const attn_device *dev, CUfunction function,
                                  CUfunction_attribute what, int64_t *out)
{
    const attn_cu *cu = dev->cu;
    attn_status st = ATTN_OK;
    int value = 0;

    CU(cu->cuFuncGetAttribute(&value, what, function));
    *out = value;
fail:
    return st;
}

/* Finds the function and lets it have its shared memory. The context is current. */
static attn_status make(attn_device *dev, attn_kernel *k)
{
    const attn_cu *cu = dev->cu;
    char symbol[128];
    CUmodule module = NULL;
    attn_status st;

    if ((k->library = attn_cublas_step(k->name))) {
        k->max_group = 1;
        return attn_cublas_open(dev);
    }
    if ((k->library = attn_cudnn_step(k->name))) {
        k->max_group = 1;
        k->plans = true;
        return attn_cudnn_open(dev);
    }
    snprintf(symbol, sizeof symbol, "attn_%s", k->name);
    if ((st = load(dev, k->name, &module)) != ATTN_OK)
        return st;
    CU(cu->cuModuleGetFunction(&k->function, module, symbol));
    if ((st = read_attribute(dev, k->function, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
                             &k->max_group)) != ATTN_OK ||
        (st = read_attribute(dev, k->function, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES,
                             &k->local_bytes)) != ATTN_OK)
        goto fail;
    if (k->fast_bytes > dev->info.fast_bytes) {
        k->max_group = 0;
        return ATTN_OK;
    }
    if (!k->fast_bytes) /* what is not shared memory is cache */
        return ATTN_OK;
    CU(cu->cuFuncSetAttribute(k->function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                              (int)k->fast_bytes));
    CU(cu->cuFuncSetAttribute(k->function,
                              CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                              CU_SHAREDMEM_CARVEOUT_MAX_SHARED));
    return ATTN_OK;

fail:
    return attn_fail_in(st, "kernel %s", k->name);
}

static attn_status add(attn_device *dev, const attn_kernel *key, attn_kernel **out)
{
    attn_kernel *k = malloc(sizeof *k);
    attn_status st;

    if (!k)
        return attn_fail(ATTN_ERR_NO_MEMORY, "kernel: %zu bytes", sizeof *k);
    *k = *key;
    if ((st = attn_cu_enter(dev)) == ATTN_OK) {
        st = make(dev, k);
        attn_cu_leave(dev);
    }
    if (st != ATTN_OK) {
        free(k);
        return st;
    }
    k->next = dev->kernels;
    dev->kernels = k;
    *out = k;
    return ATTN_OK;
}

/* One function serves problems of any sizes, but a library's plan those of one. */
static attn_status make_plan(attn_device *dev, const attn_step *step, const attn_kernel *k)
{
    attn_status st = attn_cu_enter(dev);

    if (st == ATTN_OK) {
        st = attn_cudnn_prepare(dev, step, k);
        attn_cu_leave(dev);
    }
    return st;
}

attn_status attn_cu_kernel(attn_device *dev, const attn_step *step, const attn_kernel **out,
                           int64_t *max_group)
{
    attn_kernel key = { .name = NULL }, *k;
    attn_status st;

    *out = NULL;
    *max_group = 0;
    read_defines(step, &key);
    for (k = dev->kernels; k && !same(k, &key); k = k->next)
        ;
    if (!k && (st = add(dev, &key, &k)) != ATTN_OK)
        return st;
    if (k->plans && (st = make_plan(dev, step, k)) != ATTN_OK)
        return st;
    if (!k->max_group)
        attn_fail(ATTN_ERR_UNSUPPORTED,
                  "kernel %s uses %lld bytes of shared memory, %s has %lld", k->name,
                  (long long)k->fast_bytes, dev->info.name,
                  (long long)dev->info.fast_bytes);
    *max_group = k->max_group;
    *out = k;
    return ATTN_OK;
}

void attn_cu_kernels_drop(attn_device *dev, bool current)
{
    while (dev->kernels) {
        attn_kernel *k = dev->kernels;
        dev->kernels = k->next;
        free(k);
    }
    while (dev->modules) {
        attn_cu_module *m = dev->modules;
        dev->modules = m->next;
        if (current)
            dev->cu->cuModuleUnload(m->module);
        free(m);
    }
}
