// SPDX-License-Identifier: MIT
// linear/fwd_begin.cu: a copy of z as it came in, which z_out may be.
//
// Computes  work[b, kvh, e] = z_in[b, kvh, e]
// Grid      1-D, B * Hkv groups
// Block     64 threads; each takes every 64th number
#include "common/params.h"

#ifndef NAME
#define NAME attn_linear_fwd_begin
#endif

#include "linear/linear.cuh"

constexpr int THREADS = 64;    // src/plan/cuda/linear_fwd_recurrent.c

extern "C" __global__ __launch_bounds__(THREADS) void NAME(
    const __grid_constant__ attn_linear_kparams p)
{
    const int unit = blockIdx.x;
    const int64_t b = unit / p.heads_kv, h = unit % p.heads_kv;

    for (int e = threadIdx.x; e < p.d; e += THREADS)
        p.work[(int64_t)unit * p.d + e] = p.z_in[LINEAR_AT(p, z_in, b, h, (int64_t)e, 0)];
}
