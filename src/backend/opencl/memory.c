/* SPDX-License-Identifier: MIT */
/* backend/opencl/memory.c: buffers, and copies on the device's own queue. */
#include "backend/opencl/opencl.h"
#include "core/status.h"

/* Waits for the command of an event. Nothing here relies on clFinish or on a
 * blocking copy alone: on a queue that several threads use, Mesa's rusticl
 * (22.3) returns from those when another thread has flushed the command, done
 * or not. */
attn_status attn_cl_wait_event(attn_device *dev, cl_event event)
{
    const attn_cl *cl = dev->cl;
    const cl_int waited = cl->clWaitForEvents(1, &event);
    cl_int state = CL_COMPLETE;

    if (waited == CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST &&
        !cl->clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state,
                            NULL) &&
        state < 0)
        return attn_cl_fail(state, "execution of a command");
    return waited == CL_SUCCESS ? ATTN_OK : attn_cl_fail(waited, "clWaitForEvents");
}

static attn_status finish(attn_device *dev, cl_event event)
{
    const attn_status st = attn_cl_wait_event(dev, event);

    dev->cl->clReleaseEvent(event);
    return st;
}

attn_status attn_cl_wait(attn_device *dev)
{
    const attn_cl *cl = dev->cl;
    cl_event event = NULL;
    attn_status st;

    CL(cl->clEnqueueMarkerWithWaitList(dev->queue, 0, NULL, &event));
    if ((st = finish(dev, event)) != ATTN_OK)
        return st;
    CL(cl->clFinish(dev->queue));
fail:
    return st;
}

/* OpenCL has no buffer of 0 bytes, so that one gets a byte. */
attn_status attn_cl_alloc(attn_device *dev, size_t bytes, void **out)
{
    const attn_cl *cl = dev->cl;
    cl_mem memory = NULL;
    attn_status st;

    *out = NULL;
    if (bytes > (uint64_t)dev->info.max_alloc_bytes)
        return attn_fail(ATTN_ERR_NO_MEMORY,
                         "%zu bytes, but one allocation on %s has at most %lld", bytes,
                         dev->info.name, (long long)dev->info.max_alloc_bytes);
    CL_NEW(memory, cl->clCreateBuffer(dev->context, CL_MEM_READ_WRITE, bytes ? bytes : 1,
                                      NULL, &code));
    *out = memory;
    return ATTN_OK;

fail:
    return attn_fail_in(st, "%zu bytes on %s", bytes, dev->info.name);
}

void attn_cl_free(attn_device *dev, void *memory)
{
    if (memory)
        dev->cl->clReleaseMemObject(memory);
}

attn_status attn_cl_buffer_bytes(attn_device *dev, const void *memory, size_t *bytes)
{
    const cl_mem buffer = (cl_mem)memory;
    const attn_cl *cl = dev->cl;
    cl_mem_object_type type = 0;
    cl_context context = NULL;
    attn_status st = ATTN_OK;

    *bytes = 0;
    if (!memory)
        return attn_fail(ATTN_ERR_INVALID, "the buffer is NULL");
    CL(cl->clGetMemObjectInfo(buffer, CL_MEM_TYPE, sizeof type, &type, NULL));
    CL(cl->clGetMemObjectInfo(buffer, CL_MEM_CONTEXT, sizeof context, &context, NULL));
    if (type != CL_MEM_OBJECT_BUFFER)
        return attn_fail(ATTN_ERR_INVALID, "cl_mem = %p is no buffer (type 0x%x)", memory,
                         (unsigned)type);
    if (context != dev->context)
        return attn_fail(ATTN_ERR_INVALID, "cl_mem = %p belongs to another cl_context",
                         memory);
    CL(cl->clGetMemObjectInfo(buffer, CL_MEM_SIZE, sizeof *bytes, bytes, NULL));
fail:
    return st;
}

attn_status attn_cl_buffer_place(attn_device *dev, const void *memory, const void **block,
                                 uintptr_t *at)
{
    const attn_cl *cl = dev->cl;
    cl_mem whole = NULL;
    cl_mem_flags flags = 0;
    size_t origin = 0;
    void *host = NULL;
    attn_status st = ATTN_OK;

    CL(cl->clGetMemObjectInfo((cl_mem)memory, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof whole,
                              &whole, NULL));
    if (whole)
        CL(cl->clGetMemObjectInfo((cl_mem)memory, CL_MEM_OFFSET, sizeof origin, &origin,
                                  NULL));
    else
        whole = (cl_mem)memory;
    CL(cl->clGetMemObjectInfo(whole, CL_MEM_FLAGS, sizeof flags, &flags, NULL));
    if (flags & CL_MEM_USE_HOST_PTR)
        CL(cl->clGetMemObjectInfo(whole, CL_MEM_HOST_PTR, sizeof host, &host, NULL));
    *block = whole;
    *at = (uintptr_t)host + origin;
fail:
    return st;
}

static attn_status check_range(attn_device *dev, const void *memory, size_t offset,
                               size_t bytes)
{
    size_t size;
    attn_status st = attn_cl_buffer_bytes(dev, memory, &size);

    if (st != ATTN_OK)
        return attn_fail_in(st, "memory");
    if ((offset > size || bytes > size - offset))
        return attn_fail(ATTN_ERR_INVALID,
                         "bytes = %zu at offset = %zu leave a block of %zu "
                         "bytes",
                         bytes, offset, size);
    return ATTN_OK;
}

attn_status attn_cl_upload(attn_device *dev, void *memory, size_t offset, const void *from,
                           size_t bytes)
{
    const attn_cl *cl = dev->cl;
    attn_status st = check_range(dev, memory, offset, bytes);
    cl_event event = NULL;

    if (st != ATTN_OK || !bytes)
        return st;
    CL(cl->clEnqueueWriteBuffer(dev->queue, memory, CL_FALSE, offset, bytes, from, 0, NULL,
                                &event));
    return finish(dev, event);

fail:
    return st;
}

attn_status attn_cl_download(attn_device *dev, void *to, const void *memory, size_t offset,
                             size_t bytes)
{
    const attn_cl *cl = dev->cl;
    attn_status st = check_range(dev, memory, offset, bytes);
    cl_event event = NULL;

    if (st != ATTN_OK || !bytes)
        return st;
    CL(cl->clEnqueueReadBuffer(dev->queue, (cl_mem)memory, CL_FALSE, offset, bytes, to, 0,
                               NULL, &event));
    return finish(dev, event);

fail:
    return st;
}
