/* SPDX-License-Identifier: MIT */
/* backend/backend.h: what a back end provides: a table of verbs. Back ends carry
 * out steps; they never pick a kernel, a tile or a fallback: the planner has
 * done that. Every verb that fails has called attn_fail(). */
#ifndef ATTN_BACKEND_H
#define ATTN_BACKEND_H

#include <stdbool.h>

#include <attn/device.h>
#include <attn/linear.h>
#include <attn/merge.h>
#include <attn/plan.h>
#include <attn/tensor.h>

#include "plan/step.h"

/* The ATTN_ variables, read once at context creation. NULL: not set. */
typedef struct attn_env {
    const char *device;       /* ATTN_DEVICE                                   */
    const char *opencl_lib;   /* ATTN_OPENCL_LIB                               */
    const char *cuda_lib;     /* ATTN_CUDA_LIB                                 */
    const char *clblast_lib;  /* ATTN_CLBLAST_LIB                              */
    const char *cublas_lib;   /* ATTN_CUBLAS_LIB                               */
    const char *cudnn_lib;    /* ATTN_CUDNN_LIB                                */
    const char *cache_dir;    /* where kernels are kept on disk; NULL: nowhere */
} attn_env;

/* Each back end has its own. `attn_kernel` belongs to its device and lives as
 * long; the same step gives the same one. */
typedef struct attn_device attn_device;
typedef struct attn_kernel attn_kernel;

/* One execution: tensors and numbers of this run, all checked. Biases, masks and slopes
 * have their full sizes here, broadcast by strides of 0; grad_bias keeps sizes of 1, with
 * strides of 0. */
typedef struct attn_call {
    const attn_args *args;
    int64_t batch, heads_q, heads_kv;
    int64_t len_q, len_kv;    /* the most of a batch                           */
    int64_t tokens_q, tokens_k; /* packed: rows of the tensors                 */
    int64_t pages, page_size;
    int64_t offset;           /* position of query 0 for TOP_LEFT              */
    int64_t left, right;      /* key j visible to query i when i + offset - left */
    float scale;              /*   <= j <= i + offset + right; or UNBOUNDED    */
    float softcap;
    float dropout;            /* 0: none; seed and offset are in `args`        */
    attn_phi phi;             /* linear attention, as all below                */
    attn_rule rule;
    bool causal, normalize;
    float sum_scale, sum_eps, sum_unit; /* of the forward: attn_problem_sums() */
    float eps;                /* for the oracle                                */
} attn_call;

/* Where and after what to enqueue. All zero: the device's own queue. */
typedef struct attn_stream {
    void *queue;              /* the caller's; NULL: the device's own          */
    uint32_t n_wait;          /* events to wait for: `wait` is the driver's    */
    const void *wait;         /*   own array of them                           */
    void *done;               /* where to put an event; NULL: nowhere          */
    uint64_t *ns;             /* not NULL: wait, and put the device's time here */
} attn_stream;

typedef struct attn_backend {
    const char *name;         /* "cuda", "opencl", "host"                      */

    /* Any thread. How many devices there are; 0 is no error: then `reason` says
     * why, in at most `cap` bytes. */
    attn_status (*count)(const attn_env *env, int *n, char *reason, size_t cap);

    /* Any thread. Fills *info for a device that count() counted. */
    attn_status (*describe)(const attn_env *env, int index, attn_device_info *info);

    /* Any thread. Opens a device that count() counted, or the caller's own
     * (adopt; NULL if the back end has no such objects). */
    attn_status (*open)(const attn_env *env, int index, attn_device **out);
    attn_status (*adopt)(const attn_env *env, void *context, void *device,
                         attn_device_info *info, attn_device **out);

    /* Waits for the device's own queue and frees all. Accepts NULL and a NULL or
     * half-built device; sets *dev to NULL. */
    void (*close)(attn_device **dev);

    /* Several calls of this thread follow: what each of them would make ready for itself
     * is made ready once, until leave(). NULL: there is nothing of the kind. */
    attn_status (*enter)(const attn_device *dev);
    void (*leave)(const attn_device *dev);

    /* Context lock held; may compile. *max_group receives the largest group that
     * this kernel can be launched with here: if step->block is larger the kernel
     * must not be launched, and the planner chooses again. 0: with none; then
     * attn_fail() has been called with the reason, though the status is ATTN_OK. */
    attn_status (*kernel)(attn_device *dev, const attn_step *step, const attn_kernel **out,
                          int64_t *max_group);

    /* Any thread, several at once on one kernel: the back end guards what its
     * driver does not. Enqueues n steps, each after the one before (n may be 0:
     * then only the wait list and the event matter). Never allocates device
     * memory, and never waits unless stream->ns asks. */
    attn_status (*launch)(attn_device *dev, int n, const attn_kernel *const kernels[],
                          const attn_step steps[], const attn_call *call,
                          const attn_stream *stream);

    /* As launch, for a merge, all checked: the kernel and the step for parts of each
     * type, by attn_type, those that occur (a back end on the host has no kernels). args
     * NULL: only the wait list and the event matter. NULL: the back end has no merge. */
    attn_status (*merge)(attn_device *dev, const attn_kernel *const kernel[],
                         const attn_step step[], const attn_merge_args *args,
                         const attn_stream *stream);

    /* Any thread. */
    attn_status (*wait)(attn_device *dev);
    attn_status (*alloc)(attn_device *dev, size_t bytes, void **out);
    void (*free)(attn_device *dev, void *memory);
    attn_status (*upload)(attn_device *dev, void *memory, size_t offset, const void *from,
                          size_t bytes);
    attn_status (*download)(attn_device *dev, void *to, const void *memory, size_t offset,
                            size_t bytes);

    /* The size of a buffer that the caller handed in; 0: the device can't tell.
     * INVALID if it is no buffer of this device. */
    attn_status (*buffer_bytes)(attn_device *dev, const void *memory, size_t *bytes);

    /* Of a buffer of this device: the one that it is a part of, or itself, and where in it, or
     * at which address of the host's, it begins. NULL: memory has addresses. */
    attn_status (*buffer_place)(attn_device *dev, const void *memory, const void **block,
                                uintptr_t *at);

    /* Memory is addressed from the host: no copies for host arrays. */
    bool on_host;

    /* A tensor's data is an address: it can be misaligned, and memory overlaps where
     * addresses say so. Otherwise it is a handle of a whole buffer. */
    bool addresses;
} attn_backend;

#endif
