/* SPDX-License-Identifier: MIT */
/* tools/opencl_functions.h: the OpenCL loader, opened as the library opens it, so that
 * nothing is linked. */
#ifndef ATTN_TOOLS_OPENCL_FUNCTIONS_H
#define ATTN_TOOLS_OPENCL_FUNCTIONS_H

#include <stdbool.h>

#include <attn/opencl.h>

/* clang-format off */
#define OPENCL_FUNCTIONS(X) \
    X(clGetPlatformIDs) X(clGetDeviceIDs) X(clGetDeviceInfo) \
    X(clCreateContext) X(clReleaseContext) X(clGetContextInfo) X(clGetMemObjectInfo) \
    X(clCreateCommandQueue) X(clReleaseCommandQueue) X(clFlush) X(clFinish) \
    X(clEnqueueCopyBuffer) X(clGetEventProfilingInfo) \
    X(clCreateUserEvent) X(clSetUserEventStatus) X(clWaitForEvents) \
    X(clGetEventInfo) X(clReleaseEvent)
/* clang-format on */

typedef struct opencl_functions {
#define X(name) __typeof__(&name) name;
    OPENCL_FUNCTIONS(X)
#undef X
} opencl_functions;

/* false: the loader was not found, or is too old. */
bool opencl_functions_open(opencl_functions *cl);

#endif
