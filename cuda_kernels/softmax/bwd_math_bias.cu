// SPDX-License-Identifier: MIT
// softmax/bwd_math_bias.cu: the step of softmax_bwd_math that sums up the gradient of a bias.
//
// Computes  dBias: what the round's gradients of scores, before the cap, add to it; zeros
//           before in the first round. A dimension in which the bias was broadcast is summed
//           over
// Grid      1-D, ceil(keys of dBias / THREADS) * ceil(its queries / CHUNK) * its heads * its
//           batches groups, keys fastest
// Block     THREADS threads, a key for each, one query after another
// Shared    none
// Numerics  f32; sums of a round are compensated (Kahan 1965), in an order of their own
// Requires  s to be 0 where no query sees a key, and in rows without a query; no barrier
// Oracle    src/host/softmax_bwd_reference.c
#include "common/params.h"

#ifndef NAME
#define NAME attn_softmax_bwd_math_bias
#endif

#include "softmax/bwd_math.cuh"

// What element (i, j) of dBias gets from head n of the round; `all_i`, `all_j`: from all
// queries, keys.
DEVICE void add_head(const attn_kparams &p, const attn_matrices &m, int n, int i, int j,
                     bool all_i, bool all_j, float *sum, float *extra)
{
    const int i0 = all_i ? 0 : i - p.round_query, i1 = all_i ? p.round_queries : i0 + 1;
    const int j0 = all_j ? 0 : j, j1 = all_j ? p.len_kv : j + 1;

    if (!all_i && (i0 < 0 || i0 >= p.round_queries))
        return;
    for (int x = i0; x < i1; x++)
        for (int y = j0; y < j1; y++)
            *sum = back_add(*sum, m.s[work_row(p, n, x) * m.keys + y], extra);
}

extern "C" __global__ __launch_bounds__(THREADS, 1) void NAME(
    const __grid_constant__ attn_kparams p)
{
    const attn_matrices m = matrices_of(p);
    const int size_h = p.grad_bias_size_h, size_l = p.grad_bias_size_l;
    const int size_d = p.grad_bias_size_d;
    const int tiles_j = ceil_div(size_d, THREADS), tiles_i = ceil_div(size_l, CHUNK);
    const int head = blockIdx.x / tiles_j / tiles_i;
    const int b0 = head / size_h, h0 = head % size_h;
    const int i0 = blockIdx.x / tiles_j % tiles_i * CHUNK;
    const int j = blockIdx.x % tiles_j * THREADS + threadIdx.x;
    const bool all_i = size_l != p.len_q, all_j = size_d != p.len_kv;
    const bool all_b = p.grad_bias_size_b != p.batch, all_h = size_h != p.heads_q;
    const bool first = p.round_head == 0 && p.round_query == 0;

    for (int i = i0; i < min(i0 + CHUNK, size_l) && j < size_d; i++) {
        float *const to = p.grad_bias + p.grad_bias_offset + b0 * p.grad_bias_stride_b +
                          h0 * p.grad_bias_stride_h + i * p.grad_bias_stride_l +
                          j * p.grad_bias_stride_d;
        float sum = 0.0f, extra = 0.0f;

        for (int b = all_b ? 0 : b0; b < (all_b ? p.batch : b0 + 1); b++)
            for (int h = all_h ? 0 : h0; h < (all_h ? p.heads_q : h0 + 1); h++) {
                const int64_t n = (int64_t)b * p.heads_q + h - p.round_head;

                if (n >= 0 && n < p.round_heads)
                    add_head(p, m, (int)n, i, j, all_i, all_j, &sum, &extra);
            }
        *to = (first ? 0.0f : *to) + (sum - extra);
    }
}
