// SPDX-License-Identifier: MIT
// softmax/fwd_math_unpack.cu: step 7 of softmax_fwd_math: the matrix O to the tensor.
//
// Computes  o_id = O_id * factor_i, rounded to the computing type; 0 where the factor is 0
// Grid      1-D, ceil(queries of the round / CHUNK) * heads of the round, chunks fastest
// Block     THREADS threads, a row for each warp in turn
// Shared    none
// Layout    any strides; CONTIG_O promises that lanes write side by side
// Numerics  one rounding, to nearest even
// Requires  nothing; no barrier. Rows past a batch's queries are not written
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for each TYPE (f32, f16, bf16): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_math_unpack_f32
#endif

#include "softmax/math.cuh"

extern "C" __global__ __launch_bounds__(THREADS, 1) void NAME(
    const __grid_constant__ attn_kparams p)
{
    const attn_work w = work_of(p);
    const int chunks = ceil_div(p.round_queries, CHUNK);
    const int n = blockIdx.x / chunks, i0 = blockIdx.x % chunks * CHUNK;
    const int64_t b = work_batch(p, n);
    const attn_sequence s = range_sequence<CAN>(p, b);
    const attn_rows rows = ADDRESS_QUERIES(p, o, s, b, work_head(p, n));
    const int64_t step = has<CAN>(p, CONTIG_O) ? 1 : rows.stride_d;
    const int end = p.want_o ? min(i0 + CHUNK, work_queries(p, s)) : 0;

    for (int i = i0 + threadIdx.x / 32; i < end; i += WARPS) {
        const int64_t to = address_row<CAN & ~FEAT_PAGES>(p, rows, p.round_query + i);
        const float *const from = p.work + w.o + work_row(p, n, i) * p.dv;
        const float factor = p.work[w.f + work_row(p, n, i)];

        #pragma unroll 4
        for (int d = threadIdx.x % 32; d < p.dv; d += 32)
            elem_store<TYPE>(p.o, to + d * step, factor == 0.0f ? 0.0f : from[d] * factor);
    }
}
