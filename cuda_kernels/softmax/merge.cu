// SPDX-License-Identifier: MIT
// softmax/merge.cu: takes one more partial result of the same rows into a merge.
//
// Computes  after the parts p = 0 .. n - 1, of which each launch takes one:
//             LSE = ln sum_p exp(LSE_p)    O = sum_p exp(LSE_p - LSE) O_p
// Method    the online softmax (Milakov and Gimelshein 2018) over parts instead of keys:
//           m is the largest LSE so far, l and acc are held against it
// Grid      1-D, ceil(batch * heads * len / WARPS) groups
// Block     WARPS warps, 1-D: a row each, and every 32nd column of it a lane
// Shared    none
// Barriers  none: all lanes of a row read m and l of one parity, one writes the other's
// Layout    any strides, in elements. work: m and l of [2][rows][2], then acc of
//           [rows][depth]; not touched where one part is all there is
// Numerics  f32. A part of no weight (LSE_p = -inf, or far below) is left out: its O is
//           not multiplied, and may hold anything. No part of weight: O = 0, LSE = -inf
// Requires  nothing
// Tunables  WARPS; src/plan/merge.c has the same number
// Oracle    src/host/merge.c
//
// Built for each TYPE of O (f32, f16, bf16): NAME is the image's. A kernel for each type of
// the part.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_softmax_merge_f32
#endif

#include "common/device.cuh"
#include "common/types.cuh"
#include "common/state.cuh"

constexpr int WARP = 32, WARPS = 4;

// Element 0 of row (b, h, i) of a view or an LSE.
#define MERGE_ROW(p, name, b, h, i) \
    ((p).name##_offset + (b) * (p).name##_stride_b + (h) * (p).name##_stride_h + \
     (i) * (p).name##_stride_l)

// What a factor of 0 leaves, even of Inf and NaN, is nothing.
DEVICE float weighed(float x, float factor)
{
    return factor == 0.0f ? 0.0f : x * factor;
}

// exp(LSE - reference); the largest weighs 1, of +inf too.
DEVICE float weight(float lse, float reference)
{
    return lse == reference ? 1.0f : state_weight(lse, reference);
}

template <int PART> DEVICE void merge(const attn_merge_kparams &p)
{
    const int64_t rows = (int64_t)p.batch * p.heads * p.len;
    const int64_t row = blockIdx.x * (int64_t)WARPS + threadIdx.x / WARP;
    const int64_t b = row / p.len / p.heads, h = row / p.len % p.heads, i = row % p.len;
    const int lane = threadIdx.x % WARP;
    const int64_t acc = rows * 4 + row * p.depth;    // element 0 of the row in work
    attn_row state = state_init();

    if (row >= rows)
        return;
    if (!p.first) {
        const float *const ml = p.work + (p.odd * rows + row) * 2;

        state = { ml[0], ml[1] };
    }

    // weights are divided first: a mean never leaves the range of its parts
    const float lse = p.part_lse[MERGE_ROW(p, part_lse, b, h, i)], m = state.m;

    state.m = state_max(lse, m);

    const float before = state.l * weight(m, state_reference(state.m));
    const float mine = weight(lse, state_reference(state.m));

    state.l = before + mine;

    const float over = state_finish(state), kept = before * over, w = mine * over;

    for (int d = lane; p.want_o && d < p.depth; d += WARP) {
        const int64_t from = MERGE_ROW(p, part, b, h, i) + d * p.part_stride_d;
        const float sum = p.first ? 0.0f : p.work[acc + d];
        // an empty part is not even read; a NaN is no empty part
        const float x = lse == -INFINITE ? 0.0f : elem_load<PART>(p.part, from);
        const float mean = weighed(sum, kept) + weighed(x, w);

        if (p.last)
            elem_store<TYPE>(p.o, MERGE_ROW(p, o, b, h, i) + d * p.o_stride_d, mean);
        else
            p.work[acc + d] = mean;
    }
    if (lane != 0)
        return;
    if (!p.last) {
        float *const ml = p.work + ((1 - p.odd) * rows + row) * 2;

        ml[0] = state.m;
        ml[1] = state.l;
    } else if (p.want_lse) {
        p.lse[MERGE_ROW(p, lse, b, h, i)] = state_lse(state);
    }
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, PART) \
    extern "C" __global__ __launch_bounds__(WARPS * WARP) void JOIN(name, part)( \
        const __grid_constant__ attn_merge_kparams p) \
    { \
        merge<PART>(p); \
    }

KERNEL(NAME, _f32, TYPE_F32)
KERNEL(NAME, _f16, TYPE_F16)
KERNEL(NAME, _bf16, TYPE_BF16)
