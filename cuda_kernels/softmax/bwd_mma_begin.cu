// SPDX-License-Identifier: MIT
// softmax/bwd_mma_begin.cu: the first step of the backward on tensor cores.
//
// Computes  delta_i = sum_d dO_id O_id - dLSE_i, those that are there; LSE_i, in units of
//           log2 unless single scores are looked at; of f16 |dO_i|, rounded up a little; and
//           zeros the flags, the ticket and, if not SUMS_BY_COPY, the sums that the passes
//           begin with
// Grid      1-D, ceil(Lq / GROUP_ROWS) * Hq * B groups, queries fastest
// Block     256 threads, 1-D: a warp for eight rows
// Shared    none
// Layout    any strides, in elements; WIDE_ bits promise more (params.h). work:
//           bwd_mma_work.cuh
// Numerics  f32
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for f32, f16 and bf16, and for the last two with SUMS_BY_COPY: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_mma_begin_f16
#endif

#include "softmax/bwd_mma_work.cuh"
#include "softmax/bwd_rows.cuh"

constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

extern "C" __global__ __launch_bounds__(256, TYPE == TYPE_F32 ? 2 : 3) void NAME(
    const __grid_constant__ attn_kparams p)
{
    const int lane = threadIdx.x % 32, tiles = ceil_div(p.len_q, GROUP_ROWS);
    const int first = blockIdx.x % tiles * GROUP_ROWS + threadIdx.x / 32 * WARP_ROWS;
    const int head = blockIdx.x / tiles, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const back_work work = find_back_work(p);

    if (blockIdx.x == 0 && threadIdx.x == 0)
        *work.ticket = 0;
    if (first < p.len_q && first % FLAG_ROWS == 0 && lane == 0)
        work.flags[(int64_t)head * work.head_flags + first / FLAG_ROWS] = 0;

    const back_row x = find_row<CAN>(p, seq, b, h, first, lane);
    const int i = first + x.at;
    const int64_t row = back_delta_at(p, b, h, i);

    if (lane % 4 == 0 && i < seq.queries) {
        p.work[row] = x.delta;
        work.lse[row] = back_lse<CAN>(p, seq, b, h, i) *
                        (has<CAN>(p, FEAT_SOFTCAP | FEAT_TERMS) ? 1.0f : 1.44269504088896340736f);
        work.size[row] = TYPE == TYPE_F16 ? sqrtf(x.square) * 1.001f : 0.0f;
    }
    if (BY_COPY || !(p.has & HAS_GRAD_Q))
        return;

    float *const sums = work.sums + back_delta_at(p, b, h, first) * work.pitch;
    const int n = clamp(seq.queries - first, 0, WARP_ROWS) * work.pitch;

    for (int e = lane * 4; e < n; e += 32 * 4)
        *(float4 *)(sums + e) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
