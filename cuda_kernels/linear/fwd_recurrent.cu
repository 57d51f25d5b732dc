// SPDX-License-Identifier: MIT
// linear/fwd_recurrent.cu: linear attention token by token, any sizes, every rule.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    the recurrence: a group owns COLUMNS columns of the state of one batch and
//           key/value head and walks all tokens with them. A lane has a column, a warp every
//           SLICES-th row of it; the sums over rows of the warps meet in shared memory. The
//           next token's rows are on their way while one is added. z is kept by each group
//           of a head
// Grid      1-D, ceil(Dv / COLUMNS) * Hkv * B groups, columns fastest
// Block     256 threads, 1-D
// Shared    dynamic: shared_rows, and _shared the state's columns
// Barriers  one a token and query head, two if the rule has a beta
// Layout    any strides, in elements
//           work: z as it came in (fwd_begin.cu), if there is one and several groups of a
//           head read it; _global then the columns of each group
// Numerics  f32; huge rows of q are scaled by a power of 2 until they are divided. The bits
//           of a head depend on nothing but its rows
// Instances where the columns lie: _d64, _d128 in registers, _shared, _global (the workspace)
// Tunables  src/plan/cuda/linear_fwd_recurrent.c has the same numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for each TYPE: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_linear_fwd_recurrent_f32
#endif

#include "linear/columns.cuh"

// Rows of k, q and decay, of this token and the next; of z, and the sums of the warps.
// `pitch` is D, or what it is padded to with zeros.
struct shared_rows {
    float *rows, *z, *state;
    int pitch;
    float (*num)[SLICES][COLUMNS], (*dot)[COLUMNS], (*den)[SLICES], (*top)[SLICES];

    __device__ __forceinline__ float *row(int buffer, int which) const
    {
        return rows + (buffer * 3 + which) * pitch;
    }
};
enum { ROW_K, ROW_Q, ROW_DECAY };

// A token of the walk: the key that is added before, -1: none, and the query i of head x of
// those that share the state; -1: none.
struct token {
    int key, i, x;
};

struct unit {
    int64_t b, kvh;
    int keys, column, lane, slice;
};

DEVICE token first_token(const attn_linear_kparams &p, const unit &u)
{
    const bool causal = linear_has(p, LINEAR_CAUSAL);
    token t = { u.keys ? 0 : -1, causal || !u.keys ? 0 : -1, 0 };

    return t;
}

// The full form takes all keys before the first query.
DEVICE token next_token(const attn_linear_kparams &p, const unit &u, token t)
{
    if (t.i < 0) {
        if (++t.key == u.keys)
            t = { -1, 0, 0 };
        return t;
    }
    if (++t.x == p.group) {
        t.x = 0;
        t.i++;
    }
    t.key = linear_has(p, LINEAR_CAUSAL) && t.x == 0 && t.i < u.keys ? t.i : -1;
    return t;
}

DEVICE bool is_token(const attn_linear_kparams &p, token t)
{
    return t.i < p.len_q;
}

// Element e of k or q of a token, phi not taken; 0 if there is none.
DEVICE float load_row(const attn_linear_kparams &p, const unit &u, token t, int which, int e)
{
    if (which == ROW_K)
        return t.key >= 0 ? elem_load<TYPE>(p.k, LINEAR_AT(p, k, u.b, u.kvh, (int64_t)t.key,
                                                           (int64_t)e))
                          : 0.0f;
    return t.i >= 0 ? elem_load<TYPE>(p.q, LINEAR_AT(p, q, u.b, u.kvh * p.group + t.x,
                                                     (int64_t)t.i, (int64_t)e))
                    : 0.0f;
}

DEVICE float load_decay(const attn_linear_kparams &p, const unit &u, token t, int e)
{
    if (!linear_has(p, LINEAR_DECAY) || t.key < 0)
        return 0.0f;
    return type_load(p.decay_type, p.decay,
                     LINEAR_AT(p, decay, u.b, u.kvh, (int64_t)t.key, (int64_t)e));
}

// What is on its way of the next token: k in threads below 128, q in those above, and of
// each column v.
struct arriving {
    float row, decay, v, beta;
};

template <int KEEP>
DEVICE arriving fetch(const attn_linear_kparams &p, const unit &u, token t)
{
    const int which = threadIdx.x / (THREADS / 2), e = threadIdx.x % (THREADS / 2);
    arriving a = {};

    if (!is_token(p, t))
        return a;
    if (KEEP && e < p.d) {
        a.row = load_row(p, u, t, which, e);
        if (which == ROW_K)
            a.decay = load_decay(p, u, t, e);
    }
    if (t.key < 0)
        return a;
    if (u.column < p.dv)
        a.v = elem_load<TYPE>(p.v, LINEAR_AT(p, v, u.b, u.kvh, (int64_t)t.key,
                                             (int64_t)u.column));
    if (linear_has(p, LINEAR_BETA))
        a.beta = type_load(p.beta_type, p.beta,
                           LINEAR_AT(p, beta, u.b, u.kvh, (int64_t)t.key, (int64_t)0));
    return a;
}

// Element e of k or q to shared memory, phi taken; |q|, or 0.
DEVICE float put_row(const attn_linear_kparams &p, const shared_rows &mem, int buffer,
                     int which, int e, float x)
{
    const float y = e < p.d ? linear_phi(p, x) : 0.0f;

    mem.row(buffer, which)[e] = y;
    return which == ROW_Q ? fabsf(y) : 0.0f;
}

// The rows of a token to shared memory, and the largest |q| of each warp.
template <int KEEP>
DEVICE void stash(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                  token t, int buffer, const arriving &a)
{
    const int n = KEEP ? THREADS / 2 : THREADS, e = threadIdx.x % n;
    float top = 0.0f;

    if (KEEP && e < mem.pitch) {
        const int which = threadIdx.x / n;

        top = put_row(p, mem, buffer, which, e, a.row);
        if (which == ROW_K)
            mem.row(buffer, ROW_DECAY)[e] = expf(a.decay);
    }
    for (int i = e; !KEEP && i < p.d; i += n) {
        put_row(p, mem, buffer, ROW_K, i, load_row(p, u, t, ROW_K, i));
        top = fmaxf(top, put_row(p, mem, buffer, ROW_Q, i, load_row(p, u, t, ROW_Q, i)));
        mem.row(buffer, ROW_DECAY)[i] = expf(load_decay(p, u, t, i));
    }
    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
    if (u.lane == 0)
        mem.top[buffer][u.slice] = top;
}

// The power of 2 that a row of q is divided by meanwhile.
DEVICE float find_up(const shared_rows &mem, int buffer)
{
    float top = 0.0f;

    #pragma unroll
    for (int w = 0; w < SLICES; w++)
        top = fmaxf(top, mem.top[buffer][w]);
    if (!(top > 4294967296.0f && top < INFINITE))
        return 1.0f;
    return __int_as_float(min(__float_as_uint(top) & 0x7f800000u, 253u << 23));
}

// Adds the key of a token: S = decay S + k v^T, or what the rule says; all threads.
template <int KEEP>
DEVICE void fold(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                 int buffer, const arriving &a, columns<KEEP> &s)
{
    const float *const k = mem.row(buffer, ROW_K), *const decay = mem.row(buffer, ROW_DECAY);
    const bool decays = linear_has(p, LINEAR_DECAY);
    float add = a.v;

    if (linear_has(p, LINEAR_BETA)) {
        float dot = 0.0f;

        EACH_ROW(s, r)
            dot += k[r * SLICES + u.slice] * (decay[r * SLICES + u.slice] * s.get(r));
        mem.dot[u.slice][u.lane] = dot;
        __syncthreads();
        dot = 0.0f;
        #pragma unroll
        for (int w = 0; w < SLICES; w++)
            dot += mem.dot[w][u.lane];
        add = (add - dot) * a.beta;
    }
    EACH_ROW(s, r)
    {
        const int e = r * SLICES + u.slice;
        const float before = s.get(r);

        s.put(r, (decays ? decay[e] * before : before) + k[e] * add);
    }
    if (!linear_has(p, LINEAR_NORMALIZE))
        return;
    for (int e = u.lane * SLICES + u.slice; e < p.d; e += THREADS)
        mem.z[e] = decay[e] * mem.z[e] + k[e];
}

// This warp's part of num and den; what q was divided by.
template <int KEEP>
DEVICE float read_out(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                     int buffer, const columns<KEEP> &s)
{
    const float *const q = mem.row(buffer, ROW_Q);
    const float up = find_up(mem, buffer), down = 1.0f / up;
    float num = 0.0f, den = 0.0f;

    EACH_ROW(s, r)
        num += q[r * SLICES + u.slice] * down * s.get(r);
    mem.num[buffer][u.slice][u.lane] = num;
    if (!linear_has(p, LINEAR_NORMALIZE))
        return up;
    for (int e = u.lane * SLICES + u.slice; e < p.d; e += THREADS)
        den += q[e] * down * mem.z[e];
    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        den += __shfl_xor_sync(0xffffffffu, den, mask);
    if (u.lane == 0)
        mem.den[buffer][u.slice] = den;
    return up;
}

// The sums of all warps become O and den, by one of them.
DEVICE void write_out(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                      int buffer, token t, float up)
{
    const int64_t h = u.kvh * p.group + t.x;
    float num = 0.0f, den = 0.0f;

    #pragma unroll
    for (int w = 0; w < SLICES; w++)
        num += mem.num[buffer][w][u.lane];
    if (linear_has(p, LINEAR_NORMALIZE)) {
        #pragma unroll
        for (int w = 0; w < SLICES; w++)
            den += mem.den[buffer][w];
        den = p.sum_scale * den + p.sum_eps / up;
        if (u.column == 0 && p.want_den)
            p.den[LINEAR_AT(p, den, u.b, h, (int64_t)t.i, 0)] = in_units(p.sum_unit, den, up);
        num = den == 0.0f ? 0.0f : p.sum_scale * num / den;
    } else {
        num = in_units(p.sum_unit, num, up);
    }
    if (u.column < p.dv && p.want_o)
        elem_store<TYPE>(p.o, LINEAR_AT(p, o, u.b, h, (int64_t)t.i, (int64_t)u.column), num);
}

// Whether fwd_begin.cu has copied z.
DEVICE bool z_is_copied(const attn_linear_kparams &p)
{
    return linear_has(p, LINEAR_STATE) && linear_has(p, LINEAR_NORMALIZE) && p.dv > COLUMNS;
}

template <int KEEP>
DEVICE void load_state(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                       columns<KEEP> &s)
{
    const bool given = linear_has(p, LINEAR_STATE) && u.column < p.dv;

    EACH_ROW(s, r)
    {
        const int64_t e = r * SLICES + u.slice;

        s.put(r, given && e < p.d ? p.state_in[LINEAR_AT(p, state_in, u.b, u.kvh, e,
                                                         (int64_t)u.column)]
                                  : 0.0f);
    }
    for (int e = u.lane * SLICES + u.slice; e < p.d; e += THREADS) {
        float z = 0.0f;

        if (z_is_copied(p))
            z = p.work[(u.b * p.heads_kv + u.kvh) * p.d + e];
        else if (linear_has(p, LINEAR_STATE) && linear_has(p, LINEAR_NORMALIZE))
            z = p.z_in[LINEAR_AT(p, z_in, u.b, u.kvh, (int64_t)e, 0)];
        mem.z[e] = z;
    }
}

template <int KEEP>
DEVICE void store_state(const attn_linear_kparams &p, const shared_rows &mem, const unit &u,
                        const columns<KEEP> &s)
{
    if (p.want_state && u.column < p.dv) {
        EACH_ROW(s, r)
        {
            const int64_t e = r * SLICES + u.slice;

            if (e < p.d)
                p.state_out[LINEAR_AT(p, state_out, u.b, u.kvh, e, (int64_t)u.column)] =
                    s.get(r);
        }
    }
    if (!p.want_z || u.column >= COLUMNS)
        return;
    for (int e = u.lane * SLICES + u.slice; e < p.d; e += THREADS)
        p.z_out[LINEAR_AT(p, z_out, u.b, u.kvh, (int64_t)e, 0)] = mem.z[e];
}

template <int KEEP, bool FAST> DEVICE void fwd_recurrent(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    const int tiles = ceil_div(p.dv, COLUMNS), head = blockIdx.x / tiles;
    shared_rows mem;
    unit u;
    columns<KEEP> s;
    arriving now;
    token t;

    mem.pitch = KEEP ? KEEP * SLICES : p.d;
    mem.rows = (float *)memory;
    mem.z = mem.rows + 6 * mem.pitch;
    mem.num = (float (*)[SLICES][COLUMNS])(mem.z + mem.pitch);
    mem.dot = mem.num[2];
    mem.den = (float (*)[SLICES])mem.dot[SLICES];
    mem.top = mem.den + 2;
    mem.state = mem.top[2];
    u.b = head / p.heads_kv;
    u.kvh = head % p.heads_kv;
    u.lane = threadIdx.x % 32;
    u.slice = threadIdx.x / 32;
    u.column = (int)(blockIdx.x % tiles) * COLUMNS + u.lane;
    u.keys = linear_keys(p, u.b);
    s.rows = ceil_div(p.d - u.slice, SLICES);
    if (!KEEP)
        s.at = (FAST ? mem.state
                     : p.work + (z_is_copied(p) ? (int64_t)p.batch * p.heads_kv * p.d : 0) +
                           (int64_t)blockIdx.x * p.d * COLUMNS) +
               u.slice * COLUMNS + u.lane;
    t = first_token(p, u);
    now = fetch<KEEP>(p, u, t);
    load_state(p, mem, u, s);
    if (is_token(p, t))
        stash<KEEP>(p, mem, u, t, 0, now);
    __syncthreads();
    for (int n = 0; is_token(p, t); n++) {
        const token next = next_token(p, u, t);
        const arriving then = fetch<KEEP>(p, u, next);
        float up = 1.0f;

        if (t.key >= 0)
            fold(p, mem, u, n % 2, now, s);
        if (t.i >= 0)
            up = read_out(p, mem, u, n % 2, s);
        if (is_token(p, next))
            stash<KEEP>(p, mem, u, next, 1 - n % 2, then);
        __syncthreads();
        if (t.i >= 0 && u.slice == n % SLICES)
            write_out(p, mem, u, n % 2, t, up);
        t = next;
        now = then;
    }
    store_state(p, mem, u, s);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, KEEP, FAST)                                          \
    extern "C" __global__ __launch_bounds__(THREADS) void JOIN(name, part)(     \
        const __grid_constant__ attn_linear_kparams p)                          \
    {                                                                           \
        fwd_recurrent<KEEP, FAST>(p);                                           \
    }

KERNEL(NAME, _d64, 8, true)
KERNEL(NAME, _d128, 16, true)
KERNEL(NAME, _shared, 0, true)
KERNEL(NAME, _global, 0, false)
