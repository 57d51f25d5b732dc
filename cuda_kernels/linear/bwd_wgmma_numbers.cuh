// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_numbers.cuh: what normalised problems add to linear_bwd_wgmma. Each query has
// two numbers (bwd_chunk_begin.cu): its c is added to all pairs of its row or column, as one
// more column of V, of ones, would with c for its gradient; its factor divides it, in dQ the
// result. What that column adds to the state is a row, z: of dQ the sum of keys, of the others
// that of c times queries.
#pragma once
#include "linear/bwd_wgmma.cuh"

// The numbers of the queries of a chunk whose rows a warp brings, ROWS of rows_of_chunk: one a
// lane of the first 16.
template <class ROWS> struct own_numbers {
    static constexpr int TOGETHER = 32 / ROWS::ACROSS;    // rows of a warp
    float c, factor;

    static __device__ __forceinline__ int row()
    {
        const int lane = threadIdx.x % 32;

        return threadIdx.x % 128 / 32 * TOGETHER + lane % TOGETHER +
               lane % 16 / TOGETHER * ROWS::STEP;
    }

    // Of those of head h from token j on; zeros past the last.
    __device__ __forceinline__ void fetch(const attn_linear_kparams &p, const chunk_work &w, int h,
                                          int j)
    {
        const int64_t heads = (int64_t)p.batch * p.heads_q;
        const float *const from = p.work + ((int64_t)w.b * p.heads_q + h) * p.len_q;
        const int l = j + row();
        const bool there = j >= w.first && l < w.end;

        factor = there ? from[l] : 0.0f;
        c = there ? from[heads * p.len_q + l] : 0.0f;
    }

    // Of the i-th row of this thread's.
    static __device__ __forceinline__ float of(float x, int i)
    {
        return __shfl_sync(0xffffffffu, x, i * TOGETHER + threadIdx.x % 32 / ROWS::ACROSS);
    }

    __device__ __forceinline__ void divide(ROWS &rows) const
    {
        #pragma unroll
        for (int i = 0; i < ROWS::COUNT; i++) {
            const float by = of(factor, i);
            float4 &x = rows.x[i];

            x = make_float4(x.x * by, x.y * by, x.z * by, x.w * by);
        }
    }

    // The sums of the warp's rows, WEIGHTED: times c.
    template <bool WEIGHTED>
    __device__ __forceinline__ void sum(const ROWS &rows, float *sums) const
    {
        float all[EACH] = {};

        #pragma unroll
        for (int i = 0; i < ROWS::COUNT; i++) {
            const float weight = WEIGHTED ? of(c, i) : 1.0f;
            float y[EACH];

            unpack(rows.x[i], y);
            #pragma unroll
            for (int n = 0; n < EACH; n++)
                all[n] += weight * y[n];
        }
        #pragma unroll
        for (int apart = ROWS::ACROSS; apart < 32; apart *= 2)
            #pragma unroll
            for (int n = 0; n < EACH; n++)
                all[n] += __shfl_xor_sync(0xffffffffu, all[n], apart);
        if (threadIdx.x % 32 < ROWS::ACROSS)
            #pragma unroll
            for (int n = 0; n < EACH; n++)
                sums[rows.column() + n] = all[n];
    }

    // For those who have rows of A.
    template <class NUMBERS> __device__ __forceinline__ void share(NUMBERS &of, int stage) const
    {
        if (threadIdx.x % 32 < 16) {
            of.c[stage][row()] = c;
            of.factors[stage][row()] = factor;
        }
    }
};

// z, a thread of the first ones has a column: of the scan of dV all, else the group's.
template <scan WHICH> DEVICE bool has_z(const attn_linear_kparams &p, const chunk_work &w)
{
    const int t = thread_of_group();

    return NORMALIZES && (WHICH == GRAD_V ? t < p.d : t < COLUMNS && w.column + t < p.d);
}

// Its place in a slot.
template <scan WHICH>
DEVICE float *z_in_slot(const attn_linear_kparams &p, const chunk_work &w, int slot)
{
    return slot_of<WHICH>(p, w, slot) + (int64_t)p.d * p.dv + thread_of_group() +
           (WHICH == GRAD_V ? 0 : w.column);
}

template <class NUMBERS>
DEVICE void add_sums(const NUMBERS &of, int stage, float &z)
{
    const int t = thread_of_group();

    if (t < DIM)
        z += of.sums[stage][0][t] + of.sums[stage][1][t] +
             (of.sums[stage][2][t] + of.sums[stage][3][t]);
}

// Pairs += c of their query, of rows that are multiplied by `down`.
template <scan WHICH>
DEVICE void add_to_pairs(const float *c, const float (&down)[2], float (&pairs)[CHUNK / 8][4])
{
    const own_place at;

    #pragma unroll
    for (int i = 0; i < CHUNK / 8 * 4; i++) {
        const int query = WHICH == GRAD_Q ? at.row + i % 4 / 2 * 8 : at.column + i / 4 * 8 + i % 2;

        pairs[i / 4][i % 4] += c[query] * down[i % 4 / 2];
    }
}

template <scan WHICH, class NUMBERS>
DEVICE void add_numbers(const NUMBERS &of, int stage, const float (&down)[2],
                        float (&pairs)[CHUNK / 8][4])
{
    if constexpr (NORMALIZES && WHICH != GRAD_V)
        add_to_pairs<WHICH>(of.c[stage], down, pairs);
}

// Rows that have read the state += z, of dQ times c.
template <scan WHICH, class NUMBERS>
DEVICE void read_z(const float *z, const NUMBERS &of, int stage, const float (&down)[2],
                   float (&read)[NT][4])
{
    if constexpr (NORMALIZES && WHICH != GRAD_V) {
        const own_place at;
        float weight[2];

        #pragma unroll
        for (int half = 0; half < 2; half++)
            weight[half] = down[half] * (WHICH == GRAD_Q ? of.c[stage][at.row + half * 8] : 1.0f);
        #pragma unroll
        for (int n = 0; n < NT; n++) {
            const float2 x = *(const float2 *)&z[n / 2 * 16 + at.column * 2 + n % 2 * 2];

            #pragma unroll
            for (int i = 0; i < 4; i++)
                read[n][i] += weight[i / 2] * (i % 2 ? x.y : x.x);
        }
    }
}
