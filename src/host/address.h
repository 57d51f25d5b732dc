/* SPDX-License-Identifier: MIT */
/* host/address.h: where row i of a tensor lives: strides, packed sequences, pages. */
#ifndef ATTN_HOST_ADDRESS_H
#define ATTN_HOST_ADDRESS_H

#include "host/range.h"

/* Element 0 of query i's row of q, o or lse. */
static inline int64_t attn_host_query_at(const attn_host_softmax *s, const attn_tensor *t,
                                         const attn_sequence *x, int64_t b, int64_t h,
                                         int64_t i)
{
    int64_t batch = s->t.cu_q.type != ATTN_TYPE_NONE ? 0 : b;

    return t->offset + batch * t->stride[0] + h * t->stride[1] +
           (x->q_first + i) * t->stride[2];
}

/* Element 0 of key j's row of k or v. A page that is not there is read as the nearest
 * one. */
static inline int64_t attn_host_key_at(const attn_host_softmax *s, const attn_tensor *t,
                                       const attn_sequence *x, int64_t b, int64_t kvh,
                                       int64_t j)
{
    const attn_tensor *table = &s->t.block_table;
    int64_t batch = s->t.cu_k.type != ATTN_TYPE_NONE ? 0 : b;

    if (table->type != ATTN_TYPE_NONE) {
        int64_t page = ((const int32_t *)table->data)[table->offset + b * table->stride[0] +
                                                      j / s->page_size * table->stride[1]];
        int64_t there = attn_min(attn_max(page, 0), s->pages - 1);

        attn_host_report(&s->t, page != there ? ATTN_CLAMPED_BLOCK_TABLE : 0);
        return t->offset + there * t->stride[0] + kvh * t->stride[1] +
               j % s->page_size * t->stride[2];
    }
    return t->offset + batch * t->stride[0] + kvh * t->stride[1] +
           (x->k_first + j) * t->stride[2];
}

/* The same of the key after that whose row is at `at`. */
static inline int64_t attn_host_key_next(const attn_host_softmax *s, const attn_tensor *t,
                                         const attn_sequence *x, int64_t b, int64_t kvh,
                                         int64_t j, int64_t at)
{
    if (s->t.block_table.type != ATTN_TYPE_NONE)
        return attn_host_key_at(s, t, x, b, kvh, j);
    return at + t->stride[2];
}

#endif
