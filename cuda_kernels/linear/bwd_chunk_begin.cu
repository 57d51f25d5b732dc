// SPDX-License-Identifier: MIT
// linear/bwd_chunk_begin.cu: linear_bwd_chunk, the first step: what its scans take of each
// query. Wanted by normalised problems, and by f16, which would lose small gradients.
//
// Computes  work[0, b, h, l] = scale / den_l / lift_l, 0 where den_l is 0
//           work[1, b, h, l] = - <dO_l, O_l> lift_l, which is c_l den_l lift_l
//           f16: work[2, b, h, l] = lift_l, the power of 2 that makes the largest number of
//           dO_l one of [1, 2), and work[3, b, h, l], the largest of work[0] phi(q_l)
// Grid      1-D, Lq in tiles of ROWS, * Hq * B
// Block     8 * ROWS threads, 1-D: eight lanes for a row, 16 bytes at a time
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_bwd_chunk_begin_f32
#endif

#include "linear/linear.cuh"

constexpr int LANES = 8, ROWS = 16;    // src/plan/cuda/linear_bwd_chunk.c
constexpr int EACH = TYPE == TYPE_F32 ? 4 : 8;

struct piece {
    float x[EACH];
};

// Numbers of 16 bytes.
DEVICE piece unpack(const float4 &from)
{
    const float word[4] = { from.x, from.y, from.z, from.w };
    piece y;

    #pragma unroll
    for (int i = 0; i < EACH; i++) {
        const uint32_t u = __float_as_uint(word[i * 4 / EACH]);

        y.x[i] = TYPE == TYPE_F32 ? word[i * 4 / EACH]
                 : TYPE == TYPE_F16 ? device_f32_of_f16((uint16_t)(u >> i % 2 * 16))
                                    : f32_of_bf16((uint16_t)(u >> i % 2 * 16));
    }
    return y;
}

// 16 bytes of a row, from element i on.
DEVICE float4 load_piece(const void *from, int64_t i)
{
    return *(const float4 *)((const char *)from + i * (16 / EACH));
}

// Over the lanes of a row.
DEVICE float sum_of_row(float x)
{
    #pragma unroll
    for (int mask = LANES / 2; mask; mask /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

DEVICE float largest_of_row(float x)
{
    #pragma unroll
    for (int mask = LANES / 2; mask; mask /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}

extern "C" __global__ __launch_bounds__(LANES * ROWS) void NAME(
    const __grid_constant__ attn_linear_kparams p)
{
    const int lane = threadIdx.x % LANES, tiles = ceil_div(p.len_q, ROWS);
    const int i = (int)(blockIdx.x % tiles) * ROWS + (int)threadIdx.x / LANES;
    const int head = (int)(blockIdx.x / tiles), b = head / p.heads_q, h = head % p.heads_q;
    const int64_t n = (int64_t)p.batch * p.heads_q * p.len_q, at = (int64_t)head * p.len_q + i;
    const bool there = i < p.len_q, divides = there && linear_has(p, LINEAR_NORMALIZE);
    float sum = 0.0f, top = 0.0f, top_q = 0.0f, lift = 1.0f, factor = p.scale;

    const float den = divides ? p.den[LINEAR_AT(p, den, b, h, i, 0)] : 0.0f;

    device_let_next();
    for (int m = lane * EACH; there && m < p.dv && (p.has & LHAS_GRAD_O); m += LANES * EACH) {
        const float4 of_g = load_piece(p.grad_o, LINEAR_AT(p, grad_o, b, h, i, 0) + m);
        const float4 of_o = divides ? load_piece(p.o, LINEAR_AT(p, o, b, h, i, 0) + m) : float4{};
        const piece g = unpack(of_g), o = unpack(of_o);

        #pragma unroll
        for (int x = 0; x < EACH; x++) {
            top = fmaxf(top, fabsf(g.x[x]));
            if (divides)
                sum -= g.x[x] * o.x[x];
        }
    }
    for (int e = lane * EACH; TYPE == TYPE_F16 && there && e < p.d; e += LANES * EACH) {
        const piece q = unpack(load_piece(p.q, LINEAR_AT(p, q, b, h, i, 0) + e));

        #pragma unroll
        for (int x = 0; x < EACH; x++)
            top_q = fmaxf(top_q, fabsf(linear_phi(p, q.x[x])));
    }
    sum = sum_of_row(sum);
    if (TYPE == TYPE_F16) {
        top = largest_of_row(top);
        top_q = largest_of_row(top_q);
    }
    if (!there || lane)
        return;
    if (TYPE == TYPE_F16 && top > 0.0f && top < INFINITE)
        lift = __uint_as_float((254u << 23) - (__float_as_uint(top) & 0x7f800000u));
    if (divides) {
        factor = den == 0.0f ? 0.0f : p.scale / den;
        sum = den == 0.0f ? 0.0f : sum;
    }
    p.work[at] = factor / lift;
    p.work[n + at] = sum * lift;
    if (TYPE == TYPE_F16) {
        p.work[2 * n + at] = lift;
        p.work[3 * n + at] = fabsf(factor / lift) * top_q;
    }
}
