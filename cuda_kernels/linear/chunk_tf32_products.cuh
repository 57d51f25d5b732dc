// SPDX-License-Identifier: MIT
// linear/chunk_tf32_products.cuh: the products of a chunk of f32 rows: pairs of its tokens, the
// state that is read, what its keys add.
#pragma once
#include "linear/chunk_tf32.cuh"

constexpr int UNROLL = DIM > 64 ? 1 : 2;

// O of the warp's rows, lane / 4 and that + 8, columns as chunk_tf32.cuh has them; den in
// column 0 of its own tile.
struct warp_output {
    float o[NT][4], den[4];
};

// Columns 8 k .. of a part of the warp's rows of Q, which begin with row x0: a first operand.
DEVICE void load_queries(const float4 *q, int x0, int k, float (&a)[4])
{
    const int lane = threadIdx.x % 32;
    uint32_t raw[4];

    device_matrices(raw, q + place_of(x0 + lane % 16, 2 * k + lane / 16, CHUNKS));
    #pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = __uint_as_float(raw[i]);
}

template <bool EXACT>
DEVICE operand_a<EXACT> queries_operand(const float4 *q, int x0, int k,
                                        const float (&down)[2])
{
    float a[4];

    load_queries(q, x0, k, a);
    #pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] *= down[i % 2];
    return make_operand<EXACT>(a);
}

// Two numbers of P, of keys 8 t + 2 (lane % 4) and the next, in the warp's rows of Q.
DEVICE float *place_of_pairs(float4 *q, int row, int t)
{
    const int lane = threadIdx.x % 32;

    return (float *)(q + place_of(row, 2 * t + lane % 4 / 2, CHUNKS)) + lane % 2 * 2;
}

// Q K^T of the warp's rows, before it is masked.
typedef float warp_pairs[CHUNK / 8][4];

// pairs += Q K^T, of a part of the rows. Keys after the last query are left out; BACK: before
// the first.
template <bool EXACT, bool BACK>
DEVICE void add_part(const float4 *q, const float4 *k, int x0, const float (&down)[2],
                     warp_pairs &pairs)
{
    const int lane = threadIdx.x % 32, r = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;

    #pragma unroll UNROLL
    for (int i = 0; i < KT; i++) {
        const operand_a<EXACT> a = queries_operand<EXACT>(q, x0, i, down);

        #pragma unroll
        for (int t = 0; t < CHUNK / 16; t++) {
            uint32_t b[4];

            if (BACK ? t * 16 < x0 : t * 16 > x0)
                continue;
            device_matrices(b, k + place_of(t * 16 + r, 2 * i + odd, CHUNKS));
            #pragma unroll
            for (int n = 0; n < 2; n++)
                multiply<EXACT>(pairs[2 * t + n], a, split<EXACT>(__uint_as_float(b[2 * n])),
                                split<EXACT>(__uint_as_float(b[2 * n + 1])));
        }
    }
}

// P = tril(Q K^T) of the warp's rows, in the place of Q, which has been read: in registers,
// the loop over the keys that comes next could not stay one. BACK: P is of the other triangle.
// `plus` has something to add to a number of a row and key.
template <bool BACK, class PLUS>
DEVICE void put_pairs(float4 *q, int x0, warp_pairs &pairs, const PLUS &plus)
{
    const int lane = threadIdx.x % 32;

    __syncwarp();
    #pragma unroll
    for (int i = 0; i < CHUNK / 4; i++) {
        const int t = i / 2, half = i % 2, row = x0 + half * 8 + lane / 4;
        const int key = t * 8 + lane % 4 * 2;
        float *const to = place_of_pairs(q, row, t);

        plus(pairs[t][half * 2], row, key);
        plus(pairs[t][half * 2 + 1], row, key + 1);
        to[0] = (BACK ? key >= row : key <= row) ? pairs[t][half * 2] : 0.0f;
        to[1] = (BACK ? key + 1 >= row : key + 1 <= row) ? pairs[t][half * 2 + 1] : 0.0f;
    }
    __syncwarp();
}

// P of keys 8 t ..: a first operand.
template <bool EXACT> DEVICE operand_a<EXACT> pairs_operand(float4 *q, int x0, int t)
{
    const float *const x = place_of_pairs(q, x0 + (int)threadIdx.x % 32 / 4, t);
    const float *const y = place_of_pairs(q, x0 + (int)threadIdx.x % 32 / 4 + 8, t);
    const float a[4] = { x[0], y[0], x[1], y[1] };

    return make_operand<EXACT>(a);
}

// S += K^T V of tokens 8 t .., the rows of a part; and O += P V, if there is an O that sees them.
template <bool EXACT>
DEVICE void fold_tokens(const float4 *k, const float4 *v, int t, bool sums, bool sees,
                        float4 *q, int x0, int part, warp_output *out, warp_state &my)
{
    const two<EXACT> one = split<EXACT>(1.0f), none = split<EXACT>(0.0f);
    const two<EXACT> column = threadIdx.x % 32 / 4 == 0 ? one : none;
    operand_a<EXACT> keys[MP], weights = {};
    float b0[4], b1[4];

    #pragma unroll
    for (int mt = 0; mt < MP; mt++) {
        float a[4];

        load_keys(k, t, mt, a);
        keys[mt] = make_operand<EXACT>(a);
        if (sums)
            multiply<EXACT>(my.z[part * MP + mt], keys[mt], one, one);
    }
    if (out && sees) {
        weights = pairs_operand<EXACT>(q, x0, t);
        if (sums)
            multiply<EXACT>(out->den, weights, column, column);
    }
    #pragma unroll
    for (int n = 0; n < NT; n++) {
        if (n % 4 == 0) {
            if (DIM > 64 && out)
                __syncwarp();    // so that no more is loaded yet: registers are few
            load_values(v, t, n / 4, b0, b1);
        }

        const two<EXACT> low = split<EXACT>(b0[n % 4]), high = split<EXACT>(b1[n % 4]);

        if (out && sees)
            multiply<EXACT>(out->o[n], weights, low, high);
        #pragma unroll
        for (int mt = 0; mt < MP; mt++)
            multiply<EXACT>(my.s[part * MP + mt][n], keys[mt], low, high);
    }
}

// O += P V of tokens 8 t ...
template <bool EXACT>
DEVICE void fold_pairs(const float4 *v, int t, bool sums, float4 *q, int x0, warp_output &out)
{
    const float first = threadIdx.x % 32 / 4 == 0 ? 1.0f : 0.0f;
    const operand_a<EXACT> weights = pairs_operand<EXACT>(q, x0, t);

    if (sums)
        multiply<EXACT>(out.den, weights, split<EXACT>(first), split<EXACT>(first));
    #pragma unroll
    for (int g = 0; g < NT / 4; g++) {
        float b0[4], b1[4];

        load_values(v, t, g, b0, b1);
        #pragma unroll
        for (int n = 0; n < 4; n++)
            multiply<EXACT>(out.o[4 * g + n], weights, split<EXACT>(b0[n]),
                            split<EXACT>(b1[n]));
    }
}

// O += Q S, of a part.
template <bool EXACT>
DEVICE void read_state(const float4 *q, const float4 *s, const float *z, int x0, bool sums,
                       int part, const float (&down)[2], warp_output &out)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll UNROLL
    for (int k = 0; k < KT; k++) {
        const operand_a<EXACT> a = queries_operand<EXACT>(q, x0, k, down);

        #pragma unroll
        for (int g = 0; g < NT / 4; g++) {
            float b0[4], b1[4];

            load_state_rows(s, part * KT + k, g, b0, b1);
            #pragma unroll
            for (int n = 0; n < 4; n++)
                multiply<EXACT>(out.o[4 * g + n], a, split<EXACT>(b0[n]),
                                split<EXACT>(b1[n]));
        }
        if (sums) {
            const bool mine = lane / 4 == 0;
            const float *const at = z + (part * KT + k) * 8 + lane % 4;

            multiply<EXACT>(out.den, a, split<EXACT>(mine ? at[0] : 0.0f),
                            split<EXACT>(mine ? at[4] : 0.0f));
        }
    }
}

// The state, for all warps.
DEVICE void share_state(const warp_state &my, float4 *s, float *z)
{
    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int mt = i / 2, half = i % 2, e = row_of_state(mt, half);

        #pragma unroll
        for (int n = 0; n < NT / 2; n++)
            s[place_of_state(e, column_of(n / 2, n % 2) / 4)] =
                four_of(my.s[mt], n / 2, half * 2 + n % 2);
        if (z && threadIdx.x % 4 == 0)
            z[e] = my.z[mt][half * 2];
    }
}
