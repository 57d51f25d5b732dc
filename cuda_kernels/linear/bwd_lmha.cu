// SPDX-License-Identifier: MIT
// linear/bwd_lmha.cu: gradients of linear attention token by token, a group for a head.
//
// Computes  dQ; dK, dV, dS_in and dz_in, as written in include/attn/linear.h
// Method    scans (scan.cuh, lmha.cuh): one forwards in time for dQ, one backwards for dK and
//           dV, which read the same state in registers along both of its sides; a scan for
//           each where D or Dv is over 128. The normaliser is a column of ones beside V, its
//           gradient c beside G. linear_bwd_lmha_split cuts the sequence into segments, as
//           the forward; _sums finds what the queries of each add to R
// Grid      1-D, ceil(columns / 64) * segments * Hkv * B groups, columns fastest; _kv one
//           for all columns
// Block     256 threads, 1-D
// Shared    dynamic: rows of four tokens and what they summed, twice
// Barriers  one for four tokens and query heads
// Layout    any strides, in elements. work: c (bwd_begin.cu), if normalised; of _split then
//           the slots (chunk.cuh)
// Numerics  f32
// Instances _q_d64, _d128, _d256: Dv is padded up to it; _kv_d64, _d128: D and Dv;
//           _k_d256: Dv; _v_d256: D; _sums_d64, _d128, _d256: D
// Tunables  src/plan/cuda/linear_lmha.c has the same numbers
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_bwd_lmha_f32
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

KERNEL(NAME, _q_d64, lmha_walk, GRAD_Q, 64, COLUMNS)
KERNEL(NAME, _q_d128, lmha_walk, GRAD_Q, 128, COLUMNS)
KERNEL(NAME, _q_d256, lmha_walk, GRAD_Q, 256, COLUMNS)
KERNEL(NAME, _kv_d64, lmha_walk, GRAD_KV, 64, COLUMNS)
KERNEL(NAME, _kv_d128, lmha_walk, GRAD_KV, 128, 128)
KERNEL(NAME, _k_d256, lmha_walk, GRAD_K, 256, COLUMNS)
KERNEL(NAME, _v_d256, lmha_walk, GRAD_V, 256, COLUMNS)
KERNEL(NAME, _sums_d64, lmha_sums, GRAD_KV, 64, COLUMNS, true)
KERNEL(NAME, _sums_d128, lmha_sums, GRAD_KV, 128, COLUMNS, true)
KERNEL(NAME, _sums_d256, lmha_sums, GRAD_KV, 256, COLUMNS, true)
