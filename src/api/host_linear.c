/* SPDX-License-Identifier: MIT */
/* api/host_linear.c: linear attention in one call, for arrays in host memory. */
#include "api/context.h"
#include "core/status.h"

static bool is_there(const attn_tensor *t)
{
    return t->type != ATTN_TYPE_NONE;
}

/* The pass of the call; the outputs that are given decide what is computed. */
static attn_status set_pass(attn_pass pass, const attn_args *a, attn_linear_desc *d)
{
    /* others are refused by their names, with the tensors */
    const uint32_t grad = attn_args_grads(a) & ~(ATTN_GRAD_BIAS | ATTN_GRAD_SINKS);

    if (pass == ATTN_PASS_FWD) {
        if (d->use & ATTN_LINEAR_GRAD)
            return attn_fail(ATTN_ERR_INVALID, "use has ATTN_LINEAR_GRAD, which is for "
                                               "attn_linear_backward_host_args()");
        if (is_there(&a->state_out) || is_there(&a->z_out))
            d->use |= ATTN_LINEAR_STATE_OUT;
        if (is_there(&a->den))
            d->use |= ATTN_LINEAR_DEN;
        return attn_linear_check(d);
    }
    if (!grad)
        return attn_fail(ATTN_ERR_INVALID,
                         "grad_q, grad_k, grad_v, grad_state_in and grad_z_in are all "
                         "missing, want at least one gradient to compute");
    d->use |= ATTN_LINEAR_GRAD;
    if (is_there(&a->grad_state_out) || is_there(&a->grad_z_out))
        d->use |= ATTN_LINEAR_STATE_OUT;
    d->grad = grad;
    return attn_linear_check(d);
}

static attn_status run(attn_pass pass, attn_ctx *ctx, const attn_linear_desc *desc,
                       const attn_options *options, const attn_args *args)
{
    attn_linear_desc d;
    attn_options o;
    attn_problem p;
    attn_args a;
    attn_status st;

    if (!ctx)
        return attn_fail(ATTN_ERR_INVALID, "ctx is NULL");
    if ((st = attn_options_read(&o, options)) != ATTN_OK ||
        (st = attn_linear_desc_read(&d, desc)) != ATTN_OK ||
        (st = attn_args_read(&a, args)) != ATTN_OK ||
        (st = set_pass(pass, &a, &d)) != ATTN_OK)
        return st;
    attn_problem_from_linear(&p, &d);
    return attn_run_host(ctx, &p, &o, &a);
}

attn_status attn_linear_forward_host_args(attn_ctx *ctx, const attn_linear_desc *desc,
                                          const attn_options *options,
                                          const attn_args *args)
{
    return run(ATTN_PASS_FWD, ctx, desc, options, args);
}

attn_status attn_linear_backward_host_args(attn_ctx *ctx, const attn_linear_desc *desc,
                                           const attn_options *options,
                                           const attn_args *args)
{
    return run(ATTN_PASS_BWD, ctx, desc, options, args);
}

/* inputs are never written: the tensor descriptor has no const of its own */
static attn_tensor array(const void *data, attn_type type, int64_t b, int64_t h, int64_t l,
                         int64_t d)
{
    return attn_tensor_bhld((void *)(uintptr_t)data, type, b, h, l, d);
}

attn_status attn_linear_forward_host(attn_ctx *ctx, const attn_linear_desc *desc,
                                     const void *q, const void *k, const void *v, void *o,
                                     const float *state_in, float *state_out)
{
    attn_linear_desc d;
    attn_problem p;
    attn_args a = { .size = sizeof a };
    const attn_status st = attn_linear_desc_read(&d, desc);

    if (st != ATTN_OK)
        return st;
    d.use &= ~(uint32_t)ATTN_LINEAR_STATE_IN;
    if (state_in)
        d.use |= ATTN_LINEAR_STATE_IN;
    attn_problem_from_linear(&p, &d);
    for (int i = 0; i < ATTN_ARGS; i++)
        if (attn_arg_list[i].feature && attn_arg_is_needed(&p, i) &&
            attn_arg_list[i].at != offsetof(attn_args, state_in))
            return attn_fail(
                ATTN_ERR_INVALID,
                "%s must be given, which attn_linear_forward_host_args() takes",
                attn_arg_list[i].name);
    a.q = array(q, p.type, p.b, p.hq, p.lq, p.d);
    a.k = array(k, p.type, p.b, p.hkv, p.lk, p.d);
    a.v = array(v, p.type, p.b, p.hkv, p.lk, p.dv);
    a.o = array(o, p.type, p.b, p.hq, p.lq, p.dv);
    if (state_in)
        a.state_in = array(state_in, ATTN_F32, p.b, p.hkv, p.d, p.dv);
    if (state_out)
        a.state_out = array(state_out, ATTN_F32, p.b, p.hkv, p.d, p.dv);
    return attn_linear_forward_host_args(ctx, &d, NULL, &a);
}
