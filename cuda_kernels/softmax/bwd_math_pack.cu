// SPDX-License-Identifier: MIT
// softmax/bwd_math_pack.cu: steps 2 and 3 of softmax_bwd_math: Q, dO, K and V to f32 matrices
// in the workspace. Types, strides and packed sequences end here.
//
// Computes  _q: q, q_f and g of common/work.h, _k: k, k_f and v. Zeros for queries that are
//           not there or saw no key, and for keys that no query of the round sees by length,
//           causal or window. In q_f and k_f what is not finite is 0: those are multiplied by
//           gradients of scores, which are NaN where it counts and 0 where the row was
//           hidden, and 0 times it must be 0
// Grid      1-D, chunks fastest. _q: ceil(queries of the round / CHUNK) * heads of the round;
//           _k: ceil(keys / CHUNK) * pairs, or more, which have nothing to do
// Block     THREADS threads, a row for each warp in turn
// Shared    none
// Layout    any strides; CONTIG_Q and CONTIG_K promise that lanes read side by side
// Numerics  exact
// Requires  nothing; no barrier
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for each TYPE (f32, f16, bf16): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_math_pack_f32
#endif

#include "softmax/bwd_math.cuh"

// n elements of a row at x, `step` from one to the next, or zeros if they are not there; to
// a second matrix those that are finite, unless it is NULL. By a warp.
DEVICE void put_row(float *to, float *finite, const void *x, int64_t from, int64_t step, int n,
                    bool there)
{
    #pragma unroll 4
    for (int d = threadIdx.x % 32; d < n; d += 32) {
        const float value = there ? elem_load<TYPE>(x, from + d * step) : 0.0f;

        to[d] = value;
        if (finite)
            finite[d] = fabsf(value) < INFINITE ? value : 0.0f;
    }
}

KERNEL(_q)
{
    const attn_matrices m = matrices_of(p);
    const int chunks = ceil_div(p.round_queries, CHUNK);
    const int n = blockIdx.x / chunks, i0 = blockIdx.x % chunks * CHUNK;
    const int64_t b = work_batch(p, n);
    const int h = work_head(p, n);
    const attn_sequence s = range_sequence<CAN>(p, b);
    const attn_rows q = ADDRESS_QUERIES(p, q, s, b, h);
    const attn_rows grad = ADDRESS_QUERIES(p, grad_o, s, b, h);
    const int64_t step = has<CAN>(p, CONTIG_Q) ? 1 : q.stride_d;

    for (int i = i0 + threadIdx.x / 32; i < min(i0 + CHUNK, p.round_queries); i += WARPS) {
        const int query = p.round_query + i;
        const int64_t row = work_row(p, n, i);
        const bool there = i < work_queries(p, s) &&
                           back_lse<CAN>(p, s, b, h, query) != INFINITE;
        const bool with_o = there && p.has & HAS_GRAD_O;

        put_row(m.q + row * p.d, m.q_f + row * p.d, p.q,
                there ? address_row<CAN & ~FEAT_PAGES>(p, q, query) : 0, step, p.d, there);
        put_row(m.g + row * p.dv, nullptr, p.grad_o,
                with_o ? address_row<CAN & ~FEAT_PAGES>(p, grad, query) : 0, grad.stride_d,
                p.dv, with_o);
    }
}

KERNEL(_k)
{
    const attn_matrices m = matrices_of(p);
    const int chunks = ceil_div(m.keys, CHUNK);
    const int pair = blockIdx.x / chunks, j0 = blockIdx.x % chunks * CHUNK;

    if (pair >= m.pairs)
        return;

    const int64_t b = work_batch(p, pair * p.group);
    const int h = address_head_kv(p, work_head(p, pair * p.group));
    const attn_sequence s = range_sequence<CAN>(p, b);
    const attn_range seen = range_any<CAN>(p, s, p.round_query, work_queries(p, s));
    const attn_rows k = ADDRESS_KEYS(p, k, s, b, h), v = ADDRESS_KEYS(p, v, s, b, h);

    for (int j = j0 + threadIdx.x / 32; j < min(j0 + CHUNK, m.keys); j += WARPS) {
        const bool there = j >= seen.first && j < seen.end;
        const int64_t row = (int64_t)pair * m.keys + j;

        put_row(m.k + row * p.d, m.k_f + row * p.d, p.k, there ? address_row<CAN>(p, k, j) : 0,
                has<CAN>(p, CONTIG_K) ? 1 : k.stride_d, p.d, there);
        put_row(m.v + row * p.dv, nullptr, p.v, there ? address_row<CAN>(p, v, j) : 0,
                has<CAN>(p, CONTIG_V) ? 1 : v.stride_d, p.dv, there);
    }
}
