// SPDX-License-Identifier: MIT
// softmax/tile.cuh: the tile of fwd_tile.cu: its numbers, and what lies in shared memory.
// TYPE and DIM are the image's.
#pragma once
#include "common/device.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/score.cuh"
#include "common/state.cuh"
#include "softmax/stage.cuh"

template <int BM_, int BN_, int TX_, int TY_, int DC_, int JC_, int BLOCKS_> struct tile {
    static constexpr int BM = BM_, BN = BN_;    // queries of a group, keys of a step
    static constexpr int TX = TX_, TY = TY_;    // threads along the keys, along the queries
    static constexpr int DC = DC_, JC = JC_;    // columns of a chunk of K, keys of one of V
    static constexpr int BLOCKS = BLOCKS_;      // groups on a multiprocessor
    static constexpr int THREADS = TX * TY;
    static constexpr int RM = BM / TY, RN = BN / TX, RV = DIM / (4 * TX);
    static constexpr int QP = DIM + 4, KP = DC + 4, VP = DIM, WP = BN + 8;
    static constexpr int SLOT = larger(BN * KP, JC * VP);

    // as the planner counts them; 512 for the group's work
    static constexpr int BYTES = 4 * (BM * QP + 2 * SLOT + BM * WP + 3 * BM + BN) + 512;
};

template <typename T> struct shared {
    float q[T::BM * T::QP];
    float slot[2][T::SLOT];
    float weight[T::BM * T::WP];
    float m[T::BM], l[T::BM], l_extra[T::BM];
    int seen[T::BN];

    // the group's work; the main loop has no registers to spare for it
    attn_sequence seq;
    attn_range any, all;
    attn_rows k_rows, v_rows;
    attn_score score;
    int64_t b;
    int h, i0, queries;
};

// The largest, and the sum, over the lanes that share a row.
template <typename T> DEVICE float row_max(float x)
{
    x = state_max(__shfl_xor_sync(0xffffffffu, x, 1), x);
    x = state_max(__shfl_xor_sync(0xffffffffu, x, 4), x);
    x = state_max(__shfl_xor_sync(0xffffffffu, x, 8), x);
    return T::TX == 8 ? x : state_max(__shfl_xor_sync(0xffffffffu, x, 16), x);
}

template <typename T> DEVICE float row_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return T::TX == 8 ? x : x + __shfl_xor_sync(0xffffffffu, x, 16);
}
