/* SPDX-License-Identifier: MIT */
/* tools/problem.c: which of the library's two sets of functions a problem goes to. */
#include "problem.h"

#include <string.h>

#include "visible.h"

problem problem_of_softmax(const attn_softmax_desc *desc)
{
    return (problem){ .softmax = *desc };
}

problem problem_of_linear(const attn_linear_desc *desc)
{
    return (problem){ .is_linear = true, .linear = *desc };
}

attn_status problem_parse(const char *text, problem *out)
{
    *out = (problem){ .is_linear = !strncmp(text, "linear", 6) };
    return out->is_linear ? attn_linear_parse(text, &out->linear)
                          : attn_softmax_parse(text, &out->softmax);
}

attn_status problem_text(const problem *p, char *text, size_t cap, size_t *len)
{
    return p->is_linear ? attn_linear_text(&p->linear, text, cap, len)
                        : attn_softmax_text(&p->softmax, text, cap, len);
}

attn_status problem_plan(attn_ctx *ctx, const problem *p, const attn_options *options,
                         attn_plan **out)
{
    return p->is_linear ? attn_plan_linear_with(ctx, &p->linear, options, out)
                        : attn_plan_softmax_with(ctx, &p->softmax, options, out);
}

attn_status problem_variants(attn_ctx *ctx, const problem *p, attn_variant_info *out,
                             size_t cap, size_t *n)
{
    return p->is_linear ? attn_linear_variants(ctx, &p->linear, out, cap, n)
                        : attn_softmax_variants(ctx, &p->softmax, out, cap, n);
}

attn_status problem_explain(attn_ctx *ctx, const problem *p, const attn_options *options,
                            char *text, size_t cap, size_t *len)
{
    return p->is_linear ? attn_linear_explain(ctx, &p->linear, options, text, cap, len)
                        : attn_softmax_explain(ctx, &p->softmax, options, text, cap, len);
}

attn_type problem_type(const problem *p)
{
    return p->is_linear ? p->linear.type : p->softmax.type;
}

double problem_flop(const problem *p)
{
    const attn_linear_desc *d = &p->linear;
    const double chunk = d->use & ATTN_LINEAR_CAUSAL ? 64 : 0;
    const double e = (double)d->dim_qk, m = (double)(d->dim_v ? d->dim_v : d->dim_qk);
    const double queries = (double)d->batch * (double)d->heads_q * (double)d->len_q;
    const double keys = (double)d->batch * (double)d->heads_kv * (double)d->len_kv;

    if (!p->is_linear)
        return visible_flop(&p->softmax);
    return (d->use & ATTN_LINEAR_GRAD ? 2.5 : 1) *
           (2 * e * m * (queries + keys) + 2 * chunk * (e + m) * queries);
}

const char *problem_kind(const problem *p)
{
    if (p->is_linear)
        return p->linear.use & ATTN_LINEAR_GRAD ? "gradients of linear attention"
                                                : "linear attention";
    return p->softmax.use & ATTN_USE_GRAD ? "gradients" : "softmax attention";
}
