/* SPDX-License-Identifier: MIT */
/* problem/linear.c: the rules of attn_linear_desc, and the problem it names. */
#include "problem/problem.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "core/size.h"
#include "core/status.h"

/* One line per rule, in the order of the fields, worded as the header words it.
 * Nothing behind attn_linear_desc_read() checks a descriptor again. */
#define RULE(cond, ...)                                      \
    do {                                                     \
        if (!(cond))                                         \
            return attn_fail(ATTN_ERR_INVALID, __VA_ARGS__); \
    } while (0)

enum {
    KNOWN_USE = ATTN_LINEAR_CAUSAL | ATTN_LINEAR_SCALE | ATTN_LINEAR_PHI |
                ATTN_LINEAR_NORMALIZE | ATTN_LINEAR_EPS | ATTN_LINEAR_RULE |
                ATTN_LINEAR_LENS_KV | ATTN_LINEAR_STATE_IN | ATTN_LINEAR_STATE_OUT |
                ATTN_LINEAR_DEN | ATTN_LINEAR_LAYOUT | ATTN_LINEAR_GRAD |
                ATTN_LINEAR_ALLOW_TF32 | ATTN_LINEAR_ALLOW_NONDET,
    KNOWN_GRAD = ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V | ATTN_GRAD_STATE
};

static const float EPS = 1e-6f;

static bool has_decay(attn_rule rule)
{
    return rule == ATTN_RULE_GATED || rule == ATTN_RULE_GATED_DELTA;
}

static bool has_beta(attn_rule rule)
{
    return rule == ATTN_RULE_DELTA || rule == ATTN_RULE_GATED_DELTA;
}

static bool is_float(attn_type type)
{
    return type == ATTN_F32 || type == ATTN_F16 || type == ATTN_BF16;
}

static attn_status check_states(const attn_linear_desc *d)
{
    const int64_t dim_v = d->dim_v ? d->dim_v : d->dim_qk;
    int64_t n;

    RULE(attn_mul(d->batch, d->heads_kv, &n) && attn_mul(n, d->dim_qk, &n) &&
             attn_mul(n, dim_v, &n) && n <= (int64_t)1 << 62,
         "batch * heads_kv * dim_qk * dim_v = %lld * %lld * %lld * %lld, want <= 2^62",
         (long long)d->batch, (long long)d->heads_kv, (long long)d->dim_qk,
         (long long)dim_v);
    return ATTN_OK;
}

static attn_status check_rule(const attn_linear_desc *d)
{
    RULE((int)d->rule >= ATTN_RULE_LINEAR && d->rule <= ATTN_RULE_GATED_DELTA,
         "rule = %d, want an ATTN_RULE_ value", (int)d->rule);
    if (has_decay(d->rule))
        RULE(is_float(d->type_decay),
             "type_decay = %d, want ATTN_F32, ATTN_F16 or ATTN_BF16", (int)d->type_decay);
    if (has_beta(d->rule))
        RULE(is_float(d->type_beta), "type_beta = %d, want ATTN_F32, ATTN_F16 or ATTN_BF16",
             (int)d->type_beta);
    if (d->rule == ATTN_RULE_LINEAR)
        return ATTN_OK;
    RULE(d->use & ATTN_LINEAR_CAUSAL,
         "rule = %d without ATTN_LINEAR_CAUSAL, want it: the rule has an order of keys",
         (int)d->rule);
    RULE(!has_beta(d->rule) || !(d->use & ATTN_LINEAR_NORMALIZE),
         "rule = %d beside ATTN_LINEAR_NORMALIZE, want one of them: the delta rule has no "
         "normaliser",
         (int)d->rule);
    return ATTN_OK;
}

static attn_status check_grad(const attn_linear_desc *d)
{
    RULE(d->grad, "grad = 0 beside ATTN_LINEAR_GRAD, want at least one ATTN_GRAD_ bit");
    RULE(!(d->grad & ~(uint32_t)KNOWN_GRAD), "grad = 0x%x has bits that mean nothing: 0x%x",
         (unsigned)d->grad, (unsigned)(d->grad & ~(uint32_t)KNOWN_GRAD));
    RULE(!(d->grad & ATTN_GRAD_STATE) || d->use & ATTN_LINEAR_STATE_IN,
         "grad has ATTN_GRAD_STATE, but use is without ATTN_LINEAR_STATE_IN: there is no "
         "state");
    return ATTN_OK;
}

static attn_status check_optional(const attn_linear_desc *d)
{
    const attn_layout layouts[ATTN_TENSOR_ALL] = { d->layout_q,      d->layout_k,
                                                   d->layout_v,      d->layout_o,
                                                   d->layout_grad_o, d->layout_grad_q,
                                                   d->layout_grad_k, d->layout_grad_v };
    const bool normalize = d->use & ATTN_LINEAR_NORMALIZE;
    attn_status st;

    if (d->use & ATTN_LINEAR_SCALE)
        RULE(isfinite(d->scale), "scale = %g, want a finite number", (double)d->scale);
    if (d->use & ATTN_LINEAR_PHI)
        RULE((int)d->phi >= ATTN_PHI_IDENTITY && d->phi <= ATTN_PHI_RELU,
             "phi = %d, want an ATTN_PHI_ value", (int)d->phi);
    if (d->use & ATTN_LINEAR_EPS) {
        RULE(normalize, "eps = %g without ATTN_LINEAR_NORMALIZE, want it", (double)d->eps);
        RULE(isfinite(d->eps), "eps = %g, want a finite number", (double)d->eps);
    }
    RULE(normalize || !(d->use & ATTN_LINEAR_DEN),
         "use has ATTN_LINEAR_DEN without ATTN_LINEAR_NORMALIZE: there is no denominator");
    if (d->use & ATTN_LINEAR_RULE && (st = check_rule(d)) != ATTN_OK)
        return st;
    if (d->use & ATTN_LINEAR_GRAD && (st = check_grad(d)) != ATTN_OK)
        return st;
    return d->use & ATTN_LINEAR_LAYOUT
               ? attn_layouts_check(layouts, d->use & ATTN_LINEAR_GRAD)
               : ATTN_OK;
}

attn_status attn_linear_desc_read(attn_linear_desc *desc, const attn_linear_desc *from)
{
    attn_sizes sizes;
    attn_status st;

    RULE(from, "desc is NULL");
    RULE(attn_struct_copy(desc, sizeof *desc, from, from->size,
                          offsetof(attn_linear_desc, layout_grad_v) +
                              sizeof desc->layout_grad_v),
         "size = %zu, want sizeof(attn_linear_desc) = %zu", from->size, sizeof *desc);
    RULE(!(desc->use & ~(uint32_t)KNOWN_USE), "use = 0x%x has bits that mean nothing: 0x%x",
         (unsigned)desc->use, (unsigned)(desc->use & ~(uint32_t)KNOWN_USE));
    sizes = (attn_sizes){ desc->type,  desc->batch,  desc->heads_q, desc->heads_kv,
                          desc->len_q, desc->len_kv, desc->dim_qk,  desc->dim_v };
    if ((st = attn_sizes_check(&sizes)) != ATTN_OK || (st = check_states(desc)) != ATTN_OK)
        return st;
    return check_optional(desc);
}

attn_status attn_linear_check(const attn_linear_desc *desc)
{
    attn_linear_desc copy;
    return attn_linear_desc_read(&copy, desc);
}

/* Features that come and go with one bit of `use`. */
static const struct {
    uint32_t feature, use;
} same[] = {
    { ATTN_FEAT_CAUSAL, ATTN_LINEAR_CAUSAL },
    { ATTN_FEAT_NORMALIZE, ATTN_LINEAR_NORMALIZE },
    { ATTN_FEAT_LENS_KV, ATTN_LINEAR_LENS_KV },
    { ATTN_FEAT_STATE_IN, ATTN_LINEAR_STATE_IN },
    { ATTN_FEAT_STATE_OUT, ATTN_LINEAR_STATE_OUT },
    { ATTN_FEAT_DEN, ATTN_LINEAR_DEN },
};

void attn_problem_from_linear(attn_problem *p, const attn_linear_desc *d)
{
    const attn_layout layout[ATTN_TENSOR_ALL] = { d->layout_q,      d->layout_k,
                                                  d->layout_v,      d->layout_o,
                                                  d->layout_grad_o, d->layout_grad_q,
                                                  d->layout_grad_k, d->layout_grad_v };
    const attn_rule rule = d->use & ATTN_LINEAR_RULE ? d->rule : ATTN_RULE_LINEAR;

    memset(p, 0, sizeof *p);
    p->op = ATTN_OP_LINEAR;
    p->type = d->type;
    p->b = d->batch;
    p->hq = d->heads_q;
    p->hkv = d->heads_kv;
    p->lq = d->len_q;
    p->lk = d->len_kv;
    p->d = d->dim_qk;
    p->dv = d->dim_v ? d->dim_v : d->dim_qk;
    p->window_left = p->window_right = -1;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (d->use & same[i].use)
            p->features |= same[i].feature;
    if (d->use & ATTN_LINEAR_GRAD) {
        p->pass = ATTN_PASS_BWD;
        p->grad = d->grad;
        if (d->use & ATTN_LINEAR_NORMALIZE)
            p->features |= ATTN_FEAT_DEN;
    }
    p->scale_given = (d->use & ATTN_LINEAR_SCALE) != 0;
    p->scale = p->scale_given ? d->scale : 1;
    p->phi = d->use & ATTN_LINEAR_PHI ? d->phi : ATTN_PHI_IDENTITY;
    p->eps_given = (d->use & ATTN_LINEAR_EPS) != 0;
    if (d->use & ATTN_LINEAR_NORMALIZE)
        p->eps = p->eps_given ? d->eps : EPS;
    p->rule = rule;
    if (has_decay(rule)) {
        p->features |= ATTN_FEAT_DECAY;
        p->type_decay = d->type_decay;
    }
    if (has_beta(rule)) {
        p->features |= ATTN_FEAT_BETA;
        p->type_beta = d->type_beta;
    }
    p->allow_tf32 = p->type == ATTN_F32 && (d->use & ATTN_LINEAR_ALLOW_TF32);
    p->allow_nondet = (d->use & ATTN_LINEAR_ALLOW_NONDET) != 0;
    if (d->use & ATTN_LINEAR_LAYOUT)
        for (int t = 0; t < attn_problem_layouts(p); t++)
            p->layout[t] = attn_layout_canonical(layout[t], p->type);
}

/* With a normaliser the fraction is reduced by scale, where that can be. */
attn_sums attn_problem_sums(const attn_problem *p)
{
    const double eps = p->scale == 0 ? INFINITY : (double)p->eps / (double)p->scale;

    if (!(p->features & ATTN_FEAT_NORMALIZE))
        return (attn_sums){ .scale = 1, .unit = p->scale };
    if (fabs(eps) > (double)FLT_MAX)
        return (attn_sums){ .scale = p->scale, .eps = p->eps, .unit = 1 };
    return (attn_sums){ .scale = 1, .eps = (float)eps, .unit = p->scale };
}

void attn_problem_to_linear(const attn_problem *p, attn_linear_desc *d)
{
    *d = (attn_linear_desc){
        .size = sizeof *d,
        .type = p->type,
        .batch = p->b,
        .heads_q = p->hq,
        .heads_kv = p->hkv,
        .len_q = p->lq,
        .len_kv = p->lk,
        .dim_qk = p->d,
        .dim_v = p->dv,
        .scale = p->scale,
        .phi = p->phi,
        .eps = p->eps,
        .rule = p->rule,
        .type_decay = p->type_decay,
        .type_beta = p->type_beta,
        .layout_q = p->layout[ATTN_TENSOR_Q],
        .layout_k = p->layout[ATTN_TENSOR_K],
        .layout_v = p->layout[ATTN_TENSOR_V],
        .layout_o = p->layout[ATTN_TENSOR_O],
        .grad = p->grad,
        .layout_grad_o = p->layout[ATTN_TENSOR_GRAD_O],
        .layout_grad_q = p->layout[ATTN_TENSOR_GRAD_Q],
        .layout_grad_k = p->layout[ATTN_TENSOR_GRAD_K],
        .layout_grad_v = p->layout[ATTN_TENSOR_GRAD_V],
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (p->features & same[i].feature)
            d->use |= same[i].use;
    if (p->phi)
        d->use |= ATTN_LINEAR_PHI;
    if (p->rule)
        d->use |= ATTN_LINEAR_RULE;
    if (p->scale_given)
        d->use |= ATTN_LINEAR_SCALE;
    if (p->eps_given)
        d->use |= ATTN_LINEAR_EPS;
    if (p->allow_tf32)
        d->use |= ATTN_LINEAR_ALLOW_TF32;
    if (p->allow_nondet)
        d->use |= ATTN_LINEAR_ALLOW_NONDET;
    if (p->pass == ATTN_PASS_BWD)
        d->use |= ATTN_LINEAR_GRAD;
    for (int t = 0; t < ATTN_TENSOR_ALL; t++)
        if (p->layout[t] != ATTN_LAYOUT_16)
            d->use |= ATTN_LINEAR_LAYOUT;
}
