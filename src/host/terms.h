/* SPDX-License-Identifier: MIT */
/* host/terms.h: what is added to the scores of one query and neighbouring keys, in
 * vectors along the keys: bias, ALiBi, and -Inf where the mask hides the key. */
#ifndef ATTN_HOST_TERMS_H
#define ATTN_HOST_TERMS_H

#include "host/score.h"
#include "host/vector.h"

typedef uint16_t v16 __attribute__((vector_size(LANES * 2)));
typedef uint8_t v8 __attribute__((vector_size(LANES)));

/* Those of one batch and head. */
typedef struct attn_terms {
    const attn_tensor *bias, *mask;   /* NULL: there is none                   */
    int64_t bias_at, mask_at;         /* element of query 0 and key 0          */
    int64_t position;                 /* of query 0                            */
    float slope;                      /* 0: no ALiBi                           */
} attn_terms;

static inline attn_terms attn_terms_of(const attn_host_softmax *s, const attn_sequence *x,
                                       int64_t b, int64_t h)
{
    const attn_tensor *bias = &s->t.bias, *mask = &s->t.mask;

    return (attn_terms){
        .bias = bias->type != ATTN_TYPE_NONE ? bias : NULL,
        .mask = mask->type != ATTN_TYPE_NONE ? mask : NULL,
        .bias_at = attn_host_pair_at(bias, b, h, 0, 0),
        .mask_at = attn_host_pair_at(mask, b, h, 0, 0),
        .position = x->position,
        .slope = attn_host_slope(s, b, h),
    };
}

/* LANES neighbours of a 16-bit type. */
static inline vf attn_terms_16(attn_type type, const uint16_t *from)
{
    v16 h;
    float f[LANES];

    memcpy(&h, from, sizeof h);
    if (type == ATTN_BF16)
        return (vf)(__builtin_convertvector(h, vu) << 16);
#if defined __F16C__ && defined __AVX512F__ && LANES == 16
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif defined __F16C__ && LANES == 8
    return (vf)_mm256_cvtph_ps((__m128i)h);
#endif
    for (int i = 0; i < LANES; i++)
        f[i] = attn_f32_from_f16(from[i]);
    return vf_load(f);
}

/* n elements of the bias from `at` on; whole vectors are written: what lies past the last
 * key is hidden, or a NaN of the query would be the score of a key that is not there. */
static inline void attn_terms_bias(float *to, const attn_tensor *t, int64_t at, int n)
{
    const int64_t step = t->stride[3];
    int j = 0;

    if (step == 1 && t->type == ATTN_F32)
        for (; j + LANES <= n; j += LANES)
            vf_store(to + j, vf_load((const float *)t->data + at + j));
    else if (step == 1)
        for (; j + LANES <= n; j += LANES)
            vf_store(to + j, attn_terms_16(t->type, (const uint16_t *)t->data + at + j));
    else if (step == 0)
        for (const vf same = vf_set(attn_host_bias(t, at)); j < n; j += LANES)
            vf_store(to + j, same);
    for (int i = j; i < attn_round_up(n, LANES); i++)
        to[i] = i < n ? attn_host_bias(t, at + i * step) : -INFINITY;
}

/* -Inf where n elements of the mask from `at` on hide the key; whole vectors. */
static inline void attn_terms_mask(float *to, const attn_tensor *t, int64_t at, int n)
{
    const unsigned char *from = (const unsigned char *)t->data + at;
    const int64_t step = t->stride[3];

    for (int j = 0; j < n; j += LANES) {
        v8 seen = { 0 };

        if (step == 1 && j + LANES <= n)
            memcpy(&seen, from + j, sizeof seen);
        else
            for (int i = 0; i < LANES && j + i < n; i++)
                seen[i] = from[(j + i) * step];
        vf_store(to + j, vf_select(__builtin_convertvector(seen, vi) != 0, vf_load(to + j),
                                   vf_set(-INFINITY)));
    }
}

/* The terms of query i and keys j, j + 1, ..., j + n - 1, no more than are there; room
 * for whole vectors. */
static inline void attn_terms_row(float *to, const attn_terms *t, int64_t i, int64_t j,
                                  int n)
{
    if (t->bias)
        attn_terms_bias(to, t->bias,
                        t->bias_at + i * t->bias->stride[2] + j * t->bias->stride[3], n);
    for (int x = 0; !t->bias && x < n; x += LANES)
        vf_store(to + x, vf_set(0));
    if (t->slope != 0) {
        const vf near = (float)(t->position + i - j) -
                        __builtin_convertvector(vi_lanes(), vf);

        for (int x = 0; x < n; x += LANES)
            vf_store(to + x, vf_load(to + x) - t->slope * vf_abs(near - (float)x));
    }
    if (t->mask)
        attn_terms_mask(to, t->mask,
                        t->mask_at + i * t->mask->stride[2] + j * t->mask->stride[3], n);
}

/* A scaled score under the cap; 0: there is none. */
static inline vf attn_score_cap(vf s, float softcap)
{
    if (softcap > 0)
        s = softcap * vf_tanh(s / softcap);
    return s;
}

/* A score with its term: whatever the score is, hidden is -Inf. */
static inline vf attn_terms_add(vf s, vf term)
{
    return vf_select(term != -INFINITY, s + term, term);
}

/* Asks for what attn_terms_row() will read, a hint: nothing of it needs to be there. The
 * rows of neighbouring queries lie far apart, the processor does not see it coming. Always
 * inlined: gcc takes a call of what does nothing else for superfluous. */
static inline __attribute__((always_inline)) void
attn_terms_fetch(const attn_terms *t, int64_t i, int64_t j, int n)
{
    const attn_tensor *of[2] = { t->bias, t->mask };
    const int64_t start[2] = { t->bias_at, t->mask_at };

    for (int x = 0; x < 2; x++)
        if (of[x] && of[x]->stride[3] == 1) {
            int64_t bytes = of[x]->type == ATTN_BOOL ? 1 : of[x]->type == ATTN_F32 ? 4 : 2;
            uintptr_t at = (uintptr_t)of[x]->data +
                           (uintptr_t)((start[x] + i * of[x]->stride[2] + j) * bytes);

            for (int64_t d = 0; d < n * bytes; d += 64)
                __builtin_prefetch((const void *)(at + (uintptr_t)d));
        }
}

#endif
