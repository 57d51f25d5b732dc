// SPDX-License-Identifier: MIT
// linear/chunk_mma_products.cuh: the products of a chunk of 16-bit rows: pairs of its tokens, the
// state that is read, what its keys add.
#pragma once
#include "linear/chunk_mma.cuh"

constexpr float MOST = 16384.0f;    // of a scaled number of f16

// O of the warp's rows, lane / 4 and that + 8: columns 8 n + 2 (lane % 4) and the next. Tile NT
// is den: its columns 0 and 1 add up to it.
typedef float warp_output[NT + 1][4];

// f16: the exponent of 2 by which numbers up to `top` are divided. SMALL: also of numbers that
// are to be multiplied, since f16 would lose them.
template <bool SMALL> DEVICE int exponent_over(float top)
{
    const int exponent = (int)(__float_as_uint(top) >> 23) - 127 - 13;

    if (SMALL)
        return top > 0.0f && top < INFINITE ? max(exponent, -40) : 0;
    return top > MOST && top < INFINITE ? exponent : 0;
}

// Whether a warp's rows of a chunk see tokens 16 t ..: not those after them, or BACK, before.
template <bool BACK> DEVICE bool sees(int t)
{
    const int warp = device_thread() / 32;

    return BACK ? t >= warp : t <= warp;
}

DEVICE float largest_of_warp(float x)
{
    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}

// The state in the type, as a second operand for all warps, and what was rounded away, if it is
// wanted. It is 2^more times what it stands for.
template <bool SMALL>
DEVICE void share_state(const warp_state &my, bool sums, float4 *s, float4 *rest, float4 *z,
                        int *lifted, int more)
{
    const int lane = device_thread() % 32, warp = device_thread() / 32;
    float down = 1.0f;

    if (TYPE == TYPE_F16) {
        float top = 0.0f;

        #pragma unroll
        for (int i = 0; i < MT * NT * 4; i++)
            top = fmaxf(top, fabsf(my.s[i / 4 / NT][i / 4 % NT][i % 4]));
        #pragma unroll
        for (int mt = 0; mt < MT; mt++)
            top = fmaxf(top, fmaxf(fabsf(my.z[mt][0]), fabsf(my.z[mt][2])));
        top = largest_of_warp(top);
        down = power_of_2(-exponent_over<SMALL>(top));
        if (lane == 0)
            lifted[warp] = exponent_over<SMALL>(top) - more;
    }
    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int mt = i / 2, half = i % 2, e = row_of_operand(warp, mt) + half * 8 + lane / 4;

        #pragma unroll
        for (int n = 0; n < NT; n++) {
            const float x = my.s[mt][n][half * 2] * down, y = my.s[mt][n][half * 2 + 1] * down;
            const uint32_t pair = device_pair<TYPE>(x, y);

            ((uint32_t *)(s + place_of(e, n, CHUNKS_V)))[lane % 4] = pair;
            if (rest)
                ((uint32_t *)(rest + place_of(e, n, CHUNKS_V)))[lane % 4] =
                    device_pair<TYPE>(x - f32_of_low(pair), y - f32_of_high(pair));
        }
        if (sums && lane % 4 == 0) {
            const float all = my.z[mt][half * 2] * down;
            const float rest = all - f32_of_low(device_pair<TYPE>(all, 0.0f));

            z[e] = make_float4(__uint_as_float(device_pair<TYPE>(all, rest)), 0.0f, 0.0f,
                               0.0f);
        }
    }
}

// A part of the warp's rows of Q: a first operand for each 16 columns.
DEVICE void load_queries(const float4 *q, uint32_t (&a)[KT][4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    #pragma unroll
    for (int k = 0; k < KT; k++)
        device_matrices(a[k], q + place_of(warp * 16 + lane % 16, 2 * k + lane / 16, CHUNKS));
}

// Q K^T of the warp's rows, before it is masked.
typedef float warp_pairs[CHUNK / 8][4];

// x += Q K^T, of keys 16 t .. and a part of the rows.
DEVICE void add_pairs(const float4 *k, const uint32_t (&q)[KT][4], int t, warp_pairs &x)
{
    const int lane = threadIdx.x % 32, r = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;

    #pragma unroll
    for (int i = 0; i < KT; i++) {
        uint32_t b[4];

        device_matrices(b, k + place_of(t * 16 + r, 2 * i + odd, CHUNKS));
        device_multiply<TYPE>(x[2 * t], q[i], b[0], b[1]);
        device_multiply<TYPE>(x[2 * t + 1], q[i], b[2], b[3]);
    }
}

// The same of all keys that the warp's rows see.
template <bool BACK>
DEVICE void add_part(const float4 *k, const uint32_t (&q)[KT][4], warp_pairs &x)
{
    #pragma unroll
    for (int t = 0; t < CHUNK / 16; t++)
        if (sees<BACK>(t))
            add_pairs(k, q, t, x);
}

// P = tril(Q K^T) of the warp's rows, as a first operand for each 16 keys; the exponent that it
// was divided by. Keys after the warp's last query are left out; BACK: before its first, and P
// is of the other triangle. `more` has something to add to the numbers of keys 16 t .., `plus`
// to a number of a row and key.
template <bool BACK, bool SMALL, class MORE, class PLUS>
DEVICE int finish_pairs(warp_pairs &x, uint32_t (&a)[CHUNK / 16][4], const MORE &more,
                        const PLUS &plus)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float top = 0.0f, down = 1.0f;
    int exponent = 0;

    #pragma unroll
    for (int t = 0; t < CHUNK / 16; t++) {
        if (!sees<BACK>(t))
            continue;
        more(t);
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = lane / 4 + i % 4 / 2 * 8, key = i / 4 * 8 + lane % 4 * 2 + i % 2;

            plus(x[2 * t + i / 4][i % 4], row, t * 16 + key);
            if (t == warp && (BACK ? key < row : key > row))
                x[2 * t + i / 4][i % 4] = 0.0f;
            if (TYPE == TYPE_F16)
                top = fmaxf(top, fabsf(x[2 * t + i / 4][i % 4]));
        }
    }
    if (TYPE == TYPE_F16 && (SMALL || __any_sync(0xffffffffu, top > MOST))) {
        exponent = exponent_over<SMALL>(largest_of_warp(top));
        down = power_of_2(-exponent);
    }
    #pragma unroll
    for (int i = 0; i < CHUNK / 4; i++)
        a[i / 4][i % 4] = device_pair<TYPE>(x[i / 2][i % 2 * 2] * down,
                                            x[i / 2][i % 2 * 2 + 1] * down);
    return exponent;
}

// The same of rows that are there whole.
template <bool BACK, bool SMALL, class PLUS>
DEVICE int find_pairs(const float4 *k, const uint32_t (&q)[KT][4],
                      uint32_t (&a)[CHUNK / 16][4], const PLUS &plus)
{
    warp_pairs x = {};

    return finish_pairs<BACK, SMALL>(x, a, [&](int t) { add_pairs(k, q, t, x); }, plus);
}

// Multiplies O by a power of 2, of any size.
DEVICE void lift(warp_output &o, int exponent)
{
    const float up = power_of_2(clamp(exponent, -126, 127));

    #pragma unroll
    for (int i = 0; i < (NT + 1) * 4; i++)
        o[i / 4][i % 4] *= up;
}

// O += P V.
template <bool BACK>
DEVICE void fold_pairs(const float4 *v, bool sums, const uint32_t (&pairs)[CHUNK / 16][4],
                       warp_output &o)
{
    const uint32_t column = device_thread() % 32 / 4 == 0 ? ones() : 0;

    #pragma unroll
    for (int t = 0; t < CHUNK / 16; t++) {
        if (!sees<BACK>(t))
            continue;
        #pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            uint32_t b[4];

            load_columns(v, t, n, b);
            device_multiply<TYPE>(o[2 * n], pairs[t], b[0], b[1]);
            device_multiply<TYPE>(o[2 * n + 1], pairs[t], b[2], b[3]);
        }
        if (sums)
            device_multiply<TYPE>(o[NT], pairs[t], column, column);
    }
}

// O += P V, and S += K^T V; of rows that are there whole.
template <bool BACK>
DEVICE void fold_chunk(const float4 *k, const float4 *v, bool sums,
                       const uint32_t (&pairs)[CHUNK / 16][4], warp_output &o, warp_state &my)
{
    const int lane = device_thread() % 32;
    const uint32_t column = lane / 4 == 0 ? ones() : 0;

    #pragma unroll
    for (int t = 0; t < CHUNK / 16; t++) {
        uint32_t a[MT][4];

        #pragma unroll
        for (int mt = 0; mt < MT; mt++)
            load_keys(k, t, mt, a[mt]);
        #pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            uint32_t b[4];

            load_columns(v, t, n, b);
            if (sees<BACK>(t)) {
                device_multiply<TYPE>(o[2 * n], pairs[t], b[0], b[1]);
                device_multiply<TYPE>(o[2 * n + 1], pairs[t], b[2], b[3]);
            }
            #pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                device_multiply<TYPE>(my.s[mt][2 * n], a[mt], b[0], b[1]);
                device_multiply<TYPE>(my.s[mt][2 * n + 1], a[mt], b[2], b[3]);
            }
        }
        if (!sums)
            continue;
        if (sees<BACK>(t))
            device_multiply<TYPE>(o[NT], pairs[t], column, column);
        #pragma unroll
        for (int mt = 0; mt < MT; mt++)
            add_sums(my, mt, a[mt]);
    }
}

// S += K^T V of a chunk, the rows of a part.
DEVICE void sum_chunk(const float4 *k, const float4 *v, bool sums, int part, warp_state &my)
{
    #pragma unroll
    for (int t = 0; t < CHUNK / 16; t++) {
        uint32_t a[MP][4];

        #pragma unroll
        for (int mt = 0; mt < MP; mt++) {
            load_keys(k, t, mt, a[mt]);
            if (sums)
                add_sums(my, part * MP + mt, a[mt]);
        }
        #pragma unroll
        for (int i = 0; i < NT / 2; i++) {
            uint32_t b[4];

            load_columns(v, t, i, b);
            #pragma unroll
            for (int mt = 0; mt < MP; mt++) {
                float(&s)[NT][4] = my.s[part * MP + mt];

                device_multiply<TYPE>(s[2 * i], a[mt], b[0], b[1]);
                device_multiply<TYPE>(s[2 * i + 1], a[mt], b[2], b[3]);
            }
        }
    }
}

// O += Q S, of a part; `exponent` is what O is divided by, and becomes the last that S is.
DEVICE void read_state(const float4 *s, const float4 *z, const int *lifted, bool sums, int part,
                       const uint32_t (&q)[KT][4], warp_output &o, int &exponent)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int k = 0; k < KT; k++) {
        if (TYPE == TYPE_F16 && lifted[k / MP] != exponent) {
            lift(o, exponent - lifted[k / MP]);
            exponent = lifted[k / MP];
        }
        #pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            uint32_t b[4];

            load_columns(s, part * KT + k, n, b);
            device_multiply<TYPE>(o[2 * n], q[k], b[0], b[1]);
            device_multiply<TYPE>(o[2 * n + 1], q[k], b[2], b[3]);
        }
        if (sums) {
            uint32_t b[4];

            // rows 16 k .. of the part, twice
            device_matrices_turned(b, z + (part * KT + k) * 16 + lane % 16);
            device_multiply<TYPE>(o[NT], q[k], b[0], b[1]);
        }
    }
}
