/* SPDX-License-Identifier: MIT */
/* host/score.h: what is added to a score, and what hides it: bias, ALiBi, mask. */
#ifndef ATTN_HOST_SCORE_H
#define ATTN_HOST_SCORE_H

#include <float.h>
#include <math.h>

#include "core/float16.h"
#include "host/range.h"

/* Whether scores have terms of their own pair. */
static inline bool attn_host_terms(const attn_host_softmax *s)
{
    return s->t.bias.type != ATTN_TYPE_NONE || s->t.mask.type != ATTN_TYPE_NONE ||
           s->t.alibi.type != ATTN_TYPE_NONE;
}

/* Whether a key in range may be hidden from every query: then its V row must not be
 * multiplied, not even by 0. */
static inline bool attn_host_hides(const attn_host_softmax *s)
{
    return s->t.bias.type != ATTN_TYPE_NONE || s->t.mask.type != ATTN_TYPE_NONE;
}

/* A score computed in double, as attn/softmax.h has it: beyond f32's range an infinity. */
static inline double attn_host_score(double s)
{
    return fabs(s) > (double)FLT_MAX ? copysign(INFINITY, s) : s;
}

/* Element (query i, key j) of a bias or mask. */
static inline int64_t attn_host_pair_at(const attn_tensor *t, int64_t b, int64_t h,
                                        int64_t i, int64_t j)
{
    return t->offset + b * t->stride[0] + h * t->stride[1] + i * t->stride[2] +
           j * t->stride[3];
}

static inline float attn_host_bias(const attn_tensor *t, int64_t at)
{
    switch (t->type) {
    case ATTN_F16: return attn_f32_from_f16(((const uint16_t *)t->data)[at]);
    case ATTN_BF16: return attn_f32_from_bf16(((const uint16_t *)t->data)[at]);
    default: return ((const float *)t->data)[at];
    }
}

/* The slope of a head; 0 without ALiBi. */
static inline float attn_host_slope(const attn_host_softmax *s, int64_t b, int64_t h)
{
    const attn_tensor *t = &s->t.alibi;

    if (t->type == ATTN_TYPE_NONE)
        return 0;
    return ((const float *)t->data)[t->offset + b * t->stride[0] + h * t->stride[1]];
}

/* The sink of a head; -Inf without one. */
static inline float attn_host_sink(const attn_host_softmax *s, int64_t h)
{
    const attn_tensor *t = &s->t.sinks;

    if (t->type == ATTN_TYPE_NONE)
        return -INFINITY;
    return ((const float *)t->data)[t->offset + h * t->stride[1]];
}

#endif
