// SPDX-License-Identifier: MIT
// softmax/tile.cuh: the tile of fwd_tile.cu: its numbers, what lies in shared memory,
// where a thread stands in it, and how rows come into it. TYPE and DIM are the image's.
#pragma once
#include "common/device.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/score.cuh"
#include "common/state.cuh"

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

// Where a thread stands. Lane bit 0 is of tx and bit 1 of ty, so that lanes i and i ^ 2,
// or i and i ^ 1, load the same 16 bytes: then a half-warp needs one access for them.
template <typename T> struct place {
    int tx, ty;
};

template <typename T> DEVICE place<T> find_place()
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    place<T> at;

    if (T::TX == 8) {
        at.tx = (lane & 1) | (lane >> 1 & 6);
        at.ty = warp * 4 + ((lane >> 1 & 1) | (lane >> 3 & 2));
    } else {
        at.tx = (lane & 1) | (lane >> 1 & 14);
        at.ty = warp * 2 + (lane >> 1 & 1);
    }
    return at;
}

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

// Brings rows j .. j + HEIGHT - 1, columns d .. d + WIDTH - 1 of a view into shared memory,
// by all threads. Rows below lo and from n > lo on, and columns from `depth` on, become 0
// without being read: the address of the nearest row that is read spares a branch.
template <int HEIGHT, int WIDTH, int PITCH, int THREADS, int CAN>
DEVICE void stage(const attn_kparams &p, float *to, const void *x, attn_rows rows, int j,
                  int lo, int n, int d, int depth, bool wide, bool contig)
{
    [[maybe_unused]] constexpr int TOGETHER = (CAN & FEAT_PAGES) != 0 ? 2 : 4;
    const int me = device_thread();

    if (wide) {
        #pragma unroll TOGETHER
        for (int e = me; e < HEIGHT * (WIDTH / 4); e += THREADS) {
            const int r = e / (WIDTH / 4), c = e % (WIDTH / 4) * 4;
            const bool inside = r >= lo && r < n && d + c < depth;
            const int64_t i = address_row<CAN>(p, rows, j + clamp(r, lo, n - 1)) + d + c;

            if (TYPE == TYPE_F32)
                device_copy<16>(to + r * PITCH + c, (const float *)x + i, inside);
            else
                *(float4 *)(to + r * PITCH + c) =
                    inside ? elem_load4<TYPE>(x, i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        return;
    }
    #pragma unroll 1
    for (int e = me; e < HEIGHT * WIDTH; e += THREADS) {
        const int r = e / WIDTH, c = e % WIDTH;
        const bool inside = r >= lo && r < n && d + c < depth;
        const int64_t row = address_row<CAN>(p, rows, j + clamp(r, lo, n - 1));
        const int64_t i = row + (contig ? d + c : (d + c) * rows.stride_d);

        if (TYPE == TYPE_F32)
            device_copy<4>(to + r * PITCH + c, (const float *)x + i, inside);
        else
            to[r * PITCH + c] = inside ? elem_load<TYPE>(x, i) : 0.0f;
    }
}
