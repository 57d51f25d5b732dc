/* SPDX-License-Identifier: MIT */
/* host/drop.h: dropout of pairs of queries and keys in vectors. */
#ifndef ATTN_HOST_DROP_H
#define ATTN_HOST_DROP_H

#include "core/size.h"
#include "host/dropout.h"
#include "host/vector.h"

/* The upper half of m * x. */
static inline vu drop_high(uint32_t m, vu x)
{
#if defined __AVX512F__ && LANES == 16
    const __m512i f = _mm512_set1_epi32((int)m), v = (__m512i)x;
    const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(v, f), 32);
    const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(v, 32), f);

    return (vu)_mm512_mask_blend_epi32(0xaaaa, even, odd);
#elif defined __AVX2__ && LANES == 8
    const __m256i f = _mm256_set1_epi32((int)m), v = (__m256i)x;
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(v, f), 32);
    const __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(v, 32), f);

    return (vu)_mm256_blend_epi32(even, odd, 0xaa);
#else
    vu high;

    for (int i = 0; i < LANES; i++)
        high[i] = (uint32_t)((uint64_t)m * x[i] >> 32);
    return high;
#endif
}

/* Philox of LANES counters n[l], i[l] and the head's: four words of each. */
static inline void drop_words(vu word[4], const attn_dropout *x, vu n, vu i)
{
    vu c0 = n, c1 = i, c2 = (vu)vi_set((int32_t)x->head);
    vu c3 = (vu)vi_set((int32_t)x->offset);
    uint32_t k0 = x->key[0], k1 = x->key[1];

    for (int round = 0; round < ATTN_PHILOX_ROUNDS; round++) {
        const vu a = drop_high(ATTN_PHILOX_M0, c0), b = drop_high(ATTN_PHILOX_M1, c2);
        const vu low_a = c0 * ATTN_PHILOX_M0, low_b = c2 * ATTN_PHILOX_M1;

        c0 = b ^ c1 ^ k0;
        c1 = low_b;
        c2 = a ^ c3 ^ k1;
        c3 = low_a;
        k0 += ATTN_PHILOX_W0;
        k1 += ATTN_PHILOX_W1;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

/* What weights are multiplied by: 0, or the factor. */
static inline vf drop_factor(const attn_dropout *x, vu word)
{
    return vf_keep(word >= x->below, vf_set((float)x->factor));
}

/* Of the queries from `query` on, along the lanes, and the keys key .. key + n - 1:
 * to[n][vectors]. */
static inline void drop_queries(vf *to, const attn_dropout *x, int64_t query, int64_t key,
                                int n, int vectors)
{
    for (int v = 0; v < vectors; v++) {
        const vu i = (vu)(vi_lanes() + (int32_t)(query + v * LANES));

        for (int64_t j = attn_round_down(key, 4); j < key + n; j += 4) {
            vu word[4];

            drop_words(word, x, (vu)vi_set((int32_t)(j / 4)), i);
            for (int r = 0; r < 4; r++)
                if (j + r >= key && j + r < key + n)
                    to[(j + r - key) * vectors + v] = drop_factor(x, word[r]);
        }
    }
}

/* Of the keys from `key` on, a multiple of 4, along the lanes, and the queries query ..
 * query + n - 1. The words of a counter belong to neighbouring lanes. */
static inline void drop_keys(vf *to, const attn_dropout *x, int64_t key, int64_t query,
                             int n, int vectors)
{
    const vu first = (vu)(vi_lanes() + (int32_t)(key / 4));

    for (int i = 0; i < n; i++) {
        vu word[4];
        float factor[4 * LANES];

        drop_words(word, x, first, (vu)vi_set((int32_t)(query + i)));
        for (int r = 0; r < 4; r++) {
            float of[LANES];

            vf_store(of, drop_factor(x, word[r]));
            for (int l = 0; l < LANES; l++)
                factor[4 * l + r] = of[l];
        }
        for (int v = 0; v < vectors; v++)
            to[i * vectors + v] = vf_load(factor + v * LANES);
    }
}

#endif
