// SPDX-License-Identifier: MIT
// softmax/mma.cuh: the tile of fwd_mma.cu: its numbers, what lies in shared memory, and how
// rows come into it and from there to the tensor cores. TYPE, DIM and DIMV are the image's.
//
// Rows of 16-bit elements lie in chunks of 16 bytes. Eight rows at one chunk, which is what
// ldmatrix reads at once, are spread over all banks by exchanging chunks (xor) by the row's
// number.
#pragma once
#include "common/device.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/score.cuh"
#include "common/state.cuh"
#include "softmax/sums.cuh"

template <int WARPS_, int MT_, int BN_, int SLOTS_, int BLOCKS_, bool Q_STAYS_> struct mma {
    static constexpr int WARPS = WARPS_;
    static constexpr int MT = MT_;            // operands of 16 rows that a warp has
    static constexpr int BN = BN_;            // keys of a step
    static constexpr int SLOTS = SLOTS_;      // of the ring, each for a step's K or V
    static constexpr int BLOCKS = BLOCKS_;    // groups on a multiprocessor
    static constexpr bool Q_STAYS = Q_STAYS_; // Q in registers, not loaded anew each step
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int ROWS = 16 * MT, BM = WARPS * ROWS;    // of a warp, of the group

    // as the planner counts them; 512 for the group's work
    static constexpr int BYTES = 2 * (BM * DIM + SLOTS * BN * larger(DIM, DIMV)) + 512;
    static constexpr int TERMS = 4 * (BM + 2) * BN;
    static constexpr int NT = BN / 8, KT = DIM / 16, VT = DIMV / 8;
};

enum { CHUNKS_K = DIM / 8, CHUNKS_V = DIMV / 8 };

// What single scores need, in the instances that look at them.
template <typename T, bool TERMS> struct mma_terms {
    float term[T::BM * T::BN];    // of the step: bias, ALiBi, -inf where masked
    int seen[2][T::BN];           // keys of this step, and of the next, that a query sees
};
template <typename T> struct mma_terms<T, false> {};

template <typename T, int CAN> struct shared {
    float4 q[T::BM * CHUNKS_K];
    float4 ring[T::SLOTS][T::BN * larger(CHUNKS_K, CHUNKS_V)];
    mma_terms<T, (CAN & FEAT_TERMS) != 0> terms;

    // the group's work
    attn_sequence seq;
    attn_range any, warp_any[T::WARPS], warp_all[T::WARPS];
    attn_rows k_rows, v_rows;
    attn_score score;
    int64_t b;
    int h, i0, queries;
};

// Where chunk c of row r lies.
template <int CHUNKS> DEVICE int place_of(int r, int c)
{
    static_assert(CHUNKS % 4 == 0, "no row ends in the middle of an exchange");
    return r * CHUNKS + (CHUNKS % 8 == 0 ? c ^ (r & 7) : c ^ (r >> 1 & 3));
}

// Where the term of row x and column c lies: columns in eights, exchanged likewise.
template <typename T> DEVICE int place_of_term(int x, int c)
{
    return x * T::BN + (c ^ (x & 3) * 8);
}

// 16 bytes of a row, element by element; what is past its depth is 0 and not read.
DEVICE float4 gather(const uint16_t *x, int64_t row, int64_t stride, int c, int depth)
{
    uint32_t u[8];

    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t e = x[row + min(c + i, max(depth, 1) - 1) * stride];

        u[i] = c + i < depth ? e : 0;
    }
    return make_float4(__uint_as_float(u[0] | u[1] << 16), __uint_as_float(u[2] | u[3] << 16),
                       __uint_as_float(u[4] | u[5] << 16), __uint_as_float(u[6] | u[7] << 16));
}

// Brings rows j .. j + HEIGHT - 1 of a view into shared memory, by all threads. Rows outside
// [first, end) and columns from `depth` on become 0 and are not read.
template <int HEIGHT, int CHUNKS, int THREADS, int CAN>
DEVICE void fetch(const attn_kparams &p, float4 *to, const void *x, const attn_rows &rows,
                  int j, attn_range range, int depth, bool whole)
{
    constexpr int PASS = THREADS / CHUNKS;    // rows at once
    [[maybe_unused]] constexpr int TOGETHER = (CAN & FEAT_PAGES) != 0 ? 2 : 1;
    const uint16_t *const u = (const uint16_t *)x;
    const int me = threadIdx.x;

    if (THREADS % CHUNKS == 0 && PASS % 8 == 0 && HEIGHT % larger(PASS, 1) == 0 && whole &&
        j >= range.first && range.end - j >= HEIGHT && !has<CAN>(p, FEAT_PAGES)) {
        const int r = me / CHUNKS, c = me % CHUNKS;
        const uint16_t *from = u + rows.base + (j + r) * rows.stride_l + c * 8;
        const int64_t pass = PASS * rows.stride_l;
        float4 *const at = to + place_of<CHUNKS>(r, c);

        #pragma unroll
        for (int i = 0; i < HEIGHT / larger(PASS, 1); i++, from += pass)
            device_copy<16>((float *)(at + i * PASS * CHUNKS), from, c * 8 < depth);
        return;
    }
    #pragma unroll TOGETHER
    for (int e = me; e < HEIGHT * CHUNKS; e += THREADS) {
        const int r = e / CHUNKS, c = e % CHUNKS;
        const bool inside = j + r >= range.first && j + r < range.end;
        const int64_t row =
            address_row<CAN>(p, rows, clamp(j + r, range.first, range.end - 1));
        float4 *const at = to + place_of<CHUNKS>(r, c);

        if (whole)
            device_copy<16>((float *)at, u + row + c * 8, inside && c * 8 < depth);
        else
            *at = gather(u, row, rows.stride_d, c * 8, inside ? depth : 0);
    }
}

// The first operand from 16 rows of Q, at 16 columns.
DEVICE void load_queries(uint32_t (&a)[4], const float4 *rows, int k)
{
    const int lane = threadIdx.x % 32;

    device_matrices(a, rows + place_of<CHUNKS_K>(lane % 16, 2 * k + lane / 16));
}

// Exchanges w[n] of lane % 4 = k with w[k] of lane % 4 = n.
DEVICE void turn_quad(uint32_t (&w)[4])
{
    const int lane = threadIdx.x % 4;

    #pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
        const bool odd = lane & bit;

        #pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n & bit)
                continue;

            const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[n] : w[n | bit], bit);

            w[n] = odd ? got : w[n];
            w[n | bit] = odd ? w[n | bit] : got;
        }
    }
}
