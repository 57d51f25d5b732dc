// SPDX-License-Identifier: MIT
// linear/fwd_scan.cu: linear_fwd_chunk and linear_bwd_chunk, the step between: from what
// segments add to the state to the state before each of them.
//
// Computes  slot s = sum of the slots 0 .. s, in their order; in place (chunk.cuh)
// Grid      1-D, ceil(Dv / COLUMNS) * segments * Hkv * B groups; those of the segments share
//           the rows of the state
// Block     256 threads, 1-D
#include "common/params.h"

#ifndef NAME
#define NAME attn_linear_fwd_scan
#endif

constexpr int COLUMNS = 64, THREADS = 256, AT_ONCE = 32;

#include "linear/chunk.cuh"

// Adds up the floats `stride` apart.
DEVICE void scan(float *at, int64_t stride, int n)
{
    float sum = 0.0f;

    for (int s = 0; s < n; s += AT_ONCE) {
        float x[AT_ONCE];

        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            x[i] = s + i < n ? at[(s + i) * stride] : 0.0f;
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            sum += x[i];
            if (s + i < n)
                at[(s + i) * stride] = sum;
        }
    }
}

extern "C" __global__ __launch_bounds__(THREADS) void NAME(
    const __grid_constant__ attn_linear_kparams p)
{
    constexpr int ROWS = THREADS / COLUMNS;
    const chunk_work w = find_chunks(p, p.heads_kv, tokens_of_sums(p), p.dv);
    const int c = w.column + (int)threadIdx.x % COLUMNS, row = threadIdx.x / COLUMNS;
    const int64_t stride = slot_floats(p);
    float *const first = find_slot(p, w, 0);

    device_let_next();
    device_wait_before();
    for (int e = w.segment * ROWS + row; e < p.d; e += p.pieces * ROWS) {
        if (c < p.dv)
            scan(first + (int64_t)e * p.dv + c, stride, p.slots);
        if (c == 0 && linear_has(p, LINEAR_NORMALIZE))
            scan(first + (int64_t)p.d * p.dv + e, stride, p.slots);
    }
}
