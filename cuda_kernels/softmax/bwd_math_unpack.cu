// SPDX-License-Identifier: MIT
// softmax/bwd_math_unpack.cu: the steps of softmax_bwd_math that bring gradients to their
// tensors.
//
// Computes  _q: dQ of the round's queries; _k: dK and dV, those that are there, after the
//           last round of their queries; rounded to the computing type
// Grid      1-D, chunks fastest. _q: ceil(queries of the round / CHUNK) * heads of the round;
//           _k: ceil(keys / CHUNK) * pairs
// Block     THREADS threads, a row for each warp in turn
// Shared    none
// Layout    any strides
// Numerics  one product with the scale, one rounding, to nearest even
// Requires  nothing; no barrier. Rows past a batch's queries, or keys, are not written
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for each TYPE (f32, f16, bf16): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_math_unpack_f32
#endif

#include "softmax/bwd_math.cuh"

// n elements times a factor, or zeros if nothing was summed. By a warp.
DEVICE void put_row(void *x, int64_t to, int64_t step, const float *from, int n, float factor,
                    bool summed)
{
    #pragma unroll 4
    for (int d = threadIdx.x % 32; d < n; d += 32)
        elem_store<TYPE>(x, to + d * step, summed ? from[d] * factor : 0.0f);
}

KERNEL(_q)
{
    const attn_matrices m = matrices_of(p);
    const int chunks = ceil_div(p.round_queries, CHUNK);
    const int n = blockIdx.x / chunks, i0 = blockIdx.x % chunks * CHUNK;
    const int64_t b = work_batch(p, n);
    const attn_sequence s = range_sequence<CAN>(p, b);
    const attn_rows rows = ADDRESS_QUERIES(p, grad_q, s, b, work_head(p, n));
    const int end = min(i0 + CHUNK, work_queries(p, s));

    for (int i = i0 + threadIdx.x / 32; i < end; i += WARPS)
        put_row(p.grad_q, address_row<CAN & ~FEAT_PAGES>(p, rows, p.round_query + i),
                rows.stride_d, m.dq + work_row(p, n, i) * p.d, p.d, p.scale, true);
}

KERNEL(_k)
{
    const attn_matrices m = matrices_of(p);
    const int chunks = ceil_div(p.len_kv, CHUNK);
    const int pair = blockIdx.x / chunks, j0 = blockIdx.x % chunks * CHUNK;

    if (p.round_query + p.round_queries < p.len_q || pair >= m.pairs)
        return;

    const int64_t b = work_batch(p, pair * p.group);
    const int h = address_head_kv(p, work_head(p, pair * p.group));
    const attn_sequence s = range_sequence<CAN>(p, b);
    const attn_rows k = ADDRESS_KEYS(p, grad_k, s, b, h);
    const attn_rows v = ADDRESS_KEYS(p, grad_v, s, b, h);
    const bool summed = p.len_q > 0;

    for (int j = j0 + threadIdx.x / 32; j < min(j0 + CHUNK, s.keys); j += WARPS) {
        const int64_t row = (int64_t)pair * m.keys + j;

        if (p.has & HAS_GRAD_K)
            put_row(p.grad_k, address_row<CAN>(p, k, j), k.stride_d, m.dk + row * p.d, p.d,
                    p.scale, summed);
        if (p.has & HAS_GRAD_V)
            put_row(p.grad_v, address_row<CAN>(p, v, j), v.stride_d, m.dvs + row * p.dv, p.dv,
                    1.0f, summed && p.has & HAS_GRAD_O);
    }
}
