/* SPDX-License-Identifier: MIT */
/* plan/host/softmax_fwd_split.c: few queries and many keys, split along the keys. */
#include "core/size.h"
#include "plan/host/variants.h"

enum {
    MOST_DIM = 4096,       /* beyond that one row leaves every cache */
    LEAST_KEYS = 64,       /* with fewer nothing takes time          */
    MOST_ROWS = 16,        /* of a block                             */
    KEYS = 512,            /* of a piece, and of a tile              */
    ROUND_BYTES = 64 << 20 /* of partial states in the workspace     */
};

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 4096";
    return NULL;
}

/* Measured: tiles, with a query in each lane, are as fast from about 1 to 2 vectors of
 * queries on, whatever Lk, D and the heads. */
static const char *worse(const attn_problem *p, const attn_caps *c)
{
    if (p->lq > c->vector_width)
        return "takes it, but so many queries fill the vectors of a tile";
    if (p->lk < LEAST_KEYS)
        return "takes it, but has no use for less than 64 keys";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const int64_t d = attn_round_up(p->d, 16), dv = attn_round_up(p->dv, 16);
    const int64_t floats = attn_max(c->fast_bytes, 64 * 1024) / 4;
    const int64_t rows = attn_max(1, attn_min(MOST_ROWS, floats / 2 / (d + dv)));
    const int64_t group = p->hkv ? p->hq / p->hkv : 1;
    const int64_t blocks = p->b * p->hkv * attn_ceil_div(p->lq * group, rows);
    const int64_t piece =
        out->splits ? attn_max(attn_ceil_div(p->lk, out->splits), 1) : KEYS;
    const int64_t pieces = attn_max(attn_ceil_div(p->lk, piece), 1);
    const int64_t state = 4 * rows * pieces * (dv + 2);
    const int64_t q = rows * d, scores = rows * (KEYS + 16), taken = 16 * attn_max(d, dv);
    const int64_t terms = p->features & ATTN_FEATURES_TERMS ? KEYS + 16 : 0;

    step->kernel = "softmax_fwd_split";
    step->tile_q = rows;
    step->tile_k = KEYS;
    step->piece = piece;
    step->grouped = true;
    step->block = 1;
    step->threads = attn_max(c->compute_units, 1);
    step->scratch_bytes = attn_round_up(4 * (q + scores + taken + terms), 64);
    step->round_blocks = attn_max(1, attn_min(blocks, ROUND_BYTES / state));
    out->workspace_bytes = step->threads * step->scratch_bytes + step->round_blocks * state;
    out->splits = pieces;
    attn_step_softmax(step, p, ATTN_READS_ALL);
    attn_choice_instance(out, "rows%lld,piece%lld,lanes%lld,d%lld,dv%lld,%s",
                         (long long)rows, (long long)piece, (long long)c->vector_width,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "rows: the queries of all heads that share a key/value head, up to "
                       "16, so that K and V are read once; pieces of 512 keys unless the "
                       "caller fixes their number";
    attn_choice_budget(out, "q", 4 * q);
    attn_choice_budget(out, "scores of a piece", 4 * scores);
    attn_choice_budget(out, "k or v rows in f32, if they need converting", 4 * taken);
    if (terms)
        attn_choice_budget(out, "bias, mask, ALiBi of one row", 4 * terms);
}

const attn_variant attn_host_softmax_fwd_split_variant = {
    .name = "softmax_fwd_split",
    .about = "keys split into pieces, merged in a second pass; vectors along D, OpenMP",
    .features = ATTN_FEATURES_ALL,
    .splits = true,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
