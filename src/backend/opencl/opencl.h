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
    cl_device_id id;
    cl_context context;       /* retained; made here, or the caller's          */
    cl_command_queue queue;   /* own, in order, with profiling                 */
    attn_device_info info;
    int64_t address_bits;
    char *cache_dir;          /* NULL: programs are not kept on disk           */
    attn_kernel *kernels;     /* list; grows until close                       */
};

/* One program holds one kernel: then local memory of others does not count
 * against its limit, and only what is launched is compiled. */
struct attn_kernel {
    attn_kernel *next;
    const char *name;         /* the step's                                    */
    char *options;            /* with `name` the key                           */
    cl_program program;
    cl_kernel kernel;
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

/* How many parameters every kernel has. */
extern const cl_uint attn_cl_n_params;

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

#endif
