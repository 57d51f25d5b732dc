// SPDX-License-Identifier: MIT
// softmax/bwd_delta.cu: the first step of the backward: what every pass over pairs takes
// from its products.
//
// Computes  delta_i = sum_d dO_id O_id - dLSE_i, those that are there, into the workspace
// Grid      1-D, ceil(Lq / ROWS) * Hq * B groups, queries fastest
// Block     32 * ROWS threads, 1-D: a warp for a row
// Shared    none
// Layout    any strides, in elements; WIDE_ bits promise more (params.h)
// Numerics  f32
// Features  lengths and packed queries (of rows that there are not nothing is written)
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for each TYPE (f32, f16, bf16): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_delta_f32
#endif

#include "softmax/bwd_rows.cuh"

constexpr int ROWS = 8;    // src/plan/cuda/backward.c
constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

extern "C" __global__ __launch_bounds__(32 * ROWS) void NAME(
    const __grid_constant__ attn_kparams p)
{
    const int lane = threadIdx.x % 32, tiles = ceil_div(p.len_q, ROWS);
    const int i = (int)(blockIdx.x % tiles) * ROWS + (int)threadIdx.x / 32;
    const int head = blockIdx.x / tiles, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const attn_sequence seq = range_sequence<CAN>(p, b);

    if (i >= seq.queries)
        return;

    const float delta = back_delta<CAN>(p, seq, b, h, i, lane);

    if (lane == 0)
        p.work[back_delta_at(p, b, h, i)] = delta;
}
