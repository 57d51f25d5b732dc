// SPDX-License-Identifier: MIT
// linear/bwd_recurrent.cu: gradients of linear attention token by token, any sizes.
//
// Computes  dQ; dV; dK, dS_in and dz_in, as written in include/attn/linear.h, each by an
//           instance of its own
// Method    one scan with other operands: rows of A add to a state, A^T B, rows of X read it.
//           A group owns COLUMNS columns of the state, a lane each; a warp has every
//           SLICES-th row of it, and their sums meet in shared memory
//
//               gradient  rows of the state  columns  adds (A, B)   reads X  time
//               dQ        Dv, and 1          D        (V 1), K      (G c)    forwards
//               dK        Dv, and 1          D        (G c), q      (V 1)    backwards
//               dV        D                  Dv       q, G          K        backwards
//
//           The last row of two of them is the normaliser's: 1 beside V, c beside G
// Grid      1-D, ceil(columns / COLUMNS) * Hkv * B groups, columns fastest
// Block     256 threads, 1-D
// Shared    dynamic: rows of A and X, twice, and the sums; _shared the state's columns
// Barriers  one a token and query head
// Layout    any strides, in elements. work: c (bwd_begin.cu), if normalised; _global then the
//           columns of each group
// Numerics  f32. The bits of a head depend on nothing but its rows
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_bwd_recurrent_f32
#endif

#include "linear/columns.cuh"

enum scan { GRAD_Q, GRAD_K, GRAD_V };
enum place { KEPT, SHARED, GLOBAL };
constexpr int KEPT_ROWS = 17;    // of a thread, in registers

// A token: the row that adds, of query (add, x) or of key add; -1: none. And the row that
// reads, likewise.
struct token {
    int add, add_x, read, read_x;
};

struct unit {
    int64_t b, kvh;
    int keys, length, rows, width, column, lane, slice;
};

struct shared_rows {
    float *rows, *state;
    float (*sums)[SLICES][COLUMNS];
    int pitch;

    __device__ __forceinline__ float *adds(int buffer) const
    {
        return rows + buffer * 2 * pitch;
    }
    __device__ __forceinline__ float *reads(int buffer) const
    {
        return rows + (buffer * 2 + 1) * pitch;
    }
};

DEVICE float k_of(const attn_linear_kparams &p, const unit &u, int64_t j, int64_t e)
{
    return elem_load<TYPE>(p.k, LINEAR_AT(p, k, u.b, u.kvh, j, e));
}

DEVICE float q_of(const attn_linear_kparams &p, const unit &u, int x, int64_t i, int64_t e)
{
    return elem_load<TYPE>(p.q, LINEAR_AT(p, q, u.b, u.kvh * p.group + x, i, e));
}

// G.
DEVICE float g_of(const attn_linear_kparams &p, const unit &u, int x, int64_t i, int64_t m)
{
    const int64_t h = u.kvh * p.group + x;
    float g, den;

    if (!(p.has & LHAS_GRAD_O))
        return 0.0f;
    g = elem_load<TYPE>(p.grad_o, LINEAR_AT(p, grad_o, u.b, h, i, m));
    if (!linear_has(p, LINEAR_NORMALIZE))
        return g;
    den = p.den[LINEAR_AT(p, den, u.b, h, i, 0)];
    return den == 0.0f ? 0.0f : g / den;
}

// Element r of the row of a key, or a query, as those of dQ and dK are: (V 1), (G c).
DEVICE float key_row(const attn_linear_kparams &p, const unit &u, int64_t j, int r)
{
    return r == p.dv ? 1.0f
                     : elem_load<TYPE>(p.v, LINEAR_AT(p, v, u.b, u.kvh, j, (int64_t)r));
}

DEVICE float query_row(const attn_linear_kparams &p, const unit &u, int x, int64_t i, int r)
{
    return r == p.dv ? p.work[(u.b * p.heads_q + u.kvh * p.group + x) * p.len_q + i]
                     : g_of(p, u, x, i, r);
}

template <scan WHICH>
DEVICE float add_row(const attn_linear_kparams &p, const unit &u, token t, int r)
{
    if (t.add < 0 || r >= u.rows)
        return 0.0f;
    if (WHICH == GRAD_Q)
        return key_row(p, u, t.add, r);
    return WHICH == GRAD_K ? query_row(p, u, t.add_x, t.add, r)
                           : p.scale * linear_phi(p, q_of(p, u, t.add_x, t.add, r));
}

template <scan WHICH>
DEVICE float read_row(const attn_linear_kparams &p, const unit &u, token t, int r)
{
    if (t.read < 0 || r >= u.rows)
        return 0.0f;
    if (WHICH == GRAD_Q)
        return query_row(p, u, t.read_x, t.read, r);
    return WHICH == GRAD_K ? key_row(p, u, t.read, r) : linear_phi(p, k_of(p, u, t.read, r));
}

// This lane's number of the row B that is added.
template <scan WHICH>
DEVICE float add_column(const attn_linear_kparams &p, const unit &u, token t)
{
    if (t.add < 0 || u.column >= u.width)
        return 0.0f;
    if (WHICH == GRAD_Q)
        return linear_phi(p, k_of(p, u, t.add, u.column));
    return WHICH == GRAD_K ? p.scale * linear_phi(p, q_of(p, u, t.add_x, t.add, u.column))
                           : g_of(p, u, t.add_x, t.add, u.column);
}

// The walk. The full form adds everything before the first row reads. Backwards, rows of
// the queries of all heads add before the key of their token reads.
template <scan WHICH>
DEVICE token next_token(const attn_linear_kparams &p, const unit &u, token t)
{
    const bool causal = linear_has(p, LINEAR_CAUSAL);

    if (WHICH == GRAD_Q) {
        if (t.read < 0 && ++t.add < u.keys && !causal)
            return t;
        if (t.read < 0 || ++t.read_x == p.group) {
            t.read_x = 0;
            t.read++;
        }
        t.add = causal && t.read_x == 0 && t.read < u.keys ? t.read : -1;
        return t;
    }
    if (t.read >= 0 && !causal) {
        t.read++;
        return t;
    }
    if (++t.add_x == p.group) {
        t.add_x = 0;
        t.add--;
    }
    if (!causal && t.add < 0)
        t.read = 0;
    if (causal)
        t.read = t.add >= 0 && t.add_x == p.group - 1 && t.add < u.keys ? t.add : -1;
    return t;
}

template <scan WHICH> DEVICE token first_token(const attn_linear_kparams &p, const unit &u)
{
    const token before_q = { -1, 0, -1, 0 }, before = { p.len_q, p.group - 1, -1, 0 };

    return next_token<WHICH>(p, u, WHICH == GRAD_Q ? before_q : before);
}

template <scan WHICH>
DEVICE bool is_token(const attn_linear_kparams &p, const unit &u, token t)
{
    if (WHICH == GRAD_Q)
        return t.add >= 0 || (t.read >= 0 && t.read < p.len_q);
    return t.add >= 0 || (t.read >= 0 && t.read < u.keys);
}

// The rows of a token to shared memory.
template <scan WHICH>
DEVICE void stash(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                  token t, int buffer)
{
    for (int r = threadIdx.x; r < mem.pitch; r += THREADS) {
        mem.adds(buffer)[r] = add_row<WHICH>(p, u, t, r);
        mem.reads(buffer)[r] = read_row<WHICH>(p, u, t, r);
    }
}

// What has been read, the sums of all warps, becomes an element of a gradient.
template <scan WHICH>
DEVICE void write_out(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                      int buffer, token t)
{
    const int64_t c = u.column;
    float sum = 0.0f;

    if (u.column >= u.width)
        return;
    #pragma unroll
    for (int w = 0; w < SLICES; w++)
        sum += mem.sums[buffer][w][u.lane];
    if (WHICH == GRAD_Q) {
        const float x = q_of(p, u, t.read_x, t.read, c);

        elem_store<TYPE>(p.grad_q,
                         LINEAR_AT(p, grad_q, u.b, u.kvh * p.group + t.read_x,
                                   (int64_t)t.read, c),
                         p.scale * linear_slope(p, x) * sum);
    } else if (WHICH == GRAD_K) {
        if (p.has & LHAS_GRAD_K)
            elem_store<TYPE>(p.grad_k, LINEAR_AT(p, grad_k, u.b, u.kvh, (int64_t)t.read, c),
                             linear_slope(p, k_of(p, u, t.read, c)) * sum);
    } else {
        elem_store<TYPE>(p.grad_v, LINEAR_AT(p, grad_v, u.b, u.kvh, (int64_t)t.read, c), sum);
    }
}

// Element (r, column) of the state that the walk begins with.
template <scan WHICH>
DEVICE float first_state(const attn_linear_kparams &p, const unit &u, int64_t r)
{
    const int64_t c = u.column;

    if (r >= u.rows || u.column >= u.width)
        return 0.0f;
    if (WHICH == GRAD_Q) {
        if (!linear_has(p, LINEAR_STATE))
            return 0.0f;
        return r == p.dv ? p.z_in[LINEAR_AT(p, z_in, u.b, u.kvh, c, 0)]
                         : p.state_in[LINEAR_AT(p, state_in, u.b, u.kvh, c, r)];
    }
    if (WHICH == GRAD_K && r == p.dv)
        return p.has & LHAS_GRAD_Z_OUT
                   ? p.grad_z_out[LINEAR_AT(p, grad_z_out, u.b, u.kvh, c, 0)]
                   : 0.0f;
    if (!(p.has & LHAS_GRAD_STATE_OUT))
        return 0.0f;
    return p.grad_state_out[WHICH == GRAD_K ? LINEAR_AT(p, grad_state_out, u.b, u.kvh, c, r)
                                            : LINEAR_AT(p, grad_state_out, u.b, u.kvh, r, c)];
}

// dS_in and dz_in.
template <int KEEP>
DEVICE void write_state(const attn_linear_kparams &p, const unit &u, const columns<KEEP> &s)
{
    const int64_t c = u.column;

    if (u.column >= u.width)
        return;
    EACH_ROW(s, n)
    {
        const int64_t r = n * SLICES + u.slice;

        if (r < p.dv && (p.has & LHAS_GRAD_STATE_IN))
            p.grad_state_in[LINEAR_AT(p, grad_state_in, u.b, u.kvh, c, r)] = s.get(n);
        if (r == p.dv && r < u.rows && (p.has & LHAS_GRAD_Z_IN))
            p.grad_z_in[LINEAR_AT(p, grad_z_in, u.b, u.kvh, c, 0)] = s.get(n);
    }
}

// Keys that no query sees.
template <scan WHICH> DEVICE void write_zeros(const attn_linear_kparams &p, const unit &u)
{
    for (int64_t j = u.keys + u.slice; j < u.length && u.column < u.width; j += SLICES) {
        if (WHICH == GRAD_V)
            elem_store<TYPE>(p.grad_v, LINEAR_AT(p, grad_v, u.b, u.kvh, j, (int64_t)u.column),
                             0.0f);
        else if (p.has & LHAS_GRAD_K)
            elem_store<TYPE>(p.grad_k, LINEAR_AT(p, grad_k, u.b, u.kvh, j, (int64_t)u.column),
                             0.0f);
    }
}

template <scan WHICH, place WHERE> DEVICE void bwd_recurrent(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    const bool normalize = linear_has(p, LINEAR_NORMALIZE);
    const int width = WHICH == GRAD_V ? p.dv : p.d, tiles = ceil_div(width, COLUMNS);
    const int head = blockIdx.x / tiles;
    shared_rows mem;
    unit u;
    constexpr int KEEP = WHERE == KEPT ? KEPT_ROWS : 0;
    columns<KEEP> s;
    token t;
    float now;

    u.rows = WHICH == GRAD_V ? p.d : p.dv + normalize;
    u.width = width;
    u.b = head / p.heads_kv;
    u.kvh = head % p.heads_kv;
    u.lane = threadIdx.x % 32;
    u.slice = threadIdx.x / 32;
    u.column = (int)(blockIdx.x % tiles) * COLUMNS + u.lane;
    u.length = linear_length(p, u.b);
    u.keys = linear_keys(p, u.b);
    mem.pitch = WHERE == KEPT ? KEPT_ROWS * SLICES : ceil_div(u.rows, SLICES) * SLICES;
    mem.rows = (float *)memory;
    mem.sums = (float (*)[SLICES][COLUMNS])(mem.rows + 4 * mem.pitch);
    mem.state = mem.sums[2][0];
    s.rows = ceil_div(u.rows, SLICES);
    if (WHERE == SHARED)
        s.at = mem.state + threadIdx.x;
    if (WHERE == GLOBAL)    // behind c
        s.at = p.work + (normalize ? (int64_t)p.batch * p.heads_q * p.len_q : 0) +
               (int64_t)blockIdx.x * s.rows * THREADS + threadIdx.x;
    EACH_ROW(s, r)
        s.put(r, first_state<WHICH>(p, u, r * SLICES + u.slice));
    t = first_token<WHICH>(p, u);
    now = add_column<WHICH>(p, u, t);
    if (is_token<WHICH>(p, u, t))
        stash<WHICH>(p, mem, u, t, 0);
    __syncthreads();
    for (int n = 0; is_token<WHICH>(p, u, t); n++) {
        const token next = next_token<WHICH>(p, u, t);
        const bool more = is_token<WHICH>(p, u, next);
        const float then = more ? add_column<WHICH>(p, u, next) : 0.0f;
        const float *const a = mem.adds(n % 2) + u.slice, *const x = mem.reads(n % 2) + u.slice;

        if (t.add >= 0) {
            EACH_ROW(s, r)
                s.put(r, s.get(r) + a[r * SLICES] * now);
        }
        if (t.read >= 0) {
            float sum = 0.0f;

            EACH_ROW(s, r)
                sum += x[r * SLICES] * s.get(r);
            mem.sums[n % 2][u.slice][u.lane] = sum;
        }
        if (more)
            stash<WHICH>(p, mem, u, next, 1 - n % 2);
        __syncthreads();
        if (t.read >= 0 && u.slice == n % SLICES)
            write_out<WHICH>(p, mem, u, n % 2, t);
        t = next;
        now = then;
    }
    if (WHICH == GRAD_K)
        write_state(p, u, s);
    if (WHICH != GRAD_Q)
        write_zeros<WHICH>(p, u);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, WHICH, WHERE)                                        \
    extern "C" __global__ __launch_bounds__(THREADS, 2) void JOIN(name, part)(  \
        const __grid_constant__ attn_linear_kparams p)                          \
    {                                                                           \
        bwd_recurrent<WHICH, WHERE>(p);                                         \
    }

KERNEL(NAME, _q_kept, GRAD_Q, KEPT)
KERNEL(NAME, _k_kept, GRAD_K, KEPT)
KERNEL(NAME, _v_kept, GRAD_V, KEPT)
KERNEL(NAME, _q_shared, GRAD_Q, SHARED)
KERNEL(NAME, _k_shared, GRAD_K, SHARED)
KERNEL(NAME, _v_shared, GRAD_V, SHARED)
KERNEL(NAME, _q_global, GRAD_Q, GLOBAL)
KERNEL(NAME, _k_global, GRAD_K, GLOBAL)
KERNEL(NAME, _v_global, GRAD_V, GLOBAL)
