/* SPDX-License-Identifier: MIT */
/* host/range.h: which queries and keys a batch has, and which keys a run of queries
 * visits: lengths, packed boundaries, causal, window. What the integer tensors hold is
 * clamped to the buffers, and reported. */
#ifndef ATTN_HOST_RANGE_H
#define ATTN_HOST_RANGE_H

#include "core/size.h"
#include "host/entry.h"
#include "host/softmax.h"

/* Keys [first, end); first == end: none. */
typedef struct attn_range {
    int64_t first, end;
} attn_range;

/* One batch. */
typedef struct attn_sequence {
    int64_t queries, keys;
    int64_t q_first, k_first; /* packed: where its tokens begin, else 0 */
    int64_t position;         /* of query 0                             */
} attn_sequence;

/* Tokens cu[b] .. cu[b + 1] - 1 of `tokens`, `most` of them at most. */
static inline int64_t attn_host_packed(const attn_host_softmax *s, const attn_tensor *cu,
                                       int64_t b, int64_t tokens, int64_t most, int bit,
                                       int64_t *first)
{
    int64_t begin = attn_host_entry(cu, b), end = attn_host_entry(cu, b + 1), n;

    *first = attn_min(attn_max(begin, 0), tokens);
    n = attn_min(attn_min(attn_max(end, *first), tokens) - *first, most);
    attn_host_report(&s->t, begin != *first || end != *first + n ? bit : 0);
    return n;
}

static inline attn_sequence attn_host_sequence(const attn_host_softmax *s, int64_t b)
{
    const attn_args *t = &s->t;
    attn_sequence x = { s->len_q, s->len_kv, 0, 0, s->offset };

    if (t->cu_q.type != ATTN_TYPE_NONE)
        x.queries = attn_host_packed(s, &t->cu_q, b, s->tokens_q, s->len_q,
                                     ATTN_CLAMPED_CU_Q, &x.q_first);
    if (t->cu_k.type != ATTN_TYPE_NONE)
        x.keys = attn_host_packed(s, &t->cu_k, b, s->tokens_k, s->len_kv,
                                  ATTN_CLAMPED_CU_K, &x.k_first);
    if (t->lens_q.type != ATTN_TYPE_NONE)
        x.queries = attn_host_length(&s->t, attn_host_entry(&t->lens_q, b), x.queries,
                                     ATTN_CLAMPED_LENS_Q);
    if (t->lens_kv.type != ATTN_TYPE_NONE)
        x.keys = attn_host_length(&s->t, attn_host_entry(&t->lens_kv, b), x.keys,
                                  ATTN_CLAMPED_LENS_KV);
    if (t->block_table.type != ATTN_TYPE_NONE && !s->pages)
        x.keys = attn_host_length(&s->t, x.keys, 0, ATTN_CLAMPED_BLOCK_TABLE);
    if (s->align_br)
        x.position = x.keys - x.queries;
    if (t->offsets.type != ATTN_TYPE_NONE)
        x.position = attn_host_entry(&t->offsets, b);
    return x;
}

/* The keys that at least one of the queries i .. i + n - 1 sees, but for masks.
 * Neighbouring queries see neighbouring ranges, so the union has no hole. */
static inline attn_range attn_host_range(const attn_host_softmax *s,
                                         const attn_sequence *x, int64_t i, int64_t n)
{
    int64_t p = i + x->position;
    attn_range r = { attn_max(0, p - s->left),
                     attn_min(x->keys, p + n - 1 + s->right + 1) };

    if (n <= 0 || r.first > r.end)
        r.first = r.end = 0;
    return r;
}

/* The queries that see at least one of the keys j .. j + n - 1, but for masks. */
static inline attn_range attn_host_queries(const attn_host_softmax *s,
                                           const attn_sequence *x, int64_t j, int64_t n)
{
    attn_range r = { attn_max(0, j - s->right - x->position),
                     attn_min(x->queries, j + n - 1 + s->left - x->position + 1) };

    if (n <= 0 || j >= x->keys || r.first > r.end)
        r.first = r.end = 0;
    return r;
}

#endif
