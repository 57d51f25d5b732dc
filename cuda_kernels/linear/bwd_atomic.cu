// SPDX-License-Identifier: MIT
// linear/bwd_atomic.cu: gradients of linear attention token by token, groups of 8 rows of a
// state, whose parts of a gradient are added atomically.
//
// Computes  dQ; dV; dK, dS_in and dz_in, as written in include/attn/linear.h, each by three
//           kernels
// Method    _begin zeroes the sums of a query or key; _walk adds (atomic.cuh); _finish takes
//           them through phi and rounds
// Grid      1-D, _walk: ceil(rows / 8) * Hkv * B groups of rows of the state (scan.cuh); else
//           rows of the gradient in tiles of 8
// Block     256 threads, 1-D
// Shared    dynamic, _walk: rows of eight tokens, twice
// Barriers  one for eight tokens and query heads
// Layout    any strides, in elements; work: c (bwd_begin.cu), if normalised, then the sums
// Numerics  f32; the order of the sums over groups is not fixed
// Tunables  src/plan/cuda/linear_atomic.c has the same numbers
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_bwd_atomic_f32
#endif

#include "linear/atomic.cuh"

template <scan WHICH> DEVICE void begin(const attn_linear_kparams &p)
{
    tensor_row row;

    if (find_row(p, WHICH, row))
        clear_row(p, WHICH, row);
}

// Rows of keys that no query sees are zeros, those past the length are left alone.
template <scan WHICH> DEVICE void finish(const attn_linear_kparams &p)
{
    tensor_row row;

    if (!find_row(p, WHICH, row))
        return;

    const float *const sums = sums_of(p, WHICH, row.b, row.head, row.l);
    const int group = WHICH == GRAD_Q ? p.group : 1, x = (int)row.head % group;
    const scan_head h = find_head(p, (int)(row.b * p.heads_kv + row.head / group));
    const bool seen = WHICH == GRAD_Q || row.l < h.keys;

    if (WHICH != GRAD_Q && row.l >= h.length)
        return;
    for (int i = threadIdx.x % 32; i < width_of(p, WHICH); i += 32) {
        if (WHICH == GRAD_Q)
            put_grad_q(p, h, { -1, 0, (int)row.l, x }, i,
                       load_element<OF_Q>(p, h, x, row.l, i).x, sums[i]);
        else if (WHICH == GRAD_V)
            put_grad_v(p, h, row.l, i, seen ? sums[i] : 0.0f);
        else
            put_grad_k(p, h, row.l, i, seen ? load_element<OF_K>(p, h, 0, row.l, i).x : 0.0f,
                       seen ? sums[i] : 0.0f);
    }
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, BODY)                                               \
    extern "C" __global__ __launch_bounds__(THREADS, 2) void JOIN(name, part)( \
        const __grid_constant__ attn_linear_kparams p)                         \
    {                                                                          \
        BODY(p);                                                               \
    }

KERNEL(NAME, _q_begin, begin<GRAD_Q>)
KERNEL(NAME, _q_walk, atomic_walk<GRAD_Q>)
KERNEL(NAME, _q_finish, finish<GRAD_Q>)
KERNEL(NAME, _k_begin, begin<GRAD_K>)
KERNEL(NAME, _k_walk, atomic_walk<GRAD_K>)
KERNEL(NAME, _k_finish, finish<GRAD_K>)
KERNEL(NAME, _v_begin, begin<GRAD_V>)
KERNEL(NAME, _v_walk, atomic_walk<GRAD_V>)
KERNEL(NAME, _v_finish, finish<GRAD_V>)
