// SPDX-License-Identifier: MIT
// linear/fwd_chunk_mma.cu: linear attention in chunks on tensor cores, 16-bit types.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    W. Hua et al., "Transformer Quality in Linear Time" (2022), the mixed chunk form:
//           of each chunk O = tril(Q K^T) V + Q S, then S += K^T V. The sequence is cut into
//           segments where there are too few heads: _sums finds what the keys of each add to
//           the state, fwd_scan.cu may bring them together, _output walks each segment from
//           the state before it. The full form has segments of the keys, and others of the
//           queries, which all read the one state
// Grid      1-D, ceil(Dv / COLUMNS) * segments * heads * B groups, columns fastest; _sums has
//           the key/value heads, _output all heads, each of which walks its keys again
// Block     128 threads, 1-D: of a chunk a warp has 16 queries, of the state D / 4 rows
// Shared    dynamic: two chunks of K and V, and Q, of _sums four; S and z of the chunk before
//           in the type. O leaves through the warp's own rows of Q
// Barriers  one a chunk, two for D over 64, for D over 128 one of each part of its rows and one
// Layout    rows of Q, K, V and O 16 bytes at a time. work: chunk.cuh
// Numerics  sums, S and z f32, S and P = Q K^T rounded to the type where they are operands, z
//           as the sum of two such numbers. In f16, P and S are divided by powers of 2 where
//           they would overflow; in bf16 rows of q with huge numbers are. The bits of a head
//           depend on the segments, which follow from B and the heads, and on nothing else
// Requires  sm_80; D and Dv multiples of 8, D up to DIM
// Tunables  CHUNK, COLUMNS, PART; src/plan/cuda/linear_fwd_chunk.c has the same numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for each TYPE (f16, bf16) and DIM (64, 128, 256): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_linear_fwd_chunk_mma_f16_d64
#endif

#include "linear/chunk_mma_products.cuh"

constexpr int STAGES = 2, SUM_STAGES = 4;
constexpr int COPIES = DIM > 64 ? 1 : 2;    // of S in the type: with two, one barrier less
constexpr int BLOCKS = DIM > 64 ? 2 : 3;    // groups on a multiprocessor

#include "linear/chunk_walk.cuh"

struct shared_output {
    float4 q[STAGES][CHUNK * CHUNKS], k[STAGES][CHUNK * CHUNKS], v[STAGES][CHUNK * CHUNKS_V];
    float4 s[COPIES][DIM * CHUNKS_V];
    float4 z[COPIES][DIM];         // columns 0 and 1 add up to z
    int lifted[COPIES][WARPS];     // exponents that a warp's rows of S and z were divided by
};

// Bits 15 and 31: whether a number of bf16 is 2^33 or more.
DEVICE uint32_t huge(uint32_t pair)
{
    return ((pair & 0x7fff7fffu) + 0x30003000u) & 0x80008000u;
}

// Divides rows of bf16 that have huge numbers by 2^HUGE_ROW, so that no sum overflows, and those
// that were divided before; whether that was done, for both rows.
DEVICE void tame_queries(uint32_t (&a)[KT][4], bool (&tamed)[2])
{
    uint32_t any[2] = { 0, 0 };

    #pragma unroll
    for (int i = 0; i < KT * 4; i++)
        any[i % 2] |= huge(a[i / 4][i % 4]);
    if (!__any_sync(0xffffffffu, (any[0] | any[1]) != 0 || tamed[0] || tamed[1]))
        return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        any[half] |= __shfl_xor_sync(0xffffffffu, any[half], 1);
        any[half] |= __shfl_xor_sync(0xffffffffu, any[half], 2);
        tamed[half] = tamed[half] || any[half] != 0;
    }
    #pragma unroll
    for (int i = 0; i < KT * 4; i++) {
        const float down = tamed[i % 2] ? power_of_2(-HUGE_ROW) : 1.0f;

        a[i / 4][i % 4] = device_pair<TYPE>(f32_of_low(a[i / 4][i % 4]) * down,
                                            f32_of_high(a[i / 4][i % 4]) * down);
    }
}

// The same of a part of the rows, and of what the parts before it have added to.
DEVICE void tame_part(uint32_t (&a)[KT][4], bool (&tamed)[2], warp_pairs &x, warp_output &o)
{
    const bool were[2] = { tamed[0], tamed[1] };

    tame_queries(a, tamed);
    if (tamed[0] == were[0] && tamed[1] == were[1])
        return;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float down = tamed[i / 2] == were[i / 2] ? 1.0f : power_of_2(-HUGE_ROW);

        #pragma unroll
        for (int n = 0; n < CHUNK / 8; n++)
            x[n][i] *= down;
        #pragma unroll
        for (int n = 0; n <= NT; n++)
            o[n][i] *= down;
    }
}

constexpr float LARGEST = 3.402823466e38f;

// The rows of O and den from token j on, through the warp's own rows of a chunk.
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j,
                       const bool (&tamed)[2], int exponent, float4 *tile, warp_output &o)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, x0 = warp * 16;
    const float up = power_of_2(exponent), tame = power_of_2(-HUGE_ROW);
    const float down[2] = { tamed[0] ? tame : 1.0f, tamed[1] ? tame : 1.0f };

    __syncwarp();    // lanes read each other's part of those rows
    lift_rows(p, down, o);
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = x0 + half * 8 + lane / 4;
        float factor = unit_of_row(p, down[half]) * up;

        if (linear_has(p, LINEAR_NORMALIZE)) {
            float den = o[NT][half * 2] + o[NT][half * 2 + 1];

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            den = p.sum_scale * (den * up) + p.sum_eps * down[half];
            if (p.want_den && w.column == 0 && lane % 4 == 0 && j + row < p.len_q)
                p.den[LINEAR_AT(p, den, w.b, w.h, (int64_t)(j + row), 0)] =
                    in_units(p.sum_unit, den, 1.0f / down[half]);
            factor = den == 0.0f ? 0.0f : p.sum_scale * up / den;
        } else {
            factor = fminf(fmaxf(factor, -LARGEST), LARGEST);    // times 0 it is 0
        }
        #pragma unroll
        for (int n = 0; n < NT; n++)
            ((uint32_t *)(tile + place_of(row, n, CHUNKS)))[lane % 4] =
                device_pair<TYPE>(o[n][half * 2] * factor, o[n][half * 2 + 1] * factor);
    }
    if (p.want_o)
        store_rows(p.o, LINEAR_AT(p, o, w.b, w.h, (int64_t)j, 0), p.o_stride_l, p.len_q - j,
                   w.column, p.dv, x0, tile);
}

DEVICE void sum_chunks(const attn_linear_kparams &p)
{
    const bool sums = linear_has(p, LINEAR_NORMALIZE);

    sum_segment(p, [&](const float4 *k, const float4 *v, int part, warp_state &my) {
        sum_chunk(k, v, sums, part, my);
    });
}

// What a chunk's rows are read and written with.
struct chunk_rows {
    warp_output o;
    bool tamed[2];
    int exponent;
};

// Chunk n, whose rows are there whole; it `adds` keys.
DEVICE void take_chunk(const attn_linear_kparams &p, const chunk_work &w, int n, bool adds,
                       const float4 *s, const float4 *z, const int *lifted, shared_output &mem,
                       warp_state &my, chunk_rows &rows)
{
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const int at = n % STAGES;
    uint32_t q[KT][4];

    await_chunk(p, w, mem, at, w.first + n * CHUNK, 0);
    fetch_chunk(p, w, mem, n + STAGES - 1, 0, (n + STAGES - 1) % STAGES);
    load_queries(mem.q[at], q);
    if constexpr (TYPE == TYPE_BF16)
        tame_queries(q, rows.tamed);
    if (adds) {
        uint32_t pairs[CHUNK / 16][4];

        rows.exponent =
            find_pairs<false, false>(mem.k[at], q, pairs, [](float &, int, int) {});
        fold_chunk<false>(mem.k[at], mem.v[at], sums, pairs, rows.o, my);
    }
    read_state(s, z, lifted, sums, 0, q, rows.o, rows.exponent);
}

// The same of a chunk whose rows come in parts, of which `taken` have come; O of pairs when all
// are there.
DEVICE void take_parts(const attn_linear_kparams &p, const chunk_work &w, int n, bool adds,
                       shared_output &mem, warp_state &my, chunk_rows &rows, int &taken)
{
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const int parts = parts_of(p.d);
    warp_pairs x = {};

    #pragma unroll
    for (int part = 0; part < PARTS; part++) {
        const int at = taken % STAGES;
        const bool last = part + 1 >= parts;
        uint32_t q[KT][4];

        await_chunk(p, w, mem, at, w.first + n * CHUNK, part);
        taken++;
        fetch_chunk(p, w, mem, last ? n + 1 : n, last ? 0 : part + 1, taken % STAGES);
        load_queries(mem.q[at], q);
        if constexpr (TYPE == TYPE_BF16)
            tame_part(q, rows.tamed, x, rows.o);
        read_state(mem.s[0], mem.z[0], mem.lifted[0], sums, part, q, rows.o, rows.exponent);
        if (adds) {
            add_part<false>(mem.k[at], q, x);
            sum_chunk(mem.k[at], mem.v[n % STAGES], sums, part, my);
        }
        if (last)
            break;
    }
    if (adds) {
        uint32_t pairs[CHUNK / 16][4];
        const int over = finish_pairs<false, false>(
            x, pairs, [](int) {}, [](float &, int, int) {});

        if (TYPE == TYPE_F16 && over != rows.exponent) {
            lift(rows.o, rows.exponent - over);
            rows.exponent = over;
        }
        fold_pairs<false>(mem.v[n % STAGES], sums, pairs, rows.o);
    }
}

DEVICE void walk_segment(const attn_linear_kparams &p)
{
    static_assert(CHUNKS >= CHUNKS_V, "a row of O has room where one of Q was");
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;
    const chunk_work w = find_chunks(p, p.heads_q, p.len_q, p.dv);
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const int chunks = ceil_div(w.end - w.first, CHUNK);
    warp_state my;
    int was = 0;      // the copy of S that is read
    int taken = 0;    // parts of chunks

    fetch_first(p, w, mem);
    device_wait_before();
    load_state(p, w, my);
    share_state<false>(my, sums, mem.s[0], nullptr, mem.z[0], mem.lifted[0], 0);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int j = w.first + n * CHUNK;
        const bool adds = adds_at(p, w, j);
        chunk_rows rows = {};

        if (PARTS == 1)
            take_chunk(p, w, n, adds, mem.s[was], mem.z[was], mem.lifted[was], mem, my, rows);
        else
            take_parts(p, w, n, adds, mem, my, rows, taken);
        if (adds) {
            was = (was + 1) % COPIES;
            if (COPIES == 1)
                __syncthreads();
            share_state<false>(my, sums, mem.s[was], nullptr, mem.z[was], mem.lifted[was], 0);
        }
        write_rows(p, w, j, rows.tamed, rows.exponent,
                   mem.q[(PARTS == 1 ? n : taken - 1) % STAGES], rows.o);
    }
    put_state_out(p, w, my);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, bounds, call)                                      \
    extern "C" __global__ __launch_bounds__ bounds void JOIN(name, part)(     \
        const __grid_constant__ attn_linear_kparams p)                        \
    {                                                                         \
        call(p);                                                              \
    }

KERNEL(NAME, _sums, (THREADS), sum_chunks)
KERNEL(NAME, _output, (THREADS, BLOCKS), walk_segment)
