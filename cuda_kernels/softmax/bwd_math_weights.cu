// SPDX-License-Identifier: MIT
// softmax/bwd_math_weights.cu: the step of softmax_bwd_math from scores to weights, and to
// the gradients of scores.
//
// Computes  in place, a row of w and s for a query: P_ij = exp(score(w_ij) - LSE_i),
//           dS_ij = P_ij (s_ij - delta_i), _plain before the cap; 0 for keys out of range, in
//           rows without a query, and dS where P is
// Grid      1-D, queries of the round * heads of the round, queries fastest
// Block     THREADS threads, every THREADS-th key of the row each
// Shared    none
// Numerics  f32
// Features  all but dropout and pages, through common/; the range of a single query is exact,
//           so no score needs a test of it
// Requires  delta in the workspace (bwd_delta.cu), unless no gradient is there but V's; no
//           barrier
// Oracle    src/host/softmax_bwd_reference.c
#include "common/params.h"

#ifndef NAME
#define NAME attn_softmax_bwd_math_weights
#endif

#include "softmax/bwd_math.cuh"

DEVICE void write_zeros(float *w, float *s, int first, int end)
{
    for (int j = first + threadIdx.x; j < end; j += THREADS)
        w[j] = s[j] = 0.0f;
}

template <bool CAPPED> DEVICE void write_weights(const attn_kparams &p)
{
    const attn_matrices m = matrices_of(p);
    const int n = blockIdx.x / p.round_queries, i = blockIdx.x % p.round_queries;
    const int64_t b = work_batch(p, n), row = work_row(p, n, i);
    const int h = work_head(p, n), query = p.round_query + i;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const bool with_o = p.has & HAS_GRAD_O && p.has & HAS_OF_SCORES;
    float *const w = m.w + row * m.keys, *const s = m.s + row * m.keys;

    if (i >= work_queries(p, seq)) {
        write_zeros(w, s, 0, m.keys);
        return;
    }

    const attn_range seen = range_any<CAN>(p, seq, query, 1);
    const attn_score at = score_run<CAN>(p, seq, b, h, query, 1);
    const float lse = back_lse<CAN>(p, seq, b, h, query);
    const float delta = p.has & HAS_OF_SCORES ? p.work[back_delta_at(p, b, h, query)] : 0.0f;

    for (int j = seen.first + threadIdx.x; j < seen.end; j += THREADS) {
        const float product = w[j];
        float x = score_value<CAN>(p, product);

        if (has<CAN>(p, FEAT_TERMS))
            x = score_add(x, score_term<CAN>(p, at, 0, j));

        const float weight = back_weight(x, lse);
        float ds = weight * ((with_o ? s[j] : 0.0f) - delta);

        if (CAPPED && has<CAN>(p, FEAT_SOFTCAP))
            ds *= score_slope(p, product);
        w[j] = weight;
        s[j] = weight != 0.0f ? ds : 0.0f;
    }
    write_zeros(w, s, 0, min(seen.first, m.keys));
    write_zeros(w, s, max(seen.end, seen.first), m.keys);
}

KERNEL(_capped)
{
    write_weights<true>(p);
}

KERNEL(_plain)
{
    write_weights<false>(p);
}
