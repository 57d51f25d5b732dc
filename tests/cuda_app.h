/* SPDX-License-Identifier: MIT */
/* tests/cuda_app.h: an application of its own on CUDA, which the contract tests play: what
 * it calls of the driver, and a problem in its memory. On a GPU, or on the emulator. */
#ifndef ATTN_TESTS_CUDA_APP_H
#define ATTN_TESTS_CUDA_APP_H

#include <cuda.h>

#include "tests/fault.h"

#include <attn/cuda.h>

#define APP_FUNCTIONS(X)         \
    X(cuInit)                    \
    X(cuDeviceGetCount)          \
    X(cuDevicePrimaryCtxRetain)  \
    X(cuDevicePrimaryCtxRelease) \
    X(cuCtxDestroy)              \
    X(cuCtxPushCurrent)          \
    X(cuCtxPopCurrent)           \
    X(cuModuleLoadData)          \
    X(cuModuleGetFunction)       \
    X(cuLaunchKernel)            \
    X(cuStreamCreate)            \
    X(cuStreamDestroy)           \
    X(cuStreamSynchronize)       \
    X(cuStreamBeginCapture)      \
    X(cuStreamEndCapture)        \
    X(cuStreamIsCapturing)       \
    X(cuGraphGetNodes)           \
    X(cuGraphNodeGetType)        \
    X(cuGraphInstantiate)        \
    X(cuGraphLaunch)             \
    X(cuGraphDestroy)            \
    X(cuGraphExecDestroy)        \
    X(cuMemAlloc)                \
    X(cuMemAllocAsync)           \
    X(cuMemAllocManaged)         \
    X(cuMemHostAlloc)            \
    X(cuMemHostRegister)         \
    X(cuMemHostUnregister)       \
    X(cuMemFree)                 \
    X(cuMemFreeAsync)            \
    X(cuMemFreeHost)             \
    X(cuMemcpyAsync)

typedef struct app_driver {
#define X(name) __typeof__(name) *name;
    APP_FUNCTIONS(X)
#undef X
    CUresult (*create)(CUcontext *, unsigned, CUdevice); /* cuCtxCreate, of any header */
    void (*break_context)(CUcontext, CUresult);          /* NULL: this is a true driver */
} app_driver;

extern app_driver cu;

/* The call must succeed: cu_ok(cuMemFree(at)). */
#define cu_ok(call)                                             \
    do {                                                        \
        const CUresult cu_code = cu.call;                       \
        if (cu_code != CUDA_SUCCESS)                            \
            fail_msg("%s: %s = %d", __func__, #call, cu_code);  \
    } while (0)

/* Opens the driver, and the oracle: that of the folder argv[1], where the emulator is, or
 * the one that the library would take. 0; or EXIT_SKIPPED, and the reason was printed. */
int app_open(int argc, char **argv);

/* The primary context of a device. Released when the process ends. */
CUcontext app_context(int device);

/* Calls of the application's own stand between these two. */
void app_enter(CUcontext context);
void app_leave(void);

CUstream app_stream(CUcontext context, unsigned flags);
CUdeviceptr app_alloc(CUcontext context, size_t bytes);
void app_free(CUcontext context, CUdeviceptr memory);

/* What a group of tests has in common: the context of device 0, a stream of it that waits
 * for the default one, and the library in both. app_begin() and app_end() are the group's
 * set-up and tear-down; they take no notice of `state`. */
typedef struct app_group {
    CUcontext context;
    CUstream stream;
    attn_ctx *ctx;
} app_group;

extern app_group app;

int app_begin(void **state);
int app_end(void **state);

/* One problem, f32 or bf16 and with its LSE, in memory of the application, with a plan of
 * a context. */
typedef struct job {
    CUcontext context;
    CUstream stream;
    attn_plan *plan;
    trial t;        /* its arrays in host memory; the views are contiguous     */
    attn_args args; /* the same tensors in device memory, and the workspace    */
} job;

/* `variant` NULL: the planner's. */
void job_open(job *j, attn_ctx *ctx, CUcontext context, CUstream stream,
              const char *variant, const char *problem);
void job_close(job *j);

/* Puts the arrays as they are now into device memory, and NaN into the outputs. */
void job_send(job *j);

/* Waits for the stream; what is in device memory must be the oracle's answer. */
void job_check(job *j);
void job_check_to(job *j, const float *o, const float *lse); /* these, where given */

/* job_send(), attn_execute(), job_check(). */
void job_run(job *j);

#endif
