// SPDX-License-Identifier: MIT
// softmax/bwd_mma_finish.cu: the last step of the backward on tensor cores: the sums that
// bwd_mma.cu left in the workspace become dQ.
//
// Computes  dQ = scale * sums, rounded to the type
// Grid      1-D, ceil(Lq / GROUP_ROWS) * Hq * B groups, queries fastest
// Block     256 threads, 1-D: a warp for eight rows
// Shared    none
// Layout    dQ of any strides, in elements; WIDE_GRADS promises more (params.h). work:
//           bwd_mma_work.cuh
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for f32, f16 and bf16, and for the last two with SUMS_BY_COPY: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_mma_finish_f16
#endif

#include "softmax/bwd_mma_work.cuh"
#include "softmax/bwd_rows.cuh"

constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

// Elements d .. d + 3 of a row of dQ.
DEVICE void store_four(const attn_kparams &p, int64_t to, int64_t stride, int d, float4 sums)
{
    const float x[4] = { sums.x * p.scale, sums.y * p.scale, sums.z * p.scale,
                         sums.w * p.scale };

    if (has<CAN>(p, WIDE_GRADS)) {
        elem_store4<TYPE>(p.grad_q, to + d, make_float4(x[0], x[1], x[2], x[3]));
        return;
    }
    for (int k = 0; k < 4; k++)
        if (d + k < p.d)
            elem_store<TYPE>(p.grad_q, to + (d + k) * stride, x[k]);
}

// The warp's rows from query `first` on, of so many; sums: those of query 0, or NULL: there are
// none, which are 0.
template <int LANES>
DEVICE void finish_rows(const attn_kparams &p, const attn_rows &rows, const back_work &work,
                        const float *sums, int first, int queries)
{
    constexpr int N = row_lanes<LANES>::N, STEP = row_lanes<LANES>::STEP;
    const int lane = threadIdx.x % 32, at = first + lane / LANES;

    for (int d = lane % LANES * 4; d < p.d; d += LANES * 4) {
        float4 x[N];

        #pragma unroll
        for (int r = 0; r < N; r++) {
            const int i = min(at + r * STEP, queries - 1);

            x[r] = sums ? *(const float4 *)(sums + back_sum_at(work, queries, i, d))
                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        #pragma unroll
        for (int r = 0; r < N; r++)
            if (at + r * STEP < queries)
                store_four(p, address_row<CAN>(p, rows, at + r * STEP), rows.stride_d, d,
                           x[r]);
    }
}

extern "C" __global__ __launch_bounds__(256) void NAME(const __grid_constant__ attn_kparams p)
{
    const int tiles = ceil_div(p.len_q, GROUP_ROWS);
    const int first = blockIdx.x % tiles * GROUP_ROWS + threadIdx.x / 32 * WARP_ROWS;
    const int head = blockIdx.x / tiles, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const attn_sequence seq = range_sequence<CAN>(p, b);

    if (first >= seq.queries)
        return;

    const back_work work = find_back_work(p);
    const attn_rows rows = ADDRESS_QUERIES(p, grad_q, seq, b, h);
    const int flag = first / SUMS_ROWS * (SUMS_ROWS / FLAG_ROWS);
    const bool none = BY_COPY && work.flags[(int64_t)head * work.head_flags + flag] == 0;
    const float *const sums =
        none ? NULL : work.sums + back_delta_at(p, b, h, 0) * work.pitch;

    if (p.d <= 64)
        finish_rows<16>(p, rows, work, sums, first, seq.queries);
    else
        finish_rows<32>(p, rows, work, sums, first, seq.queries);
}
