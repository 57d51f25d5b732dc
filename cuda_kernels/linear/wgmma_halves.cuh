// SPDX-License-Identifier: MIT
// linear/wgmma_halves.cuh: what fwd_wgmma.cu does to numbers of f32 so that sums of two of f16
// hold them (halves.cuh), beside what bring_chunks() and take_queries() do.
//
// With rows of Q divided by 2^a, and the state's numbers by 2^h, rows of O and den are summed up
// divided by 2^(a + OUT_OF_PAIRS): of the products of the state with 2^(h - OUT_OF_PAIRS), of the
// pairs, divided by 2^PAIRS_DOWN, with 2^(c + LIFT). The largest is about as large then as what
// rows of K and V make, so that those alone say what overflows.
#pragma once
#include "linear/wgmma_stage.cuh"
#include "linear/wgmma_walk.cuh"

// What the state is multiplied by, for tiles; `factor` of what products with it make then. By the
// warpgroup that keeps it, which has `tops` for that.
DEVICE float scale_of_state(const group_state &my, uint32_t *tops, float &factor)
{
    float size = 0.0f;
    uint32_t top;
    int exponent;

    #pragma unroll
    for (int i = 0; i < PANELS * NT * 4; i++)
        size = larger_size(size, my.s[i / (NT * 4)][i / 4 % NT][i % 4]);
    top = __reduce_max_sync(0xffffffffu, __float_as_uint(size));
    if (threadIdx.x % 32 == 0)
        tops[threadIdx.x / 32 % 4] = top;
    device_meet<128>(KEEPER);
    exponent = exponent_of<-113>(max(max(tops[0], tops[1]), max(tops[2], tops[3]))) - HALF_TOP;
    factor = any_power_of_2(exponent - OUT_OF_PAIRS);
    return power_of_2(-exponent);
}

// P = tril(Q K^T) brought down; den += its rows times the keys' scales.
DEVICE void weigh_pairs(const attn_linear_kparams &p, const chunk_scales &of,
                        float (&pairs)[CHUNK / 8][4], float (&den)[2])
{
    const own_place at;
    const int before = at.row - at.column;

    #pragma unroll
    for (int i = 0; i < CHUNK / 8 * 4; i++) {
        float &x = pairs[i / 4][i % 4];

        x = i / 4 * 8 + i % 2 - i % 4 / 2 * 8 <= before ? x * power_of_2(-PAIRS_DOWN) : 0.0f;
    }
    if (linear_has(p, LINEAR_NORMALIZE)) {
        float sum[2] = {};

        #pragma unroll
        for (int n = 0; n < CHUNK / 8; n++) {
            const float2 scale = *(const float2 *)(of.keys + at.column + n * 8);

            #pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i / 2] += pairs[n][i] * (i % 2 ? scale.y : scale.x);
        }
        den[0] += sum[0] * power_of_2(LIFT), den[1] += sum[1] * power_of_2(LIFT);
    }
}

// What a lane has of column 8 (n / 2) + n % 2, besides others', of one of its rows.
DEVICE float pair_of(const operands<STEPS> &weights, int n, int below)
{
    const int i = n / 2 % 2 * 2 + below;
    float sum = 0.0f;

    #pragma unroll
    for (int part = 0; part < PARTS; part++)
        sum += device_f32_of_f16((uint16_t)(weights.x[part][n / 4][i] >> n % 2 * 16));
    return sum;
}

// O of a chunk whose rows of V differ too much: the state's part times `of_state`, and the pairs'
// from those rows themselves.
DEVICE void add_wide(const attn_linear_kparams &p, const chunk_work &w, int j,
                     const chunk_scales &of, const operands<STEPS> &weights, float of_state,
                     float (&o)[NT][4])
{
    const own_place at;
    const int rows = min(w.keys, w.end) - j, columns = p.dv - w.column - at.column;

    #pragma unroll
    for (int i = 0; i < NT * 4; i++)
        o[i / 4][i % 4] *= of_state;
    #pragma unroll 1
    for (int lane = 0; lane < 4; lane++)
        #pragma unroll
        for (int n = 0; n < CHUNK / 8 * 2; n++) {
            const int row = n / 2 * 8 + lane * 2 + n % 2, from = threadIdx.x % 32 / 4 * 4 + lane;
            const float scale = of.keys[row] * power_of_2(LIFT);
            const float above = __shfl_sync(0xffffffffu, pair_of(weights, n, 0), from) * scale;
            const float below = __shfl_sync(0xffffffffu, pair_of(weights, n, 1), from) * scale;
            const float *const v =
                (const float *)p.v + LINEAR_AT(p, v, w.b, w.kvh, (int64_t)j + row, 0) + w.column +
                at.column;

            #pragma unroll
            for (int i = 0; i < NT; i++)
                if (row < rows && i * 8 < columns) {
                    const float2 x = *(const float2 *)(v + i * 8);

                    if (row <= at.row)
                        o[i][0] += above * x.x, o[i][1] += above * x.y;
                    if (row <= at.row + 8)
                        o[i][2] += below * x.x, o[i][3] += below * x.y;
                }
        }
}
