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
// Shared    dynamic: two chunks of K and V, and Q; S and z of the chunk before in the type.
//           O leaves through the warp's own rows of Q
// Barriers  one a chunk, two for D over 64
// Layout    rows of Q, K, V and O 16 bytes at a time. work: chunk.cuh
// Numerics  sums, S and z f32, S and P = Q K^T rounded to the type where they are operands, z
//           as the sum of two such numbers. In f16, P and S are divided by powers of 2 where
//           they would overflow; in bf16 rows of q with huge numbers are. The bits of a head
//           depend on the segments, which follow from B and the heads, and on nothing else
// Requires  sm_80; D and Dv multiples of 8, D up to DIM
// Tunables  CHUNK, COLUMNS; src/plan/cuda/linear_fwd_chunk.c has the same numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for each TYPE (f16, bf16) and DIM (64, 128): NAME is the image's.
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

#include "linear/chunk_mma.cuh"

constexpr int STAGES = 2;
constexpr int COPIES = DIM > 64 ? 1 : 2;    // of S in the type: with two, one barrier less
constexpr int BLOCKS = DIM > 64 ? 2 : 3;    // groups on a multiprocessor
constexpr float MOST = 16384.0f;            // of a scaled number of f16

struct shared_sums {
    float4 k[STAGES][CHUNK * CHUNKS], v[STAGES][CHUNK * CHUNKS_V];
};

struct shared_output {
    float4 q[STAGES][CHUNK * CHUNKS], k[STAGES][CHUNK * CHUNKS], v[STAGES][CHUNK * CHUNKS_V];
    float4 s[COPIES][DIM * CHUNKS_V];
    float4 z[COPIES][DIM];         // columns 0 and 1 add up to z
    int lifted[COPIES][WARPS];     // exponents that a warp's rows of S and z were divided by
};

// O of the warp's rows, lane / 4 and that + 8: columns 8 n + 2 (lane % 4) and the next. Tile NT
// is den: its columns 0 and 1 add up to it.
typedef float warp_output[NT + 1][4];

// f16: the exponent of 2 by which numbers up to `top` are divided.
DEVICE int exponent_over(float top)
{
    return top > MOST && top < INFINITE ? (int)(__float_as_uint(top) >> 23) - 127 - 13 : 0;
}

DEVICE float power_of_2(int exponent)
{
    return __int_as_float((127 + exponent) << 23);
}

DEVICE float largest_of_warp(float x)
{
    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask));
    return x;
}

// The state in the type, as a second operand for all warps.
DEVICE void share_state(const warp_state &my, bool sums, float4 *s, float4 *z, int *lifted)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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
        down = power_of_2(-exponent_over(top));
        if (lane == 0)
            lifted[warp] = exponent_over(top);
    }
    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int mt = i / 2, half = i % 2, e = (warp * MT + mt) * 16 + half * 8 + lane / 4;

        #pragma unroll
        for (int n = 0; n < NT; n++)
            ((uint32_t *)(s + place_of(e, n, CHUNKS_V)))[lane % 4] =
                device_pair<TYPE>(my.s[mt][n][half * 2] * down,
                                  my.s[mt][n][half * 2 + 1] * down);
        if (sums && lane % 4 == 0) {
            const float all = my.z[mt][half * 2] * down;
            const float rest = all - f32_of_low(device_pair<TYPE>(all, 0.0f));

            z[e] = make_float4(__uint_as_float(device_pair<TYPE>(all, rest)), 0.0f, 0.0f,
                               0.0f);
        }
    }
}

// The warp's rows of Q: a first operand for each 16 columns.
DEVICE void load_queries(const float4 *q, uint32_t (&a)[KT][4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    #pragma unroll
    for (int k = 0; k < KT; k++)
        device_matrices(a[k], q + place_of(warp * 16 + lane % 16, 2 * k + lane / 16, CHUNKS));
}

constexpr int HUGE_ROW = 64;    // what a row of huge numbers is divided by, as an exponent

// Bits 15 and 31: whether a number of bf16 is 2^33 or more.
DEVICE uint32_t huge(uint32_t pair)
{
    return ((pair & 0x7fff7fffu) + 0x30003000u) & 0x80008000u;
}

// Divides rows of bf16 that have huge numbers by 2^HUGE_ROW, so that no sum overflows; whether
// that was done, for both rows.
DEVICE void tame_queries(uint32_t (&a)[KT][4], bool (&tamed)[2])
{
    uint32_t any[2] = { 0, 0 };

    #pragma unroll
    for (int i = 0; i < KT * 4; i++)
        any[i % 2] |= huge(a[i / 4][i % 4]);
    if (!__any_sync(0xffffffffu, (any[0] | any[1]) != 0))
        return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        any[half] |= __shfl_xor_sync(0xffffffffu, any[half], 1);
        any[half] |= __shfl_xor_sync(0xffffffffu, any[half], 2);
        tamed[half] = any[half] != 0;
    }
    #pragma unroll
    for (int i = 0; i < KT * 4; i++) {
        const float down = tamed[i % 2] ? power_of_2(-HUGE_ROW) : 1.0f;

        a[i / 4][i % 4] = device_pair<TYPE>(f32_of_low(a[i / 4][i % 4]) * down,
                                            f32_of_high(a[i / 4][i % 4]) * down);
    }
}

// P = tril(Q K^T) of the warp's rows, as a first operand for each 16 keys; the exponent that it
// was divided by. Keys after the warp's last query are left out.
DEVICE int find_pairs(const float4 *k, const uint32_t (&q)[KT][4], uint32_t (&a)[CHUNK / 16][4])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int r = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;
    float x[CHUNK / 8][4] = {}, top = 0.0f, down = 1.0f;
    int exponent = 0;

    #pragma unroll
    for (int t = 0; t < CHUNK / 16; t++) {
        if (t > warp)
            continue;
        #pragma unroll
        for (int i = 0; i < KT; i++) {
            uint32_t b[4];

            device_matrices(b, k + place_of(t * 16 + r, 2 * i + odd, CHUNKS));
            device_multiply<TYPE>(x[2 * t], q[i], b[0], b[1]);
            device_multiply<TYPE>(x[2 * t + 1], q[i], b[2], b[3]);
        }
        #pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = lane / 4 + i % 4 / 2 * 8, key = i / 4 * 8 + lane % 4 * 2 + i % 2;

            if (t == warp && key > row)
                x[2 * t + i / 4][i % 4] = 0.0f;
            if (TYPE == TYPE_F16)
                top = fmaxf(top, fabsf(x[2 * t + i / 4][i % 4]));
        }
    }
    if (TYPE == TYPE_F16 && __any_sync(0xffffffffu, top > MOST)) {
        exponent = exponent_over(largest_of_warp(top));
        down = power_of_2(-exponent);
    }
    #pragma unroll
    for (int i = 0; i < CHUNK / 4; i++)
        a[i / 4][i % 4] = device_pair<TYPE>(x[i / 2][i % 2 * 2] * down,
                                            x[i / 2][i % 2 * 2 + 1] * down);
    return exponent;
}

// Multiplies O by a power of 2, of any size.
DEVICE void lift(warp_output &o, int exponent)
{
    const float up = power_of_2(exponent);

    #pragma unroll
    for (int i = 0; i < (NT + 1) * 4; i++)
        o[i / 4][i % 4] *= up;
}

// O += P V, and S += K^T V.
DEVICE void fold_chunk(const float4 *k, const float4 *v, bool sums,
                       const uint32_t (&pairs)[CHUNK / 16][4], warp_output &o, warp_state &my)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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
            if (t <= warp) {
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
        if (t <= warp)
            device_multiply<TYPE>(o[NT], pairs[t], column, column);
        #pragma unroll
        for (int mt = 0; mt < MT; mt++)
            add_sums(my, mt, a[mt]);
    }
}

// O += Q S; `exponent` is what O is divided by, and becomes the last that S is.
DEVICE void read_state(const float4 *s, const float4 *z, const int *lifted, bool sums,
                       const uint32_t (&q)[KT][4], warp_output &o, int &exponent)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int k = 0; k < KT; k++) {
        if (TYPE == TYPE_F16 && lifted[k / MT] != exponent) {
            lift(o, exponent - lifted[k / MT]);
            exponent = lifted[k / MT];
        }
        #pragma unroll
        for (int n = 0; n < NT / 2; n++) {
            uint32_t b[4];

            load_columns(s, k, n, b);
            device_multiply<TYPE>(o[2 * n], q[k], b[0], b[1]);
            device_multiply<TYPE>(o[2 * n + 1], q[k], b[2], b[3]);
        }
        if (sums) {
            uint32_t b[4];

            // rows 16 k .., twice
            device_matrices_turned(b, z + k * 16 + lane % 16);
            device_multiply<TYPE>(o[NT], q[k], b[0], b[1]);
        }
    }
}

// The rows of O and den from token j on, through the warp's own rows of a chunk.
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j,
                       const bool (&tamed)[2], int exponent, float4 *tile, warp_output &o)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, x0 = warp * 16;
    const float up = power_of_2(exponent);

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = x0 + half * 8 + lane / 4;
        float factor = p.scale * up;

        if (linear_has(p, LINEAR_NORMALIZE)) {
            const float small = tamed[half] ? power_of_2(-HUGE_ROW) : 1.0f;
            float den = o[NT][half * 2] + o[NT][half * 2 + 1];

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            den = p.scale * (den * up) + p.eps * small;
            if (p.want_den && w.column == 0 && lane % 4 == 0 && j + row < p.len_q)
                p.den[LINEAR_AT(p, den, w.b, w.h, (int64_t)(j + row), 0)] = den / small;
            factor = den == 0.0f ? 0.0f : factor / den;
        } else if (tamed[half]) {
            factor *= power_of_2(HUGE_ROW);
        }
        #pragma unroll
        for (int n = 0; n < NT; n++)
            ((uint32_t *)(tile + place_of(row, n, CHUNKS)))[lane % 4] =
                device_pair<TYPE>(o[n][half * 2] * factor, o[n][half * 2 + 1] * factor);
    }
    __syncwarp();
    if (!p.want_o)
        return;
    #pragma unroll
    for (int i = 0; i < 16 * CHUNKS_V / 32; i++) {
        const int at = i * 32 + lane, row = x0 + at / CHUNKS_V, c = at % CHUNKS_V;

        if (j + row < p.len_q && w.column + c * 8 < p.dv)
            *(float4 *)((uint16_t *)p.o + LINEAR_AT(p, o, w.b, w.h, (int64_t)(j + row), 0) +
                        w.column + c * 8) = tile[place_of(row, c, CHUNKS)];
    }
}

// What the keys of a segment add to the state, from its end to its beginning: what the last
// step reads first was read last, and may still be in the second cache.
DEVICE void sum_segment(const attn_linear_kparams &p)
{
    static_assert(sizeof(shared_sums) <= 32 * (DIM + COLUMNS) * 8, "the planner's budget");
    SHARED_MEMORY(memory);
    shared_sums &mem = *(shared_sums *)memory;
    const chunk_work w = find_chunks(p, p.heads_kv, tokens_of_sums(p));
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const int end = min(w.end, w.keys), chunks = max(ceil_div(end - w.first, CHUNK), 0);
    warp_state my = {};

    device_let_next();
    if (w.segment == (is_causal(p) ? p.pieces - 1 : 0))
        copy_state_in(p, w, THREADS);
    if (is_causal(p) && w.segment == p.pieces - 1)
        return;

    const auto fetch = [&](int n) {
        const int j = w.first + (chunks - 1 - n) * CHUNK;

        if (n < chunks) {
            fetch_k(p, w, mem.k[n % STAGES], j);
            fetch_v(p, w, mem.v[n % STAGES], j);
        }
        device_commit();
    };

    fetch(0);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int at = n % STAGES;

        device_copied<0>();
        take_phi(p, mem.k[at], w.first + (chunks - 1 - n) * CHUNK, w.keys);
        __syncthreads();
        fetch(n + 1);
        #pragma unroll
        for (int t = 0; t < CHUNK / 16; t++) {
            uint32_t a[MT][4];

            #pragma unroll
            for (int mt = 0; mt < MT; mt++) {
                load_keys(mem.k[at], t, mt, a[mt]);
                if (sums)
                    add_sums(my, mt, a[mt]);
            }
            #pragma unroll
            for (int i = 0; i < NT / 2; i++) {
                uint32_t b[4];

                load_columns(mem.v[at], t, i, b);
                #pragma unroll
                for (int mt = 0; mt < MT; mt++) {
                    device_multiply<TYPE>(my.s[mt][2 * i], a[mt], b[0], b[1]);
                    device_multiply<TYPE>(my.s[mt][2 * i + 1], a[mt], b[2], b[3]);
                }
            }
        }
    }

    float *const slot = find_slot(p, w, w.segment + 1);

    store_state(p, w, my, slot, p.dv, 1, sums ? slot + (int64_t)p.d * p.dv : nullptr, 1);
}

DEVICE void walk_segment(const attn_linear_kparams &p)
{
    static_assert(CHUNKS >= CHUNKS_V, "a row of O has room where one of Q was");
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;
    const chunk_work w = find_chunks(p, p.heads_q, p.len_q);
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const int chunks = ceil_div(w.end - w.first, CHUNK);
    warp_state my;
    int was = 0;    // the copy of S that is read

    // whether the chunk from token j on has keys to add
    const auto adds_at = [&](int j) { return is_causal(p) && j < w.keys; };
    const auto fetch = [&](int n) {
        const int j = w.first + n * CHUNK;

        if (n < chunks) {
            fetch_q(p, w, mem.q[n % STAGES], j);
            if (adds_at(j)) {
                fetch_k(p, w, mem.k[n % STAGES], j);
                fetch_v(p, w, mem.v[n % STAGES], j);
            }
        }
        device_commit();
    };

    fetch(0);
    device_wait_before();
    load_state(p, w, my);
    share_state(my, sums, mem.s[0], mem.z[0], mem.lifted[0]);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int at = n % STAGES, j = w.first + n * CHUNK;
        const bool adds = adds_at(j);
        uint32_t q[KT][4];
        warp_output o = {};
        bool tamed[2] = { false, false };
        int exponent = 0;

        device_copied<0>();
        take_phi(p, mem.q[at], j, p.len_q);
        if (adds)
            take_phi(p, mem.k[at], j, w.keys);
        __syncthreads();
        fetch(n + 1);
        load_queries(mem.q[at], q);
        if constexpr (TYPE == TYPE_BF16)
            tame_queries(q, tamed);
        if (adds) {
            uint32_t pairs[CHUNK / 16][4];

            exponent = find_pairs(mem.k[at], q, pairs);
            fold_chunk(mem.k[at], mem.v[at], sums, pairs, o, my);
        }
        read_state(mem.s[was], mem.z[was], mem.lifted[was], sums, q, o, exponent);
        if (adds) {
            was = (was + 1) % COPIES;
            if (COPIES == 1)
                __syncthreads();
            share_state(my, sums, mem.s[was], mem.z[was], mem.lifted[was]);
        }
        write_rows(p, w, j, tamed, exponent, mem.q[at], o);
    }
    if (writes_state(p, w))
        store_state(p, w, my,
                    p.want_state ? p.state_out + LINEAR_AT(p, state_out, w.b, w.kvh, 0, 0)
                                 : nullptr,
                    p.state_out_stride_l, p.state_out_stride_d,
                    p.want_z ? p.z_out + LINEAR_AT(p, z_out, w.b, w.kvh, 0, 0) : nullptr,
                    p.z_out_stride_l);
}

#define JOIN(a, b) a##b
#define SUMS(name)                                                              \
    extern "C" __global__ __launch_bounds__(THREADS) void JOIN(name, _sums)(    \
        const __grid_constant__ attn_linear_kparams p)                          \
    {                                                                           \
        sum_segment(p);                                                         \
    }
#define OUTPUT(name)                                                                     \
    extern "C" __global__ __launch_bounds__(THREADS, BLOCKS) void JOIN(name, _output)(   \
        const __grid_constant__ attn_linear_kparams p)                                   \
    {                                                                                    \
        walk_segment(p);                                                                 \
    }

SUMS(NAME)
OUTPUT(NAME)
