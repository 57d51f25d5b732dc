/* SPDX-License-Identifier: MIT */
/* backend/cuda/cuda.h: what the files of this back end share. */
#ifndef ATTN_CUDA_CUDA_H
#define ATTN_CUDA_CUDA_H

#include "backend/backend.h"
#include "backend/cuda/image.h"
#include "backend/cuda/loader.h"

/* An image that is loaded in this device's context. */
typedef struct attn_cu_module {
    struct attn_cu_module *next;
    const attn_cu_image *image;
    CUmodule module;
} attn_cu_module;

struct attn_device {
    const attn_cu *cu;
    CUdevice id;
    CUcontext context;        /* the primary one, retained; or the caller's       */
    bool borrowed;            /* the caller's                                     */
    CUstream stream;          /* own, does not wait for the legacy stream         */
    attn_device_info info;
    const struct attn_cublas *blas; /* NULL: not found                            */
    struct attn_cu_products *products; /* its handle; NULL: not asked for yet     */
    const struct attn_cudnn *dnn;   /* NULL: not found                            */
    struct attn_cu_graphs *graphs;  /* its handle and plans; as `products`        */
    attn_cu_module *modules;  /* lists; grow until close                          */
    attn_kernel *kernels;
};

/* What a library computes: a product of the matrices of one round, or all of it; all
 * checked. The context is current. */
typedef struct attn_cu_job {
    const attn_step *step;
    const attn_call *call;
    int64_t heads, query, queries; /* of the round                                */
    CUstream stream;
} attn_cu_job;

typedef struct attn_cu_products attn_cu_products;
typedef attn_status attn_cu_library(attn_device *dev, const attn_cu_job *job);

/* A function with the problem's features: those are data to it, but each set of them
 * is proven by a self-test of its own. */
struct attn_kernel {
    attn_kernel *next;
    const char *name;         /* the step's                                       */
    uint32_t features;        /* KFEATURE_LIST bits, or LFEATURE_LIST's           */
    int32_t bias_type, d, dv;
    attn_cu_library *library; /* not NULL: a library's step, no function          */
    bool plans;               /* the library has plans of its own                 */
    bool linear;              /* it takes an attn_linear_kparams                  */
    CUfunction function;
    int64_t max_group;
    int64_t fast_bytes;       /* shared memory of a launch                        */
    int64_t local_bytes;      /* stack of a thread                                */
};

/* Records "call = code (name: text)" and returns the status that goes with the code. */
attn_status attn_cu_fail(const attn_cu *cu, CUresult code, const char *call);

/* Needs `attn_status st`, `cu` and the label `fail` around it. */
#define CU(call)                                  \
    do {                                          \
        const CUresult code = (call);             \
        if (code != CUDA_SUCCESS) {               \
            st = attn_cu_fail(cu, code, #call);   \
            goto fail;                            \
        }                                         \
    } while (0)

/* error.c. Every call of the driver that needs a context stands between these two, so
 * that any thread can make it and finds its own context again. */
attn_status attn_cu_enter(const attn_device *dev);
void attn_cu_leave(const attn_device *dev);

/* device.c */
attn_status attn_cu_count(const attn_env *env, int *n, char *reason, size_t cap);
attn_status attn_cu_describe(const attn_env *env, int index, attn_device_info *info);

/* The loader and usable device `index`. */
attn_status attn_cu_find(const attn_env *env, int index, const attn_cu **cu, CUdevice *id);

/* The place of a device among the usable ones; -1: it is none. */
int attn_cu_index(const attn_cu *cu, CUdevice id);

/* Fills *info of a usable device. */
attn_status attn_cu_info(const attn_cu *cu, CUdevice id, int index, attn_device_info *info);

/* kernel.c */
attn_status attn_cu_kernel(attn_device *dev, const attn_step *step, const attn_kernel **out,
                           int64_t *max_group);

/* Unloads all modules if the device's context is current; else they have gone with it. */
void attn_cu_kernels_drop(attn_device *dev, bool current);

/* launch.c */
attn_status attn_cu_launch(attn_device *dev, int n, const attn_kernel *const kernels[],
                           const attn_step steps[], const attn_call *call,
                           const attn_stream *stream);

/* The stream to enqueue on. The device's context is current: streams without a handle of
 * their own, such as the legacy one, are its. */
attn_status attn_cu_find_stream(const attn_device *dev, const attn_stream *stream,
                                CUstream *out);

/* merge.c */
attn_status attn_cu_merge(attn_device *dev, const attn_kernel *const kernel[],
                          const attn_step step[], const attn_merge_args *args,
                          const attn_stream *stream);

/* memory.c */
attn_status attn_cu_wait(attn_device *dev);
attn_status attn_cu_alloc(attn_device *dev, size_t bytes, void **out);
void attn_cu_free(attn_device *dev, void *memory);
attn_status attn_cu_upload(attn_device *dev, void *memory, size_t offset, const void *from,
                           size_t bytes);
attn_status attn_cu_download(attn_device *dev, void *to, const void *memory, size_t offset,
                             size_t bytes);
attn_status attn_cu_buffer_bytes(attn_device *dev, const void *memory, size_t *bytes);

#endif
