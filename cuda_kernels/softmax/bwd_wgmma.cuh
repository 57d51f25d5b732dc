// SPDX-License-Identifier: MIT
// softmax/bwd_wgmma.cuh: the tile of bwd_wgmma.cu: its numbers, what lies in shared memory,
// and the products on it. TYPE and DIM are the image's; D and Dv are padded up to DIM.
#pragma once
#define SUMS_BY_COPY
#include "softmax/bring.cuh"
#include "softmax/bwd_scores.cuh"

// Q: whether this instance has sums of dQ.
template <int STAGES_, bool Q_> struct back_wgmma {
    static constexpr int WGS = 2;                // warpgroups with 64 keys each
    static constexpr int STAGES = STAGES_;       // steps of Q and dO on their way or in use
    static constexpr bool Q = Q_, K = Q_;
    static constexpr int THREADS = 128 * (1 + WGS), BLOCKS = 1;
    static constexpr int BM = 64 * WGS, BN = 64;    // keys of a group, queries of a step
    static constexpr bool LIFTS = TYPE == TYPE_F16; // as bwd_mma.cuh
    static constexpr int WARPS = 4 * WGS;
    static constexpr int NT = BN / 8, DT = DIM / 8, PANELS = DIM / 64;
    static constexpr int DQ = DIM / WGS;         // columns of dQ of a warpgroup
    static constexpr int SUMS = Q_ ? (DIM == 64 ? 2 : 1) : 0;    // slots of dQ of a step
    // warpgroups may be up to a step apart, so that one's products run beside the other's
    // softmax: the scores of the next step, and dQ of the one before, have registers of their own
    static constexpr bool APART = DIM == 64;
    static constexpr int MATH_REGISTERS = 240, LOAD_REGISTERS = 24;

    // as the planner counts them; 4096 for barriers and the group's work
    static constexpr int BYTES = 2 * (2 * BM * DIM + STAGES * 2 * BN * DIM + 2 * BM * BN) +
                                 SUMS * 4 * BN * DIM + STAGES * 3 * 4 * BN + 4096;
};

// Slots of steps; numbers of barriers; threads of the loading warpgroup that load.
enum { STEPS = 16, LOADERS = 1, PAIRS = 2, LOADING = 96 };

// A tensor, and its columns that are there.
struct view {
    const void *x;
    int depth;
};

// Tiles as products read them: panels of 64 columns.
template <typename T> struct back_shared {
    float4 k[T::BM * 8 * T::PANELS], v[T::BM * 8 * T::PANELS];
    float4 q[T::STAGES][T::BN * 8 * T::PANELS], o[T::STAGES][T::BN * 8 * T::PANELS];
    float4 ds[2][T::BM * T::BN / 8];    // of two steps: [key][query]
    float dq[T::SUMS ? T::SUMS : 1][T::SUMS ? T::BN * DIM : 4];
    float lse[T::STAGES][T::BN], delta[T::STAGES][T::BN], size[T::STAGES][T::BN];
    device_barrier full_own, full_q[T::STAGES], full_o[T::STAGES], empty[T::STAGES];
    device_barrier full_ds[2], empty_ds[2], full_dq[2], empty_dq[2];
    float largest[T::WARPS];            // length of a row of V, of each warp's keys
    mma_step step[STEPS];               // in turn
    view from[2];                       // Q, dO: here, since the loading warps lack registers
    back_group group;
};

// Where chunk c of row r of a tile of keys lies.
template <typename T> DEVICE int place_of_own(int r, int c)
{
    return c / 8 * T::BM * 8 + r * 8 + ((c ^ r) & 7);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// s = <own rows, rows> begins; own: the warpgroup's tile.
template <typename T>
DEVICE void begin_pairs(back_pairs<T> &s, uint64_t own, const float4 *rows)
{
    const uint64_t b = device_tile(device_address(rows), T::BN * 128);

    device_products_hold(s);
    device_products_begin();
    #pragma unroll
    for (int x = 0; x < DIM / 16; x++)
        device_products_in<TYPE>(s, own + (x / 4 * T::BM * 128 + x % 4 * 32) / 16,
                                 b + (x / 4 * T::BN * 128 + x % 4 * 32) / 16, x > 0);
    device_products_commit();
}

// sums += pairs times the rows of a step begins.
template <typename T>
DEVICE void begin_sums(back_sums<T> &sums, const back_operand<T> &w, const float4 *rows)
{
    const uint64_t b = device_tile(device_address(rows), T::BN * 128);

    device_products_hold(sums);
    device_products_begin();
    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++)
        device_products_of<TYPE>(sums, w[t], b + t * 16 * 128 / 16);
    device_products_commit();
}

template <typename T> using back_queries = float[T::DQ / 8][4];

// The warpgroup's columns of this step's part of dQ begin: from all keys of the group.
template <typename T>
DEVICE void begin_queries(back_queries<T> &dq, const float4 *ds, const float4 *k, int wg)
{
    const int column = wg * T::DQ;
    const uint64_t a = device_tile(device_address(ds), T::BM * 128);
    const uint64_t b = device_tile(device_address(k), T::BM * 128) +
                       (column / 64 * T::BM * 128 + column % 64 * 2) / 16;

    device_products_hold(dq);
    device_products_begin();
    #pragma unroll
    for (int j = 0; j < T::BM; j += 16)
        device_products_turned<TYPE>(dq, a + j * 128 / 16, b + j * 128 / 16, j > 0);
    device_products_commit();
}

// It goes to shared memory, times a factor. warp: in the warpgroup.
template <typename T>
DEVICE void put_queries(const back_queries<T> &dq, int wg, int warp, float factor, float *to)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int x = warp * 16 + half * 8 + lane / 4;

        #pragma unroll
        for (int n = 0; n < T::DQ / 8; n++) {
            const int c = wg * T::DQ + n * 8 + lane % 4 * 2;

            *(float2 *)(to + x * DIM + back_sum_at(x, c)) =
                make_float2(dq[n][half * 2] * factor, dq[n][half * 2 + 1] * factor);
        }
    }
}

#endif
