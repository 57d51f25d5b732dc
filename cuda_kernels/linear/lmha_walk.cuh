// SPDX-License-Identifier: MIT
// linear/lmha_walk.cuh: the way of lmha.cuh over all tokens: results, the states before and
// behind it, and the group's part of the problem.
#pragma once
#include "linear/lmha.cuh"

// The elements of Q or K whose gradients a run gives this thread.
template <class S> struct own_elements {
    static constexpr int N =
        S::BOTH ? places<S::ROWS>::N : places<S::COLS>::N;
    float x[N];
};

template <class S>
DEVICE own_elements<S> fetch_own(const attn_linear_kparams &p, const unit &u, token first)
{
    constexpr int WIDTH = S::BOTH ? S::ROWS : S::COLS;
    const int i = places<WIDTH>::element();
    own_elements<S> own = {};

    #pragma unroll
    for (int k = 0; k < own_elements<S>::N; k++) {
        const token t = token_at<S>(p, u, first, places<WIDTH>::token(k));

        if (t.read < 0 || i >= (S::BOTH ? u.rows : u.width))
            continue;
        if (S::WHICH == GRAD_Q)
            own.x[k] = load_element<OF_Q>(p, u.h, t.read_x, t.read, u.w.column + i).x;
        if (S::WHICH == GRAD_K || S::BOTH)
            own.x[k] =
                load_element<OF_K>(p, u.h, 0, t.read, (S::BOTH ? 0 : u.w.column) + i).x;
    }
    return own;
}

DEVICE void put_output(const attn_linear_kparams &p, const unit &u, token t, int m, float num,
                       float den, float up)
{
    const int64_t h = u.h.kvh * p.group + t.read_x;

    if (linear_has(p, LINEAR_NORMALIZE)) {
        den = p.sum_scale * den + p.sum_eps / up;
        if (m == 0 && p.want_den)
            p.den[LINEAR_AT(p, den, u.h.b, h, (int64_t)t.read, 0)] = in_units(p.sum_unit, den, up);
        num = den == 0.0f ? 0.0f : p.sum_scale * num / den;
    } else {
        num = in_units(p.sum_unit, num, up);
    }
    if (p.want_o)
        elem_store<TYPE>(p.o, LINEAR_AT(p, o, u.h.b, h, (int64_t)t.read, (int64_t)m), num);
}

// The sums of all warps become results.
template <class S>
DEVICE void finish(const attn_linear_kparams &p, const unit &u, token first,
                   const own_elements<S> &own, const run_sums<S> &out)
{
    const bool normalize = linear_has(p, LINEAR_NORMALIZE);
    const int c = places<S::COLS>::element(), m = u.w.column + c;

    #pragma unroll
    for (int k = 0; k < places<S::COLS>::N; k++) {
        const int n = places<S::COLS>::token(k);
        const token t = token_at<S>(p, u, first, n);
        float sum = 0.0f, den = 0.0f;

        if (t.read < 0 || c >= u.width)
            continue;
        #pragma unroll
        for (int w = 0; w < SLICES; w++)
            sum += out.sums[n][w][c];
        if (normalize && !S::BY_D)
            sum += out.last[n][c];
        #pragma unroll
        for (int w = 0; w < S::ROWS / 32 && S::WHICH == OUTPUT; w++)
            den += normalize ? out.den[n][w] : 0.0f;
        if (S::WHICH == OUTPUT)
            put_output(p, u, t, m, sum, den, out.up[n]);
        else if (S::WHICH == GRAD_Q)
            put_grad_q(p, u.h, t, m, own.x[k % own.N], sum);
        else if (S::WHICH == GRAD_K)
            put_grad_k(p, u.h, t.read, m, own.x[k % own.N], sum);
        else
            put_grad_v(p, u.h, t.read, m, sum);
    }
    #pragma unroll
    for (int k = 0; k < places<S::ROWS>::N && S::BOTH; k++) {
        const int n = places<S::ROWS>::token(k), e = places<S::ROWS>::element();
        const token t = token_at<S>(p, u, first, n);

        if (t.read >= 0 && e < u.rows)
            put_grad_k(p, u.h, t.read, e, own.x[k % own.N],
                       out.rows[n % (S::BOTH ? RUN : 1)][e] +
                           (normalize ? out.last[n][e] : 0.0f));
    }
}

// Walks all tokens with the state.
template <class S>
DEVICE void walk(const attn_linear_kparams &p, const unit &u, shared_lmha<S> &mem, tile<S> &my,
                 float &z)
{
    token t = first_token<S::WHICH>(p, u.h, u.all), before = no_token();
    arriving<S> in;

    fetch<S>(p, u, t, in);
    stash<S>(p, u, t, in, mem.in[0]);
    __syncthreads();
    #pragma unroll 1
    for (int n = 0; is_token(t) || is_token(before); n++) {
        const token next =
            next_token<S::WHICH>(p, u.h, u.all, token_at<S>(p, u, t, RUN - 1));
        own_elements<S> own;

        fetch<S>(p, u, next, in);
        if (!S::SUMS)
            own = fetch_own<S>(p, u, before);
        compute<S>(p, u, t, mem.in[n % 2], my, z, mem.out[n % 2]);
        if (!S::SUMS)
            finish<S>(p, u, before, own, mem.out[(n + 1) % 2]);
        stash<S>(p, u, next, in, mem.in[(n + 1) % 2]);
        __syncthreads();
        before = S::SUMS ? no_token() : t;
        t = next;
    }
}

// Columns of a scan's state.
template <class S> DEVICE int width_of(const attn_linear_kparams &p)
{
    return S::BY_D ? p.dv : p.d;
}

// The group's tokens and columns. Groups run over columns, fastest, segments and heads.
template <class S> DEVICE unit find_unit(const attn_linear_kparams &p)
{
    const int slices = ceil_div(width_of<S>(p), S::COLS), n = blockIdx.x / slices;
    const int head = n / p.pieces;
    const bool back = is_backwards(S::WHICH);
    unit u;

    u.h = find_head(p, head);
    u.w = { (int)u.h.b, (int)u.h.kvh, (int)u.h.kvh, 0, n % p.pieces, 0, 0, u.h.keys };
    u.w.column = (int)(blockIdx.x % slices) * S::COLS;
    u.rows = S::BY_D ? p.d : p.dv;
    u.width = min(width_of<S>(p) - u.w.column, S::COLS);
    u.lane = threadIdx.x % 32;
    u.slice = threadIdx.x / 32;
    u.all = all_tokens<S::WHICH>(p, u.h);

    const int segment = back && is_causal(p) ? p.pieces - 1 - u.w.segment : u.w.segment;

    if (S::SUMS)    // those of the causal form, too, have no order
        u.all = { 0, u.all.add_end, 0, 0, false };
    else if (linear_has(p, LINEAR_SLOTS) && !u.all.together)
        u.all.add_end = 0;
    if (p.piece) {
        const int first = segment * p.piece, end = first + p.piece;

        u.all.add_first = S::SUMS || u.all.together ? first : 0;
        u.all.add_end = min(u.all.add_end, end);
        u.all.read_first = S::SUMS ? 0 : first;
        u.all.read_end = min(u.all.read_end, end);
    }
    return u;
}

// Element (e, m) of a state and of z or r as the walk begins: what came in, or the slots.
template <class S>
DEVICE float first_element(const attn_linear_kparams &p, const unit &u, bool slots, int e, int m)
{
    float x = 0.0f;

    if (!slots)
        return first_state<S::WHICH>(p, u.h, e, m);
    for (int slot = first_slot(p, u.w); slot <= last_slot(p, u.w); slot++)
        x += find_slot(p, u.w, slot)[(int64_t)e * p.dv + m];
    return x;
}

// Whether fwd_begin.cu has copied z, which z_out may be.
DEVICE bool z_is_copied(const attn_linear_kparams &p)
{
    return linear_has(p, LINEAR_STATE) && linear_has(p, LINEAR_NORMALIZE) && p.dv > COLUMNS;
}

template <class S>
DEVICE float first_last(const attn_linear_kparams &p, const unit &u, bool slots, int e)
{
    float x = 0.0f;

    if (!slots && S::WHICH == OUTPUT && !S::SUMS && z_is_copied(p))
        return p.work[((int64_t)u.w.b * p.heads_kv + u.w.kvh) * p.d + e];
    if (!slots)
        return first_z<S::WHICH>(p, u.h, e);
    for (int slot = first_slot(p, u.w); slot <= last_slot(p, u.w); slot++)
        x += find_slot(p, u.w, slot)[(int64_t)p.d * p.dv + e];
    return x;
}

// The element of z or r that this thread has, if it has one.
template <class S> DEVICE int last_of(const attn_linear_kparams &p, const unit &u)
{
    return (S::BY_D ? 0 : u.w.column) + (int)threadIdx.x;
}

template <class S> DEVICE bool has_last(const attn_linear_kparams &p, const unit &u)
{
    return linear_has(p, LINEAR_NORMALIZE) && S::WHICH != GRAD_V && threadIdx.x < S::ALONG &&
           last_of<S>(p, u) < p.d;
}

// Calls what(e, m, x) with each element x of this thread's part of the state.
template <class S, class WHAT>
DEVICE void each_element(const unit &u, tile<S> &my, const WHAT &what)
{
    #pragma unroll
    for (int r = 0; r < S::KEEP; r++)
        #pragma unroll
        for (int c = 0; c < S::WIDE; c++) {
            const int row = u.slice * S::KEEP + r, column = c * 32 + u.lane;

            if (row < u.rows && column < u.width)
                what(S::BY_D ? row : u.w.column + column, S::BY_D ? u.w.column + column : row,
                     my.s[r][c]);
        }
}

template <class S>
DEVICE void load_first(const attn_linear_kparams &p, const unit &u, bool slots, tile<S> &my,
                       float &z)
{
    clear_tile(my);
    each_element(u, my, [&](int e, int m, float &x) {
        x = first_element<S>(p, u, slots, e, m);
    });
    z = has_last<S>(p, u) ? first_last<S>(p, u, slots, last_of<S>(p, u)) : 0.0f;
}

// A slot of the group's columns; z or r by those of the first.
template <class S>
DEVICE void store_slot(const attn_linear_kparams &p, const unit &u, int n, tile<S> &my, float z)
{
    float *const slot = find_slot(p, u.w, n);

    each_element(u, my, [&](int e, int m, float &x) { slot[(int64_t)e * p.dv + m] = x; });
    if (has_last<S>(p, u) && (!S::BY_D || u.w.column == 0))
        slot[(int64_t)p.d * p.dv + last_of<S>(p, u)] = z;
}

// S and z as they come out; dS_in and dz_in.
template <class S>
DEVICE void store_state(const attn_linear_kparams &p, const unit &u, tile<S> &my, float z)
{
    const bool back = is_backwards(S::WHICH);
    const bool wanted = back ? p.has & LHAS_GRAD_STATE_IN : p.want_state;
    const bool z_wanted = back ? p.has & LHAS_GRAD_Z_IN : p.want_z;
    const int64_t b = u.h.b, h = u.h.kvh, at = last_of<S>(p, u);

    if (u.w.segment != p.pieces - 1)
        return;
    if (wanted)
        each_element(u, my, [&](int64_t e, int64_t m, float &x) {
            if (back)
                p.grad_state_in[LINEAR_AT(p, grad_state_in, b, h, e, m)] = x;
            else
                p.state_out[LINEAR_AT(p, state_out, b, h, e, m)] = x;
        });
    if (!z_wanted || !has_last<S>(p, u) || (S::BY_D && u.w.column))
        return;
    if (back)
        p.grad_z_in[LINEAR_AT(p, grad_z_in, b, h, at, 0)] = z;
    else
        p.z_out[LINEAR_AT(p, z_out, b, h, at, 0)] = z;
}

// dK and dV of keys that no query sees, the group's columns: zeros.
template <class S> DEVICE void write_zeros(const attn_linear_kparams &p, const unit &u)
{
    if (u.w.segment)
        return;
    for (int64_t j = u.h.keys + u.slice; j < u.h.length; j += SLICES) {
        for (int i = u.lane; i < u.width && S::WHICH == GRAD_K; i += 32)
            put_grad_k(p, u.h, j, u.w.column + i, 0.0f, 0.0f);
        for (int i = u.lane; i < u.rows && S::BOTH; i += 32)
            put_grad_k(p, u.h, j, i, 0.0f, 0.0f);
        for (int i = u.lane; i < u.width && S::WHICH != GRAD_K; i += 32)
            put_grad_v(p, u.h, j, u.w.column + i, 0.0f);
    }
}

// A scan, or its part of a segment, by the group.
template <class S> DEVICE void lmha_walk(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    const unit u = find_unit<S>(p);
    tile<S> my;
    float z;

    load_first(p, u, linear_has(p, LINEAR_SLOTS), my, z);
    walk(p, u, *(shared_lmha<S> *)memory, my, z);
    if (S::WHICH == OUTPUT || S::WHICH == GRAD_K || S::BOTH)
        store_state<S>(p, u, my, z);
    if (is_backwards(S::WHICH))
        write_zeros<S>(p, u);
}

// Slot s + 1: what the rows of segment s add to the state; slot 0: what came in. No segment
// follows the last of the causal form.
template <class S> DEVICE void lmha_sums(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    const unit u = find_unit<S>(p);
    const int last = is_causal(p) ? p.pieces - 1 : 0;
    tile<S> my;
    float z;

    if (u.w.segment == last) {
        load_first(p, u, false, my, z);
        store_slot(p, u, 0, my, z);
    }
    if (is_causal(p) && u.w.segment == last)
        return;
    clear_tile(my);
    z = 0.0f;
    walk(p, u, *(shared_lmha<S> *)memory, my, z);
    store_slot(p, u, u.w.segment + 1, my, z);
}
