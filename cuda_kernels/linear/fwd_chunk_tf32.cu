// SPDX-License-Identifier: MIT
// linear/fwd_chunk_tf32.cu: linear attention in chunks on tensor cores, f32.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    as fwd_chunk_mma.cu, with products of TF32: three to full accuracy, or one
// Grid      as there
// Block     128 threads, 1-D: of a chunk a warp has 16 queries, others from chunk to chunk,
//           since the last ones see most keys; of the state D / 4 rows
// Shared    dynamic: chunks of K and V, and Q; S and z. O leaves through the warp's rows of Q
// Barriers  two a chunk, three for D over 64, of which one chunk fits, for D over 128 one of each
//           part of its rows and one
// Layout    rows of Q, K, V and O 16 bytes at a time. work: chunk.cuh
// Numerics  chunk_tf32.cuh; sums, S and z f32. Rows of q with huge numbers are divided by a
//           power of 2 meanwhile. The bits of a head depend on the segments, which follow
//           from B and the heads, and on nothing else
// Instances _sums, _output; _sums_tf32, _output_tf32 where TF32 is allowed
// Requires  sm_80; D and Dv multiples of 4, D up to DIM
// Tunables  CHUNK, COLUMNS, PART; src/plan/cuda/linear_fwd_chunk.c has the same numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for each DIM (64, 128, 256): NAME is the image's.
#include "common/params.h"

#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_linear_fwd_chunk_tf32_d64
#endif

#define TYPE TYPE_F32

#include "linear/chunk_tf32_products.cuh"

constexpr int STAGES = PART > 64 ? 1 : 2, SUM_STAGES = PART > 64 ? 2 : 3;
constexpr int BLOCKS = 2;    // groups on a multiprocessor

#include "linear/chunk_walk.cuh"

struct shared_output {
    float4 q[STAGES][CHUNK * CHUNKS], k[STAGES][CHUNK * CHUNKS], v[STAGES][CHUNK * CHUNKS_V];
    float4 s[DIM * CHUNKS_V];
    float z[DIM];
};

// 1, or the power of 2 that the lane's rows are to be multiplied by, so that no sum overflows.
DEVICE void find_huge(const float4 *q, int x0, float (&down)[2])
{
    uint32_t top[2] = { 0, 0 };

    #pragma unroll UNROLL
    for (int k = 0; k < KT; k++) {
        float a[4];

        load_queries(q, x0, k, a);
        #pragma unroll
        for (int i = 0; i < 4; i++)
            top[i % 2] = max(top[i % 2], __float_as_uint(a[i]) & 0x7fffffffu);
    }
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = max(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
        top[half] = max(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
        down[half] = top[half] >= 0x50000000u ? power_of_2(-HUGE_ROW) : 1.0f;    // 2^33
    }
}

// The same of rows that come in parts: what those before have added to is multiplied too.
DEVICE void find_huge_part(const float4 *q, int x0, float (&down)[2], warp_pairs &pairs,
                           warp_output &out)
{
    float now[2];

    find_huge(q, x0, now);
    if (now[0] >= down[0] && now[1] >= down[1])
        return;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float by = now[i / 2] < down[i / 2] ? now[i / 2] : 1.0f;

        #pragma unroll
        for (int n = 0; n < CHUNK / 8; n++)
            pairs[n][i] *= by;
        #pragma unroll
        for (int n = 0; n < NT; n++)
            out.o[n][i] *= by;
        out.den[i] *= by;
    }
    down[0] = fminf(down[0], now[0]);
    down[1] = fminf(down[1], now[1]);
}

// The warp's rows of O and den, of the chunk that begins with token j, through its rows of Q.
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j, int x0,
                       const float (&down)[2], float4 *tile, warp_output &out)
{
    const int lane = threadIdx.x % 32;

    lift_rows(p, down, out.o);
    __syncwarp();
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = x0 + half * 8 + lane / 4;
        float factor = unit_of_row(p, down[half]);

        if (linear_has(p, LINEAR_NORMALIZE)) {
            float den = lane % 4 == 0 ? out.den[half * 2] : 0.0f;

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            den = p.sum_scale * den + p.sum_eps * down[half];
            if (p.want_den && w.column == 0 && lane % 4 == 0 && j + row < p.len_q)
                p.den[LINEAR_AT(p, den, w.b, w.h, (int64_t)(j + row), 0)] =
                    in_units(p.sum_unit, den, 1.0f / down[half]);
            factor = den == 0.0f ? 0.0f : p.sum_scale / den;
        }
        #pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            float4 x = four_of(out.o, n / 2, half * 2 + n % 2);

            x = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
            tile[place_of(row, column_of(n / 2, n % 2) / 4, CHUNKS)] = x;
        }
    }
    if (p.want_o)
        store_rows(p.o, LINEAR_AT(p, o, w.b, w.h, (int64_t)j, 0), p.o_stride_l, p.len_q - j,
                   w.column, p.dv, x0, tile);
}

// S += K^T V of all chunks of a segment.
template <bool EXACT> DEVICE void sum_chunks(const attn_linear_kparams &p)
{
    const bool sums = linear_has(p, LINEAR_NORMALIZE);

    sum_segment(p, [&](const float4 *k, const float4 *v, int part, warp_state &my) {
        #pragma unroll 2
        for (int t = 0; t < CHUNK / 8; t++)
            fold_tokens<EXACT>(k, v, t, sums, false, nullptr, 0, part, nullptr, my);
    });
}

// Chunk n, whose rows are there whole; it `adds` keys. The warp's rows begin with x0, and are
// multiplied by `down`.
template <bool EXACT>
DEVICE void take_chunk(const attn_linear_kparams &p, const chunk_work &w, int n, bool adds, int x0,
                       shared_output &mem, warp_state &my, float (&down)[2], warp_output &out)
{
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const int at = n % STAGES;

    await_chunk(p, w, mem, at, w.first + n * CHUNK, 0);
    if (STAGES > 1)
        fetch_chunk(p, w, mem, n + STAGES - 1, 0, (n + STAGES - 1) % STAGES);
    find_huge(mem.q[at], x0, down);
    read_state<EXACT>(mem.q[at], mem.s, mem.z, x0, sums, 0, down, out);
    if (!adds)
        return;
    {
        warp_pairs pairs = {};

        add_part<EXACT, false>(mem.q[at], mem.k[at], x0, down, pairs);
        put_pairs<false>(mem.q[at], x0, pairs, [](float &, int, int) {});
    }
    #pragma unroll 1
    for (int t = 0; t < CHUNK / 8; t++)
        fold_tokens<EXACT>(mem.k[at], mem.v[at], t, sums, t * 8 <= x0 + 8, mem.q[at], x0, 0, &out,
                           my);
}

// The same of a chunk whose rows come in parts, of which `taken` have come; O of pairs when all
// are there.
template <bool EXACT>
DEVICE void take_parts(const attn_linear_kparams &p, const chunk_work &w, int n, bool adds, int x0,
                       shared_output &mem, warp_state &my, float (&down)[2], warp_output &out,
                       int &taken)
{
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const int parts = parts_of(p.d);
    warp_pairs pairs = {};

    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const int at = taken % STAGES;
        const bool last = part + 1 >= parts;

        await_chunk(p, w, mem, at, w.first + n * CHUNK, part);
        taken++;
        fetch_chunk(p, w, mem, last ? n + 1 : n, last ? 0 : part + 1, taken % STAGES);
        find_huge_part(mem.q[at], x0, down, pairs, out);
        read_state<EXACT>(mem.q[at], mem.s, mem.z, x0, sums, part, down, out);
        if (adds) {
            add_part<EXACT, false>(mem.q[at], mem.k[at], x0, down, pairs);
            #pragma unroll 1
            for (int t = 0; t < CHUNK / 8; t++)
                fold_tokens<EXACT>(mem.k[at], mem.v[n % STAGES], t, sums, false, nullptr, 0, part,
                                   nullptr, my);
        }
        if (last)
            break;
    }
    if (adds) {
        float4 *const place = mem.q[(taken - 1) % STAGES];

        put_pairs<false>(place, x0, pairs, [](float &, int, int) {});
        #pragma unroll 1
        for (int t = 0; t * 8 <= x0 + 8; t++)
            fold_pairs<EXACT>(mem.v[n % STAGES], t, sums, place, x0, out);
    }
}

template <bool EXACT> DEVICE void walk_segment(const attn_linear_kparams &p)
{
    static_assert(CHUNKS >= CHUNKS_V, "a row of O has room where one of Q was");
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;
    const chunk_work w = find_chunks(p, p.heads_q, p.len_q, p.dv);
    const int chunks = ceil_div(w.end - w.first, CHUNK), warp = threadIdx.x / 32;
    int taken = 0;    // parts of chunks
    warp_state my;

    fetch_first(p, w, mem);
    device_wait_before();
    load_state(p, w, my);
    share_state(my, mem.s, mem.z);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int j = w.first + n * CHUNK;
        const int x0 = 16 * (n % 2 ? WARPS - 1 - warp : warp);
        const bool adds = adds_at(p, w, j);
        warp_output out = {};
        float down[2] = { 1.0f, 1.0f };

        if (PARTS == 1)
            take_chunk<EXACT>(p, w, n, adds, x0, mem, my, down, out);
        else
            take_parts<EXACT>(p, w, n, adds, x0, mem, my, down, out, taken);
        if (adds) {
            __syncthreads();    // S has been read
            share_state(my, mem.s, mem.z);
        }
        write_rows(p, w, j, x0, down, mem.q[(PARTS == 1 ? n : taken - 1) % STAGES], out);
        if (STAGES == 1) {
            __syncthreads();
            fetch_chunk(p, w, mem, n + 1, 0, 0);
        }
    }
    put_state_out(p, w, my);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, blocks, call)                                                \
    extern "C" __global__ __launch_bounds__(THREADS, blocks) void JOIN(name, part)(     \
        const __grid_constant__ attn_linear_kparams p)                                  \
    {                                                                                   \
        call(p);                                                                        \
    }

KERNEL(NAME, _sums, BLOCKS, sum_chunks<true>)
KERNEL(NAME, _sums_tf32, BLOCKS, sum_chunks<false>)
KERNEL(NAME, _output, BLOCKS, walk_segment<true>)
KERNEL(NAME, _output_tf32, BLOCKS, walk_segment<false>)
