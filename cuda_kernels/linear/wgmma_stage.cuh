// SPDX-License-Identifier: MIT
// linear/wgmma_stage.cuh: how chunks of K and V come to the tiles of fwd_wgmma.cu: copied to shared
// memory as they are, UNITS units of 64 columns at a time, and taken apart from there by the
// threads that have copied them, so that registers hold none that are on their way.
#pragma once
#include "linear/wgmma_bring.cuh"

constexpr int UNIT = CHUNK * 64 / EACH;    // 16 bytes each

// A thread's part of a unit of SPAN columns: 16 bytes of every STEP-th row.
template <int SPAN> struct part_of_unit {
    static constexpr int ACROSS = SPAN / EACH, STEP = 128 / ACROSS, COUNT = CHUNK / STEP;

    static __device__ __forceinline__ int row() { return (int)threadIdx.x % 128 / ACROSS; }
    static __device__ __forceinline__ int column() { return (int)threadIdx.x % ACROSS * EACH; }
};

// Where the unit's rows begin, bytes from row to row, whether the thread's columns are there.
struct unit_source {
    const char *from;
    int64_t bytes;
    bool inside;
};

// Asks for those below `rows`; the others become 0 and are not read.
template <int SPAN> DEVICE void ask_unit(const unit_source &x, int rows, float4 *unit)
{
    typedef part_of_unit<SPAN> part;
    const char *from = x.from;

    #pragma unroll
    for (int i = 0; i < part::COUNT; i++) {
        const bool there = x.inside && part::row() + i * part::STEP < rows;

        device_copy<16>((float *)(unit + i * 128 + threadIdx.x % 128), from, there);
        from += there ? part::STEP * x.bytes : 0;
    }
}

// phi of those rows, `step` apart, that are below `rows`.
template <int N>
DEVICE void take_phi(const attn_linear_kparams &p, int rows, int step, float4 (&x)[N])
{
    float y[N][EACH];

    #pragma unroll
    for (int i = 0; i < N; i++)
        unpack(x[i], y[i]);
    phi_of(p, y);
    #pragma unroll
    for (int i = 0; i < N; i++)
        if (i * step < rows)
            x[i] = pack_row(y[i]);
}

// A thread's numbers of row r to the tiles of each part.
template <int SPAN, bool KEYS>
DEVICE void put_apart(const float4 &x, int r, float4 *tiles, int panels)
{
    const int c = part_of_unit<SPAN>::column();
    uint32_t word[PARTS][EACH / 2];

    rows_of_chunk<TYPE, SPAN>::take_apart(x, word);
    #pragma unroll
    for (int n = 0; n < PARTS; n++) {
        char *const at = (char *)(tiles + n * panels * TILE) + r * 128;
        const uint32_t *const y = word[n];

        #pragma unroll
        for (int half = 0; half < (KEYS ? 2 : 1); half++) {
            const int chunk = KEYS ? c / 16 * 2 + half : c / 8;
            char *const to = at + (chunk ^ (r & 7)) * 16 + (KEYS ? c % 16 : c * 2 % 16);

            if (KEYS && EACH == 4)
                *(uint32_t *)to = y[half];
            else if (KEYS)
                *(uint2 *)to = make_uint2(y[half], y[(2 + half) % (EACH / 2)]);
            else if (EACH == 4)
                *(uint2 *)to = make_uint2(y[0], y[1]);
            else
                *(float4 *)to = four_words(y[0], y[1], y[2 % (EACH / 2)], y[3 % (EACH / 2)]);
        }
    }
}

// A unit that has come, to the tiles of one of `panels`. KEYS: columns as column_at() has them, phi
// of rows below `rows` (zeros past them stay), and the sums of the warp's if they are wanted.
template <int SPAN, bool KEYS>
DEVICE void take_unit(const attn_linear_kparams &p, const float4 *unit, int rows, float4 *tiles,
                      int panels, float *sums)
{
    typedef part_of_unit<SPAN> part;
    constexpr int AT_ONCE = TYPE == TYPE_F32 ? 4 : DIM > 64 ? 1 : 2;    // without branches between
    const int c = part::column();
    float all[EACH] = {};

    #pragma unroll 1
    for (int from = 0; from < part::COUNT; from += AT_ONCE) {
        const int first = part::row() + from * part::STEP;
        float4 x[AT_ONCE];

        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            x[i] = unit[(from + i) * 128 + threadIdx.x % 128];
        if (KEYS && linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
            take_phi(p, rows - first, part::STEP, x);
        if (KEYS && linear_has(p, LINEAR_NORMALIZE))
            #pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float y[EACH];

                unpack(x[i], y);
                #pragma unroll
                for (int n = 0; n < EACH; n++)
                    all[n] += y[n];
            }
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            put_apart<SPAN, KEYS>(x[i], first + i * part::STEP, tiles, panels);
    }
    if (!KEYS || !linear_has(p, LINEAR_NORMALIZE))
        return;
    if constexpr (part::ACROSS < 32)    // a warp has some rows at a time
        #pragma unroll
        for (int apart = part::ACROSS; apart < 32; apart *= 2)
            #pragma unroll
            for (int n = 0; n < EACH; n++)
                all[n] += __shfl_xor_sync(0xffffffffu, all[n], apart);
    if (threadIdx.x % 32 < part::ACROSS)
        #pragma unroll
        for (int n = 0; n < EACH; n++)
            sums[c + n] = all[n];
}

// By the warpgroup that brings: of each chunk the panels of K, then V; first the chunks of keys
// that are summed up, then the group's own, `chunks` in all.
template <int STAGES, int UNITS, class MEM>
DEVICE void bring_chunks(const attn_linear_kparams &p, const chunk_work &w, const chunk_sum &sum,
                         int chunks, MEM &mem)
{
    typedef part_of_unit<64> part;
    typedef part_of_unit<COLUMNS> part_v;
    constexpr int EVERY = PANELS + 1;    // units of a chunk
    const int end = min(w.keys, w.end);
    const int64_t row_k = p.k_stride_l * (16 / EACH), row_v = p.v_stride_l * (16 / EACH);
    const char *from_k = at_element(p.k, LINEAR_AT(p, k, w.b, w.kvh,
                                                   (int64_t)w.first + part::row(), 0) +
                                             part::column());
    const char *from_v = at_element(p.v, LINEAR_AT(p, v, w.b, w.kvh,
                                                   (int64_t)w.first + part_v::row(), 0) +
                                             w.column + part_v::column());
    int slot = 0;    // of the unit that is taken next, and of the one that is asked for then

    const auto token_of = [&](int n) {
        return n < sum.count ? sum.first + n * CHUNK : w.first + (n - sum.count) * CHUNK;
    };

    // Unit u of chunk n.
    const auto ask = [&](int u, int n, int slot) {
        const int j = token_of(n), column = u * 64 + part::column();
        const int64_t on = (int64_t)(j - w.first);

        if (n >= chunks) {
            device_commit();
            return;
        }
        if (u < PANELS)
            ask_unit<64>({ from_k + on * row_k + u * 64 * (16 / EACH), row_k, column < p.d },
                         end - j, mem.unit[slot]);
        else
            ask_unit<COLUMNS>({ from_v + on * row_v, row_v, w.column + part_v::column() < p.dv },
                              end - j, mem.unit[slot]);
        device_commit();
    };

    #pragma unroll
    for (int i = 0; i < UNITS; i++)
        ask(i % EVERY, i / EVERY, i);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int stage = n % STAGES, j = token_of(n);

        device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
        #pragma unroll
        for (int u = 0; u < EVERY; u++) {
            device_copied<UNITS - 1>();
            if (u < PANELS)
                take_unit<64, true>(p, mem.unit[slot], u * 64 + part::column() < p.d ? end - j : 0,
                                    mem.k[stage][0][u % PANELS], PANELS,
                                    mem.sums[stage][threadIdx.x / 32] + u * 64);
            else
                take_unit<COLUMNS, false>(p, mem.unit[slot], 0, mem.v[stage][0], 1, nullptr);
            if (u == PANELS)
                arrive_written(&mem.full[stage]);
            ask((u + UNITS) % EVERY, n + (u + UNITS) / EVERY, slot);
            slot = slot + 1 < UNITS ? slot + 1 : 0;
        }
    }
}
