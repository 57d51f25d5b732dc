// SPDX-License-Identifier: MIT
// linear/chunk_tf32.cuh: chunks of f32 rows in shared memory, and products by mma.m16n8k8 of
// TF32. DIM is the image's.
//
// To full accuracy (EXACT) a number is taken as the sum of two of TF32, and a product is
// three: the fourth, of the two rests, is below what f32 keeps. Tensor cores cut their sums
// off instead of rounding them, so only the products of eight terms are summed there, and
// those are added in f32 (Ootomo and Yokota 2022, "Recovering single precision accuracy from
// Tensor Cores").
//
// What is summed over, and rows and columns of results, may stand in any order, and do, so
// that a lane reads and writes several numbers in a row. With r = lane / 4 and q = lane % 4:
// operands over tokens have token 2 q where rows q are, 2 q + 1 where rows q + 4 are; the
// columns of O and S, 32 g + 8 q + 4 i + n in tile 4 g + n, element i; the rows of S, 2 r and
// 2 r + 1 where rows r and r + 8 are.
#pragma once
#include "linear/chunk_rows.cuh"

constexpr int KT = PART / 8;    // operands of a part of a row

// Where chunk c of a row of S lies, so that four rows that follow each other lie in different
// banks, two chunks of each.
DEVICE int place_of_state(int row, int c)
{
    return row * CHUNKS_V + (c ^ ((row & 3) * 2 + (row >> 2 & 1)));
}

struct warp_state {
    float s[MT][NT][4], z[MT][4];    // z in every column
};

// A number as one or two of TF32.
template <bool EXACT> struct two {
    uint32_t high, low;
};

template <bool EXACT> DEVICE two<EXACT> split(float x)
{
    two<EXACT> y = { device_tf32(__float_as_uint(x)), 0 };

    if (EXACT)
        y.low = __float_as_uint(x - __uint_as_float(y.high));
    return y;
}

template <bool EXACT> struct operand_a {
    uint32_t high[4], low[4];
};

template <bool EXACT> DEVICE operand_a<EXACT> make_operand(const float (&x)[4])
{
    operand_a<EXACT> a = {};

    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const two<EXACT> y = split<EXACT>(x[i]);

        a.high[i] = y.high;
        a.low[i] = y.low;
    }
    return a;
}

// c += a b.
template <bool EXACT>
DEVICE void multiply(float (&c)[4], const operand_a<EXACT> &a, two<EXACT> b0, two<EXACT> b1)
{
    float part[4];

    if (!EXACT) {
        device_multiply_tf32(c, a.high, b0.high, b1.high);
        return;
    }
    device_product_tf32(part, a.low, b0.high, b1.high);
    device_multiply_tf32(part, a.high, b0.low, b1.low);
    device_multiply_tf32(part, a.high, b0.high, b1.high);
    #pragma unroll
    for (int i = 0; i < 4; i++)
        c[i] += part[i];
}

// phi of what this thread has copied of a part of the rows below `rows`; zeros past them stay.
DEVICE void take_phi(const attn_linear_kparams &p, float4 *x, int j, int rows, int part)
{
    if (!linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
        return;
    #pragma unroll 1
    for (int i = 0; i < CHUNK * CHUNKS / THREADS; i++) {
        const int at = i * THREADS + (int)threadIdx.x, r = at / CHUNKS, c = at % CHUNKS;
        float4 *const y = x + place_of(r, c, CHUNKS);

        if (j + r < rows && part * PART + c * 4 < p.d)
            *y = make_float4(linear_phi(p, y->x), linear_phi(p, y->y), linear_phi(p, y->z),
                             linear_phi(p, y->w));
    }
}

// The warp's rows of K^T, those of a part, of tokens 8 t .. of the chunk: a first operand.
DEVICE void load_keys(const float4 *k, int t, int mt, float (&a)[4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int e = (warp * MP + mt) * 16 + lane / 4 * 2;

    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = t * 8 + lane % 4 * 2 + i;
        const float *const x = (const float *)(k + place_of(row, e / 4, CHUNKS)) + e % 4;

        a[2 * i] = x[0];
        a[2 * i + 1] = x[1];
    }
}

// A number of a row for each of four tiles of columns.
DEVICE void load_four(const float4 *x, float (&b)[4])
{
    const float4 y = *x;

    b[0] = y.x;
    b[1] = y.y;
    b[2] = y.z;
    b[3] = y.w;
}

// Rows 8 t .. of V, tiles 4 g ..: the words of second operands.
DEVICE void load_values(const float4 *v, int t, int g, float (&b0)[4], float (&b1)[4])
{
    const int lane = threadIdx.x % 32, row = t * 8 + lane % 4 * 2, c = g * 8 + lane / 4;

    load_four(v + place_of(row, c, CHUNKS_V), b0);
    load_four(v + place_of(row + 1, c, CHUNKS_V), b1);
}

// Rows 8 k .. of S.
DEVICE void load_state_rows(const float4 *s, int k, int g, float (&b0)[4], float (&b1)[4])
{
    const int lane = threadIdx.x % 32, row = k * 8 + lane % 4, c = g * 8 + lane / 4;

    load_four(s + place_of_state(row, c), b0);
    load_four(s + place_of_state(row + 4, c), b1);
}

// Row e of the state that element `half` of a lane has, and the column of its tiles 4 g ..
// 4 g + 3, element i.
DEVICE int row_of_state(int mt, int half)
{
    return row_of_operand(threadIdx.x / 32, mt) + (int)threadIdx.x % 32 / 4 * 2 + half;
}

DEVICE int column_of(int g, int i) { return 32 * g + (int)threadIdx.x % 4 * 8 + 4 * i; }

// Four numbers in a row of a result.
DEVICE float4 four_of(const float (&x)[NT][4], int g, int e)
{
    return make_float4(x[4 * g][e], x[4 * g + 1][e], x[4 * g + 2][e], x[4 * g + 3][e]);
}

// Adds a state's columns from `column` on, and z, if there is one.
DEVICE void add_state(const float *s, const state_place &at, int column, const float *z,
                      warp_state &my)
{
    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int mt = i / 2, half = i % 2, r = row_of_state(mt, half);

        if (r >= at.rows)
            continue;
        #pragma unroll
        for (int n = 0; n < NT * 2; n++) {
            const int tile = n / 2, c = column + column_of(tile / 4, n % 2) + tile % 4;

            if (c < at.columns)
                my.s[mt][tile][half * 2 + n % 2] += s[r * at.pitch_r + c * at.pitch_c];
        }
        if (z)
            my.z[mt][half * 2] += z[r];
    }
}

// The columns from `column` on to where they are wanted; and z.
DEVICE void store_state(float *s, const state_place &at, int column, float *z,
                        int64_t pitch_z, const warp_state &my)
{
    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int mt = i / 2, half = i % 2, r = row_of_state(mt, half);

        if (r >= at.rows)
            continue;
        #pragma unroll
        for (int n = 0; n < NT * 2; n++) {
            const int tile = n / 2, c = column + column_of(tile / 4, n % 2) + tile % 4;

            if (s && c < at.columns)
                s[r * at.pitch_r + c * at.pitch_c] = my.s[mt][tile][half * 2 + n % 2];
        }
        if (z && column == 0 && threadIdx.x % 4 == 0)
            z[r * pitch_z] = my.z[mt][half * 2];
    }
}
