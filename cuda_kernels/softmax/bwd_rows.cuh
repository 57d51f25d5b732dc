// SPDX-License-Identifier: MIT
// softmax/bwd_rows.cuh: what the backward wants to know of each row of O and dO, by warps with
// eight rows each, so that enough of them are on their way. TYPE is the image's.
#pragma once
#include "softmax/bwd.cuh"

constexpr int WARP_ROWS = 8, GROUP_ROWS = 64;    // of a group of 256; src/plan/cuda/backward.c

// LANES of a warp share a row, four columns each at a time, and have WARP_ROWS / (32 / LANES)
// of them, 32 / LANES apart.
template <int LANES> struct row_lanes {
    static constexpr int STEP = 32 / LANES, N = WARP_ROWS / STEP;
};

// Of a row, `at` below the warp's first: dO O, and dO dO.
struct back_row {
    int at;
    float delta, square;
};

// Where O is 0, as it is in rows that see no key, dO counts for nothing, whatever it is.
DEVICE float counted(float grad, float o) { return o != 0.0f ? grad : 0.0f; }

// The lane's columns of its rows, `at` the first of them; rows past the last are the last.
template <int LANES, int CAN>
DEVICE void add_columns(const attn_kparams &p, const attn_rows &grad, const attn_rows &o, int at,
                        int queries, int column, float (&delta)[row_lanes<LANES>::N],
                        float (&square)[row_lanes<LANES>::N])
{
    constexpr int N = row_lanes<LANES>::N, STEP = row_lanes<LANES>::STEP;
    const auto row = [&](int r) { return min(at + r * STEP, queries - 1); };

    if (has<CAN>(p, WIDE_O) && has<CAN>(p, WIDE_GRADS)) {
        #pragma unroll 1
        for (int d = column; d < p.dv; d += LANES * 4) {
            float4 x[N], y[N];

            #pragma unroll
            for (int r = 0; r < N; r++) {
                x[r] = elem_load4<TYPE>(p.grad_o, address_row<CAN>(p, grad, row(r)) + d);
                y[r] = elem_load4<TYPE>(p.o, address_row<CAN>(p, o, row(r)) + d);
            }
            #pragma unroll
            for (int r = 0; r < N; r++) {
                delta[r] += counted(x[r].x, y[r].x) * y[r].x;
                delta[r] += counted(x[r].y, y[r].y) * y[r].y;
                delta[r] += counted(x[r].z, y[r].z) * y[r].z;
                delta[r] += counted(x[r].w, y[r].w) * y[r].w;
                square[r] += x[r].x * x[r].x + x[r].y * x[r].y + x[r].z * x[r].z +
                             x[r].w * x[r].w;
            }
        }
        return;
    }
    // the same columns in the same order
    #pragma unroll 1
    for (int d = column; d < p.dv; d += LANES * 4) {
        #pragma unroll 1
        for (int k = d; k < min(d + 4, p.dv); k++) {
            #pragma unroll
            for (int r = 0; r < N; r++) {
                const float x = elem_load<TYPE>(
                    p.grad_o, address_row<CAN>(p, grad, row(r)) + k * grad.stride_d);
                const float y = elem_load<TYPE>(
                    p.o, address_row<CAN>(p, o, row(r)) + k * o.stride_d);

                delta[r] += counted(x, y) * y;
                square[r] += x * x;
            }
        }
    }
}

// Sums over the lanes of a row: of N rows that of number lane / 4 % N, to this lane.
template <int LANES> DEVICE float sum_rows(float (&x)[row_lanes<LANES>::N], int lane)
{
    #pragma unroll
    for (int n = row_lanes<LANES>::N / 2, mask = LANES / 2; n > 0; n /= 2, mask /= 2) {
        const bool upper = lane & mask;

        #pragma unroll
        for (int k = 0; k < n; k++) {
            const float other = __shfl_xor_sync(0xffffffffu, upper ? x[k] : x[k + n], mask);

            x[k] = (upper ? x[k + n] : x[k]) + other;
        }
    }
    x[0] += __shfl_xor_sync(0xffffffffu, x[0], 2);
    return x[0] + __shfl_xor_sync(0xffffffffu, x[0], 1);
}

template <int LANES, int CAN>
DEVICE back_row find_row_by(const attn_kparams &p, const attn_sequence &seq, int64_t b, int h,
                            int first, int lane)
{
    constexpr int N = row_lanes<LANES>::N, STEP = row_lanes<LANES>::STEP;
    float delta[N] = {}, square[N] = {};

    if (p.has & HAS_GRAD_O && first < seq.queries)
        add_columns<LANES, CAN>(p, ADDRESS_QUERIES(p, grad_o, seq, b, h),
                                ADDRESS_QUERIES(p, o, seq, b, h), first + lane / LANES,
                                seq.queries, lane % LANES * 4, delta, square);
    return { lane / 4 % N * STEP + lane / LANES, sum_rows<LANES>(delta, lane),
             sum_rows<LANES>(square, lane) };
}

// One of the warp's rows from query `first` of head h on, which is there or not: delta with the
// gradient of the LSE, and the square. Four lanes have the same.
template <int CAN>
DEVICE back_row find_row(const attn_kparams &p, const attn_sequence &seq, int64_t b, int h,
                         int first, int lane)
{
    back_row row = p.dv <= 64 ? find_row_by<16, CAN>(p, seq, b, h, first, lane)
                              : find_row_by<32, CAN>(p, seq, b, h, first, lane);
    const int64_t i = first + row.at;

    if (p.has & HAS_GRAD_LSE && i < seq.queries)
        row.delta -= p.grad_lse[p.grad_lse_offset +
                                (has<CAN>(p, FEAT_PACKED_Q) ? 0 : b * p.grad_lse_stride_b) +
                                h * p.grad_lse_stride_h +
                                (seq.q_first + i) * p.grad_lse_stride_l];
    return row;
}
