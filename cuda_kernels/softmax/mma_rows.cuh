// SPDX-License-Identifier: MIT
// softmax/mma_rows.cuh: where kernels on tensor cores end: the rows of a warp leave its
// registers. put_row() is the products' own.
#pragma once
#ifdef TYPE_IS_F32
#include "softmax/mma_products32.cuh"
#else
#include "softmax/mma_products16.cuh"
#endif

// O and the LSE of the warp's rows, x0 the first of them in the group, through a tile of the
// warp's own, or its pair's. natural: what a maximum is multiplied by to be a score.
template <typename T, int CAN>
DEVICE void write_rows(const attn_kparams &p, const mma_work &mem, int x0, float4 *tile,
                       float natural, rows_state<T> &my, const warp_pair<T> &pair = {})
{
    constexpr int CHUNKS = CHUNKS_V / T::COLS;    // the warp's own
    const int lane = threadIdx.x % 32, own = pair.column() * CHUNKS;
    const int queries = min(mem.queries - x0, (int)T::ROWS);
    const float sink = state_sink<CAN>(p, mem.h);

    __syncwarp();
    pair.sum(my.l);
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const int mt = i / 2, half = i % 2, x = lane / 4 + mt * 16 + half * 8;
        attn_row row = { my.m[mt][half] * natural, my.l[mt][half] };

        if (T::LONG)
            row.l -= my.l_rest[T::LONG ? mt : 0][half];
        row.l += __shfl_xor_sync(0xffffffffu, row.l, 1);
        row.l += __shfl_xor_sync(0xffffffffu, row.l, 2);
        row.l = unlifted<TYPE>(row.l);
        if (my.m[mt][half] == -INFINITE)
            row.m = -INFINITE;

        float factor = unlifted<TYPE>(state_finish_sink(&row, sink));

        if (has<CAN>(p, FEAT_DROPOUT))    // here, since weights of f16 have no room for it
            factor *= p.drop_factor;

        if (has<CAN>(p, FEAT_LSE) && p.want_lse && lane % 4 == 0 && x < queries &&
            own == 0)
            p.lse[address_lse<CAN>(p, mem.seq, mem.b, mem.h, mem.i0 + x0 + x)] =
                state_lse(row);
        put_row<T>(my, mt, half, factor, tile, own);
    }
    __syncwarp();
    if (!p.want_o)
        return;

    const attn_rows rows = ADDRESS_QUERIES(p, o, mem.seq, mem.b, mem.h);
    const int64_t first = rows.base + (mem.i0 + x0) * p.o_stride_l;

    if (has<CAN>(p, WHOLE_O)) {
        constexpr int AT_ONCE = 32 / CHUNKS;    // rows

        if constexpr (AT_ONCE * CHUNKS == 32) {
            const int c = own + lane % CHUNKS;
            char *to = (char *)p.o + (first + lane / CHUNKS * p.o_stride_l + c * PER) *
                                         elem_bytes<TYPE>();

            #pragma unroll
            for (int x = 0; x < T::ROWS; x += AT_ONCE) {
                if (x + lane / CHUNKS < queries && c * PER < p.dv)
                    *(float4 *)to = tile[place_of<CHUNKS_V>(x + lane / CHUNKS, c)];
                to += AT_ONCE * p.o_stride_l * elem_bytes<TYPE>();
            }
            return;
        }
        for (int e = lane; e < T::ROWS * CHUNKS; e += 32) {
            const int x = e / CHUNKS, c = own + e % CHUNKS;

            if (x < queries && c * PER < p.dv)
                *(float4 *)((char *)p.o + (first + x * p.o_stride_l + c * PER) *
                                              elem_bytes<TYPE>()) =
                    tile[place_of<CHUNKS_V>(x, c)];
        }
        return;
    }

    const int wide = clamp(p.dv - own * PER, 0, CHUNKS * PER);

    #pragma unroll 1
    for (int e = lane; e < T::ROWS * wide; e += 32) {
        const int x = e / wide, c = own * PER + e % wide;
        const float4 *const from = tile + place_of<CHUNKS_V>(x, c / PER);
        const int64_t to = first + x * p.o_stride_l + c * p.o_stride_d;

        if (x >= queries)
            break;
        if (TYPE == TYPE_F32)
            ((float *)p.o)[to] = ((const float *)from)[c % PER];
        else
            ((uint16_t *)p.o)[to] = ((const uint16_t *)from)[c % PER];
    }
}
