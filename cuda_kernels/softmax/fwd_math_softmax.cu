// SPDX-License-Identifier: MIT
// softmax/fwd_math_softmax.cu: step 5 of softmax_fwd_math: scores to weights, and the LSE.
//
// Computes  in place, a row of S for a query: score(s_ij), then exp(s_ij - m_i), and 0 for
//           keys out of range; the row's factor 1 / l_i; LSE_i. Sinks are in m and l
// Method    safe softmax, twice over a row: once for the scores and their maximum, once for
//           weights and sum; short rows are still in the cache the second time
// Grid      1-D, queries of the round * heads of the round, queries fastest
// Block     THREADS threads, every THREADS-th key of the row each
// Shared    dynamic, 4 * WARPS bytes: what the warps found
// Barriers  two for the maximum, two for the sum
// Numerics  f32; a thread's sum in spans of SPAN of its keys. A row without visible keys:
//           factor 0, LSE = -inf or the sink. A row's bits depend on its scores only
// Features  all but dropout, through common/; the range of a single query is exact, so no
//           score needs a test of it
// Requires  nothing; rows past a batch's queries are left as they are, nobody reads them
// Tunables  SPAN
// Oracle    src/host/softmax_fwd_reference.c
#include "common/params.h"

#ifndef NAME
#define NAME attn_softmax_fwd_math_softmax
#endif

#include "softmax/math.cuh"

constexpr int SPAN = 256;    // keys of a thread that are summed up at once

DEVICE float larger_of(float a, float b) { return state_max(a, b); }
DEVICE float sum_of(float a, float b) { return a + b; }

// What all threads' values make together, in an order that never changes.
template <float (*JOIN)(float, float)> DEVICE float over_group(float x, float *memory)
{
    #pragma unroll
    for (int lane = 1; lane < 32; lane *= 2)
        x = JOIN(__shfl_xor_sync(0xffffffffu, x, lane), x);
    if (threadIdx.x % 32 == 0)
        memory[threadIdx.x / 32] = x;
    __syncthreads();
    x = memory[0];
    #pragma unroll
    for (int warp = 1; warp < WARPS; warp++)
        x = JOIN(memory[warp], x);
    __syncthreads();
    return x;
}

// Writes the scores; the result is this thread's largest.
DEVICE float write_scores(const attn_kparams &p, const attn_score &at,
                          const attn_range &seen, float *s)
{
    float top = -INFINITE;

    for (int j = seen.first + threadIdx.x; j < seen.end; j += THREADS) {
        float x = score_value<CAN>(p, s[j]);

        if (has<CAN>(p, FEAT_TERMS))
            x = score_add(x, score_term<CAN>(p, at, 0, j));
        top = state_max(x, top);
        s[j] = x;
    }
    return top;
}

// Scores to weights; the result is this thread's sum.
DEVICE float write_weights(const attn_range &seen, float reference, float *s)
{
    float sum = 0.0f;

    for (int j0 = seen.first + threadIdx.x; j0 < seen.end; j0 += SPAN * THREADS) {
        float part = 0.0f;

        for (int j = j0; j < min(seen.end, j0 + SPAN * THREADS); j += THREADS) {
            const float x = state_weight(s[j], reference);

            part += x;
            s[j] = x;
        }
        sum += part;
    }
    return sum;
}

DEVICE void write_zeros(int first, int end, float *s)
{
    for (int j = first + threadIdx.x; j < end; j += THREADS)
        s[j] = 0.0f;
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void NAME(
    const __grid_constant__ attn_kparams p)
{
    SHARED_MEMORY(memory);
    const attn_work w = work_of(p);
    const int n = blockIdx.x / p.round_queries, i = blockIdx.x % p.round_queries;
    const int64_t b = work_batch(p, n), at = work_row(p, n, i);
    const int h = work_head(p, n), query = p.round_query + i;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    float *const s = p.work + w.s + at * w.keys;

    if (i >= work_queries(p, seq))
        return;

    const attn_range seen = range_any<CAN>(p, seq, query, 1);
    const attn_score run = score_run<CAN>(p, seq, b, h, query, 1);
    attn_row row = state_init();

    state_fold(&row, over_group<larger_of>(write_scores(p, run, seen, s), (float *)memory));
    row.l += over_group<sum_of>(write_weights(seen, state_reference(row.m), s),
                                (float *)memory);
    write_zeros(0, min(seen.first, w.keys), s);
    write_zeros(max(seen.end, seen.first), w.keys, s);
    if (threadIdx.x > 0)
        return;
    p.work[w.f + at] = state_finish_sink(&row, state_sink<CAN>(p, h));
    if (has<CAN>(p, FEAT_LSE) && p.want_lse)
        p.lse[address_lse<CAN>(p, seq, b, h, query)] = state_lse(row);
}
