/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_fwd_naive.c: OpenCL's plainest way: every step a kernel of its own,
 * every score in memory; in place, and with a copy. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    BLOCK = 64,              /* work-items of a group                         */
    ROUND_BYTES = 256 << 20, /* scores of a round, unless one query has more  */
    SPAN = 256               /* keys of an inner loop of the kernels          */
};

static const char too_long[] = "the scores of one query exceed the device's largest block";

static int64_t block_of(const attn_caps *c)
{
    return attn_min(BLOCK, c->max_group);
}

/* Bytes of the scores of one query; never 0. */
static int64_t row_bytes(const attn_problem *p, int arrays)
{
    return arrays * attn_max(p->lk, 1) * (int64_t)attn_type_bytes(p->type);
}

/* Heads and queries of a round. */
typedef struct span {
    int64_t heads, queries;
} span;

static span round_of(const attn_problem *p, const attn_caps *c, int arrays)
{
    const int64_t row = row_bytes(p, arrays);
    const int64_t most = attn_max(attn_min(ROUND_BYTES, c->max_alloc_bytes / 2) / row, 1);
    const int64_t lq = attn_max(p->lq, 1), queries = attn_min(lq, most);

    return (span){ .heads = attn_min(attn_max(most / lq, 1), p->b * p->hq),
                   .queries = queries };
}

/* Iterations of a work-item in its longest kernel. */
static int64_t loops_of(const attn_problem *p, const attn_caps *c)
{
    const int64_t softmax = 3 * p->lk + p->lk / SPAN + 1;
    const int64_t output = attn_ceil_div(p->dv, block_of(c)) * (p->lk + p->lk / SPAN + 2);

    return attn_max(p->d, attn_max(softmax, output));
}

static const char *refusal(const attn_problem *p, const attn_caps *c, int arrays)
{
    if (c->max_group < 1)
        return "the device runs no work-group";
    if (row_bytes(p, arrays) > c->max_alloc_bytes)
        return too_long;
    if (c->max_loops && loops_of(p, c) > c->max_loops)
        return "the driver cuts loops off before so many keys are read";
    return NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    return refusal(p, c, 1);
}

static const char *applicable_copy(const attn_problem *p, const attn_caps *c)
{
    return refusal(p, c, 2);
}

/* `tile_q` queries and `piece` keys (0: all) are a group's; `copy` for a kernel that reads
 * the copied scores, so that the others are the same programs in both variants. */
static void add_step(const attn_problem *p, const attn_caps *c, span round, bool copy,
                     const char *kernel, int64_t tile_q, int64_t piece, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->tile_q = tile_q;
    step->tile_k = block_of(c);
    step->piece = piece;
    step->block = block_of(c);
    step->round_heads = round.heads;
    step->round_queries = round.queries;
    attn_step_softmax(step, p);
    attn_step_define(step, "BLOCK", block_of(c));
    attn_step_define(step, "COPY", copy);
}

static void lower_with(const attn_problem *p, const attn_caps *c, bool copy,
                       attn_choice *out)
{
    const int64_t block = block_of(c);
    const span r = round_of(p, c, copy ? 2 : 1);

    add_step(p, c, r, false, "softmax_fwd_naive_product", 1, block, out);
    if (copy)
        add_step(p, c, r, false, "softmax_fwd_naive_copy", 1, block, out);
    add_step(p, c, r, copy, "softmax_fwd_naive_scale", 1, block, out);
    add_step(p, c, r, copy, "softmax_fwd_naive_mask", 1, block, out);
    add_step(p, c, r, copy, "softmax_fwd_naive_softmax", block, 0, out);
    add_step(p, c, r, copy, "softmax_fwd_naive_output", 1, 0, out);
    out->workspace_bytes = r.heads * r.queries * row_bytes(p, copy ? 2 : 1);
    attn_choice_instance(out, "wg%lld,d%lld,dv%lld,%s", (long long)block, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "no tile: a work-item has one score, row or element; rounds keep "
                       "the scores within 256 MiB";
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_with(p, c, false, out);
}

static void lower_copy(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_with(p, c, true, out);
}

const attn_variant attn_opencl_softmax_fwd_naive_variant = {
    .name = "softmax_fwd_naive",
    .about = "five plain kernels over scores in memory, in place",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_ROUNDED,
    .applicable = applicable,
    .lower = lower,
};

const attn_variant attn_opencl_softmax_fwd_naive_copy_variant = {
    .name = "softmax_fwd_naive_copy",
    .about = "the same out of place, six kernels: what a copy of the scores costs",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_ROUNDED,
    .applicable = applicable_copy,
    .lower = lower_copy,
};
