/* SPDX-License-Identifier: MIT */
/* backend/opencl/error.c: OpenCL's codes: their names, and which status each is. */
#include <string.h>

#include "backend/opencl/opencl.h"
#include "core/status.h"

/* INVALID are those that only a caller's own object can cause. Drivers report a
 * full device as -4, -5 or -6, at whichever call first needs the memory. */
#define CODE_LIST(X)                                        \
    X(CL_DEVICE_NOT_FOUND, NO_DEVICE)                       \
    X(CL_DEVICE_NOT_AVAILABLE, DEVICE)                      \
    X(CL_COMPILER_NOT_AVAILABLE, BUILD)                     \
    X(CL_MEM_OBJECT_ALLOCATION_FAILURE, NO_MEMORY)          \
    X(CL_OUT_OF_RESOURCES, NO_MEMORY)                       \
    X(CL_OUT_OF_HOST_MEMORY, NO_MEMORY)                     \
    X(CL_PROFILING_INFO_NOT_AVAILABLE, DEVICE)              \
    X(CL_MEM_COPY_OVERLAP, DEVICE)                          \
    X(CL_IMAGE_FORMAT_MISMATCH, DEVICE)                     \
    X(CL_IMAGE_FORMAT_NOT_SUPPORTED, DEVICE)                \
    X(CL_BUILD_PROGRAM_FAILURE, BUILD)                      \
    X(CL_MAP_FAILURE, DEVICE)                               \
    X(CL_MISALIGNED_SUB_BUFFER_OFFSET, DEVICE)              \
    X(CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST, DEVICE) \
    X(CL_COMPILE_PROGRAM_FAILURE, BUILD)                    \
    X(CL_LINKER_NOT_AVAILABLE, BUILD)                       \
    X(CL_LINK_PROGRAM_FAILURE, BUILD)                       \
    X(CL_DEVICE_PARTITION_FAILED, DEVICE)                   \
    X(CL_KERNEL_ARG_INFO_NOT_AVAILABLE, DEVICE)             \
    X(CL_INVALID_VALUE, DEVICE)                             \
    X(CL_INVALID_DEVICE_TYPE, DEVICE)                       \
    X(CL_INVALID_PLATFORM, DEVICE)                          \
    X(CL_INVALID_DEVICE, INVALID)                           \
    X(CL_INVALID_CONTEXT, INVALID)                          \
    X(CL_INVALID_QUEUE_PROPERTIES, DEVICE)                  \
    X(CL_INVALID_COMMAND_QUEUE, INVALID)                    \
    X(CL_INVALID_HOST_PTR, DEVICE)                          \
    X(CL_INVALID_MEM_OBJECT, INVALID)                       \
    X(CL_INVALID_IMAGE_FORMAT_DESCRIPTOR, DEVICE)           \
    X(CL_INVALID_IMAGE_SIZE, DEVICE)                        \
    X(CL_INVALID_SAMPLER, DEVICE)                           \
    X(CL_INVALID_BINARY, BUILD)                             \
    X(CL_INVALID_BUILD_OPTIONS, BUILD)                      \
    X(CL_INVALID_PROGRAM, DEVICE)                           \
    X(CL_INVALID_PROGRAM_EXECUTABLE, BUILD)                 \
    X(CL_INVALID_KERNEL_NAME, BUILD)                        \
    X(CL_INVALID_KERNEL_DEFINITION, BUILD)                  \
    X(CL_INVALID_KERNEL, DEVICE)                            \
    X(CL_INVALID_ARG_INDEX, DEVICE)                         \
    X(CL_INVALID_ARG_VALUE, DEVICE)                         \
    X(CL_INVALID_ARG_SIZE, DEVICE)                          \
    X(CL_INVALID_KERNEL_ARGS, DEVICE)                       \
    X(CL_INVALID_WORK_DIMENSION, DEVICE)                    \
    X(CL_INVALID_WORK_GROUP_SIZE, DEVICE)                   \
    X(CL_INVALID_WORK_ITEM_SIZE, DEVICE)                    \
    X(CL_INVALID_GLOBAL_OFFSET, DEVICE)                     \
    X(CL_INVALID_EVENT_WAIT_LIST, INVALID)                  \
    X(CL_INVALID_EVENT, INVALID)                            \
    X(CL_INVALID_OPERATION, DEVICE)                         \
    X(CL_INVALID_GL_OBJECT, DEVICE)                         \
    X(CL_INVALID_BUFFER_SIZE, NO_MEMORY)                    \
    X(CL_INVALID_MIP_LEVEL, DEVICE)                         \
    X(CL_INVALID_GLOBAL_WORK_SIZE, DEVICE)                  \
    X(CL_INVALID_PROPERTY, DEVICE)                          \
    X(CL_INVALID_IMAGE_DESCRIPTOR, DEVICE)                  \
    X(CL_INVALID_COMPILER_OPTIONS, BUILD)                   \
    X(CL_INVALID_LINKER_OPTIONS, BUILD)                     \
    X(CL_INVALID_DEVICE_PARTITION_COUNT, DEVICE)

static const struct {
    cl_int code;
    attn_status status;
    const char *name;
} codes[] = {
#define X(name, status) { name, ATTN_ERR_##status, #name },
    CODE_LIST(X)
#undef X
        { -1001, ATTN_ERR_NO_DEVICE, "CL_PLATFORM_NOT_FOUND_KHR" },
    { CL_SUCCESS, ATTN_ERR_DEVICE, "no object, yet CL_SUCCESS" },
};
enum { N_CODES = sizeof codes / sizeof codes[0] };

const char *attn_cl_code_name(cl_int code)
{
    for (size_t i = 0; i < N_CODES; i++)
        if (codes[i].code == code)
            return codes[i].name;
    return "unknown code";
}

attn_status attn_cl_fail(cl_int code, const char *call)
{
    attn_status status = ATTN_ERR_DEVICE;

    for (size_t i = 0; i < N_CODES; i++)
        if (codes[i].code == code)
            status = codes[i].status;
    if (!strncmp(call, "cl->", 4))
        call += 4;
    return attn_fail(status, "%.*s = %d (%s)", (int)strcspn(call, "("), call, (int)code,
                     attn_cl_code_name(code));
}
