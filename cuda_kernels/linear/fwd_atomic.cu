// SPDX-License-Identifier: MIT
// linear/fwd_atomic.cu: linear attention token by token, groups of 8 rows of the state, whose
// parts of O are added atomically.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    _begin zeroes the sums of a query and finds what its q is divided by; _walk adds
//           (atomic.cuh); _finish divides and rounds. The method is that of the general kernel
//           of A. Katharopoulos et al., "Transformers are RNNs" (2020)
// Grid      1-D, _walk: ceil(D / 8) * Hkv * B groups; else B * Hq * Lq rows in tiles of 8
// Block     256 threads, 1-D
// Shared    dynamic, _walk: rows of eight tokens, twice
// Barriers  one for eight tokens and query heads
// Layout    any strides, in elements; work: the sums
// Numerics  f32; the order of the sums over groups is not fixed. Huge rows of q are scaled by
//           a power of 2 until they are divided
// Tunables  src/plan/cuda/linear_atomic.c has the same numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_fwd_atomic_f32
#endif

#include "linear/atomic.cuh"

DEVICE void begin(const attn_linear_kparams &p)
{
    tensor_row row;
    float top = 0.0f;

    if (!find_row(p, OUTPUT, row))
        return;
    for (int e = threadIdx.x % 32; e < p.d; e += 32) {
        const float q =
            elem_load<TYPE>(p.q, LINEAR_AT(p, q, row.b, row.head, row.l, (int64_t)e));

        top = fmaxf(top, fabsf(linear_phi(p, q)));
    }
    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
    clear_row(p, OUTPUT, row);
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        sums_of(p, OUTPUT, row.b, row.head, row.l)[place_of_up(p)] = power_for(top);
}

DEVICE void finish(const attn_linear_kparams &p)
{
    const bool normalize = linear_has(p, LINEAR_NORMALIZE);
    tensor_row row;

    if (!find_row(p, OUTPUT, row))
        return;

    const float *const sums = sums_of(p, OUTPUT, row.b, row.head, row.l);
    const float up = sums[place_of_up(p)];
    const float den = normalize ? p.sum_scale * sums[p.dv] + p.sum_eps / up : 1.0f;

    if (normalize && p.want_den && threadIdx.x % 32 == 0)
        p.den[LINEAR_AT(p, den, row.b, row.head, row.l, 0)] =
            in_units(p.sum_unit, den, up);
    for (int m = threadIdx.x % 32; m < p.dv && p.want_o; m += 32) {
        const float o = !normalize ? in_units(p.sum_unit, sums[m], up)
                        : den == 0.0f ? 0.0f : p.sum_scale * sums[m] / den;

        elem_store<TYPE>(p.o, LINEAR_AT(p, o, row.b, row.head, row.l, (int64_t)m), o);
    }
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, BODY)                                               \
    extern "C" __global__ __launch_bounds__(THREADS, 2) void JOIN(name, part)( \
        const __grid_constant__ attn_linear_kparams p)                         \
    {                                                                          \
        BODY(p);                                                               \
    }

KERNEL(NAME, _begin, begin)
KERNEL(NAME, _walk, atomic_walk<OUTPUT>)
KERNEL(NAME, _finish, finish)
