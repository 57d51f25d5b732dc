/* SPDX-License-Identifier: MIT */
/* api/host_arrays.c: softmax attention in one call, for arrays in host memory. */
#include <string.h>

#include "api/context.h"
#include "core/status.h"

/* The pass of the call; the outputs that are given decide what is computed. */
static attn_status check_pass(attn_pass pass, const attn_args *args, attn_softmax_desc *d)
{
    /* others are refused by their names, with the tensors */
    const uint32_t grad = attn_args_grads(args) & ~ATTN_GRAD_STATE;

    if (pass == ATTN_PASS_FWD)
        return d->use & ATTN_USE_GRAD
                   ? attn_fail(ATTN_ERR_INVALID, "use has ATTN_USE_GRAD, which is for "
                                                 "attn_softmax_backward_host_args()")
                   : ATTN_OK;
    if (!grad)
        return attn_fail(ATTN_ERR_INVALID,
                         "grad_q, grad_k, grad_v, grad_bias and grad_sinks are all "
                         "missing, want at least one gradient to compute");
    d->use |= ATTN_USE_GRAD;
    d->grad = grad;
    return attn_softmax_check(d);
}

static attn_status run_host(attn_pass pass, attn_ctx *ctx, const attn_softmax_desc *desc,
                            const attn_options *options, const attn_args *args)
{
    attn_softmax_desc d;
    attn_options o;
    attn_problem p;
    attn_args a;
    attn_status st;

    if (!ctx)
        return attn_fail(ATTN_ERR_INVALID, "ctx is NULL");
    if ((st = attn_options_read(&o, options)) != ATTN_OK ||
        (st = attn_softmax_desc_read(&d, desc)) != ATTN_OK ||
        (st = attn_args_read(&a, args)) != ATTN_OK ||
        (st = check_pass(pass, &a, &d)) != ATTN_OK)
        return st;
    attn_problem_from_softmax(&p, &d);
    if (pass == ATTN_PASS_FWD && a.lse.type == ATTN_TYPE_NONE)
        p.features &= ~(uint32_t)ATTN_FEAT_LSE;
    else
        p.features |= ATTN_FEAT_LSE;
    return attn_run_host(ctx, &p, &o, &a);
}

attn_status attn_softmax_forward_host_args(attn_ctx *ctx, const attn_softmax_desc *desc,
                                           const attn_options *options,
                                           const attn_args *args)
{
    return run_host(ATTN_PASS_FWD, ctx, desc, options, args);
}

attn_status attn_softmax_backward_host_args(attn_ctx *ctx, const attn_softmax_desc *desc,
                                            const attn_options *options,
                                            const attn_args *args)
{
    return run_host(ATTN_PASS_BWD, ctx, desc, options, args);
}

static uint32_t features_of(const attn_softmax_desc *d)
{
    attn_problem p;

    attn_problem_from_softmax(&p, d);
    return p.features;
}

/* Reads the descriptor, and makes the tensors that both passes have. */
static attn_status plain_args(const char *other, const attn_softmax_desc *desc,
                              const void *q, const void *k, const void *v, const void *o,
                              attn_softmax_desc *d, attn_args *args)
{
    const attn_status st = attn_softmax_desc_read(d, desc);

    if (st != ATTN_OK)
        return st;
    for (int i = 0; i < ATTN_ARGS; i++)
        if (!attn_arg_list[i].optional && attn_arg_list[i].feature & features_of(d))
            return attn_fail(ATTN_ERR_INVALID, "use has %s, which needs %s()",
                             attn_use_name(ATTN_OP_SOFTMAX, attn_arg_list[i].feature),
                             other);
    if (features_of(d) & ATTN_FEAT_DROPOUT)
        return attn_fail(ATTN_ERR_INVALID, "use has %s, which needs %s()",
                         attn_use_name(ATTN_OP_SOFTMAX, ATTN_FEAT_DROPOUT), other);
    d->dim_v = d->dim_v ? d->dim_v : d->dim_qk;
    /* inputs are never written: the tensor descriptor has no const of its own */
    *args = (attn_args){
        .size = sizeof *args,
        .q = attn_tensor_bhld((void *)(uintptr_t)q, d->type, d->batch, d->heads_q, d->len_q,
                              d->dim_qk),
        .k = attn_tensor_bhld((void *)(uintptr_t)k, d->type, d->batch, d->heads_kv,
                              d->len_kv, d->dim_qk),
        .v = attn_tensor_bhld((void *)(uintptr_t)v, d->type, d->batch, d->heads_kv,
                              d->len_kv, d->dim_v),
        .o = attn_tensor_bhld((void *)(uintptr_t)o, d->type, d->batch, d->heads_q, d->len_q,
                              d->dim_v),
    };
    return ATTN_OK;
}

static attn_tensor lse_of(const attn_softmax_desc *d, const float *lse)
{
    return attn_tensor_bhld((void *)(uintptr_t)lse, ATTN_F32, d->batch, d->heads_q,
                            d->len_q, 1);
}

attn_status attn_softmax_forward_host(attn_ctx *ctx, const attn_softmax_desc *desc,
                                      const void *q, const void *k, const void *v, void *o,
                                      float *lse)
{
    attn_softmax_desc d;
    attn_args args;
    attn_status st;

    if ((st = plain_args("attn_softmax_forward_host_args", desc, q, k, v, o, &d, &args)) !=
        ATTN_OK)
        return st;
    if (lse)
        args.lse = lse_of(&d, lse);
    return attn_softmax_forward_host_args(ctx, desc, NULL, &args);
}

attn_status attn_softmax_backward_host(attn_ctx *ctx, const attn_softmax_desc *desc,
                                       const void *q, const void *k, const void *v,
                                       const void *o, const float *lse, const void *grad_o,
                                       const float *grad_lse, void *grad_q, void *grad_k,
                                       void *grad_v)
{
    attn_softmax_desc d;
    attn_args args;
    attn_status st;

    if ((st = plain_args("attn_softmax_backward_host_args", desc, q, k, v, o, &d, &args)) !=
        ATTN_OK)
        return st;
    args.lse = lse_of(&d, lse);
    if (grad_o) {
        args.grad_o = args.o;
        args.grad_o.data = (void *)(uintptr_t)grad_o;
    } else if (!o) {
        args.o = (attn_tensor){ .type = ATTN_TYPE_NONE };
    }
    if (grad_lse)
        args.grad_lse = lse_of(&d, grad_lse);
    if (grad_q)
        args.grad_q =
            attn_tensor_bhld(grad_q, d.type, d.batch, d.heads_q, d.len_q, d.dim_qk);
    if (grad_k)
        args.grad_k =
            attn_tensor_bhld(grad_k, d.type, d.batch, d.heads_kv, d.len_kv, d.dim_qk);
    if (grad_v)
        args.grad_v =
            attn_tensor_bhld(grad_v, d.type, d.batch, d.heads_kv, d.len_kv, d.dim_v);
    return attn_softmax_backward_host_args(ctx, desc, NULL, &args);
}
