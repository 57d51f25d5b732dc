// SPDX-License-Identifier: MIT
// linear/bwd_recurrent.cu: gradients of linear attention token by token, any sizes.
//
// Computes  dQ; dV; dK, dS_in and dz_in, as written in include/attn/linear.h, each by an
//           instance of its own
// Method    scans of one kind with other operands (scan.cuh). A group owns COLUMNS columns of
//           the state, a lane each; a warp has every SLICES-th row of it, and their sums meet
//           in shared memory. The last row of two of them is the normaliser's: 1 beside V, c
//           beside G
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
#include "linear/scan.cuh"

enum place { KEPT, SHARED, GLOBAL };
constexpr int KEPT_ROWS = 17;    // of a thread, in registers

struct unit : scan_head {
    int rows, width, column, lane, slice;
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

// The rows of a token to shared memory.
template <scan WHICH>
DEVICE void stash(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                  token t, int buffer)
{
    for (int r = threadIdx.x; r < mem.pitch; r += THREADS) {
        mem.adds(buffer)[r] = add_row<WHICH>(p, u, u.rows, t, r);
        mem.reads(buffer)[r] = read_row<WHICH>(p, u, u.rows, t, r);
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
    if (WHICH == GRAD_Q)
        put_grad_q(p, u, t, c, load_element<OF_Q>(p, u, t.read_x, t.read, c).x, sum);
    else if (WHICH == GRAD_K)
        put_grad_k(p, u, t.read, c, load_element<OF_K>(p, u, 0, t.read, c).x, sum);
    else
        put_grad_v(p, u, t.read, c, sum);
}

// Element (r, column) of the state that the walk begins with.
template <scan WHICH>
DEVICE float first_row(const attn_linear_kparams &p, const unit &u, int64_t r)
{
    const int64_t c = u.column;

    if (r >= u.rows || u.column >= u.width)
        return 0.0f;
    if (!rows_are_d(WHICH) && r == p.dv)
        return first_z<WHICH>(p, u, c);
    return rows_are_d(WHICH) ? first_state<WHICH>(p, u, r, c) : first_state<WHICH>(p, u, c, r);
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
            put_grad_v(p, u, j, u.column, 0.0f);
        else
            put_grad_k(p, u, j, u.column, 0.0f, 0.0f);
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
    tokens all;
    token t;
    float now;

    u.rows = WHICH == GRAD_V ? p.d : p.dv + normalize;
    u.width = width;
    (scan_head &)u = find_head(p, head);
    u.lane = threadIdx.x % 32;
    u.slice = threadIdx.x / 32;
    u.column = (int)(blockIdx.x % tiles) * COLUMNS + u.lane;
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
        s.put(r, first_row<WHICH>(p, u, r * SLICES + u.slice));
    all = all_tokens<WHICH>(p, u);
    t = first_token<WHICH>(p, u, all);
    now = add_column<WHICH>(p, u, width, t, u.column);
    if (is_token(t))
        stash<WHICH>(p, mem, u, t, 0);
    __syncthreads();
    for (int n = 0; is_token(t); n++) {
        const token next = next_token<WHICH>(p, u, all, t);
        const bool more = is_token(next);
        const float then = more ? add_column<WHICH>(p, u, width, next, u.column) : 0.0f;
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
