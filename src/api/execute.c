/* SPDX-License-Identifier: MIT */
/* api/execute.c: check the call, hand it to the back end. */
#include <string.h>

#include "api/context.h"
#include "core/size.h"
#include "core/status.h"

/* Tensors without elements may come without memory, but a kernel is always given
 * some, which it then does not touch. */
static void bind_empty(attn_args *args)
{
    for (int k = 0; k < ATTN_ARGS; k++) {
        attn_tensor *t = attn_arg_tensor(args, k);

        if (t->type != ATTN_TYPE_NONE && !attn_arg_list[k].output && attn_tensor_empty(t)) {
            t->data = args->q.data;
            t->offset = 0;
        }
    }
}

static bool within(const void *at, size_t bytes, const attn_tensor *t)
{
    int64_t first, last;
    const char *a = at, *b = t->data;
    const int64_t elem = (int64_t)attn_type_bytes(t->type);

    if (t->type == ATTN_TYPE_NONE || attn_tensor_empty(t) ||
        !attn_tensor_extent(t, &first, &last))
        return false;
    return (uintptr_t)a < (uintptr_t)b + (uintptr_t)((last + 1) * elem) &&
           (uintptr_t)b + (uintptr_t)(first * elem) < (uintptr_t)a + bytes;
}

static attn_status check_workspace(const attn_plan *plan, attn_args *args)
{
    const attn_ctx *ctx = plan->ctx;
    const size_t want = (size_t)plan->choice.workspace_bytes;
    size_t known = 0;
    attn_status st;

    if (!want)
        return ATTN_OK;
    if (!args->workspace || args->workspace_bytes < want)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace = %p of %zu bytes, want %zu bytes",
                         args->workspace, args->workspace_bytes, want);
    if ((st = ctx->backend->buffer_bytes(ctx->device, args->workspace, &known)) != ATTN_OK)
        return attn_fail_in(st, "workspace");
    if (known && known < want)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace has %zu bytes, want %zu bytes",
                         known, want);
    if (ctx->backend->addresses && (uintptr_t)args->workspace % 64)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace = %p, want a multiple of 64 bytes",
                         args->workspace);
    for (int k = 0; k < ATTN_ARGS; k++) {
        const attn_tensor *t = attn_arg_tensor(args, k);
        if (ctx->backend->addresses ? within(args->workspace, want, t)
                                    : args->workspace == t->data)
            return attn_fail(ATTN_ERR_INVALID,
                             "workspace overlaps %s, want memory of its own",
                             attn_arg_list[k].name);
    }
    return ATTN_OK;
}

attn_status attn_execute_on(const attn_plan *plan, const attn_args *from,
                            const attn_stream *stream)
{
    attn_args args;
    attn_call call;
    attn_extent extent;
    attn_status st;
    bool nothing;

    if (!plan)
        return attn_fail(ATTN_ERR_INVALID, "plan is NULL");
    if ((st = attn_args_read(&args, from)) != ATTN_OK ||
        (st = attn_args_check(plan->ctx, &plan->problem, &args, true, &extent)) !=
            ATTN_OK ||
        (st = check_workspace(plan, &args)) != ATTN_OK)
        return st;
    bind_empty(&args);
    call = attn_call_of(&plan->problem, &args, &extent);
    nothing = !call.batch || !call.len_q || attn_tensor_empty(&args.q) ||
              (args.o.type == ATTN_TYPE_NONE && args.lse.type == ATTN_TYPE_NONE);
    return plan->ctx->backend->launch(plan->ctx->device, nothing ? 0 : plan->choice.n_steps,
                                      plan->kernel, plan->choice.step, &call, stream);
}

/* A context of the caller's objects has a queue only for copies and tests. */
static attn_status check_stream(const attn_plan *plan, const void *stream)
{
    if (plan && plan->ctx->borrowed && !stream)
        return attn_fail(ATTN_ERR_INVALID,
                         "stream is NULL, want a queue: the context was made "
                         "from the caller's objects and has none of its own");
    return ATTN_OK;
}

attn_status attn_execute(const attn_plan *plan, const attn_args *args, void *stream)
{
    const attn_status st = check_stream(plan, stream);

    if (st != ATTN_OK)
        return st;
    return attn_execute_on(plan, args, &(attn_stream){ .queue = stream });
}

attn_status attn_execute_timed(const attn_plan *plan, const attn_args *args, void *stream,
                               uint64_t *ns)
{
    attn_status st;

    if (!ns)
        return attn_fail(ATTN_ERR_INVALID, "ns is NULL");
    *ns = 0;
    if ((st = check_stream(plan, stream)) != ATTN_OK)
        return st;
    return attn_execute_on(plan, args, &(attn_stream){ .queue = stream, .ns = ns });
}
