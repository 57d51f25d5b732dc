/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_fwd_recurrent.c: linear attention token by token on OpenCL devices. */
#include "core/size.h"
#include "plan/opencl/variants.h"

enum { ITEMS = 64 /* columns of a group */ };

static int64_t items_of(const attn_caps *c)
{
    int64_t items = ITEMS;

    while (items > 1 && items > c->max_group)
        items /= 2;
    return items;
}

static int64_t rows_bytes(const attn_problem *p)
{
    return 4 * 4 * p->d;
}

/* Iterations of a work-item's loops: each key is added, each query of the heads of a group
 * read; and the state comes and goes. */
static double loops_of(const attn_problem *p, const attn_caps *c)
{
    const double d = (double)p->d, share = p->hkv ? (double)p->hq / (double)p->hkv : 1;
    const double rows = (double)attn_ceil_div(p->d, items_of(c)) + 8;
    const double key = (p->features & ATTN_FEAT_BETA ? 2 : 1) * d + rows;

    return (double)p->lk * key + share * (double)p->lq * (2 * d + rows) + 4 * d;
}

/* Workspace that cannot be counted is refused first. */
static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const double units = (double)p->b * (double)p->hkv;

    if (rows_bytes(p) + 4 > c->fast_bytes)
        return "rows of D elements do not fit local memory";
    if (units * (double)p->d * (double)attn_round_up(p->dv, ITEMS) > 0x1p50)
        return "the states are more than can be addressed";
    if (units * (double)attn_ceil_div(p->dv, items_of(c)) > INT32_MAX)
        return "more than 2^31 - 1 groups";
    if (c->max_loops && loops_of(p, c) > (double)c->max_loops)
        return "the driver cuts loops off before so many tokens are taken";
    return NULL;
}

static attn_step *add_step(attn_choice *out, const char *kernel, const attn_problem *p,
                           int64_t items, int64_t columns, bool fast)
{
    attn_step *step = attn_opencl_linear_step(p, kernel, out);

    step->columns = columns;
    step->block = items;
    attn_step_define(step, "ITEMS", items);
    attn_step_define(step, "FAST", fast);
    return step;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const int64_t items = items_of(c), columns = 4 * p->d * items;
    const int64_t states = p->b * p->hkv;
    const bool fast = rows_bytes(p) + columns <= c->fast_bytes;

    out->splits = 0;
    out->workspace_bytes = 0;
    if (p->features & ATTN_FEAT_NORMALIZE) {
        add_step(out, "linear_fwd_begin", p, items, p->dv, fast);
        out->workspace_bytes = 4 * states * p->d;
    }
    add_step(out, "linear_fwd_recurrent", p, items, items, fast);
    if (!fast)
        out->workspace_bytes += states * attn_ceil_div(p->dv, items) * columns;
    attn_choice_instance(out, "items%lld,%s,d%lld,dv%lld,%s", (long long)items,
                         fast ? "local" : "global", (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason =
        "a column of the state for each of up to 64 work-items, in local memory "
        "if they fit";
    attn_choice_budget(out, "rows of k, q, decay and z", rows_bytes(p));
    if (fast)
        attn_choice_budget(out, "columns of the state", columns);
}

const attn_variant attn_opencl_linear_fwd_recurrent_variant = {
    .name = "linear_fwd_recurrent",
    .about = "token by token, every rule; a column of the state for each work-item",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR | ATTN_FEAT_DECAY | ATTN_FEAT_BETA,
    .applicable = applicable,
    .lower = lower,
};
