// SPDX-License-Identifier: MIT
// softmax/bwd_mma.cuh: the tile of bwd_mma.cu: its numbers, what lies in shared memory, and
// the products on it. TYPE and DIM are the image's; D and Dv are padded up to DIM.
#pragma once
#include "softmax/mma_products16.cuh"
#include "softmax/bwd_scores.cuh"

// K, V: whether this instance has sums of dK (and dQ), of dV.
template <int WARPS_, int BN_, int BLOCKS_, bool K_, bool V_> struct back {
    static constexpr int WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int BLOCKS = BLOCKS_;             // groups on a multiprocessor
    static constexpr int BM = 16 * WARPS, BN = BN_;    // keys of a group, queries of a step
    static constexpr bool K = K_, V = V_;
    // gradients of scores are lifted to where f16 has most bits
    static constexpr bool LIFTS = K && TYPE == TYPE_F16;
    static constexpr bool STAYS = DIM == 64;           // the warp's K and V in registers
    static constexpr int NT = BN / 8, DT = DIM / 8, KT = DIM / 16;

    // dQ of a step: warps along the queries, 32 of them for each, columns of a warp, and
    // eights of them at a time
    static constexpr int QW = BN / 32, DQ = DIM / (WARPS / QW), QT = DQ < 32 ? DQ / 8 : 4;

    // as the planner counts them; 1024 for the group's work
    static constexpr int BYTES =
        2 * (2 * BM * DIM + 4 * BN * DIM + BM * BN) + 24 * BN + 1024;
};

template <typename T> struct back_shared {
    float4 k[T::BM * CHUNKS_K], v[T::BM * CHUNKS_K];
    float4 q[2][T::BN * CHUNKS_K], o[2][T::BN * CHUNKS_K];    // of two steps: Q and dO
    float4 ds[T::BM * T::BN / 8];                             // [key][query]
    float lse[2][T::BN], delta[2][T::BN], size[2][T::BN];

    float largest[T::WARPS];    // length of a row of V, of each warp's keys
    mma_step step[4];           // in turn
    attn_score score[4];        // where single scores are looked at
    int odd_keys, odd[2];       // there: something in K, in Q or dO of a step is not finite
    uint8_t seen[T::BM];        // there: a query of the step has a weight for the key
    back_group group;
};

// Whether one of 16 keys sees one of the step's queries.
DEVICE bool sees(const mma_step &at, int key, int keys)
{
    return key < keys && key + 15 - at.lo >= at.first && key - at.n + 1 < at.end;
}

// s = <own rows, rows>, both of shared memory; `stays`: the own ones as they were loaded
// before, if T::STAYS.
template <typename T>
DEVICE void find_pairs(back_pairs<T> &s, const float4 *own,
                       const uint32_t (&stays)[T::STAYS ? T::KT : 1][4], const float4 *rows)
{
    const int lane = threadIdx.x % 32;
    const device_shared own_at = address_of_queries(own);
    const device_shared rows_at =
        address_of<CHUNKS_K>(rows, lane % 8 + lane / 16 * 8, lane / 8 % 2);

    #pragma unroll
    for (int i = 0; i < T::NT * 4; i++)
        s[i / 4][i % 4] = 0.0f;
    #pragma unroll
    for (int x = 0; x < T::KT; x++) {
        uint32_t a[4];

        if (!T::STAYS)
            load_queries(a, own_at, 0, x);
        #pragma unroll
        for (int i = 0; i < 4 && T::STAYS; i++)
            a[i] = stays[T::STAYS ? x : 0][i];
        #pragma unroll
        for (int t = 0; t < T::NT; t += 2) {
            uint32_t b[4];

            device_matrices(b, moved<CHUNKS_K>(rows_at, t * 8, 2 * x));
            device_multiply<TYPE>(s[t], a, b[0], b[1]);
            device_multiply<TYPE>(s[t + 1], a, b[2], b[3]);
        }
    }
}

// Two elements of rows of which the first, or the second, is to count.
DEVICE uint32_t choose_pair(uint32_t two, uint32_t first, uint32_t second)
{
    return two & ((first ? 0x0000ffffu : 0u) | (second ? 0xffff0000u : 0u));
}

// sums += pairs times the rows of a step. odd: not all of those are finite, and those that have
// no weight here do not count; `seen` tells which have, two bits for each eight of them.
template <typename T>
DEVICE void add_products(back_sums<T> &sums, const back_operand<T> &w, const float4 *rows,
                         bool odd, uint32_t seen)
{
    const int lane = threadIdx.x % 32;
    const device_shared rows_at = address_of<CHUNKS_K>(rows, lane % 16, lane / 16);

    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++) {
        #pragma unroll
        for (int n = 0; n < T::DT; n += 2) {
            uint32_t b[4];

            device_matrices_turned(b, moved<CHUNKS_K>(rows_at, t * 16, n));
            #pragma unroll
            for (int i = 0; i < 4 && odd; i++) {
                const uint32_t two = seen >> (4 * t + i % 2 * 2);

                b[i] = choose_pair(b[i], two & 1, two & 2);
            }
            device_multiply<TYPE>(sums[n], w[t], b[0], b[1]);
            device_multiply<TYPE>(sums[n + 1], w[t], b[2], b[3]);
        }
    }
}

// Adds this step's part of dQ to the sums of its queries, times a factor: 32 queries and
// T::DQ columns by each warp, 8 T::QT of them at a time. ds is there for all; `key` is its
// first, of `keys`. seen: NULL, or which keys count, since not all of K is finite.
template <typename T>
DEVICE void add_queries(const mma_step &at, const back_work &work, const float4 *ds,
                        const float4 *k, int key, int keys, float factor, const uint8_t *seen)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int x0 = warp % T::QW * 32;
    const device_shared ds_at =
        address_of<T::BN / 8>(ds, lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const device_shared k_at = address_of<CHUNKS_K>(k, lane % 16, lane / 16);

    #pragma unroll 1
    for (int pass = 0; pass < T::DQ; pass += 8 * T::QT) {
        const int c0 = warp / T::QW * T::DQ + pass;
        float sum[2][T::QT][4];

        const auto add = [&](int j) {
            uint32_t a[2][4];

            #pragma unroll
            for (int mt = 0; mt < 2; mt++)
                device_matrices_turned(a[mt], moved<T::BN / 8>(ds_at, j, x0 / 8 + 2 * mt));
            #pragma unroll
            for (int n = 0; n < T::QT; n += 2) {
                uint32_t b[4];

                device_matrices_turned(b, moved<CHUNKS_K>(k_at, j, c0 / 8 + n));
                #pragma unroll
                for (int i = 0; i < 4 && seen; i++) {
                    const uint8_t *const two = seen + j + i % 2 * 8 + lane % 4 * 2;

                    b[i] = choose_pair(b[i], two[0], two[1]);
                }
                #pragma unroll
                for (int mt = 0; mt < 2; mt++) {
                    device_multiply<TYPE>(sum[mt][n], a[mt], b[0], b[1]);
                    device_multiply<TYPE>(sum[mt][n + 1], a[mt], b[2], b[3]);
                }
            }
        };

        #pragma unroll
        for (int i = 0; i < 2 * T::QT * 4; i++)
            sum[i / 4 / T::QT][i / 4 % T::QT][i % 4] = 0.0f;
        if (at.masked) {
            #pragma unroll 1
            for (int j = 0; j < T::BM; j += 16)
                if (sees(at, key + j, keys))
                    add(j);
        } else {
            #pragma unroll
            for (int j = 0; j < T::BM; j += 16)
                add(j);
        }
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const int mt = i / 2, half = i % 2, x = x0 + mt * 16 + half * 8 + lane / 4;
            float *const to = work.sums + (at.row + x) * work.pitch;

            #pragma unroll
            for (int n = 0; n < T::QT; n++) {
                const int c = c0 + n * 8 + lane % 4 * 2;

                if (x >= at.lo && x < at.n && c < work.pitch)
                    device_add_pair(to + c, sum[mt][n][half * 2] * factor,
                                    sum[mt][n][half * 2 + 1] * factor);
            }
        }
    }
}
