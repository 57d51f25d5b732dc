// SPDX-License-Identifier: MIT
// softmax/bwd_mma_begin.cu: the first step of the backward on tensor cores.
//
// Computes  delta_i = sum_d dO_id O_id - dLSE_i, those that are there; LSE_i in units of
//           log2; of f16 |dO_i|; and zeros the sums, flags and the ticket that bwd_mma.cu
//           begins with
// Grid      1-D, ceil(Lq / ROWS) * Hq * B groups, queries fastest
// Block     32 * ROWS threads, 1-D: a warp for a row
// Shared    none
// Layout    any strides, in elements; WIDE_ bits promise more (params.h). work:
//           bwd_mma_work.cuh
// Numerics  f32
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for f16 and bf16: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_mma_begin_f16
#endif

#include "softmax/bwd_mma_work.cuh"
#include "softmax/bwd_rows.cuh"

constexpr int ROWS = 8;    // src/plan/cuda/backward.c
constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

// |dO_i|, rounded up a little.
DEVICE float find_size(const attn_kparams &p, const attn_rows &rows, int i, int lane)
{
    const int64_t row = address_row<CAN>(p, rows, i);
    float sum = 0.0f;

    for (int d = lane; d < p.dv; d += 32) {
        const float x = elem_load<TYPE>(p.grad_o, row + d * rows.stride_d);

        sum += x * x;
    }
    for (int mask = 16; mask > 0; mask /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    return sqrtf(sum) * 1.001f;
}

extern "C" __global__ __launch_bounds__(32 * ROWS) void NAME(
    const __grid_constant__ attn_kparams p)
{
    const int lane = threadIdx.x % 32, tiles = ceil_div(p.len_q, ROWS);
    const int i = (int)(blockIdx.x % tiles) * ROWS + (int)threadIdx.x / 32;
    const int head = blockIdx.x / tiles, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const back_work work = find_back_work(p);

    if (blockIdx.x == 0 && threadIdx.x == 0)
        *work.ticket = 0;
    if (i < p.len_q && i % FLAG_ROWS == 0 && lane == 0)
        work.flags[(int64_t)head * work.head_flags + i / FLAG_ROWS] = 0;
    if (i >= seq.queries)
        return;

    const float delta = back_delta<CAN>(p, seq, b, h, i, lane);
    const int64_t row = back_delta_at(p, b, h, i);
    float size = 0.0f;

    if (TYPE == TYPE_F16 && p.has & HAS_GRAD_O)
        size = find_size(p, ADDRESS_QUERIES(p, grad_o, seq, b, h), i, lane);

    if (lane == 0) {
        p.work[row] = delta;
        work.lse[row] = back_lse<CAN>(p, seq, b, h, i) * 1.44269504088896340736f;
        work.size[row] = size;
    }
    if (p.has & HAS_GRAD_Q)
        for (int d = lane * 4; d < work.pitch; d += 32 * 4)
            *(float4 *)(work.sums + row * work.pitch + d) =
                make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
