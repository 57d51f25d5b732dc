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
    const int lane = threadIdx.x % 32, r = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;

    #pragma unroll
    for (int i = 0; i < T::MT * T::NT * 4; i++)
        s[i / 4 / T::NT][i / 4 % T::NT][i % 4] = 0.0f;
    #pragma unroll
    for (int x = 0; x < T::KT; x++) {
        uint32_t a[T::MT][4];

        #pragma unroll
        for (int mt = 0; mt < T::MT; mt++) {
            if (!T::Q_STAYS)
                load_queries(a[mt], q + mt * 16 * CHUNKS_K, x);
            #pragma unroll
            for (int i = 0; i < 4 && T::Q_STAYS; i++)
                a[mt][i] = stays[mt][x][i];
        }
        #pragma unroll
        for (int t = 0; t < T::NT; t += 2) {
            uint32_t b[4];

            device_matrices(b, k + t * 8 * CHUNKS_K + place_of<CHUNKS_K>(r, 2 * x + odd));
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
    const int lane = threadIdx.x % 32, r = lane % 16, odd = lane / 16;

    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++) {
        #pragma unroll
        for (int n = 0; n < T::VT; n += 2) {
            uint32_t b[4];

            device_matrices_turned(b, v + t * 16 * CHUNKS_V + place_of<CHUNKS_V>(r, n + odd));
            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                device_multiply<TYPE>(my.o[mt][n], w[t][mt], b[0], b[1]);
                device_multiply<TYPE>(my.o[mt][n + 1], w[t][mt], b[2], b[3]);
            }
        }
    }
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

// Row `half` of the 16 rows mt of O, times a factor: to memory, or where it does not go there
// 16 bytes at a time, to the row of its own in shared memory.
template <typename T>
DEVICE void store_row(const attn_kparams &p, const rows_state<T> &my, int mt, int half,
                      float factor, int64_t to, bool whole, float4 *room)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int n = 0; n < T::VT; n += 4) {
        const int c = (n + lane % 4) * 8;
        uint32_t w[4];

        #pragma unroll
        for (int k = 0; k < 4; k++)
            w[k] = device_pair<TYPE>(my.o[mt][n + k][half * 2] * factor,
                                     my.o[mt][n + k][half * 2 + 1] * factor);
        turn_quad(w);

        const float4 eight = make_float4(__uint_as_float(w[0]), __uint_as_float(w[1]),
                                         __uint_as_float(w[2]), __uint_as_float(w[3]));

        if (!whole)
            room[c / PER] = eight;
        else if (c < p.dv)
            *(float4 *)((uint16_t *)p.o + to + c) = eight;
    }
}
