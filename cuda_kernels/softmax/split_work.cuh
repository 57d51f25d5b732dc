// SPDX-License-Identifier: MIT
// softmax/split_work.cuh: what fwd_split.cu leaves in the workspace for
// fwd_split_merge.cu: m and l of [row][piece][2], then o of [row][piece][pitch]. Rows of a
// round are [batch and key/value head][query][head of the group].
#pragma once
#include "common/types.cuh"

// Floats of a sum o: four can be moved at a time.
DEVICE int work_pitch(const attn_kparams &p)
{
    return ceil_div(p.dv, 4) * 4;
}

DEVICE float *work_state(const attn_kparams &p, int64_t row, int piece)
{
    return p.work + (row * p.pieces + piece) * 2;
}

DEVICE float *work_sum(const attn_kparams &p, int64_t row, int piece)
{
    const int64_t rows = (int64_t)p.round_heads * p.round_queries;
    const int64_t states = (rows * p.pieces * 2 + 3) / 4 * 4;

    return p.work + states + (row * p.pieces + piece) * work_pitch(p);
}
