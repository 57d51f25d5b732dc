/* SPDX-License-Identifier: MIT */
/* api/opencl.c: the caller's own OpenCL objects, handed through the table. */
#include <attn/opencl.h>

#include "api/context.h"
#include "core/status.h"

attn_status attn_ctx_create_opencl(cl_context context, cl_device_id device, attn_ctx **out)
{
    const attn_backend *backend = attn_backend_find("opencl");
    attn_device *adopted = NULL;
    attn_device_info info = { .selector = "" };
    attn_env_storage s;
    attn_status st;

    if (!out)
        return attn_fail(ATTN_ERR_INVALID, "out is NULL");
    *out = NULL;
    if (!context || !device)
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", context ? "device" : "context");
    attn_env_read(&s);
    if ((st = backend->adopt(&s.env, context, device, &info, &adopted)) != ATTN_OK)
        return st;
    return attn_ctx_wrap(backend, adopted, &info, true, out);
}

attn_tensor attn_tensor_cl(cl_mem memory, int64_t offset, attn_type type,
                           const int64_t size[4], const int64_t stride[4])
{
    attn_tensor t = attn_tensor_strided(memory, type, size, stride);

    t.offset = offset;
    return t;
}

attn_status attn_execute_opencl(const attn_plan *plan, const attn_args *args,
                                cl_command_queue queue, cl_uint n_wait,
                                const cl_event *wait, cl_event *done)
{
    if (!plan || !queue)
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", plan ? "queue" : "plan");
    if (plan->ctx->backend != attn_backend_find("opencl"))
        return attn_fail(ATTN_ERR_INVALID,
                         "plan is of a context on \"%s\", want \"opencl\"",
                         plan->ctx->backend->name);
    if (!n_wait != !wait)
        return attn_fail(ATTN_ERR_INVALID, "n_wait = %u with wait %s NULL",
                         (unsigned)n_wait, wait ? "not" : "=");
    return attn_execute_on(
        plan, args,
        &(attn_stream){ .queue = queue, .n_wait = n_wait, .wait = wait, .done = done });
}

attn_status attn_merge_opencl(attn_ctx *ctx, const attn_merge_args *args,
                              cl_command_queue queue, cl_uint n_wait, const cl_event *wait,
                              cl_event *done)
{
    if (!ctx || !queue)
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", ctx ? "queue" : "ctx");
    if (ctx->backend != attn_backend_find("opencl"))
        return attn_fail(ATTN_ERR_INVALID, "ctx is on \"%s\", want \"opencl\"",
                         ctx->backend->name);
    if (!n_wait != !wait)
        return attn_fail(ATTN_ERR_INVALID, "n_wait = %u with wait %s NULL",
                         (unsigned)n_wait, wait ? "not" : "=");
    return attn_merge_on(
        ctx, args,
        &(attn_stream){ .queue = queue, .n_wait = n_wait, .wait = wait, .done = done });
}
