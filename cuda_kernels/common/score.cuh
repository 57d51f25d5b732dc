// SPDX-License-Identifier: MIT
// common/score.cuh: what becomes of one score between Q K^T and the softmax. Every kernel
// asks these functions, so a new feature is written here and in no main loop. Scores are
// in natural units, so that every finite number stays one.
//
// The order is: score_value (scale, softcap), then if FEAT_TERMS score_add of the pair's
// score_term (bias, ALiBi, mask), then score_masked where the range has an edge. The weight
// that becomes of it is multiplied by dropout_factor(), its sum is not.
#pragma once
#include "common/range.cuh"

constexpr int64_t SCORE_FAR = 1 << 24;

// The scores of a run of queries of one (batch, head). Query x of the run sees the keys
// j < keys with first <= j - x < end.
struct attn_score {
    int first, end, keys, queries;    // queries: of the run, 1 or more
    float slope;
    int64_t position;                 // of query 0 of the run
    int64_t bias, mask;               // element of query 0 of the run and key 0
};

// For the run of n queries that begins with query i. Bounds are clamped before they
// become 32 bits wide, further out than any query is from its run.
template <int CAN>
DEVICE attn_score score_run(const attn_kparams &p, const attn_sequence &s, int64_t b,
                            int64_t h, int i, int n)
{
    const int64_t keys = s.keys;
    attn_score at = {};

    at.first = -(int)SCORE_FAR;
    at.end = 0x7fffffff;
    if (has<CAN>(p, FEAT_RANGE_LEFT))
        at.first = (int)clamp(range_left<CAN>(p, s, i), -SCORE_FAR, keys);
    if (has<CAN>(p, FEAT_RANGE_RIGHT))
        at.end = (int)clamp(range_right<CAN>(p, s, i), -SCORE_FAR, keys);
    at.keys = s.keys;
    at.queries = max(n, 1);
    at.position = i + s.position;
    if (has<CAN>(p, FEAT_ALIBI))
        at.slope = p.alibi[p.alibi_offset + b * p.alibi_stride_b + h * p.alibi_stride_h];
    if (has<CAN>(p, FEAT_BIAS))
        at.bias = p.bias_offset + b * p.bias_stride_b + h * p.bias_stride_h +
                  i * p.bias_stride_l;
    if (has<CAN>(p, FEAT_MASK))
        at.mask = p.mask_offset + b * p.mask_stride_b + h * p.mask_stride_h +
                  i * p.mask_stride_l;
    return at;
}

// From q.k; scaled after the sum: a large scale with small q or k must not overflow on
// the way.
template <int CAN>
DEVICE float score_value(const attn_kparams &p, float s)
{
    s *= p.scale;
    if (has<CAN>(p, FEAT_SOFTCAP))
        s = p.softcap * tanhf(s / p.softcap);
    return s;
}

// The derivative of score_value() by s but for the scale: 1 - tanh^2, and that as 1 / cosh^2,
// which is exact where it is almost 0. Only with FEAT_SOFTCAP.
DEVICE float score_slope(const attn_kparams &p, float s)
{
    const float e = exp2f(fabsf(s * p.scale / p.softcap) * -2.88539008177792681472f);

    return 4.0f * e / ((1.0f + e) * (1.0f + e));
}

// What is added to the score of query x of the run and key j; -inf: hidden. Past the last
// query and the last key that one's is read.
template <int CAN>
DEVICE float score_term(const attn_kparams &p, const attn_score &at, int x, int j)
{
    const int64_t query = min(x, at.queries - 1), key = min(j, at.keys - 1);
    float term = 0.0f;

    if (has<CAN>(p, FEAT_BIAS))
        term = type_load(p.bias_type, p.bias,
                         at.bias + query * p.bias_stride_l + key * p.bias_stride_d);
    if (has<CAN>(p, FEAT_MASK))
        term = p.mask[at.mask + query * p.mask_stride_l + key * p.mask_stride_d] ? term
                                                                               : -INFINITE;
    if (has<CAN>(p, FEAT_ALIBI) && term != -INFINITE)
        term -= at.slope * (float)llabs(at.position + x - j);
    return term;
}

// The score with its term: whatever the score is, hidden is -inf.
DEVICE float score_add(float s, float term)
{
    return term == -INFINITE ? -INFINITE : s + term;
}

// -inf where key j is out of range, and past the last query of the run.
DEVICE float score_masked(const attn_score &at, int x, int j, float s)
{
    const bool there = j < at.keys && x < at.queries;

    return there && j - x >= at.first && j - x < at.end ? s : -INFINITE;
}

// The keys that query x of the run sees, for kernels that ask of many: j is out of range
// unless first <= j < end.
DEVICE attn_range score_span(const attn_score &at, int x)
{
    const int64_t first = (int64_t)at.first + x, end = (int64_t)at.end + x;
    attn_range r;

    r.first = (int)max(first, (int64_t)0);
    r.end = x < at.queries ? (int)min(max(end, (int64_t)0), (int64_t)at.keys) : 0;
    return r;
}

// The words of keys 4 n .. 4 n + 3 of query `query`; `head` counts over the batches.
// Philox4x32-10 (J. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011).
DEVICE void dropout_words(const attn_kparams &p, uint32_t head, uint32_t query, uint32_t n,
                          uint32_t (&word)[4])
{
    uint32_t c0 = n, c1 = query, c2 = head, c3 = p.drop_offset;
    uint32_t k0 = p.drop_key[0], k1 = p.drop_key[1];

    #pragma unroll 1
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * c0, b = (uint64_t)0xcd9e8d57u * c2;

        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)a;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    word[0] = c0;
    word[1] = c1;
    word[2] = c2;
    word[3] = c3;
}

DEVICE float dropout_factor(const attn_kparams &p, uint32_t word)
{
    return word >= p.drop_below ? p.drop_factor : 0.0f;
}

// Whether the weight of one key is kept.
DEVICE bool dropout_keeps(const attn_kparams &p, uint32_t head, uint32_t query, int j)
{
    uint32_t word[4];

    dropout_words(p, head, query, (uint32_t)j / 4, word);
    return (j & 2 ? (j & 1 ? word[3] : word[2]) : j & 1 ? word[1] : word[0]) >= p.drop_below;
}
