// SPDX-License-Identifier: MIT
// linear/chunk_rows.cuh: chunks of rows in shared memory and the ways of rows there and back,
// 16 bytes at a time. TYPE and DIM are the image's.
//
// Rows of up to DIM elements, those that are multiplied with each other, are in shared memory
// whole, or where DIM is over 128, a part of PART elements at a time: all products but those
// of the pairs with the narrow rows add up over the parts, or are of a part alone. There a
// group has fewer columns, so that a warp's rows of the state are no more than otherwise.
#pragma once

constexpr int COLUMNS = DIM > 128 ? 32 : 64;
constexpr int PART = DIM > 128 ? 64 : DIM, PARTS = DIM / PART;

#include "linear/chunk.cuh"

constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int EACH = TYPE == TYPE_F32 ? 4 : 8;                   // elements of 16 bytes
constexpr int CHUNKS = PART / EACH, CHUNKS_V = COLUMNS / EACH;   // of 16 bytes, of a row
constexpr int NT = COLUMNS / 8;                                  // operands of the columns
constexpr int MT = DIM / 16 / WARPS, MP = MT / PARTS;            // of the state's rows, a warp,
                                                                 // and those of a part
constexpr int SLOTS = DIM > 64 ? 1 : 2;    // states of segments that are loaded at once

// Parts of rows with `depth` elements.
DEVICE int parts_of(int depth) { return PARTS > 1 ? ceil_div(depth, PART) : 1; }

// The first of 16 rows of the state that a warp has, operand mt of its own.
DEVICE int row_of_operand(int warp, int mt)
{
    return ((mt / MP * WARPS + warp) * MP + mt % MP) * 16;
}

// Where chunk c of a row lies: exchanged by the row's number (xor), so that eight rows lie in
// different banks.
DEVICE int place_of(int row, int c, int chunks)
{
    return row * chunks + (c ^ (chunks < 8 ? row / 2 & 3 : row & 7));
}

// Element i of a tensor.
DEVICE char *at_element(const void *x, int64_t i) { return (char *)x + i * (16 / EACH); }

// Copies the rows j .. j + CHUNK - 1 that are below `rows`, columns from `column` up to
// `depth`; the others become 0 and are not read.
template <int N>
DEVICE void fetch_rows(float4 *to, const void *x, int64_t base, int64_t stride, int j,
                       int rows, int column, int depth)
{
    constexpr int STEP = THREADS / N;    // rows
    const int r = device_thread() / N, c = device_thread() % N, d = column + c * EACH;
    const char *const all = at_element(x, base);
    const char *const from = at_element(all, (j + r) * stride + d);

    #pragma unroll
    for (int i = 0; i < CHUNK / STEP; i++) {
        const bool inside = j + r + i * STEP < rows && d < depth;

        device_copy<16>((float *)(to + place_of(r + i * STEP, c, N)),
                        inside ? at_element(from, i * STEP * stride) : all, inside);
    }
}

DEVICE void fetch_q(const attn_linear_kparams &p, const chunk_work &w, float4 *to, int j,
                    int part)
{
    fetch_rows<CHUNKS>(to, p.q, LINEAR_AT(p, q, w.b, w.h, 0, 0), p.q_stride_l, j, p.len_q,
                       part * PART, p.d);
}

DEVICE void fetch_k(const attn_linear_kparams &p, const chunk_work &w, float4 *to, int j,
                    int part)
{
    fetch_rows<CHUNKS>(to, p.k, LINEAR_AT(p, k, w.b, w.kvh, 0, 0), p.k_stride_l, j, w.keys,
                       part * PART, p.d);
}

DEVICE void fetch_v(const attn_linear_kparams &p, const chunk_work &w, float4 *to, int j)
{
    fetch_rows<CHUNKS_V>(to, p.v, LINEAR_AT(p, v, w.b, w.kvh, 0, 0), p.v_stride_l, j, w.keys,
                         w.column, p.dv);
}

// The warp's rows of a chunk, which begin with x0: from where they lie in shared memory, columns
// 0 up to COLUMNS, to columns `column` up to `depth` of a tensor's rows, those below `rows`.
DEVICE void store_rows(void *to, int64_t base, int64_t stride, int rows, int column, int depth,
                       int x0, const float4 *tile)
{
    const int lane = device_thread() % 32;

    __syncwarp();
    #pragma unroll
    for (int i = 0; i < 16 * CHUNKS_V / 32; i++) {
        const int at = i * 32 + lane, row = x0 + at / CHUNKS_V, c = at % CHUNKS_V;

        if (row < rows && column + c * EACH < depth)
            *(float4 *)at_element(to, base + row * stride + column + c * EACH) =
                tile[place_of(row, c, CHUNKS)];
    }
}
