// SPDX-License-Identifier: MIT
// linear/bwd_chunk.cuh: what the scans of linear_bwd_chunk read, add and write, whatever
// multiplies them. Each is the chunk form of one recurrence,
//
//     Y_i = A_i State + sum over the tokens j of the chunk that i sees of (A_i . B_j) X_j
//     State = State + sum over the tokens j of the chunk of B_j^T X_j
//
//     scan    A        B        X    Y     j seen by i   state before it begins
//     GRAD_Q  (G c)    (V 1)    k    dQ    j <= i        (S_in z_in)^T
//     GRAD_K  (V 1)    (G c)    q    dK    j >= i        (dS dz)^T
//     GRAD_V  k        q        G    dV    j >= i        dS
//
// The number beside G and V adds to a pair in f32, and z and r, the state's last row, are kept
// beside it. What a query is divided by stands in `factor` (bwd_chunk_begin.cu): of dQ it
// multiplies the result, in the others it goes into q, so that nothing that is rounded to 16
// bits is divided first. In f16 G is lifted, and q by 2^e of its chunk, so that the largest
// numbers are about 1; the state carries the 2^e of the chunk before.
//
// The state of dV is that of dK turned. Slots as chunk.cuh has them, a state's rows Dv, its
// columns D; backwards segments are counted from the last.
#pragma once
#include "linear/chunk_rows.cuh"

enum scan { GRAD_Q, GRAD_K, GRAD_V };    // GRAD_K: also of the sums that GRAD_V begins with

DEVICE bool is_backwards(scan which) { return which != GRAD_Q; }

// Elements of a row of A and B, which come in parts, and columns of X and Y.
DEVICE int inner_of(const attn_linear_kparams &p, scan which)
{
    return which == GRAD_V ? p.d : p.dv;
}

DEVICE int width_of(const attn_linear_kparams &p, scan which)
{
    return which == GRAD_V ? p.dv : p.d;
}

// Whether rows of queries have numbers in the workspace.
DEVICE bool has_rows(const attn_linear_kparams &p)
{
    return TYPE == TYPE_F16 || linear_has(p, LINEAR_NORMALIZE);
}

enum row_number { ROW_FACTOR, ROW_C, ROW_LIFT, ROW_TOP };

// Such a number of query 0 of a head.
DEVICE const float *numbers_of(const attn_linear_kparams &p, const chunk_work &w, int h,
                               row_number which)
{
    return p.work + (((int64_t)which * p.batch + w.b) * p.heads_q + h) * p.len_q;
}

DEVICE float number_of(const attn_linear_kparams &p, const chunk_work &w, int h,
                       row_number which, int i)
{
    if (!has_rows(p) || i >= p.len_q)
        return which == ROW_FACTOR ? p.scale : 1.0f;
    return numbers_of(p, w, h, which)[i];
}

// A group's part of a scan: tokens whose rows add, and those whose rows read.
DEVICE chunk_work find_scan(const attn_linear_kparams &p, scan which, int heads, int len)
{
    chunk_work w = find_chunks(p, heads, len, width_of(p, which));

    if (is_backwards(which)) {
        w.h = w.kvh * p.group;
        if (is_causal(p) && p.piece) {
            w.first = (p.pieces - 1 - w.segment) * p.piece;
            w.end = min(len, w.first + p.piece);
        }
    }
    return w;
}

// Rows of A that read, of B and X that add.
DEVICE int rows_that_read(const attn_linear_kparams &p, const chunk_work &w, scan which)
{
    return is_backwards(which) ? w.keys : p.len_q;
}

DEVICE int rows_that_add(const attn_linear_kparams &p, const chunk_work &w, scan which)
{
    return is_backwards(which) ? p.len_q : w.keys;
}

// Of the gradients of outputs a part of rows, or the group's columns.
template <int N>
DEVICE void fetch_grads(const attn_linear_kparams &p, const chunk_work &w, int h, float4 *to,
                        int j, int column)
{
    const int rows = p.has & LHAS_GRAD_O ? p.len_q : 0;

    fetch_rows<N>(to, p.grad_o, LINEAR_AT(p, grad_o, w.b, h, 0, 0), p.grad_o_stride_l, j, rows,
                  column, p.dv);
}

DEVICE void fetch_values(const attn_linear_kparams &p, const chunk_work &w, float4 *to, int j,
                         int part)
{
    fetch_rows<CHUNKS>(to, p.v, LINEAR_AT(p, v, w.b, w.kvh, 0, 0), p.v_stride_l, j, w.keys,
                       part * PART, p.dv);
}

// A part of chunks of A, and of B and of X of head h, which has no parts.
template <scan WHICH>
DEVICE void fetch_reads(const attn_linear_kparams &p, const chunk_work &w, float4 *a, int j,
                        int part)
{
    if (WHICH == GRAD_Q)
        fetch_grads<CHUNKS>(p, w, w.h, a, j, part * PART);
    else if (WHICH == GRAD_K)
        fetch_values(p, w, a, j, part);
    else
        fetch_k(p, w, a, j, part);
}

template <scan WHICH>
DEVICE void fetch_adds(const attn_linear_kparams &p, const chunk_work &w, int h, float4 *b,
                       int j, int part)
{
    if (WHICH == GRAD_Q)
        fetch_values(p, w, b, j, part);
    else if (WHICH == GRAD_K)
        fetch_grads<CHUNKS>(p, w, h, b, j, part * PART);
    else
        fetch_rows<CHUNKS>(b, p.q, LINEAR_AT(p, q, w.b, h, 0, 0), p.q_stride_l, j, p.len_q,
                           part * PART, p.d);
}

template <scan WHICH>
DEVICE void fetch_columns(const attn_linear_kparams &p, const chunk_work &w, int h, float4 *x,
                          int j)
{
    if (WHICH == GRAD_Q)
        fetch_rows<CHUNKS_V>(x, p.k, LINEAR_AT(p, k, w.b, w.kvh, 0, 0), p.k_stride_l, j,
                             w.keys, w.column, p.d);
    else if (WHICH == GRAD_K)
        fetch_rows<CHUNKS_V>(x, p.q, LINEAR_AT(p, q, w.b, h, 0, 0), p.q_stride_l, j, p.len_q,
                             w.column, p.d);
    else
        fetch_grads<CHUNKS_V>(p, w, h, x, j, w.column);
}

// c of the queries j .. of head h; 0 past the last.
DEVICE void fetch_c(const attn_linear_kparams &p, const chunk_work &w, int h, float *c, int j)
{
    const float *const from = numbers_of(p, w, h, ROW_C);

    if (linear_has(p, LINEAR_NORMALIZE) && device_thread() < CHUNK)
        device_copy<4>(c + device_thread(),
                       j + device_thread() < p.len_q ? from + j + device_thread() : from,
                       j + device_thread() < p.len_q);
}

// Numbers of the rows that a thread copies, of chunks with N pieces a row: taken before their
// chunk has arrived.
template <int N> struct numbers {
    float x[CHUNK * N / THREADS];
};

template <int N>
DEVICE numbers<N> take_numbers(const attn_linear_kparams &p, const chunk_work &w, int h,
                               row_number which, int j)
{
    numbers<N> y;

    #pragma unroll
    for (int i = 0; i < CHUNK * N / THREADS; i++)
        y.x[i] = number_of(p, w, h, which, j + i * (THREADS / N) + device_thread() / N);
    return y;
}

// The exponent that brings rows q of the queries j .. of head h to about 1: of f16; `was`, if
// all are 0.
DEVICE int find_exponent(const attn_linear_kparams &p, const chunk_work &w, int h, int j,
                         int was)
{
    if constexpr (TYPE == TYPE_F16) {
        float top = 0.0f;

        #pragma unroll
        for (int i = 0; i < CHUNK; i += 32) {
            const int l = j + i + device_thread() % 32;

            top = fmaxf(top, l < p.len_q ? numbers_of(p, w, h, ROW_TOP)[l] : 0.0f);
        }
        #pragma unroll
        for (int mask = 16; mask; mask /= 2)
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
        if (!(top > 0.0f && top < INFINITE))
            return was;
        return clamp(127 - (int)(__float_as_uint(top) >> 23), -60, 60);
    }
    return 0;
}

// A state's element (row, column), as slots have it.
DEVICE state_place place_of_slot(const attn_linear_kparams &p, scan which)
{
    if (which == GRAD_V)
        return { p.d, p.dv, 1, p.d };
    return { p.dv, p.d, p.d, 1 };
}

// Slot 0, the group's columns: the state that the scan begins with, or zeros.
DEVICE void copy_first_state(const attn_linear_kparams &p, const chunk_work &w, scan which)
{
    const bool back = is_backwards(which), given = linear_has(p, LINEAR_STATE);
    const bool has_s = back ? (p.has & LHAS_GRAD_STATE_OUT) != 0 : given;
    const bool has_z = back ? (p.has & LHAS_GRAD_Z_OUT) != 0
                            : given && linear_has(p, LINEAR_NORMALIZE);
    const int columns = min(COLUMNS, p.d - w.column);
    float *const to = find_slot(p, w, 0);

    for (int i = device_thread(); i < p.dv * columns; i += THREADS) {
        const int64_t m = i / columns, e = w.column + i % columns;
        float x = 0.0f;

        if (has_s)
            x = back ? p.grad_state_out[LINEAR_AT(p, grad_state_out, w.b, w.kvh, e, m)]
                     : p.state_in[LINEAR_AT(p, state_in, w.b, w.kvh, e, m)];
        to[m * p.d + e] = x;
    }
    for (int i = device_thread(); i < columns; i += THREADS) {
        const int64_t e = w.column + i;
        float x = 0.0f;

        if (has_z)
            x = back ? p.grad_z_out[LINEAR_AT(p, grad_z_out, w.b, w.kvh, e, 0)]
                     : p.z_in[LINEAR_AT(p, z_in, w.b, w.kvh, e, 0)];
        to[(int64_t)p.d * p.dv + e] = x;
    }
}

// The warp's rows of Y, of the chunk that begins with token j, from where they lie.
template <scan WHICH>
DEVICE void store_grads(const attn_linear_kparams &p, const chunk_work &w, int j, int x0,
                        const float4 *tile)
{
    const int rows = rows_that_read(p, w, WHICH) - j;

    if (WHICH == GRAD_Q)
        store_rows(p.grad_q, LINEAR_AT(p, grad_q, w.b, w.h, (int64_t)j, 0), p.grad_q_stride_l,
                   rows, w.column, p.d, x0, tile);
    else if (WHICH == GRAD_V)
        store_rows(p.grad_v, LINEAR_AT(p, grad_v, w.b, w.kvh, (int64_t)j, 0),
                   p.grad_v_stride_l, rows, w.column, p.dv, x0, tile);
    else if (p.has & LHAS_GRAD_K)
        store_rows(p.grad_k, LINEAR_AT(p, grad_k, w.b, w.kvh, (int64_t)j, 0),
                   p.grad_k_stride_l, rows, w.column, p.d, x0, tile);
}

// dK or dV of keys that no query sees, the group's columns: zeros.
DEVICE void write_zeros(const attn_linear_kparams &p, const chunk_work &w, scan which)
{
    const int end = linear_length(p, w.b), depth = width_of(p, which);
    const bool of_k = which == GRAD_K;
    const int64_t base = of_k ? LINEAR_AT(p, grad_k, w.b, w.kvh, 0, 0)
                              : LINEAR_AT(p, grad_v, w.b, w.kvh, 0, 0);
    const int64_t stride = of_k ? p.grad_k_stride_l : p.grad_v_stride_l;

    for (int64_t i = device_thread(); i < (int64_t)(end - w.keys) * CHUNKS_V; i += THREADS) {
        const int64_t j = w.keys + i / CHUNKS_V;
        const int c = w.column + (int)(i % CHUNKS_V) * EACH;

        if (c < depth)
            *(float4 *)at_element(of_k ? p.grad_k : p.grad_v, base + j * stride + c) =
                make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}
