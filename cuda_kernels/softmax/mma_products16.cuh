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

// Dropout of a step that begins with key j, a multiple of 4, where there are registers for it:
// behind the packing. A register has two neighbours of four keys.
template <typename T>
DEVICE void drop_scores(const attn_kparams &, uint32_t, int, int, scores<T> &) {}

template <typename T>
DEVICE void drop_weights(const attn_kparams &p, uint32_t head, int query, int j, weights<T> &w)
{
    constexpr int N = T::NT * T::MT * 2;    // registers
    const int lane = threadIdx.x % 32;
    uint64_t kept = 0;                      // two bits of each

    static_assert(N <= 32, "a bit for each weight");
    #pragma unroll 1
    for (int i = 0; i < N; i++) {
        const int t = i / 4 / T::MT, mt = i / 4 % T::MT, column = i / 2 % 2, half = i % 2;
        uint32_t word[4];

        dropout_words(p, head, query + lane / 4 + mt * 16 + half * 8,
                      j / 4 + 4 * t + 2 * column + lane % 4 / 2, word);
        kept |= (uint64_t)(((lane & 1 ? word[2] : word[0]) >= p.drop_below ? 1 : 0) |
                           ((lane & 1 ? word[3] : word[1]) >= p.drop_below ? 2 : 0))
                << 2 * i;
    }
    #pragma unroll
    for (int i = 0; i < N; i++)
        w[i / 4 / T::MT][i / 4 % T::MT][i % 4] &= (kept >> 2 * i & 1 ? 0x0000ffffu : 0u) |
                                                  (kept >> 2 * i & 2 ? 0xffff0000u : 0u);
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

// Row `half` of the 16 rows mt of O, times a factor, as row r of a tile in shared memory that
// has one part of PARTS of the columns.
template <typename T, int PARTS>
DEVICE void put_row(const rows_state<T> &my, int mt, int half, float factor, float4 *tile,
                    int r, int part)
{
    constexpr int N = T::VT / PARTS;

    #pragma unroll
    for (int n = 0; n < N; n++) {
        const float *const o = &my.o[mt][part * N + n][half * 2];

        ((uint32_t *)(tile + place_of<CHUNKS_V / PARTS>(r, n)))[threadIdx.x % 4] =
            device_pair<TYPE>(o[0] * factor, o[1] * factor);
    }
}
