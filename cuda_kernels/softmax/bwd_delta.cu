// SPDX-License-Identifier: MIT
// softmax/bwd_delta.cu: the first step of the backward: what every pass over pairs takes
// from its products.
//
// Computes  delta_i = sum_d dO_id O_id - dLSE_i, those that are there, into the workspace
// Grid      1-D, ceil(queries / GROUP_ROWS) groups for each head of the round, queries fastest
// Block     256 threads, 1-D: a warp for eight rows
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

constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

extern "C" __global__ __launch_bounds__(256, TYPE == TYPE_F32 ? 2 : 3) void NAME(
    const __grid_constant__ attn_kparams p)
{
    const int lane = threadIdx.x % 32, tiles = ceil_div(p.round_queries, GROUP_ROWS);
    const int first = p.round_query + (int)(blockIdx.x % tiles) * GROUP_ROWS +
                      (int)threadIdx.x / 32 * WARP_ROWS;
    const int head = p.round_head + (int)(blockIdx.x / tiles), h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const back_row row = find_row<CAN>(p, seq, b, h, first, lane);
    const int i = first + row.at;

    // those of the next round among them: it finds the same
    if (lane % 4 == 0 && i < seq.queries)
        p.work[back_delta_at(p, b, h, i)] = row.delta;
}
