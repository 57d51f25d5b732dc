// SPDX-License-Identifier: MIT
// softmax/math.cuh: what the kernels of softmax_fwd_math share: the matrices of a round,
// and which head and queries a row of one belongs to.
#pragma once
#include "common/device.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/score.cuh"
#include "common/state.cuh"
#include "common/work.h"

constexpr int CAN = CAN_ALL;
constexpr int THREADS = 128, WARPS = THREADS / 32;
constexpr int CHUNK = 16;    // rows of a tensor that a group moves

// The matrices of a round (common/work.h).
struct attn_work {
    int group, keys;         // query heads of a pair; rows of its K and V
    int64_t k, v, s, o, f;   // where they begin
};

DEVICE attn_work work_of(const attn_kparams &p)
{
    const int64_t rows = (int64_t)p.round_heads * p.round_queries;
    attn_work w = {};

    w.group = p.group;
    w.keys = max(p.len_kv, 1);

    const int64_t keys = w.keys, all = p.round_heads / w.group * keys;
    const int64_t d = p.d, dv = p.dv;

    w.k = WORK_K(rows, all, keys, d, dv);
    w.v = WORK_V(rows, all, keys, d, dv);
    w.s = WORK_S(rows, all, keys, d, dv);
    w.o = WORK_O(rows, all, keys, d, dv);
    w.f = WORK_F(rows, all, keys, d, dv);
    return w;
}

// The row of Q, S, O and F of head n of the round and query i of it.
DEVICE int64_t work_row(const attn_kparams &p, int n, int i)
{
    return (int64_t)n * p.round_queries + i;
}

// The batch and the query head of head n of the round.
DEVICE int64_t work_batch(const attn_kparams &p, int n)
{
    return (p.round_head + n) / p.heads_q;
}

DEVICE int work_head(const attn_kparams &p, int n)
{
    return (p.round_head + n) % p.heads_q;
}

// How many of the round's queries this batch has.
DEVICE int work_queries(const attn_kparams &p, const attn_sequence &s)
{
    return clamp(s.queries - p.round_query, 0, p.round_queries);
}
