// SPDX-License-Identifier: MIT
// linear/bwd_chunk_mma.cu: gradients of linear attention in chunks on tensor cores, 16-bit
// types.
//
// Computes  dQ; dK, dS_in and dz_in; dV, as written in include/attn/linear.h
// Method    three scans in chunks, bwd_chunk.cuh, each as fwd_chunk_mma.cu: of each chunk
//           Y = tril(A B^T) X + A S, then S += B^T X. The sequence is cut into segments where
//           there are too few heads: _q_sums and _k_sums find what the rows of each add to the
//           state, of dQ, and of dK and dV; fwd_scan.cu may bring them together; _q, _k and _v
//           walk each segment from the state before it, _q forwards in time, the others
//           backwards. The full form has segments of the rows that add, and others of those
//           that read
// Grid      1-D, ceil(columns / COLUMNS) * segments * heads * B groups, columns fastest: _q has
//           all heads, the others the key/value heads, whose query heads they take in turn
// Block     128 threads, 1-D: of a chunk a warp has 16 rows of Y, of the state DIM / 4 rows
// Shared    dynamic: two chunks of A, B, X and c; S in the type and its last row. Y leaves
//           through the warp's own rows of A
// Barriers  one a chunk, query head and part of its rows, one more a chunk
// Layout    rows 16 bytes at a time. work: numbers of rows (bwd_chunk_begin.cu), then slots
//           (chunk.cuh)
// Numerics  sums, S, z and r f32; P = A B^T, phi, and q divided by den rounded to the type
//           where they are operands; S as the sum of two such numbers, since rows of A may cancel
//           what many tokens have added. In f16 S, P, q and G are multiplied by powers of 2 where
//           they would be lost. The bits of a head depend on the segments, which follow from
//           B and the heads, and on nothing else
// Requires  sm_80; D and Dv multiples of 8, up to DIM
// Tunables  CHUNK, COLUMNS, PART; src/plan/cuda/linear_bwd_chunk.c has the same numbers
// Oracle    src/host/linear_bwd_reference.c
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
#define NAME attn_linear_bwd_chunk_mma_f16_d64
#endif

#include "linear/bwd_chunk.cuh"
#include "linear/chunk_mma_products.cuh"

constexpr int STAGES = 2;
constexpr int S_PARTS = 2;                  // S in the type, and what that rounds away
constexpr int BLOCKS = DIM > 64 ? 2 : 3, SUMS = DIM > 64 ? 3 : 5;    // groups on a multiprocessor

// Two numbers of a row of X.
DEVICE float2 load_pair(const float4 *x, int row, int column)
{
    const uint32_t pair =
        ((const uint32_t *)(x + place_of(row, column / 8, CHUNKS_V)))[column % 8 / 2];

    return make_float2(f32_of_low(pair), f32_of_high(pair));
}

DEVICE float phi_rounded(const attn_linear_kparams &p, float x)
{
    return linear_has(p, LINEAR_ELU1)   ? phi_rounded<true>(x)
           : linear_has(p, LINEAR_RELU) ? phi_rounded<false>(x)
                                        : x;
}

// What this thread has copied of the rows below `rows`, columns below `depth`: phi, if it
// `maps`, then times a number of the row and `up`; of 0 neither.
template <int N>
DEVICE void take_rows(const attn_linear_kparams &p, float4 *x, int rows, int depth, bool maps,
                      const numbers<N> &of_row, float up)
{
    #pragma unroll
    for (int i = 0; i < CHUNK * N / THREADS; i++) {
        const int at = i * THREADS + device_thread(), r = at / N, c = at % N;
        const float factor = up == 0.0f ? 1.0f : of_row.x[i] * up;
        uint32_t *const word = (uint32_t *)(x + place_of(r, c, N));

        if (r >= rows || c * 8 >= depth)
            continue;
        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const float low = f32_of_low(word[n]), high = f32_of_high(word[n]);

            word[n] = device_pair<TYPE>((maps ? phi_rounded(p, low) : low) * factor,
                                        (maps ? phi_rounded(p, high) : high) * factor);
        }
    }
}

DEVICE void scale_state(warp_state &my, float up)
{
    #pragma unroll
    for (int i = 0; i < MT * NT * 4; i++)
        my.s[i / 4 / NT][i / 4 % NT][i % 4] *= up;
}

#include "linear/bwd_chunk_walk.cuh"

struct shared_walk {
    float4 a[STAGES][CHUNK * CHUNKS], b[STAGES][CHUNK * CHUNKS], x[STAGES][CHUNK * CHUNKS_V];
    float4 s[S_PARTS][DIM * CHUNKS_V];
    float z[COLUMNS];
    float c[STAGES][CHUNK];
    int lifted[WARPS];    // exponents that a warp's rows of S were divided by
};

// Y += c z of dQ, or r of dK; both divided by 2^exponent.
template <scan WHICH>
DEVICE void read_last(const float *z, const float *c, int exponent, warp_output &o)
{
    const int lane = device_thread() % 32, row = device_thread() / 32 * 16 + lane / 4;
    const float down = power_of_2(clamp(-exponent, -126, 127));
    const float weight[2] = { WHICH == GRAD_Q ? c[row] * down : down,
                              WHICH == GRAD_Q ? c[row + 8] * down : down };

    #pragma unroll
    for (int n = 0; n < NT; n++) {
        const float2 y = *(const float2 *)(z + n * 8 + lane % 4 * 2);

        #pragma unroll
        for (int i = 0; i < 4; i++)
            o[n][i] += weight[i / 2] * (i % 2 ? y.y : y.x);
    }
}

// Whether a scan's results are multiplied by phi'.
DEVICE bool has_slope(const attn_linear_kparams &p, scan which)
{
    return which != GRAD_V && linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
}

// The rows of q or k that phi' is taken of, to the warp's own rows of A, which have been read.
template <scan WHICH>
DEVICE void fetch_slopes(const attn_linear_kparams &p, const chunk_work &w, float4 *tile, int j)
{
    const int lane = device_thread() % 32, x0 = device_thread() / 32 * 16;
    const int rows = rows_that_read(p, w, WHICH);
    const void *const from = WHICH == GRAD_Q ? p.q : p.k;
    const int64_t base = WHICH == GRAD_Q ? LINEAR_AT(p, q, w.b, w.h, 0, 0)
                                         : LINEAR_AT(p, k, w.b, w.kvh, 0, 0);
    const int64_t stride = WHICH == GRAD_Q ? p.q_stride_l : p.k_stride_l;

    __syncwarp();
    #pragma unroll
    for (int i = 0; i < 16 * CHUNKS_V / 32; i++) {
        const int at = i * 32 + lane, row = x0 + at / CHUNKS_V, c = at % CHUNKS_V;
        const bool inside = j + row < rows && w.column + c * EACH < p.d;

        device_copy<16>((float *)(tile + place_of(row, c, CHUNKS)),
                        at_element(from, inside ? base + (j + row) * stride + w.column + c * EACH
                                                : base),
                        inside);
    }
}

// The warp's rows of Y, of the chunk that begins with token j, through its rows of A.
template <scan WHICH>
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j, int exponent,
                       float4 *tile, const warp_output &o)
{
    const int lane = device_thread() % 32, x0 = device_thread() / 32 * 16;
    const bool slopes = has_slope(p, WHICH);

    if (slopes)
        device_copied<1>();
    __syncwarp();
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = x0 + half * 8 + lane / 4;
        float factor = TYPE == TYPE_F16 ? power_of_2(clamp(exponent, -126, 127)) : 1.0f;

        if (WHICH == GRAD_Q)
            factor *= number_of(p, w, w.h, ROW_FACTOR, j + row);
        #pragma unroll
        for (int n = 0; n < NT; n++) {
            uint32_t *const word = (uint32_t *)(tile + place_of(row, n, CHUNKS)) + lane % 4;
            float low = factor, high = factor;

            if (slopes) {
                low *= linear_slope(p, f32_of_low(*word));
                high *= linear_slope(p, f32_of_high(*word));
            }
            *word = device_pair<TYPE>(o[n][half * 2] * low, o[n][half * 2 + 1] * high);
        }
    }
    store_grads<WHICH>(p, w, j, x0, tile);
}

template <scan WHICH> DEVICE void walk_scan(const attn_linear_kparams &p)
{
    constexpr bool BACK = WHICH != GRAD_Q, SMALL = true;
    SHARED_MEMORY(memory);
    shared_walk &mem = *(shared_walk *)memory;
    const int len = !BACK || is_causal(p) ? p.len_q : p.len_kv;
    const chunk_work w = find_scan(p, WHICH, BACK ? p.heads_kv : p.heads_q, len);
    const int chunks = max(ceil_div(w.end - w.first, CHUNK), 0);
    const int heads = BACK && is_causal(p) ? p.group : 1;
    int j = w.first + (BACK ? chunks - 1 : 0) * CHUNK, g = 0;
    int e = 0, exponent = 0;    // what S and Y are lifted by
    warp_state my;
    last_row z;
    warp_output o = {};

    const bool last = has_last(p, WHICH);
    const int parts = parts_of(inner_of(p, WHICH));

    const auto fetch = [&](int n, int j, int g, int part, int at) {
        if (n < chunks * heads)
            fetch_step<WHICH>(p, w, mem, n, j, g, part, at);
        device_commit();
    };
    const auto share = [&]() {
        share_state<SMALL>(my, false, mem.s[0], mem.s[1], nullptr, mem.lifted, e);
        if (last)
            share_last(z, e, mem.z);
    };

    device_let_next();
    device_wait_before();
    fetch(0, j, 0, 0, 0);
    load_first(p, w, WHICH, my, z);
    share();
    #pragma unroll 1
    for (int n = 0; n < chunks * heads; n++) {
        const int next_g = g + 1 < heads ? g + 1 : 0, of_x = n % STAGES;
        const int next_j = next_g ? j : j + (BACK ? -CHUNK : CHUNK);
        const bool adds = adds_at(p, w, WHICH, j);
        const float *const c = mem.c[of_x];
        uint32_t a[KT][4];
        warp_pairs x = {};    // of parts
        int to = e, at = 0;

        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const bool done = PARTS == 1 || part + 1 >= parts;

            at = (n * parts + part) % STAGES;
            to = await_chunk<WHICH>(p, w, w.h + g, j, part, mem.a[at], mem.b[at], mem.x[of_x],
                                    adds, to);
            load_queries(mem.a[at], a);
            if (done && has_slope(p, WHICH) && next_g == 0)
                fetch_slopes<WHICH>(p, w, mem.a[at], j);
            device_commit();
            if (done)
                fetch(n + 1, next_j, next_g, 0, (at + 1) % STAGES);
            else
                fetch(n, j, g, part + 1, (at + 1) % STAGES);
            if (g == 0) {
                if (part == 0) {
                    o[0][0] = 0.0f;
                    #pragma unroll
                    for (int i = 0; i < NT * 4; i++)
                        o[i / 4][i % 4] = 0.0f;
                    exponent = 0;
                }
                #pragma unroll
                for (int i = S_PARTS - 1; i >= 0; i--)
                    read_state(mem.s[i], nullptr, mem.lifted, false, part, a, o, exponent);
                if (done && last)
                    read_last<WHICH>(mem.z, c, exponent, o);
            }
            if (PARTS > 1 && adds) {
                add_part<BACK>(mem.b[at], a, x);
                turn_state(e, to, my, z);
                sum_chunk(mem.b[at], mem.x[of_x], false, part, my);
            }
            if (done)
                break;
        }
        if (adds) {
            uint32_t pairs[CHUNK / 16][4];
            const int over = finish_pairs<BACK, SMALL>(
                                 x, pairs,
                                 [&](int t) {
                                     if (PARTS == 1)
                                         add_pairs(mem.b[at], a, t, x);
                                 },
                                 [&](float &y, int row, int column) {
                                     if (last)
                                         y += c[BACK ? column : device_thread() / 32 * 16 + row];
                                 }) -
                             to;

            turn_state(e, to, my, z);
            if (TYPE == TYPE_F16 && over != exponent) {
                lift(o, exponent - over);
                exponent = over;
            }
            if (PARTS == 1)
                fold_chunk<BACK>(mem.b[at], mem.x[of_x], false, pairs, o, my);
            else
                fold_pairs<BACK>(mem.x[of_x], false, pairs, o);
            if (last)
                fold_last<WHICH>(mem.x[of_x], c, z);
        }
        if (next_g == 0) {
            if (adds) {
                __syncthreads();    // S has been read
                share();
            }
            write_rows<WHICH>(p, w, j, exponent, mem.a[at], o);
        }
        j = next_j;
        g = next_g;
    }
    if (WHICH == GRAD_K)
        put_state_in(p, w, e, my, z);
    if (BACK && w.segment == 0 && (WHICH == GRAD_V || p.has & LHAS_GRAD_K))
        write_zeros(p, w, WHICH);
}

template <scan WHICH> DEVICE void sum_chunks(const attn_linear_kparams &p)
{
    sum_scan<WHICH>(p, [](const float4 *b, const float4 *x, int part, warp_state &my) {
        sum_chunk(b, x, false, part, my);
    });
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, bounds, call)                                      \
    extern "C" __global__ __launch_bounds__ bounds void JOIN(name, part)(     \
        const __grid_constant__ attn_linear_kparams p)                        \
    {                                                                         \
        call(p);                                                              \
    }

KERNEL(NAME, _q_sums, (THREADS, SUMS), sum_chunks<GRAD_Q>)
KERNEL(NAME, _k_sums, (THREADS, SUMS), sum_chunks<GRAD_K>)
KERNEL(NAME, _q, (THREADS, BLOCKS), walk_scan<GRAD_Q>)
KERNEL(NAME, _k, (THREADS, BLOCKS), walk_scan<GRAD_K>)
KERNEL(NAME, _v, (THREADS, BLOCKS), walk_scan<GRAD_V>)
