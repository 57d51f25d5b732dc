// SPDX-License-Identifier: MIT
// softmax/stage.cuh: where a thread stands in a register tile, and how rows come into the
// shared memory that it is fed from. TYPE is the image's.
//
// Of a tile T, TX threads stand along the rows that are visited and along a row of the
// result, TY along the rows that the group owns. Thread (tx, ty) has owned rows ty + r * TY,
// visited ones tx + c * TX, and elements 4 * (tx + g * TX) .. + 3 of a row of the result.
#pragma once
#include "common/address.cuh"
#include "common/device.cuh"
#include "common/types.cuh"

// Where a thread stands. Lane bit 0 is of tx and bit 1 of ty, so that lanes i and i ^ 2,
// or i and i ^ 1, load the same 16 bytes: then a half-warp needs one access for them.
template <typename T> struct place {
    int tx, ty;
};

template <typename T> DEVICE place<T> place_of_thread(unsigned thread)
{
    const int lane = thread % 32, warp = thread / 32;
    place<T> at;

    if (T::TX == 8) {
        at.tx = (lane & 1) | (lane >> 1 & 6);
        at.ty = warp * 4 + ((lane >> 1 & 1) | (lane >> 3 & 2));
    } else {
        at.tx = (lane & 1) | (lane >> 1 & 14);
        at.ty = warp * 2 + (lane >> 1 & 1);
    }
    return at;
}

template <typename T> DEVICE place<T> find_place()
{
    return place_of_thread<T>(threadIdx.x);
}

// The same, found anew: it takes no registers in between.
template <typename T> DEVICE place<T> find_place_anew()
{
    return place_of_thread<T>(device_thread());
}

// Brings rows j .. j + HEIGHT - 1, columns d .. d + WIDTH - 1 of a view into shared memory,
// by all threads. Rows below lo and from n > lo on, and columns from `depth` on, become 0
// without being read: the address of the nearest row that is read spares a branch.
// TOGETHER: addresses that are found side by side, at the cost of registers.
template <int HEIGHT, int WIDTH, int PITCH, int THREADS, int CAN,
          int TOGETHER = (CAN & FEAT_PAGES) != 0 ? 2 : 4>
DEVICE void stage(const attn_kparams &p, float *to, const void *x, attn_rows rows, int j,
                  int lo, int n, int d, int depth, bool wide, bool contig)
{
    const int me = device_thread();

    if (wide) {
        #pragma unroll TOGETHER
        for (int e = me; e < HEIGHT * (WIDTH / 4); e += THREADS) {
            const int r = e / (WIDTH / 4), c = e % (WIDTH / 4) * 4;
            const bool inside = r >= lo && r < n && d + c < depth;
            const int64_t i = address_row<CAN>(p, rows, j + clamp(r, lo, n - 1)) + d + c;

            if (TYPE == TYPE_F32)
                device_copy<16>(to + r * PITCH + c, (const float *)x + i, inside);
            else
                *(float4 *)(to + r * PITCH + c) =
                    inside ? elem_load4<TYPE>(x, i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
        return;
    }
    #pragma unroll 1
    for (int e = me; e < HEIGHT * WIDTH; e += THREADS) {
        const int r = e / WIDTH, c = e % WIDTH;
        const bool inside = r >= lo && r < n && d + c < depth;
        const int64_t row = address_row<CAN>(p, rows, j + clamp(r, lo, n - 1));
        const int64_t i = row + (contig ? d + c : (d + c) * rows.stride_d);

        if (TYPE == TYPE_F32)
            device_copy<4>(to + r * PITCH + c, (const float *)x + i, inside);
        else
            to[r * PITCH + c] = inside ? elem_load<TYPE>(x, i) : 0.0f;
    }
}

// The same, column after column in memory; of the rows that are AMONG apart four lie side by
// side. A warp brings 8 columns of such four: of each 32 bytes in global memory, and to as many
// banks if PITCH % 32 is 4.
template <int HEIGHT, int WIDTH, int PITCH, int THREADS, int CAN, int AMONG>
DEVICE void stage_turned(const attn_kparams &p, float *to, const void *x, attn_rows rows, int j,
                         int lo, int n, int d, int depth, bool contig)
{
    constexpr int PASS = THREADS / 8, COLUMNS = 8;
    const unsigned me = device_thread();
    const int column = me / 4 % 8, place = me / 32 * 4 + me % 4;    // of the first pass
    const int64_t stride = contig ? 1 : rows.stride_d;

    static_assert(HEIGHT % PASS == 0 && WIDTH % COLUMNS == 0, "passes are whole");
    #pragma unroll 1
    for (int i = place; i < HEIGHT; i += PASS) {
        const int r = i / (4 * AMONG) * (4 * AMONG) + i / 4 % AMONG + i % 4 * AMONG;
        const int64_t row = address_row<CAN>(p, rows, j + clamp(r, lo, n - 1));
        int64_t from = row + (d + column) * stride;
        float *put = to + column * PITCH + i;

        #pragma unroll 4
        for (int c = 0; c < WIDTH; c += COLUMNS, put += COLUMNS * PITCH, from += COLUMNS * stride) {
            const bool inside = r >= lo && r < n && d + column + c < depth;

            if (TYPE == TYPE_F32)
                device_copy<4>(put, (const float *)x + from, inside);
            else
                *put = inside ? elem_load<TYPE>(x, from) : 0.0f;
        }
    }
}
