/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_fwd_chunk.c: linear attention in chunks of tokens on OpenCL devices: in
 * one pass over the sequence, or in segments of it where there are few heads. */
#include "core/size.h"
#include "plan/opencl/linear_chunk.h"
#include "plan/opencl/variants.h"

enum { FEW_TOKENS = 32 /* fewer are sooner taken one by one */ };

static bool is_causal(const attn_problem *p)
{
    return p->features & ATTN_FEAT_CAUSAL;
}

static attn_chunk_scan scan_of(const attn_problem *p)
{
    return (attn_chunk_scan){ .features = p->d, .width = p->dv, .causal = is_causal(p) };
}

static attn_chunk_cuts find_cuts(const attn_problem *p, const attn_chunk_shape *s,
                                 const attn_caps *c)
{
    const attn_chunk_scan x = scan_of(p);

    return x.causal
               ? attn_chunk_cut_causal(&x, s, c, p->b * p->hq, p->lq)
               : attn_chunk_cut_full(&x, s, c, p->b * p->hkv, p->lk, p->b * p->hq, p->lq);
}

static bool has_slots(const attn_problem *p, attn_chunk_cuts x)
{
    return x.slots > 1 || p->features & ATTN_FEAT_STATE_IN;
}

/* A slot of each segment of each state; false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, attn_chunk_cuts x, int64_t *out)
{
    *out = 0;
    return !has_slots(p, x) || (attn_mul(p->b * p->hkv, x.slots, out) &&
                                attn_mul(*out, 4 * p->d * (p->dv + 1), out));
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const attn_chunk_scan x = scan_of(p);
    attn_chunk_shape s;
    attn_chunk_cuts cuts;
    int64_t bytes;
    double groups;

    if (!attn_chunk_find_shape(&x, c, &s))
        return "no chunk fits the local memory and the work-group limit";
    if (p->lq > INT32_MAX - 4096 || p->lk > INT32_MAX - 4096)
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    cuts = find_cuts(p, &s, c);
    groups = (double)p->b * (double)p->hq * (double)attn_ceil_div(p->dv, s.columns);
    if (groups * (double)cuts.slots > INT32_MAX)
        return "more than 2^31 - 1 groups";
    if (!work_bytes(p, cuts, &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's largest block";
    if (c->max_loops &&
        attn_chunk_loops(&x, &s, cuts.output ? attn_min(cuts.output, p->lq) : p->lq, 1,
                         cuts.slots) > (double)c->max_loops)
        return "the driver cuts loops off before so many tokens are taken";
    return NULL;
}

static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->lq < FEW_TOKENS && (is_causal(p) || p->lk < FEW_TOKENS))
        return "takes it, but so few tokens are sooner taken one by one";
    return NULL;
}

static attn_step *add_step(const attn_problem *p, const attn_chunk_shape *s,
                           attn_chunk_cuts x, const char *kernel, bool summed,
                           attn_choice *out)
{
    const attn_chunk_scan scan = scan_of(p);
    attn_step *step = attn_chunk_step(p, s, x, kernel, summed, out);

    step->grouped = summed;
    step->merges = is_causal(p) ? 0 : x.sums;
    if (summed && !is_causal(p))
        step->over = ATTN_OVER_KEY_STATES;
    attn_step_define(step, "WIDE",
                     attn_chunk_wide(p, s, ATTN_TENSOR_Q) &&
                         attn_chunk_wide(p, s, ATTN_TENSOR_K) &&
                         attn_chunk_wide(p, s, ATTN_TENSOR_V));
    attn_step_define(step, "WIDE_O", attn_chunk_wide(p, s, ATTN_TENSOR_O));
    attn_step_define(step, "SCANNED", attn_chunk_scanned(&scan, x));
    return step;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const attn_chunk_scan scan = scan_of(p);
    attn_chunk_shape s;
    attn_chunk_cuts x;
    attn_chunk_budget b;

    attn_chunk_find_shape(&scan, c, &s);
    x = find_cuts(p, &s, c);
    b = attn_chunk_budget_of(&scan, &s);
    out->splits = 0;
    work_bytes(p, x, &out->workspace_bytes);
    if (has_slots(p, x))
        add_step(p, &s, x, "linear_fwd_chunk_sums", true, out)->fast_bytes =
            attn_chunk_sums_bytes(&scan, &s);
    if (attn_chunk_scanned(&scan, x))
        add_step(p, &s, x, "linear_fwd_chunk_scan", true, out);
    add_step(p, &s, x, "linear_fwd_chunk", false, out);
    attn_choice_instance(
        out, "chunk%lld,columns%lld,items%lld,vw%lld,states%lld,d%lld,dv%lld,%s",
        (long long)s.chunk, (long long)s.columns, (long long)s.items, (long long)s.vw,
        (long long)x.slots, (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        "the first of a list, largest first, that keeps the work-group limit "
        "and the local memory; segments where heads do not fill the device";
    attn_choice_budget(out, "a chunk of q", b.queries);
    attn_choice_budget(out, "a chunk of k, the other way round", b.keys);
    attn_choice_budget(out, "a chunk of v", b.values);
    attn_choice_budget(out, "products of q and k", b.pairs);
    attn_choice_budget(out, "the state", b.state);
    attn_choice_budget(out, "z, and what belongs to rows of q", b.rows);
}

const attn_variant attn_opencl_linear_fwd_chunk_variant = {
    .name = "linear_fwd_chunk",
    .about = "chunks of tokens as products of matrices on register tiles fed from local "
             "memory; segments of the sequence where there are few heads",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
