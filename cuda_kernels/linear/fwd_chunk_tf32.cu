// SPDX-License-Identifier: MIT
// linear/fwd_chunk_tf32.cu: linear attention in chunks on tensor cores, f32.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    as fwd_chunk_mma.cu, with products of TF32: three to full accuracy, or one
// Grid      as there
// Block     128 threads, 1-D: of a chunk a warp has 16 queries, others from chunk to chunk,
//           since the last ones see most keys; of the state D / 4 rows
// Shared    dynamic: chunks of K and V, and Q; S and z. O leaves through the warp's rows of Q
// Barriers  two a chunk, three for D over 64, of which one chunk fits
// Layout    rows of Q, K, V and O 16 bytes at a time. work: chunk.cuh
// Numerics  chunk_tf32.cuh; sums, S and z f32. Rows of q with huge numbers are divided by a
//           power of 2 meanwhile. The bits of a head depend on the segments, which follow
//           from B and the heads, and on nothing else
// Instances _sums, _output; _sums_tf32, _output_tf32 where TF32 is allowed
// Requires  sm_80; D and Dv multiples of 4, D up to DIM
// Tunables  CHUNK, COLUMNS; src/plan/cuda/linear_fwd_chunk.c has the same numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for each DIM (64, 128): NAME is the image's.
#include "common/params.h"

#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_linear_fwd_chunk_tf32_d64
#endif

#include "linear/chunk_tf32.cuh"

constexpr int STAGES = DIM > 64 ? 1 : 2;
constexpr int BLOCKS = 2;    // groups on a multiprocessor
constexpr int UNROLL = DIM > 64 ? 1 : 2;

struct shared_sums {
    float4 k[STAGES][CHUNK * CHUNKS], v[STAGES][CHUNK * CHUNKS_V];
};

struct shared_output {
    float4 q[STAGES][CHUNK * CHUNKS], k[STAGES][CHUNK * CHUNKS], v[STAGES][CHUNK * CHUNKS_V];
    float4 s[DIM * CHUNKS_V];
    float z[DIM];
};

// O of the warp's rows, lane / 4 and that + 8, columns as chunk_tf32.cuh has them; den in
// column 0 of its own tile.
struct warp_output {
    float o[NT][4], den[4];
};

DEVICE float power_of_2(int exponent)
{
    return __int_as_float((127 + exponent) << 23);
}

constexpr int HUGE_ROW = 64;    // what a row of huge numbers is divided by, as an exponent

// Columns 8 k .. of the warp's rows of Q, which begin with row x0: a first operand.
DEVICE void load_queries(const float4 *q, int x0, int k, float (&a)[4])
{
    const int lane = threadIdx.x % 32;
    uint32_t raw[4];

    device_matrices(raw, q + place_of(x0 + lane % 16, 2 * k + lane / 16, CHUNKS));
    #pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = __uint_as_float(raw[i]);
}

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

template <bool EXACT>
DEVICE operand_a<EXACT> queries_operand(const float4 *q, int x0, int k,
                                        const float (&down)[2])
{
    float a[4];

    load_queries(q, x0, k, a);
    #pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] *= down[i % 2];
    return make_operand<EXACT>(a);
}

// Two numbers of P, of keys 8 t + 2 (lane % 4) and the next, in the warp's rows of Q.
DEVICE float *place_of_pairs(float4 *q, int row, int t)
{
    const int lane = threadIdx.x % 32;

    return (float *)(q + place_of(row, 2 * t + lane % 4 / 2, CHUNKS)) + lane % 2 * 2;
}

// P = tril(Q K^T) of the warp's rows, in the place of Q, which has been read: in registers,
// the loop over the keys that comes next could not stay one. Keys after the last query are
// left out.
template <bool EXACT>
DEVICE void find_pairs(float4 *q, const float4 *k, int x0, const float (&down)[2])
{
    const int lane = threadIdx.x % 32, r = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;
    float pairs[CHUNK / 8][4];

    #pragma unroll
    for (int i = 0; i < CHUNK / 2; i++)
        pairs[i / 4][i % 4] = 0.0f;
    #pragma unroll UNROLL
    for (int i = 0; i < KT; i++) {
        const operand_a<EXACT> a = queries_operand<EXACT>(q, x0, i, down);

        #pragma unroll
        for (int t = 0; t < CHUNK / 16; t++) {
            uint32_t b[4];

            if (t * 16 > x0)
                continue;
            device_matrices(b, k + place_of(t * 16 + r, 2 * i + odd, CHUNKS));
            #pragma unroll
            for (int n = 0; n < 2; n++)
                multiply<EXACT>(pairs[2 * t + n], a, split<EXACT>(__uint_as_float(b[2 * n])),
                                split<EXACT>(__uint_as_float(b[2 * n + 1])));
        }
    }
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < CHUNK / 4; i++) {
        const int t = i / 2, half = i % 2, row = x0 + half * 8 + lane / 4;
        const int key = t * 8 + lane % 4 * 2;
        float *const to = place_of_pairs(q, row, t);

        to[0] = key <= row ? pairs[t][half * 2] : 0.0f;
        to[1] = key + 1 <= row ? pairs[t][half * 2 + 1] : 0.0f;
    }
    __syncwarp();
}

// S += K^T V of tokens 8 t ..; and O += P V, if there is an O that sees them.
template <bool EXACT>
DEVICE void fold_tokens(const float4 *k, const float4 *v, int t, bool sums, bool sees,
                        float4 *q, int x0, warp_output *out, warp_state &my)
{
    const two<EXACT> one = split<EXACT>(1.0f), none = split<EXACT>(0.0f);
    const two<EXACT> column = threadIdx.x % 32 / 4 == 0 ? one : none;
    operand_a<EXACT> keys[MT], weights = {};
    float b0[4], b1[4];

    #pragma unroll
    for (int mt = 0; mt < MT; mt++) {
        float a[4];

        load_keys(k, t, mt, a);
        keys[mt] = make_operand<EXACT>(a);
        if (sums)
            multiply<EXACT>(my.z[mt], keys[mt], one, one);
    }
    if (out && sees) {
        const float *const x = place_of_pairs(q, x0 + (int)threadIdx.x % 32 / 4, t);
        const float *const y = place_of_pairs(q, x0 + (int)threadIdx.x % 32 / 4 + 8, t);
        const float a[4] = { x[0], y[0], x[1], y[1] };

        weights = make_operand<EXACT>(a);
        if (sums)
            multiply<EXACT>(out->den, weights, column, column);
    }
    #pragma unroll
    for (int n = 0; n < NT; n++) {
        if (n % 4 == 0) {
            if (DIM > 64 && out)
                __syncwarp();    // so that no more is loaded yet: registers are few
            load_values(v, t, n / 4, b0, b1);
        }

        const two<EXACT> low = split<EXACT>(b0[n % 4]), high = split<EXACT>(b1[n % 4]);

        if (out && sees)
            multiply<EXACT>(out->o[n], weights, low, high);
        #pragma unroll
        for (int mt = 0; mt < MT; mt++)
            multiply<EXACT>(my.s[mt][n], keys[mt], low, high);
    }
}

// O += Q S.
template <bool EXACT>
DEVICE void read_state(const float4 *q, const float4 *s, const float *z, int x0, bool sums,
                       const float (&down)[2], warp_output &out)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll UNROLL
    for (int k = 0; k < KT; k++) {
        const operand_a<EXACT> a = queries_operand<EXACT>(q, x0, k, down);

        #pragma unroll
        for (int g = 0; g < NT / 4; g++) {
            float b0[4], b1[4];

            load_state_rows(s, k, g, b0, b1);
            #pragma unroll
            for (int n = 0; n < 4; n++)
                multiply<EXACT>(out.o[4 * g + n], a, split<EXACT>(b0[n]),
                                split<EXACT>(b1[n]));
        }
        if (sums) {
            const bool mine = lane / 4 == 0;

            multiply<EXACT>(out.den, a, split<EXACT>(mine ? z[k * 8 + lane % 4] : 0.0f),
                            split<EXACT>(mine ? z[k * 8 + lane % 4 + 4] : 0.0f));
        }
    }
}

// The state, for all warps.
DEVICE void share_state(const warp_state &my, float4 *s, float *z)
{
    #pragma unroll
    for (int i = 0; i < MT * 2; i++) {
        const int mt = i / 2, half = i % 2, e = row_of_state(mt, half);

        #pragma unroll
        for (int n = 0; n < 4; n++)
            s[place_of_state(e, column_of(n / 2, n % 2) / 4)] =
                four_of(my.s[mt], n / 2, half * 2 + n % 2);
        if (threadIdx.x % 4 == 0)
            z[e] = my.z[mt][half * 2];
    }
}

// The warp's rows of O and den, of the chunk that begins with token j, through its rows of Q.
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j, int x0,
                       const float (&down)[2], float4 *tile, const warp_output &out)
{
    const int lane = threadIdx.x % 32;

    __syncwarp();
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = x0 + half * 8 + lane / 4;
        float factor = p.scale;

        if (linear_has(p, LINEAR_NORMALIZE)) {
            float den = lane % 4 == 0 ? out.den[half * 2] : 0.0f;

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            den = p.scale * den + p.eps * down[half];
            if (p.want_den && w.column == 0 && lane % 4 == 0 && j + row < p.len_q)
                p.den[LINEAR_AT(p, den, w.b, w.h, (int64_t)(j + row), 0)] = den / down[half];
            factor = den == 0.0f ? 0.0f : factor / den;
        } else {
            factor /= down[half];
        }
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            float4 x = four_of(out.o, n / 2, half * 2 + n % 2);

            x = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
            tile[place_of(row, column_of(n / 2, n % 2) / 4, CHUNKS)] = x;
        }
    }
    __syncwarp();
    if (!p.want_o)
        return;
    #pragma unroll
    for (int i = 0; i < 16 * CHUNKS_V / 32; i++) {
        const int at = i * 32 + lane, row = x0 + at / CHUNKS_V, c = at % CHUNKS_V;

        if (j + row < p.len_q && w.column + c * 4 < p.dv)
            *(float4 *)((float *)p.o + LINEAR_AT(p, o, w.b, w.h, (int64_t)(j + row), 0) +
                        w.column + c * 4) = tile[place_of(row, c, CHUNKS)];
    }
}

// What the keys of a segment add to the state, from its end to its beginning: what the last
// step reads first was read last, and may still be in the second cache.
template <bool EXACT> DEVICE void sum_segment(const attn_linear_kparams &p)
{
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
        if (STAGES > 1)
            fetch(n + 1);
        #pragma unroll 2
        for (int t = 0; t < CHUNK / 8; t++)
            fold_tokens<EXACT>(mem.k[at], mem.v[at], t, sums, false, nullptr, 0, nullptr, my);
        if (STAGES == 1) {
            __syncthreads();
            fetch(n + 1);
        }
    }

    float *const slot = find_slot(p, w, w.segment + 1);

    store_state(p, w, my, slot, p.dv, 1, sums ? slot + (int64_t)p.d * p.dv : nullptr, 1);
}

template <bool EXACT> DEVICE void walk_segment(const attn_linear_kparams &p)
{
    static_assert(CHUNKS >= CHUNKS_V, "a row of O has room where one of Q was");
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;
    const chunk_work w = find_chunks(p, p.heads_q, p.len_q);
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const int chunks = ceil_div(w.end - w.first, CHUNK), warp = threadIdx.x / 32;
    warp_state my;

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
    share_state(my, mem.s, mem.z);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int at = n % STAGES, j = w.first + n * CHUNK;
        const int x0 = 16 * (n % 2 ? WARPS - 1 - warp : warp);
        const bool adds = adds_at(j);
        warp_output out = {};
        float down[2];

        device_copied<0>();
        take_phi(p, mem.q[at], j, p.len_q);
        if (adds)
            take_phi(p, mem.k[at], j, w.keys);
        __syncthreads();
        if (STAGES > 1)
            fetch(n + 1);
        find_huge(mem.q[at], x0, down);
        read_state<EXACT>(mem.q[at], mem.s, mem.z, x0, sums, down, out);
        if (adds) {
            find_pairs<EXACT>(mem.q[at], mem.k[at], x0, down);
            #pragma unroll 1
            for (int t = 0; t < CHUNK / 8; t++)
                fold_tokens<EXACT>(mem.k[at], mem.v[at], t, sums, t * 8 <= x0 + 8, mem.q[at],
                                   x0, &out, my);
            __syncthreads();    // S has been read
            share_state(my, mem.s, mem.z);
        }
        write_rows(p, w, j, x0, down, mem.q[at], out);
        if (STAGES == 1) {
            __syncthreads();
            fetch(n + 1);
        }
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
#define KERNEL(name, part, blocks, call)                                                \
    extern "C" __global__ __launch_bounds__(THREADS, blocks) void JOIN(name, part)(     \
        const __grid_constant__ attn_linear_kparams p)                                  \
    {                                                                                   \
        call(p);                                                                        \
    }

KERNEL(NAME, _sums, BLOCKS, sum_segment<true>)
KERNEL(NAME, _sums_tf32, BLOCKS, sum_segment<false>)
KERNEL(NAME, _output, BLOCKS, walk_segment<true>)
KERNEL(NAME, _output_tf32, BLOCKS, walk_segment<false>)
