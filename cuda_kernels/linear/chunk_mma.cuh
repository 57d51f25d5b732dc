// SPDX-License-Identifier: MIT
// linear/chunk_mma.cuh: chunks of 16-bit rows, and the state of a warp as the result of
// m16n8k16. TYPE and DIM are the image's.
#pragma once
#include "linear/chunk_rows.cuh"
#include "linear/phi16.cuh"

constexpr int KT = PART / 16;    // operands of a part of a row

// The warp's rows of the state, row_of_operand(warp, mt) + lane / 4 and that + 8: columns
// 8 n + 2 (lane % 4) and the next; z in every column.
struct warp_state {
    float s[MT][NT][4], z[MT][4];
};

template <bool ELU1> DEVICE float phi_of_float(float pair)
{
    return __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(pair)));
}

template <bool ELU1> DEVICE void take_phi_of(float4 *x, int rows)
{
    constexpr int STEP = THREADS / CHUNKS, COUNT = CHUNK / STEP;    // rows at once, times
    const int r = threadIdx.x / CHUNKS, c = threadIdx.x % CHUNKS;
    float4 *const at = x + place_of(r, c, CHUNKS);

    static_assert(STEP % 8 == 0, "the same chunk of a row lies in the same place");
    #pragma unroll 2
    for (int i = 0; i < COUNT; i++) {
        float4 y = at[i * STEP * CHUNKS];

        y.x = phi_of_float<ELU1>(y.x);
        y.y = phi_of_float<ELU1>(y.y);
        y.z = phi_of_float<ELU1>(y.z);
        y.w = phi_of_float<ELU1>(y.w);
        if (r + i * STEP < rows)
            at[i * STEP * CHUNKS] = y;
    }
}

// phi of what this thread has copied of a part of the rows below `rows`; zeros past them stay.
DEVICE void take_phi(const attn_linear_kparams &p, float4 *x, int j, int rows, int part)
{
    const int here = part * PART + (int)threadIdx.x % CHUNKS * 8 < p.d ? rows - j : 0;

    if (linear_has(p, LINEAR_ELU1))
        take_phi_of<true>(x, here);
    else if (linear_has(p, LINEAR_RELU))
        take_phi_of<false>(x, here);
}

// The warp's rows of K^T, those of a part, of tokens 16 t .. of the chunk: a first operand.
DEVICE void load_keys(const float4 *k, int t, int mt, uint32_t (&a)[4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = t * 16 + lane / 16 * 8 + lane % 8;
    const int c = (warp * MP + mt) * 2 + lane / 8 % 2;

    device_matrices_turned(a, k + place_of(row, c, CHUNKS));
}

// Rows 16 t .. of a matrix with COLUMNS columns, columns 16 n ..: two second operands.
DEVICE void load_columns(const float4 *x, int t, int n, uint32_t (&b)[4])
{
    const int lane = threadIdx.x % 32;

    device_matrices_turned(b, x + place_of(t * 16 + lane % 16, 2 * n + lane / 16, CHUNKS_V));
}

// 1 in both halves, in the computing type.
DEVICE uint32_t ones() { return TYPE == TYPE_F16 ? 0x3c003c00u : 0x3f803f80u; }

// z += sum of the keys, of tokens 16 t ...
DEVICE void add_sums(warp_state &my, int mt, const uint32_t (&a)[4])
{
    device_multiply<TYPE>(my.z[mt], a, ones(), ones());
}

// Adds a slot's columns from `column` on, and z, if there is one. Rows of a state that is not
// turned begin at multiples of 8 bytes.
DEVICE void add_state(const float *s, const state_place &at, int column, const float *z,
                      warp_state &my)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int mt = i / 2, half = i % 2;
        const int r = row_of_operand(warp, mt) + half * 8 + lane / 4;

        if (r >= at.rows)
            continue;
        #pragma unroll
        for (int n = 0; n < NT; n++) {
            const int c = column + n * 8 + lane % 4 * 2;

            if (c >= at.columns)
                continue;

            const float *const from = s + r * at.pitch_r + c * at.pitch_c;
            const float2 x = at.pitch_c == 1 ? *(const float2 *)from
                                             : make_float2(from[0], from[at.pitch_c]);

            my.s[mt][n][half * 2] += x.x;
            my.s[mt][n][half * 2 + 1] += x.y;
        }
        if (z)
            my.z[mt][half * 2] += z[r];
    }
}

// The columns from `column` on to where they are wanted; and z.
DEVICE void store_state(float *s, const state_place &at, int column, float *z,
                        int64_t pitch_z, const warp_state &my)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int mt = i / 2, half = i % 2;
        const int r = row_of_operand(warp, mt) + half * 8 + lane / 4;

        if (r >= at.rows)
            continue;
        #pragma unroll
        for (int n = 0; n < NT; n++) {
            const int c = column + n * 8 + lane % 4 * 2;

            if (c >= at.columns || !s)
                continue;
            s[r * at.pitch_r + c * at.pitch_c] = my.s[mt][n][half * 2];
            s[r * at.pitch_r + (c + 1) * at.pitch_c] = my.s[mt][n][half * 2 + 1];
        }
        if (z && column == 0 && lane % 4 == 0)
            z[r * pitch_z] = my.z[mt][half * 2];
    }
}
