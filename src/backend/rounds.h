/* SPDX-License-Identifier: MIT */
/* backend/rounds.h: the rounds of a step (plan/step.h) and the groups of a round, for the
 * back ends that launch kernels. */
#ifndef ATTN_BACKEND_ROUNDS_H
#define ATTN_BACKEND_ROUNDS_H

#include "backend/backend.h"
#include "core/size.h"
#include "plan/step.h"

/* Where a round lies: `heads` (batch, head) pairs and `queries` queries of each, from `head`
 * and `query` on. */
typedef struct attn_round {
    int64_t head, heads, query, queries;
} attn_round;

/* Rounds over the same heads: one at least, and so of heads, for what has no queries or
 * batches may have gradients of keys or sinks. */
static inline int64_t attn_query_rounds_of(const attn_step *s, const attn_call *call)
{
    return s->round_queries ? attn_max(attn_ceil_div(call->len_q, s->round_queries), 1) : 1;
}

static inline int64_t attn_rounds_of(const attn_step *s, const attn_call *call)
{
    const int64_t heads = call->batch * call->heads_q;

    return (s->round_heads ? attn_max(attn_ceil_div(heads, s->round_heads), 1) : 1) *
           attn_query_rounds_of(s, call);
}

/* Round r of them; queries run fastest. */
static inline attn_round attn_round_at(const attn_step *s, const attn_call *call, int64_t r)
{
    const int64_t heads = call->batch * call->heads_q;
    const int64_t n = attn_query_rounds_of(s, call);
    attn_round at = { .heads = heads, .queries = call->len_q };

    if (s->round_queries) {
        at.query = r % n * s->round_queries;
        at.queries = attn_min(s->round_queries, call->len_q - at.query);
    }
    if (s->round_heads) {
        at.head = r / n * s->round_heads;
        at.heads = attn_min(s->round_heads, heads - at.head);
    }
    return at;
}

/* Groups that share the keys of one tile of queries: pieces of so many; 0: all in one. */
static inline int64_t attn_pieces_of(int64_t piece, const attn_call *call)
{
    return piece ? attn_max(attn_ceil_div(call->len_kv, piece), 1) : 1;
}

/* Segments of so many tokens: `piece` each, but for the first one's `lead` (0: as many). */
static inline int64_t attn_segments(int64_t len, int64_t lead, int64_t piece)
{
    return 1 + attn_ceil_div(attn_max(len - (lead ? lead : piece), 0), piece);
}

/* Segments of the queries, or keys, of linear attention. */
static inline int64_t attn_segments_of(const attn_step *step, const attn_call *call)
{
    const int64_t len = step->over == ATTN_OVER_KEY_STATES ? call->len_kv : call->len_q;

    return step->piece ? attn_segments(len, step->lead, step->piece) : 1;
}

/* Those of the scan of dQ where it has its own. */
static inline int64_t attn_segments_q_of(const attn_step *step, const attn_call *call)
{
    return step->piece_q ? attn_segments(call->len_q, 0, step->piece_q) : 0;
}

/* States that the steps of linear attention keep of each batch and head. */
static inline int64_t attn_slots_of(const attn_step *step, const attn_call *call)
{
    const int64_t len = step->merges_queries ? call->len_q : call->len_kv;

    return step->merges ? 1 + attn_max(attn_ceil_div(len, step->merges), 1)
                        : attn_segments_of(step, call);
}

static inline bool attn_is_there(const attn_tensor *t)
{
    return t->type != ATTN_TYPE_NONE;
}

/* Whether a call wants something of a step. */
static inline bool attn_is_wanted(const attn_step *step, const attn_args *t)
{
    const uint32_t there =
        (attn_is_there(&t->grad_q) ? ATTN_GRAD_Q : 0) |
        (attn_is_there(&t->grad_k) ? ATTN_GRAD_K : 0) |
        (attn_is_there(&t->grad_v) ? ATTN_GRAD_V : 0) |
        (attn_is_there(&t->grad_bias) ? ATTN_GRAD_BIAS : 0) |
        (attn_is_there(&t->grad_sinks) ? ATTN_GRAD_SINKS : 0) |
        (attn_is_there(&t->grad_state_in) || attn_is_there(&t->grad_z_in) ? ATTN_GRAD_STATE
                                                                          : 0);

    return !step->grad || step->grad & there;
}

/* Whether no round follows. */
static inline bool attn_is_last(const attn_call *call, const attn_round *round)
{
    return round->head + round->heads >= call->batch * call->heads_q &&
           round->query + round->queries >= call->len_q;
}

/* The groups of a step in one round, as plan/step.h counts them; false: too many. */
static inline bool attn_groups_of(const attn_step *step, const attn_call *call,
                                  const attn_round *round, int64_t *n)
{
    const int64_t group =
        step->grouped && call->heads_kv ? call->heads_q / call->heads_kv : 1;
    const int64_t width = step->by_d ? step->d : step->dv;
    const int64_t columns =
        step->columns ? attn_max(attn_ceil_div(width, step->columns), 1) : 1;
    const int64_t *bias = call->args->grad_bias.size;
    int64_t tiles;

    *n = 0;
    if (!attn_is_wanted(step, call->args))
        return true;
    switch (step->over) {
    case ATTN_OVER_KEYS:
        return !call->heads_kv ||
               attn_mul(attn_ceil_div(call->len_kv, step->tile_k),
                        round->heads / (call->heads_q / call->heads_kv), n);
    case ATTN_OVER_BIAS:
        return attn_mul(attn_ceil_div(bias[2], step->tile_q),
                        attn_ceil_div(bias[3], step->tile_k), n) &&
               attn_mul(*n, bias[1], n) && attn_mul(*n, bias[0], n);
    case ATTN_OVER_HEADS: *n = attn_is_last(call, round) ? call->heads_q : 0; return true;
    case ATTN_OVER_KEY_STATES:
    case ATTN_OVER_STATES:
        return attn_mul(columns * (attn_segments_of(step, call) * attn_max(step->scans, 1) +
                                   attn_segments_q_of(step, call)),
                        step->grouped ? call->heads_kv : call->heads_q, n) &&
               attn_mul(*n, call->batch, n);
    case ATTN_OVER_QUERIES: break;
    }
    return attn_mul(round->queries, group, &tiles) &&
           attn_mul(attn_ceil_div(tiles, step->tile_q), round->heads / group, n) &&
           attn_mul(*n, attn_pieces_of(step->share ? step->share : step->piece, call), n) &&
           attn_mul(*n, columns, n);
}

/* Whether there is a group, or more than can be counted. */
static inline bool attn_has_work(const attn_step *step, const attn_call *call,
                                 const attn_round *round)
{
    int64_t n;

    return !attn_groups_of(step, call, round, &n) || n;
}

static inline bool attn_any_has_work(int n, const attn_step steps[], const attn_call *call)
{
    for (int i = 0; i < n; i++) {
        const attn_round at = attn_round_at(&steps[0], call, 0);

        if (attn_has_work(&steps[i], call, &at))
            return true;
    }
    return false;
}

#endif
