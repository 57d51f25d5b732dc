// SPDX-License-Identifier: MIT
// linear/bwd_wgmma.cuh: what the scans of linear_bwd_wgmma read and write, and how it comes to
// the tiles. Each is the chunk form of one recurrence, fwd_wgmma.cu's with other operands:
//
//     Y_i = A_i S + sum over the tokens j of the chunk that i sees of (A_i . B_j) X_j
//     S = S + sum over the tokens j of the chunk of B_j^T X_j
//
//     scan    A    B    X    Y     j seen by i
//     GRAD_Q  dO   v    k    dQ    j <= i
//     GRAD_K  v    dO   q    dK    j >= i
//     GRAD_V  k    q    dO   dV    j >= i
//
// The state of GRAD_K is that of GRAD_V turned. Slots (chunk.cuh) have D rows of Dv whatever the
// scan; backwards in time segments are counted from the last. The columns of B and X, and so
// the rows and columns of S and the columns of Y, stand in another order (column_at).
#pragma once
#include "linear/wgmma_walk.cuh"

enum scan { GRAD_Q, GRAD_K, GRAD_V };

DEVICE constexpr bool is_backwards(scan which) { return which != GRAD_Q; }

// Whether phi is taken here, of what is read: else q and k are phi's, made by a step before
// (bwd_phi.cu), which wait_for_phi() waits for, and phi' follows from phi.
constexpr bool MAPS = TYPE != TYPE_F32, SLOPES_OF_PHI = !MAPS;

DEVICE void wait_for_phi(const attn_linear_kparams &p)
{
    if (!MAPS && linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
        device_wait_before();
}

// Elements of a row of A and B, and of X and Y.
DEVICE int inner_of(const attn_linear_kparams &p, scan which)
{
    return which == GRAD_V ? p.d : p.dv;
}

DEVICE int width_of(const attn_linear_kparams &p, scan which)
{
    return which == GRAD_V ? p.dv : p.d;
}

// A head's rows: row 0, bytes from row to row, rows that are there.
struct tensor_rows {
    const char *from;
    int64_t bytes;
    int rows;
};

#define HEAD(name, h, there)                                                          \
    {                                                                                 \
        at_element(p.name, LINEAR_AT(p, name, w.b, h, 0, 0)),                         \
            p.name##_stride_l * (16 / EACH), there                                    \
    }

// Keys and values past the last that a query sees are none.
DEVICE int keys_of(const chunk_work &w) { return min(w.keys, w.end); }

DEVICE tensor_rows keys_at(const attn_linear_kparams &p, const chunk_work &w)
{
    return HEAD(k, w.kvh, keys_of(w));
}

DEVICE tensor_rows values_at(const attn_linear_kparams &p, const chunk_work &w)
{
    return HEAD(v, w.kvh, keys_of(w));
}

// Of the g-th head of the group.
DEVICE tensor_rows queries_at(const attn_linear_kparams &p, const chunk_work &w, int g)
{
    return HEAD(q, w.h + g, w.end);
}

DEVICE tensor_rows grads_at(const attn_linear_kparams &p, const chunk_work &w, int g)
{
    return HEAD(grad_o, w.h + g, p.has & LHAS_GRAD_O ? w.end : 0);
}

template <scan WHICH>
DEVICE tensor_rows a_of(const attn_linear_kparams &p, const chunk_work &w)
{
    return WHICH == GRAD_Q   ? grads_at(p, w, 0)
           : WHICH == GRAD_K ? values_at(p, w)
                             : keys_at(p, w);
}

template <scan WHICH>
DEVICE tensor_rows b_of(const attn_linear_kparams &p, const chunk_work &w, int g)
{
    return WHICH == GRAD_Q   ? values_at(p, w)
           : WHICH == GRAD_K ? grads_at(p, w, g)
                             : queries_at(p, w, g);
}

template <scan WHICH>
DEVICE tensor_rows x_of(const attn_linear_kparams &p, const chunk_work &w, int g)
{
    return WHICH == GRAD_Q   ? keys_at(p, w)
           : WHICH == GRAD_K ? queries_at(p, w, g)
                             : grads_at(p, w, g);
}

// Y, and the rows that phi' is taken of, which multiplies it.
template <scan WHICH>
DEVICE tensor_rows y_of(const attn_linear_kparams &p, const chunk_work &w)
{
    if (WHICH == GRAD_Q)
        return HEAD(grad_q, w.h, w.end);
    if (WHICH == GRAD_K)
        return HEAD(grad_k, w.kvh, p.has & LHAS_GRAD_K ? keys_of(w) : 0);
    return HEAD(grad_v, w.kvh, p.has & LHAS_GRAD_V ? keys_of(w) : 0);
}

template <scan WHICH>
DEVICE tensor_rows slopes_of(const attn_linear_kparams &p, const chunk_work &w)
{
    if (SLOPES_OF_PHI)
        return WHICH == GRAD_Q ? queries_at(p, w, 0) : keys_at(p, w);
    if (WHICH == GRAD_Q)
        return HEAD(of_q, w.h, w.end);
    return HEAD(of_k, w.kvh, keys_of(w));
}

// Query heads whose rows of a chunk are added, one after another: of backwards scans where some
// share one of keys (GROUPED).
template <bool GROUPED> DEVICE int heads_of(const attn_linear_kparams &p)
{
    return GROUPED ? p.group : 1;
}

// A group's part of a scan of so many columns, by its number within that.
template <scan WHICH, bool GROUPED>
DEVICE chunk_work find_scan(const attn_linear_kparams &p, int heads, int group, int width)
{
    chunk_work w = find_chunks(p, heads, p.len_q, width, group);

    if (is_backwards(WHICH)) {
        w.h = w.kvh * heads_of<GROUPED>(p);
        if (p.piece) {
            w.first = (p.pieces - 1 - w.segment) * p.piece;
            w.end = min(p.len_q, w.first + p.piece);
        }
    }
    return w;
}

// A state of the scan.
template <scan WHICH>
DEVICE float *slot_of(const attn_linear_kparams &p, chunk_work w, int slot)
{
    if (is_backwards(WHICH) && linear_has(p, LINEAR_BESIDE))
        w.b += p.batch;
    return find_slot(p, w, slot);
}

// The first token of the n-th chunk that is walked.
template <bool BACK> DEVICE int chunk_at(const chunk_work &w, int n)
{
    return w.first + (BACK ? chunks_of(w) - 1 - n : n) * CHUNK;
}

// Rows of A of the chunk from token j on, as fetch_queries() has them.
template <scan WHICH>
DEVICE void fetch_reads(const attn_linear_kparams &p, const chunk_work &w, int j, queries &x)
{
    const own_place at;
    const tensor_rows all = a_of<WHICH>(p, w);
    const int depth = inner_of(p, WHICH), rows = j < w.first ? 0 : all.rows - j;
    const char *const from = all.from + (int64_t)(j + at.row) * all.bytes +
                             at.column * 2 * (16 / EACH);
    const int64_t below = 8 * all.bytes;

    if (rows >= CHUNK && depth == DIM) {
        #pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            load_four(from + i % 2 * below + i / 2 * 256 / EACH, x.word[i / 2][i % 2]);
        return;
    }
    #pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        auto &to = x.word[i / 2][i % 2];

        #pragma unroll
        for (int n = 0; n < (int)(sizeof to / 4); n++)
            to[n] = 0;
        if (at.row + i % 2 * 8 < rows && at.column * 2 + i / 2 * 16 < depth)
            load_four(from + i % 2 * below + i / 2 * 256 / EACH, to);
    }
}
