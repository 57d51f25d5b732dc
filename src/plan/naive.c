/* SPDX-License-Identifier: MIT */
/* plan/naive.c: the plainest way, the same on every GPU back end: every step a kernel of
 * its own, every score in memory; in place, and with a copy. */
#include "plan/naive.h"

#include "core/size.h"

enum {
    ROUND_BYTES = 256 << 20, /* scores of a round, unless one query has more  */
    SPAN = 256               /* keys of an inner loop of the kernels          */
};

static const char too_long[] = "the scores of one query exceed the device's largest block";

static int64_t block_of(const attn_caps *c)
{
    return attn_min(ATTN_NAIVE_BLOCK, c->max_group);
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

const char *attn_naive_refusal(const attn_problem *p, const attn_caps *c, bool copy)
{
    if (c->max_group < 1)
        return "the device runs no work-group";
    if (row_bytes(p, copy ? 2 : 1) > c->max_alloc_bytes)
        return too_long;
    if (c->max_loops && loops_of(p, c) > c->max_loops)
        return "the driver cuts loops off before so many keys are read";
    return NULL;
}

/* `tile_q` queries and `piece` keys (0: all) are a group's; `copy` for a kernel that reads
 * the copied scores, so that the others are the same programs in both variants. */
static void add_step(const attn_problem *p, const attn_caps *c, span round, bool copy,
                     const char *kernel, unsigned reads, int64_t tile_q, int64_t piece,
                     attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->tile_q = tile_q;
    step->tile_k = block_of(c);
    step->piece = piece;
    step->block = block_of(c);
    step->round_heads = round.heads;
    step->round_queries = round.queries;
    attn_step_softmax(step, p, ATTN_READS_TYPE | ATTN_READS_QUERIES | reads);
    attn_step_define(step, "BLOCK", block_of(c));
    attn_step_define(step, "COPY", copy);
}

void attn_naive_lower(const attn_problem *p, const attn_caps *c,
                      const char *const kernel[ATTN_NAIVE_STEPS], bool copy,
                      attn_choice *out)
{
    const unsigned range = ATTN_READS_KEYS | ATTN_READS_RANGE;
    const int64_t block = block_of(c);
    const span r = round_of(p, c, copy ? 2 : 1);

    add_step(p, c, r, false, kernel[ATTN_NAIVE_PRODUCT],
             range | ATTN_READS_D | ATTN_READS_Q | ATTN_READS_K, 1, block, out);
    if (copy)
        add_step(p, c, r, false, kernel[ATTN_NAIVE_COPY], 0, 1, block, out);
    add_step(p, c, r, copy, kernel[ATTN_NAIVE_SCALE], ATTN_READS_SOFTCAP, 1, block, out);
    add_step(p, c, r, copy, kernel[ATTN_NAIVE_MASK], range | ATTN_READS_TERMS, 1, block,
             out);
    add_step(p, c, r, copy, kernel[ATTN_NAIVE_SOFTMAX],
             range | ATTN_READS_SINKS | ATTN_READS_LSE, block, 0, out);
    add_step(p, c, r, copy, kernel[ATTN_NAIVE_OUTPUT],
             range | ATTN_READS_DV | ATTN_READS_V | ATTN_READS_O, 1, 0, out);
    out->workspace_bytes = r.heads * r.queries * row_bytes(p, copy ? 2 : 1);
    attn_choice_instance(out, "wg%lld,d%lld,dv%lld,%s", (long long)block, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "no tile: a work-item has one score, row or element; rounds keep "
                       "the scores within 256 MiB";
}
