/* SPDX-License-Identifier: MIT */
/* backend/opencl/opencl.h: what the files of this back end share. */
#ifndef ATTN_OPENCL_OPENCL_H
#define ATTN_OPENCL_OPENCL_H

#include <pthread.h>

#include "backend/backend.h"
#include "backend/opencl/loader.h"
#include "core/text.h"

struct attn_device {
    const attn_cl *cl;
    const struct attn_clblast *blas; /* NULL: not found                        */
    cl_device_id id;
    cl_context context;       /* retained; made here, or the caller's          */
    cl_command_queue queue;   /* own, in order, with profiling                 */
    attn_device_info info;
    int64_t address_bits;
    char *cache_dir;          /* NULL: programs are not kept on disk           */
    attn_kernel *kernels;     /* list; grows until close                       */
};

/* A step of one round that a library enqueues, not a kernel of ours. */
typedef struct attn_cl_job {
    const attn_step *step;
    const attn_call *call;
    int64_t heads, query, queries; /* of the round                             */
    cl_command_queue queue;
    cl_uint n_wait;
    const cl_event *wait;
    cl_event *done;           /* NULL: not wanted                              */
} attn_cl_job;

typedef attn_status attn_cl_library(attn_device *dev, const attn_cl_job *job);

/* One program holds one kernel: then local memory of others does not count
 * against its limit, and only what is launched is compiled. */
struct attn_kernel {
    attn_kernel *next;
    const char *name;         /* the step's                                    */
    char *options;            /* with `name` the key                           */
    cl_program program;
    cl_kernel kernel;
    attn_cl_library *library; /* not NULL: computes it, and there is no kernel  */
    int64_t max_group;
    int64_t fast_bytes;       /* local memory that it uses                     */
    pthread_mutex_t lock;     /* from the first argument set to the enqueue    */
};

/* Records "call = code (name)" and returns the status that goes with the code. */
attn_status attn_cl_fail(cl_int code, const char *call);

/* "CL_OUT_OF_RESOURCES"; "unknown code". */
const char *attn_cl_code_name(cl_int code);

/* Both need `attn_status st` and the label `fail` around them. CL_NEW is for
 * functions that return an object: its call passes &code. */
#define CL(call)                                 \
    do {                                         \
        const cl_int code = (call);              \
        if (code != CL_SUCCESS) {                \
            st = attn_cl_fail(code, #call);      \
            goto fail;                           \
        }                                        \
    } while (0)

#define CL_NEW(object, call)                     \
    do {                                         \
        cl_int code = CL_SUCCESS;                \
        (object) = (call);                       \
        if (code != CL_SUCCESS || !(object)) {   \
            st = attn_cl_fail(code, #call);      \
            goto fail;                           \
        }                                        \
    } while (0)

/* platform.c */
attn_status attn_cl_count(const attn_env *env, int *n, char *reason, size_t cap);
attn_status attn_cl_describe(const attn_env *env, int index, attn_device_info *info);

/* The loader and device `index` of all platforms. */
attn_status attn_cl_find(const attn_env *env, int index, const attn_cl **cl,
                         cl_device_id *device);

/* The place of a device in that list; -1: it is not there (a sub-device). */
int attn_cl_index(const attn_cl *cl, cl_device_id device);

/* Fills *info; index -1 leaves the number out of the selector. */
attn_status attn_cl_info(const attn_cl *cl, cl_device_id device, int index,
                         attn_device_info *info);

/* Appends the full names and versions of platform, device and driver: what a
 * compiled program depends on. */
void attn_cl_identity(const attn_cl *cl, cl_device_id device, attn_text *text);

/* program.c. Makes the program and the kernel of k->name and k->options. */
attn_status attn_cl_program(attn_device *dev, attn_kernel *k);
void attn_cl_program_drop(attn_device *dev, attn_kernel *k);

/* kernel.c */
attn_status attn_cl_kernel(attn_device *dev, const attn_step *step, const attn_kernel **out,
                           int64_t *max_group);
void attn_cl_kernel_free(attn_device *dev, attn_kernel *k);

/* launch.c */
attn_status attn_cl_launch(attn_device *dev, int n, const attn_kernel *const kernels[],
                           const attn_step steps[], const attn_call *call,
                           const attn_stream *stream);

/* How many parameters a kernel of that name has. */
cl_uint attn_cl_n_params(const char *kernel);

/* Where one execution goes. */
typedef struct attn_cl_target {
    const attn_cl *cl;
    cl_command_queue queue;
    const cl_event *wait;
    cl_uint n_wait;
} attn_cl_target;

/* INVALID: the caller's queue is of another context or device, or can't be timed. */
attn_status attn_cl_find_queue(attn_device *dev, const attn_stream *stream,
                               attn_cl_target *to);

/* Where a kernel's parameter lies in the struct of all. */
typedef struct attn_cl_param {
    const char *name;
    size_t offset, bytes;
} attn_cl_param;

/* Sets the n arguments that `list` finds in `a`, and enqueues. `done` may be NULL. */
attn_status attn_cl_enqueue(const attn_cl_target *to, const attn_kernel *kernel,
                            const attn_cl_param *list, cl_uint n, const void *a,
                            size_t global, size_t local, cl_event *done);

/* merge.c */
extern const cl_uint attn_cl_n_merge_params;
attn_status attn_cl_merge(attn_device *dev, const attn_kernel *const kernel[],
                          const attn_step step[], const attn_merge_args *args,
                          const attn_stream *stream);

/* memory.c */
attn_status attn_cl_wait_event(attn_device *dev, cl_event event);
attn_status attn_cl_wait(attn_device *dev);
attn_status attn_cl_alloc(attn_device *dev, size_t bytes, void **out);
void attn_cl_free(attn_device *dev, void *memory);
attn_status attn_cl_upload(attn_device *dev, void *memory, size_t offset, const void *from,
                           size_t bytes);
attn_status attn_cl_download(attn_device *dev, void *to, const void *memory, size_t offset,
                             size_t bytes);
attn_status attn_cl_buffer_bytes(attn_device *dev, const void *memory, size_t *bytes);
attn_status attn_cl_buffer_place(attn_device *dev, const void *memory, const void **block,
                                 uintptr_t *at);

#endif
