/* SPDX-License-Identifier: MIT */
/* backend/rounds.h: the rounds of a step (plan/step.h), for the back ends that launch
 * kernels. */
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

static inline int64_t attn_rounds_of(const attn_step *s, const attn_call *call)
{
    const int64_t heads = call->batch * call->heads_q;

    return (s->round_heads ? attn_ceil_div(heads, s->round_heads) : 1) *
           (s->round_queries ? attn_ceil_div(call->len_q, s->round_queries) : 1);
}

/* Round r of them; queries run fastest. */
static inline attn_round attn_round_at(const attn_step *s, const attn_call *call, int64_t r)
{
    const int64_t heads = call->batch * call->heads_q;
    const int64_t n = s->round_queries ? attn_ceil_div(call->len_q, s->round_queries) : 1;
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

#endif
