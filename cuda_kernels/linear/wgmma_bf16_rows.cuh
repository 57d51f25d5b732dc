// SPDX-License-Identifier: MIT
// linear/wgmma_bf16_rows.cuh: what warpgroups with queries of fwd_wgmma_bf16.cu do with their rows
// between the products.
#pragma once
#include "linear/wgmma_bf16.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The warp's rows of Q as first operands.
typedef uint32_t operands[DIM / 16][4];

DEVICE void load_queries(const float4 (*tiles)[TILE], operands &q)
{
    #pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        device_matrices(q[i], matrices_at(tiles[i / 4]) ^ (i % 4 * 32));
}

DEVICE void map_queries(const attn_linear_kparams &p, operands &q)
{
    if (linear_has(p, LINEAR_ELU1)) {
        #pragma unroll
        for (int i = 0; i < DIM / 4; i++)
            q[i / 4][i % 4] = phi_of_pair<true>(q[i / 4][i % 4]);
    } else if (linear_has(p, LINEAR_RELU)) {
        #pragma unroll
        for (int i = 0; i < DIM / 4; i++)
            q[i / 4][i % 4] = phi_of_pair<false>(q[i / 4][i % 4]);
    }
}

// Divides rows that have numbers of 2^33 or more by 2^HUGE_ROW, so that no sum overflows, and
// says what they are multiplied by.
DEVICE void tame_queries(operands &q, float (&down)[2])
{
    uint32_t any[2] = { 0, 0 };

    #pragma unroll
    for (int i = 0; i < DIM / 4; i++)
        any[i % 2] |= ((q[i / 4][i % 4] & 0x7fff7fffu) + 0x30003000u) & 0x80008000u;
    down[0] = down[1] = 1.0f;
    if (!__any_sync(0xffffffffu, (any[0] | any[1]) != 0))
        return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        any[half] |= __shfl_xor_sync(0xffffffffu, any[half], 1);
        any[half] |= __shfl_xor_sync(0xffffffffu, any[half], 2);
        down[half] = any[half] ? power_of_2(-HUGE_ROW) : 1.0f;
    }
    #pragma unroll
    for (int i = 0; i < DIM / 4; i++) {
        uint32_t &x = q[i / 4][i % 4];

        x = device_pair<TYPE>(f32_of_low(x) * down[i % 2], f32_of_high(x) * down[i % 2]);
    }
}

// den += q z, of a lane's columns.
DEVICE void add_products(const operands &q, const float *z, float (&den)[2])
{
    z += threadIdx.x % 4 * 2;
    #pragma unroll
    for (int i = 0; i < DIM / 4; i++) {
        const float2 y = *(const float2 *)(z + i / 2 * 8);

        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t x = q[i / 4][i % 4];

            if (i % 2 == half)
                den[half] += f32_of_low(x) * y.x + f32_of_high(x) * y.y;
        }
    }
}

// P = tril(Q K^T) as first operands; den += its rows, of a lane's columns.
DEVICE void mask_pairs(float (&pairs)[CHUNK / 8][4], float (&den)[2],
                       uint32_t (&weights)[CHUNK / 16][4])
{
    const int thread = device_thread() % 128, lane = thread % 32;
    const int before = thread / 32 * 16 + lane / 4 - lane % 4 * 2;

    #pragma unroll
    for (int i = 0; i < CHUNK / 8 * 4; i++) {
        float &x = pairs[i / 4][i % 4];

        x = i / 4 * 8 + i % 2 - i % 4 / 2 * 8 <= before ? x : 0.0f;
        den[i % 4 / 2] += x;
    }
    #pragma unroll
    for (int m = 0; m < CHUNK / 16; m++)
        pack(pairs[2 * m], pairs[2 * m + 1], { 1.0f, 1.0f }, weights[m]);
}

// What rows of O are multiplied by; den is written.
DEVICE void find_factors(const attn_linear_kparams &p, const chunk_work &w, int j,
                         const float (&down)[2], const float (&dens)[2], float (&factor)[2])
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = j + row_of_warp() + lane / 4 + half * 8;

        factor[half] = unit_of_row(p, down[half]);
        if (linear_has(p, LINEAR_NORMALIZE)) {
            float den = dens[half];

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            den = p.sum_scale * den + p.sum_eps * down[half];
            if (p.want_den && w.column + lane % 4 == 0 && row < w.end)
                p.den[LINEAR_AT(p, den, w.b, w.h, (int64_t)row, 0)] =
                    in_units(p.sum_unit, den, 1.0f / down[half]);
            factor[half] = den == 0.0f ? 0.0f : p.sum_scale * device_one_over(den);
        }
    }
}

// The warp's rows of O from token j on, through its own rows of Q.
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j,
                       const float (&factor)[2], const float (&o)[NT][4], float4 (*tiles)[TILE])
{
    constexpr int ACROSS = COLUMNS / 8, STEP = 32 / ACROSS;
    const int lane = threadIdx.x % 32, row = row_of_warp() + lane / ACROSS, c = lane % ACROSS;
    const int column = w.column + c * 8;
    char *to = (char *)p.o + 2 * (LINEAR_AT(p, o, w.b, w.h, (int64_t)j + row, 0) + column);

    __syncwarp();    // lanes have read each other's part of those rows
    #pragma unroll
    for (int m = 0; m < NT / 2; m++) {
        uint32_t x[4];

        pack(o[2 * m], o[2 * m + 1], factor, x);
        device_put_matrices(matrices_at(tiles[m / 4]) ^ (m % 4 * 32), x);
    }
    __syncwarp();
    if (!p.want_o || column >= p.dv)
        return;
    #pragma unroll
    for (int i = 0; i < 16 / STEP; i++) {
        const int r = row + i * STEP;

        if (j + r < w.end)
            *(float4 *)(to + 2 * i * STEP * p.o_stride_l) =
                tiles[c / 8][r * 8 + (c % 8 ^ (r & 7))];
    }
}

#endif
