// SPDX-License-Identifier: MIT
// linear/fwd_lmha.cu: linear attention token by token, a group for a head.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    the recurrence (lmha.cuh): a group owns 64 columns of the state of one batch and
//           key/value head, in registers, and walks all tokens with them, four from barrier
//           to barrier. The method is that of the kernels of A. Katharopoulos et al.,
//           "Transformers are RNNs" (2020). linear_fwd_lmha_split cuts the sequence into
//           segments: _sums finds what the keys of each add to the state, fwd_scan.cu brings
//           them together if they are many, and each segment is a walk of its own
// Grid      1-D, ceil(Dv / 64) * segments * Hkv * B groups, columns fastest
// Block     256 threads, 1-D
// Shared    dynamic: rows of four tokens and what they summed, twice
// Barriers  one for four tokens and query heads
// Layout    any strides, in elements. work: z as it came in (fwd_begin.cu), if there is one
//           and several groups of a head read it; of _split the slots (chunk.cuh)
// Numerics  f32; huge rows of q are scaled by a power of 2 until they are divided
// Instances _d64, _d128, _d256: D is padded up to it; and _sums of each
// Tunables  src/plan/cuda/linear_lmha.c has the same numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_fwd_lmha_f32
#endif

#include "linear/lmha_walk.cuh"

#define JOIN(a, b) a##b
#define KERNEL(name, part, WALK, ...)                                                   \
    extern "C" __global__                                                               \
    __launch_bounds__(THREADS, blocks_of<shape<__VA_ARGS__>>()) void JOIN(name, part)(  \
        const __grid_constant__ attn_linear_kparams p)                                  \
    {                                                                                   \
        WALK<shape<__VA_ARGS__>>(p);                                                    \
    }

KERNEL(NAME, _d64, lmha_walk, OUTPUT, 64, COLUMNS)
KERNEL(NAME, _d128, lmha_walk, OUTPUT, 128, COLUMNS)
KERNEL(NAME, _d256, lmha_walk, OUTPUT, 256, COLUMNS)
KERNEL(NAME, _sums_d64, lmha_sums, OUTPUT, 64, COLUMNS, true)
KERNEL(NAME, _sums_d128, lmha_sums, OUTPUT, 128, COLUMNS, true)
KERNEL(NAME, _sums_d256, lmha_sums, OUTPUT, 256, COLUMNS, true)
