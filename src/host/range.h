/* SPDX-License-Identifier: MIT */
/* host/range.h: which keys a run of queries visits: causal, window, lengths. */
#ifndef ATTN_HOST_RANGE_H
#define ATTN_HOST_RANGE_H

#include "core/size.h"
#include "host/softmax.h"

/* Keys [first, end); first == end: none. */
typedef struct attn_range {
    int64_t first, end;
} attn_range;

/* The number of keys of batch b, clamped to the buffer. */
static inline int64_t attn_host_keys(const attn_host_softmax *s, int64_t b)
{
    int32_t n;

    if (s->lens_kv.type == ATTN_TYPE_NONE)
        return s->len_kv;
    n = ((const int32_t *)s->lens_kv.data)[s->lens_kv.offset + b * s->lens_kv.stride[0]];
    return attn_min(attn_max(n, 0), s->len_kv);
}

/* The position of query 0. */
static inline int64_t attn_host_offset(const attn_host_softmax *s, int64_t keys)
{
    return s->align == ATTN_ALIGN_BOTTOM_RIGHT ? keys - s->len_q : s->offset;
}

/* The keys that at least one of the queries i .. i + n - 1 sees. Neighbouring
 * queries see neighbouring ranges, so the union has no hole. */
static inline attn_range attn_host_range(const attn_host_softmax *s, int64_t keys,
                                         int64_t i, int64_t n)
{
    int64_t p = i + attn_host_offset(s, keys);
    attn_range r = { attn_max(0, p - s->left), attn_min(keys, p + n - 1 + s->right + 1) };

    if (r.first > r.end)
        r.first = r.end = 0;
    return r;
}

#endif
