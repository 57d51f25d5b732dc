// SPDX-License-Identifier: MIT
// softmax/fwd_math_pack.cu: steps 1 to 3 of softmax_fwd_math: Q, K and V to f32 matrices in
// the workspace. Types, strides, pages and packed sequences end here.
//
// Computes  _q: the matrix Q of common/work.h, _k: K, _v: V; zeros in rows without a query,
//           and for keys that no query of the round sees by length, causal or window: what
//           lies in their rows, NaN too, never comes further
// Grid      1-D, chunks fastest. _q: ceil(queries of the round / CHUNK) * heads of the
//           round; _k, _v: ceil(keys / CHUNK) * pairs, or more, which have nothing to do
// Block     THREADS threads, a row for each warp in turn
// Shared    none
// Layout    any strides; CONTIG_ bits promise that lanes read side by side
// Numerics  exact
// Requires  nothing; no barrier
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for each TYPE (f32, f16, bf16): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_math_pack_f32
#endif

#include "softmax/math.cuh"

// n elements at x, `step` from one to the next, or zeros if they are not there. By a warp.
DEVICE void put_row(float *to, const void *x, int64_t from, int64_t step, int n, bool there)
{
    #pragma unroll 4
    for (int d = threadIdx.x % 32; d < n; d += 32)
        to[d] = there ? elem_load<TYPE>(x, from + d * step) : 0.0f;
}

DEVICE void pack_queries(const attn_kparams &p)
{
    const int chunks = ceil_div(p.round_queries, CHUNK);
    const int n = blockIdx.x / chunks, i0 = blockIdx.x % chunks * CHUNK;
    const int64_t b = work_batch(p, n);
    const attn_sequence s = range_sequence<CAN>(p, b);
    const attn_rows rows = ADDRESS_QUERIES(p, q, s, b, work_head(p, n));
    const int64_t step = has<CAN>(p, CONTIG_Q) ? 1 : rows.stride_d;
    const int queries = work_queries(p, s);

    for (int i = i0 + threadIdx.x / 32; i < min(i0 + CHUNK, p.round_queries); i += WARPS) {
        const bool there = i < queries;
        const int64_t from =
            there ? address_row<CAN & ~FEAT_PAGES>(p, rows, p.round_query + i) : 0;

        put_row(p.work + work_row(p, n, i) * p.d, p.q, from, step, p.d, there);
    }
}

// K or V: rows of n elements to the matrix at `to`.
template <bool VALUES> DEVICE void pack_keys(const attn_kparams &p)
{
    const attn_work w = work_of(p);
    const int chunks = ceil_div(w.keys, CHUNK);
    const int pair = blockIdx.x / chunks, j0 = blockIdx.x % chunks * CHUNK;

    if (pair >= p.round_heads / w.group)
        return;

    const int64_t b = work_batch(p, pair * w.group);
    const int h = address_head_kv(p, work_head(p, pair * w.group));
    const attn_sequence s = range_sequence<CAN>(p, b);
    const attn_range seen = range_any<CAN>(p, s, p.round_query, work_queries(p, s));
    const attn_rows rows =
        VALUES ? ADDRESS_KEYS(p, v, s, b, h) : ADDRESS_KEYS(p, k, s, b, h);
    const int64_t step = has<CAN>(p, VALUES ? CONTIG_V : CONTIG_K) ? 1 : rows.stride_d;
    const int n = VALUES ? p.dv : p.d;
    float *const to = p.work + (VALUES ? w.v : w.k) + (int64_t)pair * w.keys * n;

    for (int j = j0 + threadIdx.x / 32; j < min(j0 + CHUNK, w.keys); j += WARPS) {
        const bool there = j >= seen.first && j < seen.end;
        const int64_t from = there ? address_row<CAN>(p, rows, j) : 0;

        put_row(to + (int64_t)j * n, VALUES ? p.v : p.k, from, step, n, there);
    }
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define KERNEL(part) \
    extern "C" __global__ __launch_bounds__(THREADS, 1) void JOIN(NAME, part)( \
        const __grid_constant__ attn_kparams p)

KERNEL(_q)
{
    pack_queries(p);
}

KERNEL(_k)
{
    pack_keys<false>(p);
}

KERNEL(_v)
{
    if (p.want_o)
        pack_keys<true>(p);
}
