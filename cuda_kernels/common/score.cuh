// SPDX-License-Identifier: MIT
// common/score.cuh: what becomes of one score between Q K^T and the softmax. Every kernel
// asks these functions, so a new feature is written here and in no main loop. Scores are
// in natural units, so that every finite number stays one.
//
// The order is: score_value (scale, softcap), then if FEAT_TERMS score_add of the pair's
// score_term (bias, ALiBi, mask), then score_masked where the range has an edge.
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
