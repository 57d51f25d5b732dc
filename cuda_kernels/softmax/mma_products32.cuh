// SPDX-License-Identifier: MIT
// softmax/mma_products32.cuh: the products of fwd_mma.cu for f32, by mma.m16n8k8 of TF32, and
// its rows of O.
//
// TF32 has 11 significant bits. To full accuracy a number is taken as the sum of two of them,
// itself rounded to 11 bits and the rest, and a product is three: the fourth, of the two
// rests, is below what f32 keeps. Tensor cores cut their sums off
// instead of rounding them, so only the products of eight terms are summed there, and those
// are added in f32: over a step's keys, then to O (Ootomo and Yokota 2022, "Recovering single
// precision accuracy from Tensor Cores").
//
// Weights go through shared memory, the warp's own: with them in registers the loop over the
// keys could not stay one, and the parts of all numbers at once are more than the registers.
// The keys of a product with V may stand in any order, so the two that a lane has weights of
// are taken as rows k and k + 4 of it; and the columns, so that a lane reads four in a row
// and has eight in a row of O: 32 g + 8 (lane % 4) + 4 e + n in o[4 g + n][.. e].
#pragma once
#include "softmax/mma_fold.cuh"

// x as the sum of two TF32 numbers, as words of operands. What is infinite, or is when it has
// been rounded to TF32 (3.4012e38), becomes NaN; below 2^-100 the second loses bits.
DEVICE void split_in_two(uint32_t x, uint32_t &high, uint32_t &low)
{
    high = device_tf32(x);
    low = __float_as_uint(__uint_as_float(x) - __uint_as_float(high));
}

template <typename T> struct operand_a {
    uint32_t high[4], low[4];
};

template <typename T> DEVICE operand_a<T> make_operand(const uint32_t (&x)[4])
{
    operand_a<T> a;

    #pragma unroll
    for (int i = 0; i < 4; i++) {
        a.high[i] = device_tf32(x[i]);
        if (T::SUMS != IN_CORES)
            split_in_two(x[i], a.high[i], a.low[i]);
    }
    return a;
}

// c += a b, b as it comes from memory.
template <typename T>
DEVICE void multiply(float (&c)[4], const operand_a<T> &a, uint32_t b0, uint32_t b1)
{
    uint32_t high[2], low[2];
    float part[4];

    if (T::SUMS == IN_CORES) {
        device_multiply_tf32(c, a.high, device_tf32(b0), device_tf32(b1));
        return;
    }
    split_in_two(b0, high[0], low[0]);
    split_in_two(b1, high[1], low[1]);
    device_product_tf32(part, a.low, high[0], high[1]);
    device_multiply_tf32(part, a.high, low[0], low[1]);
    device_multiply_tf32(part, a.high, high[0], high[1]);
    #pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] += part[i];
}

// S = Q K^T.
template <typename T, typename BETWEEN>
DEVICE void find_scores(const float4 *q, const uint32_t (&)[T::MT][T::KT][4],
                        const float4 *k, int, scores<T> &s, const BETWEEN &)
{
    const int lane = threadIdx.x % 32;
    const device_shared q_at = address_of_queries(q);
    const device_shared k_at =
        address_of<CHUNKS_K>(k, lane % 8 + lane / 16 * 8, lane / 8 % 2);

    #pragma unroll
    for (int i = 0; i < T::MT * T::NT * 4; i++)
        s[i / 4 / T::NT][i / 4 % T::NT][i % 4] = 0.0f;
    #pragma unroll 1
    for (int x = 0; x < T::KT; x++) {
        operand_a<T> a[T::MT];

        #pragma unroll
        for (int mt = 0; mt < T::MT; mt++) {
            uint32_t raw[4];

            load_queries(raw, q_at, mt * 16, x);
            a[mt] = make_operand<T>(raw);
        }
        #pragma unroll
        for (int t = 0; t < T::NT; t += 2) {
            uint32_t b[4];

            device_matrices(b, moved<CHUNKS_K>(k_at, t * 8, 2 * x));
            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                multiply<T>(s[mt][t], a[mt], b[0], b[1]);
                multiply<T>(s[mt][t + 1], a[mt], b[2], b[3]);
            }
        }
    }
}

// Dropout of a step that begins with key j, a multiple of 4. A thread has two neighbours of
// four keys.
template <typename T>
DEVICE void drop_scores(const attn_kparams &p, uint32_t head, int query, int j, scores<T> &s)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2;

        #pragma unroll
        for (int n = 0; n < T::NT; n++) {
            uint32_t word[4];

            dropout_words(p, head, query + lane / 4 + mt * 16 + half * 8,
                          j / 4 + 2 * n + lane % 4 / 2, word);
            if ((lane & 1 ? word[2] : word[0]) < p.drop_below)
                s[mt][n][half * 2] = 0.0f;
            if ((lane & 1 ? word[3] : word[1]) < p.drop_below)
                s[mt][n][half * 2 + 1] = 0.0f;
        }
    }
}

// Where the warp's weights lie: rows of BN, their chunks exchanged as those of K.
template <typename T> using weights = const float4 *;

// Of a warp that sees no key of a step.
template <typename T> DEVICE void no_weights(weights<T> &w) { w = NULL; }

template <typename T>
DEVICE void drop_weights(const attn_kparams &, uint32_t, int, int, weights<T> &) {}

template <typename T>
DEVICE void pack_weights(const scores<T> &s, float4 *room, weights<T> &w,
                         const warp_pair<T> &)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int i = 0; i < T::MT * T::NT * 4; i++) {
        const int mt = i / 4 / T::NT, t = i / 4 % T::NT, half = i / 2 % 2, odd = i % 2;
        const int at = place_of<T::BN / 4>(mt * 16 + half * 8 + lane / 4, 2 * t + odd);

        ((float *)(room + at))[lane % 4] = s[mt][t][half * 2 + odd];
    }
    __syncwarp();
    w = room;
}

// o += part, over the steps.
template <typename T>
DEVICE void add_part(rows_state<T> &my, int mt, int n, const float (&part)[4])
{
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float *const o = &my.o[mt][n][half * 2];

        if (!T::LONG) {
            o[0] += part[half * 2];
            o[1] += part[half * 2 + 1];
            continue;
        }

        rests &both = my.rest[T::LONG ? mt : 0][n][half];
        float rest[2] = { first_rest(both), second_rest(both) };
        bool fine = true;

        add_rest(o[0], rest[0], part[half * 2], fine);
        add_rest(o[1], rest[1], part[half * 2 + 1], fine);
        both = pack_rests(rest[0], rest[1]);
        if (!fine)
            both = { 0 };
    }
}

// O += P V.
template <typename T>
DEVICE void add_values(const float4 *v, const weights<T> &w, rows_state<T> &my,
                       const warp_pair<T> &)
{
    [[maybe_unused]] constexpr int TOGETHER = DIMV <= 128 ? 2 : 1;
    const int lane = threadIdx.x % 32, r = lane / 4, key = lane % 4 * 2;

    #pragma unroll
    for (int g = 0; g < T::VT / 4; g++) {
        float part[T::MT][4][4] = {};

        #pragma unroll TOGETHER
        for (int t = 0; t < T::NT; t++) {
            const float4 *const rows = v + t * 8 * CHUNKS_V;
            const float4 first = rows[place_of<CHUNKS_V>(key, 8 * g + r)];
            const float4 second = rows[place_of<CHUNKS_V>(key + 1, 8 * g + r)];
            const float b0[4] = { first.x, first.y, first.z, first.w };
            const float b1[4] = { second.x, second.y, second.z, second.w };

            #pragma unroll
            for (int mt = 0; mt < T::MT; mt++) {
                uint32_t raw[4];

                device_matrices(raw, w + place_of<T::BN / 4>(mt * 16 + lane % 16,
                                                             2 * t + lane / 16));

                const operand_a<T> a = make_operand<T>(raw);

                #pragma unroll
                for (int n = 0; n < 4; n++)
                    multiply<T>(T::SUMS == IN_CORES ? my.o[mt][4 * g + n] : part[mt][n], a,
                                __float_as_uint(b0[n]), __float_as_uint(b1[n]));
            }
        }
        #pragma unroll
        for (int i = 0; i < T::MT * 4 && T::SUMS != IN_CORES; i++)
            add_part<T>(my, i / 4, 4 * g + i % 4, part[i / 4][i % 4]);
    }
}

// Row `half` of the 16 rows mt of O, times a factor, as row r of a tile in shared memory.
template <typename T, int WAYS>
DEVICE void put_row(const rows_state<T> &my, int mt, int half, float factor, float4 *tile,
                    int r, int)
{
    static_assert(WAYS == 1, "its columns do not come in order");
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int n = 0; n < T::VT; n += 2) {    // four columns: e is n / 2 % 2
        const int g = n / 4, e = n / 2 % 2, c = 32 * g + 8 * (lane % 4) + 4 * e;
        float x[4];

        #pragma unroll
        for (int k = 0; k < 4; k++) {
            x[k] = my.o[mt][4 * g + k][half * 2 + e];
            if (T::LONG) {
                const rests both = my.rest[T::LONG ? mt : 0][4 * g + k][half];

                x[k] -= e ? second_rest(both) : first_rest(both);
            }
            x[k] *= factor;
        }
        tile[place_of<CHUNKS_V>(r, c / PER)] = make_float4(x[0], x[1], x[2], x[3]);
    }
}
