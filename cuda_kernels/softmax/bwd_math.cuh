// SPDX-License-Identifier: MIT
// softmax/bwd_math.cuh: what the kernels of softmax_bwd_math share: the matrices of a round
// (WORK_GRADIENTS in common/work.h), row after row. Rows, heads and queries as in math.cuh.
#pragma once
#include "softmax/math.cuh"
#include "softmax/bwd.cuh"

// Gradients that are made of those of scores.
constexpr int HAS_OF_SCORES = HAS_GRAD_Q | HAS_GRAD_K | HAS_GRAD_BIAS;

struct attn_matrices {
    int pairs, rows, keys, d, dv;    // rows of all heads of a pair
#define FIELD_OF(name, rows, columns) float *name;
    WORK_GRADIENTS(FIELD_OF)         // where they begin
#undef FIELD_OF
};

DEVICE attn_matrices matrices_of(const attn_kparams &p)
{
    float *at = p.work + WORK_DELTA((int64_t)p.batch * p.heads_q * p.len_q);
    attn_matrices m = {};

    m.pairs = p.round_heads / p.group;
    m.rows = p.group * p.round_queries;
    m.keys = max(p.len_kv, 1);
    m.d = p.d;
    m.dv = p.dv;
#define PLACE_OF(name, rows, columns) \
    m.name = at; \
    at += (int64_t)m.pairs * m.rows * m.columns;
    WORK_GRADIENTS(PLACE_OF)
#undef PLACE_OF
    return m;
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define KERNEL(part) \
    extern "C" __global__ __launch_bounds__(THREADS, 1) void JOIN(NAME, part)( \
        const __grid_constant__ attn_kparams p)
