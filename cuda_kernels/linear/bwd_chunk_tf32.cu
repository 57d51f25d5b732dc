// SPDX-License-Identifier: MIT
// linear/bwd_chunk_tf32.cu: gradients of linear attention in chunks on tensor cores, f32.
//
// Computes  dQ; dK, dS_in and dz_in; dV, as written in include/attn/linear.h
// Method    as bwd_chunk_mma.cu, with products of TF32: three to full accuracy, or one
// Grid      as there
// Block     128 threads, 1-D: of a chunk a warp has 16 rows of Y, others from chunk to chunk,
//           since they see more or fewer tokens; of the state DIM / 4 rows
// Shared    dynamic: chunks of A, B, X and c; S and its last row. Y leaves through the warp's
//           rows of A
// Barriers  two a chunk and query head, three for DIM over 64, of which one chunk fits, for DIM
//           over 128 one of each part of rows and one
// Layout    rows 16 bytes at a time. work: numbers of rows (bwd_chunk_begin.cu), then slots
//           (chunk.cuh)
// Numerics  chunk_tf32.cuh; sums, S, z and r f32. The bits of a head depend on the segments,
//           which follow from B and the heads, and on nothing else
// Instances as there; with _tf32 behind them where TF32 is allowed
// Requires  sm_80; D and Dv multiples of 4, up to DIM
// Tunables  CHUNK, COLUMNS, PART; src/plan/cuda/linear_bwd_chunk.c has the same numbers
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each DIM (64, 128, 256): NAME is the image's.
#include "common/params.h"

#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_linear_bwd_chunk_tf32_d64
#endif

#define TYPE TYPE_F32

#include "linear/bwd_chunk.cuh"
#include "linear/chunk_tf32_products.cuh"

constexpr int STAGES = PART > 64 ? 1 : 2;
constexpr int BLOCKS = 2;    // groups on a multiprocessor

// Two numbers of a row of X.
DEVICE float2 load_pair(const float4 *x, int row, int column)
{
    const float *const from = (const float *)(x + place_of(row, column / 4, CHUNKS_V));

    return *(const float2 *)(from + column % 4);
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
        float4 *const y = x + place_of(r, c, N);

        if (r >= rows || c * 4 >= depth)
            continue;
        if (maps)
            *y = make_float4(linear_phi(p, y->x), linear_phi(p, y->y), linear_phi(p, y->z),
                             linear_phi(p, y->w));
        *y = make_float4(y->x * factor, y->y * factor, y->z * factor, y->w * factor);
    }
}

DEVICE void scale_state(warp_state &, float) {}    // nothing is lifted

#include "linear/bwd_chunk_walk.cuh"

struct shared_walk {
    float4 a[STAGES][CHUNK * CHUNKS], b[STAGES][CHUNK * CHUNKS], x[STAGES][CHUNK * CHUNKS_V];
    float4 s[DIM * CHUNKS_V];
    float z[COLUMNS];
    float c[STAGES][CHUNK];
};

// Y += c z of dQ, or r of dK.
template <scan WHICH>
DEVICE void read_last(const float *z, const float *c, int x0, warp_output &out)
{
    const int row = x0 + device_thread() % 32 / 4;
    const float weight[2] = { WHICH == GRAD_Q ? c[row] : 1.0f,
                              WHICH == GRAD_Q ? c[row + 8] : 1.0f };

    #pragma unroll
    for (int n = 0; n < NT; n++) {
        #pragma unroll
        for (int i = 0; i < 4; i++)
            out.o[n][i] += weight[i / 2] * z[column_of(n / 4, i % 2) + n % 4];
    }
}

// phi' of four numbers, times a factor.
DEVICE float4 slope_of(const attn_linear_kparams &p, const float *x, float factor)
{
    const float4 y = *(const float4 *)x;

    return make_float4(linear_slope(p, y.x) * factor, linear_slope(p, y.y) * factor,
                       linear_slope(p, y.z) * factor, linear_slope(p, y.w) * factor);
}

// The warp's rows of Y, of the chunk that begins with token j, through its rows of A.
template <scan WHICH>
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j, int x0,
                       float4 *tile, const warp_output &out)
{
    const bool slopes = WHICH != GRAD_V && linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
    const int rows = rows_that_read(p, w, WHICH) - j, depth = width_of(p, WHICH);

    __syncwarp();
    #pragma unroll
    for (int i = 0; i < NT; i++) {
        const int half = i / (NT / 2), n = i % (NT / 2);
        const int row = x0 + half * 8 + device_thread() % 32 / 4;
        const int column = column_of(n / 2, n % 2);
        const float factor =
            WHICH == GRAD_Q ? number_of(p, w, w.h, ROW_FACTOR, j + row) : 1.0f;
        const float4 y = four_of(out.o, n / 2, half * 2 + n % 2);
        float4 by = make_float4(factor, factor, factor, factor);

        if (slopes && row < rows && w.column + column < depth)
            by = slope_of(p,
                          WHICH == GRAD_Q
                              ? (const float *)p.q +
                                    LINEAR_AT(p, q, w.b, w.h, (int64_t)(j + row), 0) +
                                    w.column + column
                              : (const float *)p.k +
                                    LINEAR_AT(p, k, w.b, w.kvh, (int64_t)(j + row), 0) +
                                    w.column + column,
                          factor);
        tile[place_of(row, column / 4, CHUNKS)] =
            make_float4(y.x * by.x, y.y * by.y, y.z * by.z, y.w * by.w);
    }
    store_grads<WHICH>(p, w, j, x0, tile);
}

template <bool EXACT, scan WHICH> DEVICE void walk_scan(const attn_linear_kparams &p)
{
    constexpr bool BACK = WHICH != GRAD_Q;
    SHARED_MEMORY(memory);
    shared_walk &mem = *(shared_walk *)memory;
    const int len = !BACK || is_causal(p) ? p.len_q : p.len_kv, warp = device_thread() / 32;
    const chunk_work w = find_scan(p, WHICH, BACK ? p.heads_kv : p.heads_q, len);
    const int chunks = max(ceil_div(w.end - w.first, CHUNK), 0);
    const int heads = BACK && is_causal(p) ? p.group : 1;
    const int parts = parts_of(inner_of(p, WHICH));
    const float down[2] = { 1.0f, 1.0f };
    int j = w.first + (BACK ? chunks - 1 : 0) * CHUNK, g = 0, x0 = 16 * warp;
    warp_state my;
    last_row z;
    warp_output out = {};

    const auto fetch = [&](int n, int j, int g, int part, int at) {
        if (n < chunks * heads)
            fetch_step<WHICH>(p, w, mem, n, j, g, part, at);
        device_commit();
    };
    const auto share = [&]() {
        share_state(my, mem.s, nullptr);
        if (has_last(p, WHICH))
            share_last(z, 0, mem.z);
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
        const bool adds = adds_at(p, w, WHICH, j), plus = has_last(p, WHICH);
        const float *const c = mem.c[of_x];
        warp_pairs pairs = {};
        int at = 0;

        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const bool done = PARTS == 1 || part + 1 >= parts;

            at = (n * parts + part) % STAGES;
            await_chunk<WHICH>(p, w, w.h + g, j, part, mem.a[at], mem.b[at], mem.x[of_x], adds,
                               0);
            if (STAGES > 1 && done)
                fetch(n + 1, next_j, next_g, 0, (at + 1) % STAGES);
            else if (STAGES > 1)
                fetch(n, j, g, part + 1, (at + 1) % STAGES);
            if (g == 0) {
                #pragma unroll
                for (int i = 0; i < NT * 4 && part == 0; i++)
                    out.o[i / 4][i % 4] = 0.0f;
                read_state<EXACT>(mem.a[at], mem.s, nullptr, x0, false, part, down, out);
                if (done && plus)
                    read_last<WHICH>(mem.z, c, x0, out);
            }
            if (adds)
                add_part<EXACT, BACK>(mem.a[at], mem.b[at], x0, down, pairs);
            if (PARTS > 1 && adds) {
                #pragma unroll 1
                for (int t = 0; t < CHUNK / 8; t++)
                    fold_tokens<EXACT>(mem.b[at], mem.x[of_x], t, false, false, nullptr, 0, part,
                                       nullptr, my);
            }
            if (done)
                break;
        }
        if (adds) {
            put_pairs<BACK>(mem.a[at], x0, pairs, [&](float &x, int row, int column) {
                if (plus)
                    x += c[BACK ? column : row];
            });
            #pragma unroll 1
            for (int t = 0; t < CHUNK / 8; t++) {
                const bool sees = BACK ? t * 8 + 8 > x0 : t * 8 <= x0 + 8;

                if (PARTS == 1)
                    fold_tokens<EXACT>(mem.b[at], mem.x[of_x], t, false, sees, mem.a[at], x0, 0,
                                       &out, my);
                else if (sees)
                    fold_pairs<EXACT>(mem.x[of_x], t, false, mem.a[at], x0, out);
            }
            if (plus)
                fold_last<WHICH>(mem.x[of_x], c, z);
        }
        if (next_g == 0) {
            if (adds) {
                __syncthreads();    // S has been read
                share();
            }
            write_rows<WHICH>(p, w, j, x0, mem.a[at], out);
            x0 = 48 - x0;
        }
        if (STAGES == 1) {
            __syncthreads();
            fetch(n + 1, next_j, next_g, 0, 0);
        }
        j = next_j;
        g = next_g;
    }
    if (WHICH == GRAD_K)
        put_state_in(p, w, 0, my, z);
    if (BACK && w.segment == 0 && (WHICH == GRAD_V || p.has & LHAS_GRAD_K))
        write_zeros(p, w, WHICH);
}

template <bool EXACT, scan WHICH> DEVICE void sum_chunks(const attn_linear_kparams &p)
{
    sum_scan<WHICH>(p, [](const float4 *b, const float4 *x, int part, warp_state &my) {
        #pragma unroll 2
        for (int t = 0; t < CHUNK / 8; t++)
            fold_tokens<EXACT>(b, x, t, false, false, nullptr, 0, part, nullptr, my);
    });
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, call)                                                           \
    extern "C" __global__ __launch_bounds__(THREADS, BLOCKS) void JOIN(name, part)(        \
        const __grid_constant__ attn_linear_kparams p)                                     \
    {                                                                                      \
        call(p);                                                                           \
    }

KERNEL(NAME, _q_sums, (sum_chunks<true, GRAD_Q>))
KERNEL(NAME, _k_sums, (sum_chunks<true, GRAD_K>))
KERNEL(NAME, _q, (walk_scan<true, GRAD_Q>))
KERNEL(NAME, _k, (walk_scan<true, GRAD_K>))
KERNEL(NAME, _v, (walk_scan<true, GRAD_V>))
KERNEL(NAME, _q_sums_tf32, (sum_chunks<false, GRAD_Q>))
KERNEL(NAME, _k_sums_tf32, (sum_chunks<false, GRAD_K>))
KERNEL(NAME, _q_tf32, (walk_scan<false, GRAD_Q>))
KERNEL(NAME, _k_tf32, (walk_scan<false, GRAD_K>))
KERNEL(NAME, _v_tf32, (walk_scan<false, GRAD_V>))
