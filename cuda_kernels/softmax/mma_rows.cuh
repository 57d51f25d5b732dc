// SPDX-License-Identifier: MIT
// softmax/mma_rows.cuh: where kernels on tensor cores end: the rows of a warp leave its
// registers. put_row() is the products' own.
#pragma once
#ifdef TYPE_IS_F32
#include "softmax/mma_products32.cuh"
#else
#include "softmax/mma_products16.cuh"
#endif

// One of WAYS parts of the columns of O leaves a tile of the warp's own.
template <typename T, int CAN, int WAYS>
DEVICE void copy_rows(const attn_kparams &p, int64_t first, int queries,
                      const float4 *tile, int part)
{
    constexpr int CHUNKS = CHUNKS_V / WAYS, LOWEST = CHUNKS & -CHUNKS;
    const int lane = threadIdx.x % 32;

    if (has<CAN>(p, WHOLE_O)) {
        // some at once: what is read waits for nothing that is written
        constexpr int64_t BYTES = elem_bytes<TYPE>();
        constexpr int AT_ONCE = LOWEST < 32 ? LOWEST : 32;    // chunks of a row
        constexpr int PASS = 32 / AT_ONCE, ROUNDS = T::ROWS / PASS;
        constexpr int TOGETHER = ROUNDS < 8 ? ROUNDS : 8;
        const int x = lane / AT_ONCE, c = lane % AT_ONCE;
        char *const to =
            (char *)p.o + (first + x * p.o_stride_l + (part * CHUNKS + c) * PER) * BYTES;
        const int64_t pass = PASS * p.o_stride_l * BYTES;

        #pragma unroll
        for (int i = 0; i < ROUNDS; i += TOGETHER)
            #pragma unroll
            for (int more = 0; more < CHUNKS; more += AT_ONCE) {
                float4 some[TOGETHER];

                #pragma unroll
                for (int k = 0; k < TOGETHER; k++)
                    some[k] = tile[place_of<CHUNKS>(x + (i + k) * PASS, c + more)];
                #pragma unroll
                for (int k = 0; k < TOGETHER; k++)
                    if (x + (i + k) * PASS < queries &&
                        (part * CHUNKS + c + more) * PER < p.dv)
                        *(float4 *)(to + (i + k) * pass + more * PER * BYTES) = some[k];
            }
        return;
    }

    const int begin = part * CHUNKS * PER, n = min(p.dv - begin, CHUNKS * PER);

    #pragma unroll 1
    for (int e = lane; e < T::ROWS * n; e += 32) {
        const int x = e / n, c = e % n;
        const float4 *const from = tile + place_of<CHUNKS>(x, c / PER);
        const int64_t to = first + x * p.o_stride_l + (begin + c) * p.o_stride_d;

        if (x >= queries)
            break;
        if (TYPE == TYPE_F32)
            ((float *)p.o)[to] = ((const float *)from)[c % PER];
        else
            ((uint16_t *)p.o)[to] = ((const uint16_t *)from)[c % PER];
    }
}

// One of WAYS parts of the columns of O, each row times its factor, comes to a tile of the warp's
// own; `part` counts those that the warp has.
template <int WAYS, typename T>
DEVICE void put_rows(const rows_state<T> &my, const float (&factor)[2 * T::MT], float4 *tile,
                     int part)
{
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++)
        put_row<T, WAYS>(my, i / 2, i % 2, factor[i], tile,
                          threadIdx.x % 32 / 4 + i / 2 * 16 + i % 2 * 8, part);
}

// What row `half` of the 16 rows mt of O is to be multiplied by; its LSE, if this warp `tells` it.
// natural: what a maximum is multiplied by to be a score.
template <typename T, int CAN>
DEVICE float finish_row(const attn_kparams &p, const mma_work &mem, int x0, int mt, int half,
                        float natural, float sink, int queries, bool tells,
                        const rows_state<T> &my)
{
    const int lane = threadIdx.x % 32, x = lane / 4 + mt * 16 + half * 8;
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
    if (has<CAN>(p, FEAT_LSE) && p.want_lse && lane % 4 == 0 && x < queries && tells)
        p.lse[address_lse<CAN>(p, mem.seq, mem.b, mem.h, mem.i0 + x0 + x)] = state_lse(row);
    return factor;
}

// O and the LSE of the warp's rows, x0 the first of them in the group, through a tile of the
// warp's own that has room for one of PARTS of the columns.
template <typename T, int CAN, int PARTS = 1>
DEVICE void write_rows(const attn_kparams &p, const mma_work &mem, int x0, float4 *tile,
                       float natural, rows_state<T> &my)
{
    const int queries = min(mem.queries - x0, (int)T::ROWS);
    const float sink = state_sink<CAN>(p, mem.h);
    float factor[2 * T::MT];

    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++)
        factor[i] = finish_row<T, CAN>(p, mem, x0, i / 2, i % 2, natural, sink, queries, true, my);
    if (!p.want_o)
        return;

    const attn_rows rows = ADDRESS_QUERIES(p, o, mem.seq, mem.b, mem.h);
    const int64_t first = rows.base + (mem.i0 + x0) * p.o_stride_l;

    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
        __syncwarp();    // what was there has been read
        put_rows<PARTS>(my, factor, tile, part);
        __syncwarp();
        copy_rows<T, CAN, PARTS>(p, first, queries, tile, part);
    }
}

// The same by a warp of a pair, of its half of the columns, through its half of the pair's tile.
// What a row takes is found when its turn comes: registers are full.
template <typename T, int CAN>
DEVICE void write_rows_of_pair(const attn_kparams &p, const mma_work &mem, int x0, float4 *tile,
                               float natural, rows_state<T> &my, const warp_pair<T> &pair)
{
    const int queries = min(mem.queries - x0, (int)T::ROWS);
    const float sink = state_sink<CAN>(p, mem.h);
    float4 *const own = tile + pair.column() * (T::ROWS * CHUNKS_V / T::COLS);

    __syncwarp();
    pair.sum(my.l);    // behind which the other does not read what the tile takes the place of
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        const float factor = finish_row<T, CAN>(p, mem, x0, i / 2, i % 2, natural, sink, queries,
                                                pair.column() == 0, my);

        put_row<T, T::COLS>(my, i / 2, i % 2, factor, own,
                            threadIdx.x % 32 / 4 + i / 2 * 16 + i % 2 * 8, 0);
    }
    __syncwarp();
    if (!p.want_o)
        return;

    const attn_rows rows = ADDRESS_QUERIES(p, o, mem.seq, mem.b, mem.h);

    copy_rows<T, CAN, T::COLS>(p, rows.base + (mem.i0 + x0) * p.o_stride_l, queries, own,
                               pair.column());
}
