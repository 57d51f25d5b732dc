// SPDX-License-Identifier: MIT
// softmax/tile.cuh: the tile of fwd_tile.cu: its numbers, and what lies in shared memory.
// TYPE and DIM are the image's.
#pragma once
#include "common/hopper.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/score.cuh"
#include "common/state.cuh"
#include "softmax/stage.cuh"

// Weights of rows i and i ^ SWAP lie in each other's places. Compilers keep a weight where its
// score was, four that are stored together in four registers in turn; a score must lie in
// the other bank than its row's element of Q, of which four are loaded likewise (outer.cuh).
enum { SWAP = 1 };

// Chunks that are there or on their way, and how far ahead they are brought.
enum { SLOTS = 4, AHEAD = 2 };

template <int BM_, int BN_, int TX_, int TY_, int DC_, int JC_, int BLOCKS_> struct tile {
    static constexpr int BM = BM_, BN = BN_;    // queries of a group, keys of a step
    static constexpr int TX = TX_, TY = TY_;    // threads along the keys, along the queries
    static constexpr int DC = DC_, JC = JC_;    // columns of a chunk of K, keys of one of V
    static constexpr int BLOCKS = BLOCKS_;      // groups on a multiprocessor
    static constexpr int THREADS = TX * TY;
    static constexpr int RM = BM / TY, RN = BN / TX, RV = DIM / TX;
    static constexpr int ALONG = 32 / TX;    // threads of a warp along the queries
    static constexpr int APART = 4 * ALONG, ROWS = RM * ALONG;    // a warp's rows, row_of()
    static constexpr int QP = BM, KP = BN + 4, VP = DIM, WP = BM + 8;
    static constexpr int SLOT = larger(DC * KP, JC * VP);

    // as the planner counts them; 512 for the group's work
    static constexpr int BYTES = 4 * (DIM * QP + SLOTS * SLOT + BN * WP + 4 * BM + BN) + 512;
};

// A tile, as find_work() counts them, or steps [first, end) of keys of one that is cut; `cut`
// is its number among those (common/cut.h), -1: it is not.
struct tile_part {
    int tile, first, end, cut;
};

template <typename T> struct shared {
    float q[DIM * T::QP];    // column after column
    float slot[SLOTS][T::SLOT];
    float weight[T::BN * T::WP];    // key after key
    float m[T::BM], factor[T::BM], l[T::BM], l_extra[T::BM];
    int seen[T::BN];

    // the group's work; the main loop has no registers to spare for it
    attn_sequence seq;
    attn_range any, all;
    attn_rows k_rows, v_rows;
    attn_score score;
    int64_t b;
    int h, i0, queries;
    tile_part part;
    device_barrier passed[AHEAD];
};

// What lies in slot c % SLOTS is chunk c, of K and V as they come; a warp brings its part of
// chunk c + AHEAD while it computes on chunk c. Behind pass() of chunk c it has read that, and
// its part of chunk c + AHEAD is there; behind meet() of chunk c all warps have passed chunk
// c - AHEAD. So warps may be a chunk apart, and one computes while another folds. Where there
// are no barriers that are passed, meet() waits for all.
template <typename T> DEVICE void init_passing(shared<T> &mem)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    for (int i = 0; i < AHEAD; i++)
        device_barrier_init(&mem.passed[i], T::THREADS);
#endif
}

DEVICE void begin_passing()
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    device_barriers_ready();
#else
    __syncthreads();
#endif
}

template <typename T> DEVICE void pass(shared<T> &mem, unsigned chunk)
{
    device_commit();
    device_copied<0>();
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    device_barrier_arrive(&mem.passed[chunk % AHEAD]);    // each lane for itself
#endif
}

template <typename T> DEVICE void meet(shared<T> &mem, unsigned chunk)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    device_barrier_wait(&mem.passed[chunk % AHEAD], chunk / AHEAD % 2);
#else
    __syncthreads();
#endif
}

// A number that stays in a register, rather than being found anew for every chunk.
DEVICE int held(int x)
{
    asm volatile("" : "+r"(x));
    return x;
}

DEVICE int round_up4(int x) { return (x + 3) & ~3; }

// Which of the tile's rows is a thread's row r: fours that lie side by side, APART from one to
// the next. A warp's rows lie side by side.
template <typename T> DEVICE int row_of(const place<T> &my, int r)
{
    return my.ty / T::ALONG * T::ROWS + my.ty % T::ALONG * 4 + r % 4 + r / 4 * T::APART;
}

// The keys that some query of this warp sees, of the batch's.
template <typename T> DEVICE attn_range seen_by_warp(const place<T> &my, const shared<T> &mem)
{
    const int first = my.ty / T::ALONG * T::ROWS, end = min(first + T::ROWS, mem.queries);

    if (end <= first)
        return { 0, 0 };
    return { score_span(mem.score, first).first, score_span(mem.score, end - 1).end };
}

// Sums, or the largest, over the lanes that share rows: each lane gets those of one of them, of
// this row, and so do others. A lane gives half of the rows that it has left away at a time.
template <typename T> DEVICE int row_to_share(const place<T> &my)
{
    const int r = T::RM == 8 ? (my.tx & 1) * 4 + (my.tx & 2) + (my.tx >> 2 & 1)
                             : (my.tx & 1) * 2 + (my.tx >> 1 & 1);

    static_assert(T::RM == 8 || T::RM == 4, "halves");
    return row_of(my, r);
}

template <typename T, bool MAX> DEVICE float row_shared(const place<T> &my, float (&x)[T::RM])
{
    #pragma unroll
    for (int bit = 1; bit < T::TX; bit *= 2) {
        const int left = T::RM / (2 * bit);    // 0: lanes have the same row by now
        const bool upper = my.tx & bit;

        #pragma unroll
        for (int r = 0; r < larger(left, 1); r++) {
            const float mine = left && upper ? x[r + left] : x[r];
            const float give = left && !upper ? x[r + left] : x[r];
            const float other = __shfl_xor_sync(0xffffffffu, give, bit == 1 ? 1 : 2 * bit);

            x[r] = MAX ? state_max(other, mine) : other + mine;
        }
    }
    return x[0];
}
