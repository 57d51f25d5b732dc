/* SPDX-License-Identifier: MIT */
/* api/execute.c: check the call, hand it to the back end. */
#include <string.h>

#include "api/context.h"
#include "core/status.h"

/* Tensors without elements may come without memory, but a kernel is always given
 * some, which it then does not touch. */
static void bind_empty(const attn_problem *p, attn_args *args)
{
    for (int k = 0; k < ATTN_ARGS; k++) {
        attn_tensor *t = attn_arg_tensor(args, k);

        if (t->type != ATTN_TYPE_NONE && !attn_arg_is_output(p, k) &&
            attn_tensor_empty(t)) {
            t->data = args->q.data;
            t->offset = 0;
        }
    }
}

static attn_status check_workspace(const attn_plan *plan, attn_args *args)
{
    const size_t want = (size_t)plan->choice.workspace_bytes;
    attn_status st;

    if (!want) { /* what is given is not used */
        args->workspace = NULL;
        return ATTN_OK;
    }
    if ((st = attn_workspace_check(plan->ctx, args->workspace, args->workspace_bytes,
                                   want)) != ATTN_OK)
        return st;
    for (int k = 0; k < ATTN_ARGS; k++)
        if (attn_workspace_overlaps(plan->ctx, args->workspace, want,
                                    attn_arg_tensor(args, k)))
            return attn_fail(ATTN_ERR_INVALID,
                             "workspace overlaps %s, want memory of its own",
                             attn_arg_list[k].name);
    return ATTN_OK;
}

/* Whether there is nothing to launch for. Without queries the backward still has zeros to
 * write, without a key, too; and linear attention has a state. */
static bool is_nothing(const attn_plan *plan, const attn_call *call, const attn_args *args)
{
    const attn_problem *p = &plan->problem;

    return !attn_args_ask(p, args) || (p->op == ATTN_OP_LINEAR && (!p->b || !p->hq)) ||
           (p->op == ATTN_OP_SOFTMAX && p->pass == ATTN_PASS_FWD &&
            (!call->batch || !call->len_q || attn_tensor_empty(&args->q)));
}

/* The device has been entered, if that is a thing to do. */
static attn_status execute(const attn_plan *plan, const attn_args *from,
                           const attn_stream *stream)
{
    attn_args args;
    attn_call call;
    attn_extent extent;
    attn_status st;
    int steps;

    if ((st = attn_args_read(&args, from)) != ATTN_OK ||
        (st = attn_args_check(plan->ctx, &plan->problem, &args, true, &extent)) !=
            ATTN_OK ||
        (st = check_workspace(plan, &args)) != ATTN_OK)
        return st;
    bind_empty(&plan->problem, &args);
    call = attn_call_of(&plan->problem, &args, &extent);
    steps = is_nothing(plan, &call, &args) ? 0 : plan->choice.n_steps;
    return plan->ctx->backend->launch(plan->ctx->device, steps, plan->kernel,
                                      plan->choice.step, &call, stream);
}

attn_status attn_execute_on(const attn_plan *plan, const attn_args *from,
                            const attn_stream *stream)
{
    const attn_backend *backend = plan ? plan->ctx->backend : NULL;
    attn_status st;

    if (!plan)
        return attn_fail(ATTN_ERR_INVALID, "plan is NULL");
    if (backend->enter && (st = backend->enter(plan->ctx->device)) != ATTN_OK)
        return st;
    st = execute(plan, from, stream);
    if (backend->leave)
        backend->leave(plan->ctx->device);
    return st;
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
