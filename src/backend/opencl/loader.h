/* SPDX-License-Identifier: MIT */
/* backend/opencl/loader.h: the OpenCL library, opened at run time. */
#ifndef ATTN_OPENCL_LOADER_H
#define ATTN_OPENCL_LOADER_H

#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>

#include <stdbool.h>
#include <stddef.h>

/* Every function that is called; all are in OpenCL 1.2. */
#define ATTN_CL_FUNCTIONS(X)     \
    X(clGetPlatformIDs)          \
    X(clGetPlatformInfo)         \
    X(clGetDeviceIDs)            \
    X(clGetDeviceInfo)           \
    X(clCreateContext)           \
    X(clRetainContext)           \
    X(clReleaseContext)          \
    X(clGetContextInfo)          \
    X(clCreateCommandQueue)      \
    X(clReleaseCommandQueue)     \
    X(clGetCommandQueueInfo)     \
    X(clCreateProgramWithSource) \
    X(clCreateProgramWithBinary) \
    X(clBuildProgram)            \
    X(clGetProgramInfo)          \
    X(clGetProgramBuildInfo)     \
    X(clReleaseProgram)          \
    X(clCreateKernel)            \
    X(clGetKernelInfo)           \
    X(clGetKernelWorkGroupInfo)  \
    X(clSetKernelArg)            \
    X(clReleaseKernel)           \
    X(clCreateBuffer)            \
    X(clGetMemObjectInfo)        \
    X(clReleaseMemObject)        \
    X(clEnqueueReadBuffer)       \
    X(clEnqueueWriteBuffer)      \
    X(clEnqueueNDRangeKernel)    \
    X(clEnqueueMarkerWithWaitList) \
    X(clEnqueueBarrierWithWaitList) \
    X(clWaitForEvents)           \
    X(clGetEventInfo)            \
    X(clGetEventProfilingInfo)   \
    X(clReleaseEvent)            \
    X(clFinish)

typedef struct attn_cl {
#define X(name) __typeof__(name) *name;
    ATTN_CL_FUNCTIONS(X)
#undef X
} attn_cl;

/* The library of that name, which may also be the folder that holds it; NULL:
 * the one that the process is linked with, else the usual names. Each is opened
 * once in a process and never closed, since drivers do not survive it; the table
 * lives as long as the process. NULL on failure, with the names that were tried
 * in `reason`. Threads: safe. */
const attn_cl *attn_cl_load(const char *name, char *reason, size_t cap);

#endif
