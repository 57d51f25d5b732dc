/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_bwd_chunk.c: gradients of linear attention in chunks of tokens on OpenCL
 * devices: a scan for each gradient, in one pass over the sequence, or in segments of it. */
#include "core/size.h"
#include "plan/opencl/linear_chunk.h"
#include "plan/opencl/variants.h"

enum { FEW_TOKENS = 32 /* fewer are sooner taken one by one */ };

static bool normalizes(const attn_problem *p)
{
    return p->features & ATTN_FEAT_NORMALIZE;
}

static bool is_causal(const attn_problem *p)
{
    return p->features & ATTN_FEAT_CAUSAL;
}

static attn_chunk_scan scan_of(const attn_problem *p, attn_linear_scan s)
{
    const bool v = s == ATTN_SCAN_V;

    return (attn_chunk_scan){ .features = v ? p->d : p->dv,
                              .width = v ? p->dv : p->d,
                              .causal = is_causal(p),
                              .adds_heads = is_causal(p) && s != ATTN_SCAN_Q };
}

/* Walks of dQ are of query heads, the others of states. */
static int64_t heads_of(const attn_problem *p, attn_linear_scan s)
{
    return p->b * (s == ATTN_SCAN_Q ? p->hq : p->hkv);
}

/* Tokens that a scan of the full form adds up, and those that read the sum. */
static int64_t summed_of(const attn_problem *p, attn_linear_scan s)
{
    return s == ATTN_SCAN_Q ? p->lk : p->lq;
}

static int64_t walked_of(const attn_problem *p, attn_linear_scan s)
{
    return s == ATTN_SCAN_Q || is_causal(p) ? p->lq : p->lk;
}

static attn_chunk_cuts find_cuts(const attn_problem *p, attn_linear_scan s,
                                 const attn_chunk_shape *shape, const attn_caps *c)
{
    const attn_chunk_scan x = scan_of(p, s);

    return x.causal ? attn_chunk_cut_causal(&x, shape, c, heads_of(p, s), p->lq)
                    : attn_chunk_cut_full(&x, shape, c, p->b * p->hkv, summed_of(p, s),
                                          heads_of(p, s), walked_of(p, s));
}

/* Bytes of a scan's slots; false: more than 2^63 - 1. */
static bool slot_bytes(const attn_problem *p, attn_linear_scan s, attn_chunk_cuts cuts,
                       int64_t *out)
{
    const attn_chunk_scan x = scan_of(p, s);

    *out = 0;
    return cuts.slots == 1 || (attn_mul(p->b * p->hkv, cuts.slots, out) &&
                               attn_mul(*out, 4 * (x.features + 1) * x.width, out));
}

/* Query heads of which the tokens of a segment are taken in turn. */
static int64_t share_of(const attn_problem *p, attn_linear_scan s)
{
    return s != ATTN_SCAN_Q && p->hkv ? p->hq / p->hkv : 1;
}

static const char *refusal_of(const attn_problem *p, const attn_caps *c, attn_linear_scan s)
{
    const attn_chunk_scan x = scan_of(p, s);
    const double c_bytes =
        normalizes(p) ? 4.0 * (double)p->b * (double)p->hq * (double)p->lq : 0;
    int64_t bytes, piece;
    attn_chunk_shape shape;
    attn_chunk_cuts cuts;
    double groups;

    if (!attn_chunk_find_shape(&x, c, &shape))
        return "no chunk fits the local memory and the work-group limit";
    cuts = find_cuts(p, s, &shape, c);
    groups = (double)heads_of(p, s) * (double)attn_ceil_div(x.width, shape.columns);
    if (groups * (double)cuts.slots > INT32_MAX)
        return "more than 2^31 - 1 groups";
    if (!slot_bytes(p, s, cuts, &bytes) ||
        c_bytes + (double)bytes > (double)c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's largest block";
    piece = cuts.output ? attn_min(cuts.output, walked_of(p, s)) : walked_of(p, s);
    if (!x.causal)
        piece = attn_max(piece, attn_min(cuts.sums, summed_of(p, s)));
    if (c->max_loops && attn_chunk_loops(&x, &shape, piece, share_of(p, s), cuts.slots) >
                            (double)c->max_loops)
        return "the driver cuts loops off before so many tokens are taken";
    return NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const char *no = NULL;

    if (p->lq > INT32_MAX - 4096 || p->lk > INT32_MAX - 4096 ||
        (double)p->b * (double)p->hq * (double)p->lq > INT32_MAX)
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    for (int s = 0; s < ATTN_SCANS && !no; s++)
        if (attn_linear_scan_grads[s] & p->grad)
            no = refusal_of(p, c, (attn_linear_scan)s);
    return no;
}

static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->lq < FEW_TOKENS && (is_causal(p) || p->lk < FEW_TOKENS))
        return "takes it, but so few tokens are sooner taken one by one";
    return NULL;
}

/* Whether all operands, or the gradient that a scan writes, lie in vectors. */
static bool wide_in(const attn_problem *p, const attn_chunk_shape *s)
{
    return attn_chunk_wide(p, s, ATTN_TENSOR_Q) && attn_chunk_wide(p, s, ATTN_TENSOR_K) &&
           attn_chunk_wide(p, s, ATTN_TENSOR_V) &&
           attn_chunk_wide(p, s, ATTN_TENSOR_GRAD_O);
}

static bool wide_out(const attn_problem *p, const attn_chunk_shape *s,
                     attn_linear_scan scan)
{
    static const int tensors[ATTN_SCANS] = { ATTN_TENSOR_GRAD_Q, ATTN_TENSOR_GRAD_K,
                                             ATTN_TENSOR_GRAD_V };

    return attn_chunk_wide(p, s, tensors[scan]);
}

static attn_step *add_step(const attn_problem *p, const attn_chunk_shape *shape,
                           attn_chunk_cuts x, attn_linear_scan s, const char *kernel,
                           bool summed, attn_choice *out)
{
    const attn_chunk_scan scan = scan_of(p, s);
    attn_step *step = attn_chunk_step(p, shape, x, kernel, summed, out);
    const bool keys = summed == (s == ATTN_SCAN_Q);

    step->grad = attn_linear_scan_grads[s] & p->grad;
    step->grouped = summed || s != ATTN_SCAN_Q;
    step->by_d = s != ATTN_SCAN_V;
    step->merges = is_causal(p) ? 0 : x.sums;
    if (!is_causal(p) && keys)
        step->over = ATTN_OVER_KEY_STATES;
    attn_step_define(step, "SCAN", s);
    attn_step_define(step, "WIDE", wide_in(p, shape));
    attn_step_define(step, "WIDE_O", wide_out(p, shape, s));
    attn_step_define(step, "SCANNED", attn_chunk_scanned(&scan, x));
    return step;
}

/* The steps of a scan; their slots' bytes. */
static int64_t lower_scan(const attn_problem *p, const attn_caps *c, attn_linear_scan s,
                          attn_chunk_shape *shape, int64_t *slots, attn_choice *out)
{
    const attn_chunk_scan x = scan_of(p, s);
    attn_chunk_cuts cuts;
    int64_t bytes;

    attn_chunk_find_shape(&x, c, shape);
    cuts = find_cuts(p, s, shape, c);
    slot_bytes(p, s, cuts, &bytes);
    if (cuts.slots > 1)
        add_step(p, shape, cuts, s, "linear_bwd_chunk_sums", true, out)->fast_bytes =
            attn_chunk_sums_bytes(&x, shape);
    if (attn_chunk_scanned(&x, cuts))
        add_step(p, shape, cuts, s, "linear_bwd_chunk_scan", true, out);
    add_step(p, shape, cuts, s, "linear_bwd_chunk", false, out)->fast_bytes =
        attn_chunk_walk_bytes(&x, shape);
    *slots = cuts.slots;
    return bytes;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_chunk_shape shape = { 0 };
    int64_t most = 0, slots = 1;

    out->splits = 0;
    if (normalizes(p) && p->grad & ~(uint32_t)ATTN_GRAD_V)
        attn_opencl_linear_begin(p, c, out);
    for (int i = 0; i < ATTN_SCANS; i++) {
        const attn_linear_scan s = attn_linear_scan_order[i];

        if (attn_linear_scan_grads[s] & p->grad)
            most = attn_max(most, lower_scan(p, c, s, &shape, &slots, out));
    }
    out->workspace_bytes = (normalizes(p) ? 4 * p->b * p->hq * p->lq : 0) + most;
    attn_choice_instance(
        out, "chunk%lld,columns%lld,items%lld,vw%lld,states%lld,d%lld,dv%lld,%s",
        (long long)shape.chunk, (long long)shape.columns, (long long)shape.items,
        (long long)shape.vw, (long long)slots, (long long)p->d, (long long)p->dv,
        attn_type_name(p->type));
    out->tile_reason =
        "of the last scan: the first of a list, largest first, that keeps the "
        "work-group limit and the local memory; segments where heads do not "
        "fill the device";
}

const attn_variant attn_opencl_linear_bwd_chunk_variant = {
    .name = "linear_bwd_chunk",
    .about = "gradients in chunks of tokens as products of matrices, a scan for each; "
             "segments of the sequence where there are few heads",
    .op = ATTN_OP_LINEAR,
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
