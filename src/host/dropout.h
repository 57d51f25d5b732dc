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
    double factor;          /* of what is kept                               */
} attn_dropout;

static inline attn_dropout attn_host_dropout(const attn_host_softmax *s, int64_t b,
                                             int64_t h)
{
    attn_dropout x = { .head = (uint32_t)(b * s->heads_q + h),
                       .below = attn_dropout_below((double)s->dropout),
                       .factor = attn_dropout_factor((double)s->dropout) };

    attn_dropout_counter(s->t.dropout_seed, s->t.dropout_offset, x.key, &x.offset);
    return x;
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
