// SPDX-License-Identifier: MIT
// softmax/mma_products16.cuh: the products of fwd_mma.cu for 16-bit types, by mma.m16n8k16,
// and its rows of O.
#pragma once
#include "softmax/mma_fold.cuh"

// S = Q K^T. `stays`: Q as it was loaded before, if T::Q_STAYS; column: of the warp in its
// pair. `between` is done on the way.
template <typename T, typename BETWEEN>
DEVICE void find_scores(const float4 *q, const uint32_t (&stays)[T::MT][T::KT][4],
                        const float4 *k, int column, scores<T> &s, const BETWEEN &between)
{
    // beside 128 sums of O all at once are too many registers
    constexpr int FIRST = DIM == 128 || T::COLS > 1 ? 4 : T::KT;
    [[maybe_unused]] constexpr int NEXT = DIM == 128 ? 2 : FIRST;
    const int lane = threadIdx.x % 32;
    const device_shared q_at = address_of_queries(q);
    const device_shared k_at = address_of<CHUNKS_K>(
        k, lane % 8 + lane / 16 * 8 + column * 16, lane / 8 % 2);

    // 16 columns of D; the first write over what s was
    const auto add = [&](int x, auto begins) {
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

            device_matrices(b, moved<CHUNKS_K>(k_at, t * 8 * T::COLS, 2 * x));
            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                if constexpr (decltype(begins)::value) {
                    device_product_of<TYPE>(s[mt][t], a[mt], b[0], b[1]);
                    device_product_of<TYPE>(s[mt][t + 1], a[mt], b[2], b[3]);
                } else {
                    device_multiply<TYPE>(s[mt][t], a[mt], b[0], b[1]);
                    device_multiply<TYPE>(s[mt][t + 1], a[mt], b[2], b[3]);
                }
            }
        }
    };

    add(0, constant<true>());
    #pragma unroll
    for (int x = 1; x < FIRST; x++)
        add(x, constant<false>());
    between();
    #pragma unroll NEXT
    for (int x = FIRST; x < T::KT; x++)
        add(x, constant<false>());
}

// Weights as the first operand of the product with V: the registers are where they are. Those
// of a pair are for the other warp too.
template <typename T> using weights = uint32_t[T::NT / 2][T::MT][4];

// Of a warp that sees no key of a step: nobody reads them, and zeros would be instructions.
template <typename T> DEVICE void no_weights(weights<T> &) {}

template <typename T>
DEVICE void pack_weights(const scores<T> &s, float4 *, weights<T> &w,
                         [[maybe_unused]] const warp_pair<T> &pair = {})
{
    #pragma unroll
    for (int i = 0; i < T::NT * T::MT * 2; i++) {
        const int t = i / 4 / T::MT, mt = i / 4 % T::MT, column = i / 2 % 2, half = i % 2;

        w[t][mt][i % 4] = device_pair<TYPE>(s[mt][2 * t + column][half * 2],
                                            s[mt][2 * t + column][half * 2 + 1]);
        if constexpr (T::COLS > 1)
            device_put(moved<T::BN / 8>(pair.mine(), mt * 16 + half * 8, 4 * t + column),
                       w[t][mt][i % 4]);
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

// O += P V, of a pair for the warp's columns: first its own keys.
template <typename T>
DEVICE void add_values(const float4 *v, const weights<T> &w, rows_state<T> &my,
                       [[maybe_unused]] const warp_pair<T> &pair)
{
    const device_shared at =
        address_of<CHUNKS_V>(v, threadIdx.x % 16, threadIdx.x / 16 % 2) +
        (device_shared)(pair.column() * T::VT * 16);

    static_assert(T::COLS == 1 || T::VT % 8 == 0, "no exchange of chunks crosses columns");
    #pragma unroll
    for (int i = 0; i < T::NT / 2 * T::COLS; i++) {
        const int t = i % (T::NT / 2);
        const bool own = i < T::NT / 2;
        const int first = own ? pair.column() : 1 - pair.column();    // 16 keys, of 32
        const device_shared v_at = at + (device_shared)(first * 16 * CHUNKS_V * 16);
        uint32_t a[T::MT][4];

        if constexpr (T::COLS > 1)
            if (i == T::NT / 2)
                pair.meet();
        #pragma unroll
        for (int mt = 0; mt < T::MT; mt++) {
            #pragma unroll
            for (int e = 0; e < 4 && own; e++)
                a[mt][e] = w[t][mt][e];
            if constexpr (T::COLS > 1)
                if (!own)
                    device_matrices(a[mt], moved<T::BN / 8>(pair.others(), mt * 16, 4 * t));
        }
        #pragma unroll
        for (int n = 0; n < T::VT; n += 2) {
            uint32_t b[4];

            device_matrices_turned(b, moved<CHUNKS_V>(v_at, t * 16 * T::COLS, n));
            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                device_multiply<TYPE>(my.o[mt][n], a[mt], b[0], b[1]);
                device_multiply<TYPE>(my.o[mt][n + 1], a[mt], b[2], b[3]);
            }
        }
    }
}

// Row `half` of the 16 rows mt of O, times a factor, as row r of a tile in shared memory that
// has one of WAYS parts of the columns: of the warp's own, number `part`.
template <typename T, int WAYS>
DEVICE void put_row(const rows_state<T> &my, int mt, int half, float factor, float4 *tile,
                    int r, int part)
{
    constexpr int N = T::VT * T::COLS / WAYS;

    #pragma unroll
    for (int n = 0; n < N; n++) {
        const float *const o = &my.o[mt][part * N + n][half * 2];

        ((uint32_t *)(tile + place_of<CHUNKS_V / WAYS>(r, n)))[threadIdx.x % 4] =
            device_pair<TYPE>(o[0] * factor, o[1] * factor);
    }
}
