/* SPDX-License-Identifier: MIT */
/* host/dropout.h: which weights dropout keeps, as include/attn/softmax.h has it. */
#ifndef ATTN_HOST_DROPOUT_H
#define ATTN_HOST_DROPOUT_H

#include <stdbool.h>

#include "core/philox.h"
#include "host/softmax.h"

/* That of one batch and head. */
typedef struct attn_dropout {
    uint32_t key[2];
    uint32_t head, offset;  /* of the counter                                */
    uint32_t below;         /* words less than this are dropped              */
    double factor;          /* of what is kept: 1 / (1 - p); p = 1: 0        */
} attn_dropout;

static inline attn_dropout attn_host_dropout(const attn_host_softmax *s, int64_t b,
                                             int64_t h)
{
    const uint64_t seed = s->t.dropout_seed, offset = s->t.dropout_offset;
    const double p = (double)s->dropout;

    return (attn_dropout){
        .key = { (uint32_t)seed, (uint32_t)(seed >> 32) ^ (uint32_t)(offset >> 32) },
        .head = (uint32_t)(b * s->heads_q + h),
        .offset = (uint32_t)offset,
        .below = p < 1 ? (uint32_t)(p * 4294967296.0) : UINT32_MAX,
        .factor = p < 1 ? 1 / (1 - p) : 0,
    };
}

/* What the weight of query i and key j is multiplied by. */
static inline double attn_host_kept(const attn_dropout *x, int64_t i, int64_t j)
{
    const uint32_t counter[4] = { (uint32_t)(j / 4), (uint32_t)i, x->head, x->offset };
    uint32_t word[4];

    attn_philox(word, counter, x->key);
    return word[j % 4] >= x->below ? x->factor : 0;
}

#endif
