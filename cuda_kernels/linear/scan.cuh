// SPDX-License-Identifier: MIT
// linear/scan.cuh: linear attention and its gradients as scans of one kind, token by token:
// rows of A add to a state, A^T B, and rows of X read it. What is added and read, the order of
// the tokens and what a sum becomes; the state is the kernel's.
//
//     scan      rows of the state  columns  adds (A, B)   reads X  time
//     OUTPUT    D                  Dv, 1    k, (V 1)      q        forwards
//     GRAD_Q    Dv, and 1          D        (V 1), k      (G c)    forwards
//     GRAD_K    Dv, and 1          D        (G c), q      (V 1)    backwards
//     GRAD_V    D                  Dv       q, G          k        backwards
//     GRAD_KV   D                  Dv, 1    q, (G c)      k        backwards; rows of (V 1)
//                                                                  read the columns
//
// What stands behind V and G is the normaliser's: 1 and c. TYPE is the image's.
#pragma once
#include "linear/linear.cuh"

enum scan { OUTPUT, GRAD_Q, GRAD_K, GRAD_V, GRAD_KV };

__host__ __device__ constexpr bool is_backwards(scan which)
{
    return which != OUTPUT && which != GRAD_Q;
}

// Whether rows of the state are those of k, else its columns are.
__host__ __device__ constexpr bool rows_are_d(scan which)
{
    return which != GRAD_Q && which != GRAD_K;
}

// The tensors that rows come from.
enum operand { OF_Q, OF_K, OF_V, OF_G };

__host__ __device__ constexpr operand adds_row(scan which)
{
    return which == OUTPUT ? OF_K : which == GRAD_Q ? OF_V : which == GRAD_K ? OF_G : OF_Q;
}

__host__ __device__ constexpr operand adds_column(scan which)
{
    return which == OUTPUT ? OF_V : which == GRAD_Q ? OF_K : which == GRAD_K ? OF_Q : OF_G;
}

__host__ __device__ constexpr operand reads_row(scan which)
{
    return which == OUTPUT ? OF_Q : which == GRAD_Q ? OF_G : which == GRAD_K ? OF_V : OF_K;
}

// A state's batch and head; keys that reach it, of those that the batch has.
struct scan_head {
    int64_t b, kvh;
    int keys, length;
};

DEVICE scan_head find_head(const attn_linear_kparams &p, int head)
{
    const int64_t b = head / p.heads_kv, kvh = head % p.heads_kv;

    return { b, kvh, linear_keys(p, b), linear_length(p, b) };
}

// A token: the row that adds, of query (add, add_x) or of key add; -1: none. And the row that
// reads, likewise.
struct token {
    int add, add_x, read, read_x;
};

// The tokens of a walk: rows that add and that read. `together`: the causal form, where both
// are the same tokens; else all rows add before the first reads.
struct tokens {
    int add_first, add_end, read_first, read_end;
    bool together;
};

template <scan WHICH> DEVICE tokens all_tokens(const attn_linear_kparams &p, const scan_head &h)
{
    const bool back = is_backwards(WHICH);

    return { 0, back ? p.len_q : h.keys, 0, back ? h.keys : p.len_q,
             linear_has(p, LINEAR_CAUSAL) };
}

DEVICE bool is_token(token t)
{
    return t.add >= 0 || t.read >= 0;
}

DEVICE token no_token() { return { -1, 0, -1, 0 }; }

// Of the causal form, the token of query i of head x.
template <scan WHICH>
DEVICE token token_of(const attn_linear_kparams &p, const scan_head &h, int i, int x)
{
    if (!is_backwards(WHICH))
        return { x == 0 && i < h.keys ? i : -1, 0, i, x };
    return { i, x, x == p.group - 1 && i < h.keys ? i : -1, 0 };
}

// The first row that reads behind all that add.
DEVICE token first_reader(const tokens &all)
{
    return { -1, 0, all.read_first < all.read_end ? all.read_first : -1, 0 };
}

template <scan WHICH>
DEVICE token first_token(const attn_linear_kparams &p, const scan_head &h, const tokens &all)
{
    const bool back = is_backwards(WHICH);
    const int first = all.together && !back ? all.read_first : all.add_first;
    const int end = all.together && !back ? all.read_end : all.add_end;

    if (first >= end)
        return all.together ? no_token() : first_reader(all);
    if (all.together)
        return token_of<WHICH>(p, h, back ? end - 1 : first, 0);
    return { back ? end - 1 : first, 0, -1, 0 };
}

// Backwards, rows of the queries of all heads add before the key of their token reads.
template <scan WHICH>
DEVICE token next_token(const attn_linear_kparams &p, const scan_head &h, const tokens &all,
                        token t)
{
    constexpr bool BACK = is_backwards(WHICH);
    const bool queries = BACK ? t.add >= 0 : t.read >= 0;
    int i = BACK ? t.add : t.read, x = BACK ? t.add_x : t.read_x;

    if (!is_token(t))
        return t;
    if (!queries) {    // a key of the full form
        if (BACK)
            return { -1, 0, t.read + 1 < all.read_end ? t.read + 1 : -1, 0 };
        if (t.add + 1 < all.add_end)
            return { t.add + 1, 0, -1, 0 };
        return first_reader(all);
    }
    if (++x == p.group) {
        x = 0;
        i += BACK ? -1 : 1;
    }
    if (BACK ? i < all.add_first : i >= all.read_end)
        return BACK && !all.together ? first_reader(all) : no_token();
    if (all.together)
        return token_of<WHICH>(p, h, i, x);
    return BACK ? token{ i, x, -1, 0 } : token{ -1, 0, i, x };
}

// An element as it lies in memory, and what G is divided by.
struct element {
    float x, den;
};

// Element i of row l, of head x of those that share a state.
template <operand OF>
DEVICE element load_element(const attn_linear_kparams &p, const scan_head &h, int x, int64_t l,
                            int64_t i)
{
    const int64_t head = h.kvh * p.group + x;

    if (OF == OF_K)
        return { elem_load<TYPE>(p.k, LINEAR_AT(p, k, h.b, h.kvh, l, i)), 1.0f };
    if (OF == OF_V)
        return { elem_load<TYPE>(p.v, LINEAR_AT(p, v, h.b, h.kvh, l, i)), 1.0f };
    if (OF == OF_Q)
        return { elem_load<TYPE>(p.q, LINEAR_AT(p, q, h.b, head, l, i)), 1.0f };
    if (!(p.has & LHAS_GRAD_O))
        return { 0.0f, 1.0f };
    return { elem_load<TYPE>(p.grad_o, LINEAR_AT(p, grad_o, h.b, head, l, i)),
             linear_has(p, LINEAR_NORMALIZE) ? p.den[LINEAR_AT(p, den, h.b, head, l, 0)]
                                             : 1.0f };
}

// k, q, V or G; OUTPUT's q is phi(Q).
template <scan WHICH, operand OF> DEVICE float take_element(const attn_linear_kparams &p, element a)
{
    if (OF == OF_G)
        return a.den == 0.0f ? 0.0f : linear_has(p, LINEAR_NORMALIZE) ? a.x / a.den : a.x;
    if (OF == OF_V)
        return a.x;
    return OF == OF_Q && WHICH != OUTPUT ? p.scale * linear_phi(p, a.x) : linear_phi(p, a.x);
}

// c of a query, which bwd_begin.cu has found.
DEVICE float load_c(const attn_linear_kparams &p, const scan_head &h, int x, int64_t i)
{
    return p.work[(h.b * p.heads_q + h.kvh * p.group + x) * p.len_q + i];
}

// Element r of the row that a token adds or reads, of `rows`; that of the normaliser behind V
// or G where they are rows.
template <scan WHICH>
DEVICE float add_row(const attn_linear_kparams &p, const scan_head &h, int rows, token t, int r)
{
    if (t.add < 0 || r >= rows)
        return 0.0f;
    if (!rows_are_d(WHICH) && r == p.dv)
        return WHICH == GRAD_Q ? 1.0f : load_c(p, h, t.add_x, t.add);
    return take_element<WHICH, adds_row(WHICH)>(
        p, load_element<adds_row(WHICH)>(p, h, t.add_x, t.add, r));
}

template <scan WHICH>
DEVICE float read_row(const attn_linear_kparams &p, const scan_head &h, int rows, token t,
                      int r)
{
    if (t.read < 0 || r >= rows)
        return 0.0f;
    if (!rows_are_d(WHICH) && r == p.dv)
        return WHICH == GRAD_K ? 1.0f : load_c(p, h, t.read_x, t.read);
    return take_element<WHICH, reads_row(WHICH)>(
        p, load_element<reads_row(WHICH)>(p, h, t.read_x, t.read, r));
}

// Element c of the row B that is added, of `width`; behind V that of the normaliser.
template <scan WHICH>
DEVICE float add_column(const attn_linear_kparams &p, const scan_head &h, int width, token t,
                        int c)
{
    if (t.add < 0 || c >= width)
        return 0.0f;
    if (WHICH == OUTPUT && c == p.dv)
        return 1.0f;
    return take_element<WHICH, adds_column(WHICH)>(
        p, load_element<adds_column(WHICH)>(p, h, t.add_x, t.add, c));
}

// What has been read becomes an element of a gradient: x is that of Q or K, of their own.
DEVICE void put_grad_q(const attn_linear_kparams &p, const scan_head &h, token t, int64_t e,
                       float x, float sum)
{
    elem_store<TYPE>(p.grad_q,
                     LINEAR_AT(p, grad_q, h.b, h.kvh * p.group + t.read_x, (int64_t)t.read, e),
                     p.scale * linear_slope(p, x) * sum);
}

DEVICE void put_grad_k(const attn_linear_kparams &p, const scan_head &h, int64_t j, int64_t e,
                       float x, float sum)
{
    if (p.has & LHAS_GRAD_K)
        elem_store<TYPE>(p.grad_k, LINEAR_AT(p, grad_k, h.b, h.kvh, j, e),
                         linear_slope(p, x) * sum);
}

DEVICE void put_grad_v(const attn_linear_kparams &p, const scan_head &h, int64_t j, int64_t m,
                       float sum)
{
    if (p.has & LHAS_GRAD_V)
        elem_store<TYPE>(p.grad_v, LINEAR_AT(p, grad_v, h.b, h.kvh, j, m), sum);
}

// Element (e, m) of S or R that a walk begins with, and of z or r.
template <scan WHICH>
DEVICE float first_state(const attn_linear_kparams &p, const scan_head &h, int64_t e, int64_t m)
{
    if (!is_backwards(WHICH))
        return linear_has(p, LINEAR_STATE)
                   ? p.state_in[LINEAR_AT(p, state_in, h.b, h.kvh, e, m)]
                   : 0.0f;
    return p.has & LHAS_GRAD_STATE_OUT
               ? p.grad_state_out[LINEAR_AT(p, grad_state_out, h.b, h.kvh, e, m)]
               : 0.0f;
}

template <scan WHICH>
DEVICE float first_z(const attn_linear_kparams &p, const scan_head &h, int64_t e)
{
    if (!linear_has(p, LINEAR_NORMALIZE))
        return 0.0f;
    if (!is_backwards(WHICH))
        return linear_has(p, LINEAR_STATE) ? p.z_in[LINEAR_AT(p, z_in, h.b, h.kvh, e, 0)] : 0.0f;
    return p.has & LHAS_GRAD_Z_OUT ? p.grad_z_out[LINEAR_AT(p, grad_z_out, h.b, h.kvh, e, 0)]
                                   : 0.0f;
}

// What q is divided by meanwhile, `top` being its largest |number|: a power of 2.
DEVICE float power_for(float top)
{
    if (!(top > 4294967296.0f && top < INFINITE))
        return 1.0f;
    return __int_as_float(min(__float_as_uint(top) & 0x7f800000u, 253u << 23));
}
