// SPDX-License-Identifier: MIT
// softmax/mma_products16.cuh: the products of fwd_mma.cu for 16-bit types, by mma.m16n8k16,
// and its rows of O.
#pragma once
#include "softmax/mma_fold.cuh"

// S = Q K^T. `stays`: Q as it was loaded before, if T::Q_STAYS.
template <typename T>
DEVICE void find_scores(const float4 *q, const uint32_t (&stays)[T::MT][T::KT][4],
                        const float4 *k, scores<T> &s)
{
    // of D 128 all at once are too many registers
    [[maybe_unused]] constexpr int TOGETHER = DIM == 128 ? 4 : T::KT;
    const int lane = threadIdx.x % 32;
    const device_shared q_at = address_of_queries(q);
    const device_shared k_at =
        address_of<CHUNKS_K>(k, lane % 8 + lane / 16 * 8, lane / 8 % 2);

    #pragma unroll
    for (int i = 0; i < T::MT * T::NT * 4; i++)
        s[i / 4 / T::NT][i / 4 % T::NT][i % 4] = 0.0f;
    #pragma unroll TOGETHER
    for (int x = 0; x < T::KT; x++) {
        uint32_t a[T::MT][4];

        #pragma unroll
        for (int mt = 0; mt < T::MT; mt++) {
            if (!T::Q_STAYS)
                load_queries(a[mt], q_at, mt * 16, x);
            #pragma unroll
            for (int i = 0; i < 4 && T::Q_STAYS; i++)
                a[mt][i] = stays[mt][x][i];
        }
        #pragma unroll
        for (int t = 0; t < T::NT; t += 2) {
            uint32_t b[4];

            device_matrices(b, moved<CHUNKS_K>(k_at, t * 8, 2 * x));
            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                device_multiply<TYPE>(s[mt][t], a[mt], b[0], b[1]);
                device_multiply<TYPE>(s[mt][t + 1], a[mt], b[2], b[3]);
            }
        }
    }
}

// Weights as the first operand of the product with V: the registers are where they are.
template <typename T> using weights = uint32_t[T::NT / 2][T::MT][4];

template <typename T>
DEVICE void pack_weights(const scores<T> &s, float4 *, weights<T> &w)
{
    #pragma unroll
    for (int i = 0; i < T::NT * T::MT * 2; i++) {
        const int t = i / 4 / T::MT, mt = i / 4 % T::MT, column = i / 2 % 2, half = i % 2;

        w[t][mt][i % 4] = device_pair<TYPE>(s[mt][2 * t + column][half * 2],
                                            s[mt][2 * t + column][half * 2 + 1]);
    }
}

// O += P V.
template <typename T>
DEVICE void add_values(const float4 *v, const weights<T> &w, rows_state<T> &my)
{
    const device_shared at =
        address_of<CHUNKS_V>(v, threadIdx.x % 16, threadIdx.x / 16 % 2);

    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++) {
        #pragma unroll
        for (int n = 0; n < T::VT; n += 2) {
            uint32_t b[4];

            device_matrices_turned(b, moved<CHUNKS_V>(at, t * 16, n));
            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                device_multiply<TYPE>(my.o[mt][n], w[t][mt], b[0], b[1]);
                device_multiply<TYPE>(my.o[mt][n + 1], w[t][mt], b[2], b[3]);
            }
        }
    }
}

// Row `half` of the 16 rows mt of O, times a factor, as row r of a tile in shared memory.
template <typename T>
DEVICE void put_row(const rows_state<T> &my, int mt, int half, float factor, float4 *tile,
                    int r)
{
    #pragma unroll
    for (int n = 0; n < T::VT; n++)
        ((uint32_t *)(tile + place_of<CHUNKS_V>(r, n)))[threadIdx.x % 4] =
            device_pair<TYPE>(my.o[mt][n][half * 2] * factor,
                              my.o[mt][n][half * 2 + 1] * factor);
}
