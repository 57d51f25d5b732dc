// SPDX-License-Identifier: MIT
// linear/bwd_begin.cu: what gradients of normalised linear attention take of each query.
//
// Computes  work[b, h, l] = c_l = - <dO_l, O_l> / den_l; 0 where den_l is 0
// Grid      1-D, Lq * Hq * B rows in tiles of ROWS
// Block     32 * ROWS threads, 1-D: a warp for a row
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_bwd_begin_f32
#endif

#include "linear/linear.cuh"

constexpr int ROWS = 8;    // src/plan/cuda/linear_bwd_recurrent.c

extern "C" __global__ __launch_bounds__(32 * ROWS) void NAME(
    const __grid_constant__ attn_linear_kparams p)
{
    const int lane = threadIdx.x % 32, tiles = ceil_div(p.len_q, ROWS);
    const int64_t i = (int64_t)(blockIdx.x % tiles) * ROWS + (int)threadIdx.x / 32;
    const int64_t head = blockIdx.x / tiles, b = head / p.heads_q, h = head % p.heads_q;
    float sum = 0.0f;

    if (i >= p.len_q)
        return;

    const float den = p.den[LINEAR_AT(p, den, b, h, i, 0)];

    for (int64_t m = lane; m < p.dv && (p.has & LHAS_GRAD_O) && den != 0.0f; m += 32)
        sum -= elem_load<TYPE>(p.grad_o, LINEAR_AT(p, grad_o, b, h, i, m)) / den *
               elem_load<TYPE>(p.o, LINEAR_AT(p, o, b, h, i, m));
    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (lane == 0)
        p.work[head * p.len_q + i] = sum;
}
