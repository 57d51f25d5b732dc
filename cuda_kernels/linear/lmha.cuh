// SPDX-License-Identifier: MIT
// linear/lmha.cuh: a group walks the tokens of a head with a state in registers, RUN of them
// from barrier to barrier, whatever scan.cuh has of them. A warp has KEEP rows of the state one
// after the other, a lane WIDE columns of these, 32 apart. Rows of the next run are on their
// way to registers while one is computed, and go to the other half of shared memory; what the
// warps have summed becomes results while the next run is computed. The normaliser is a column
// of ones beside V: z or r, an element for each thread.
//
// With LINEAR_SLOTS a walk begins with states in the workspace, of segments of the sequence, as
// chunk.cuh has them: a state's element (e, m) at e * Dv + m; backwards segments are counted
// from the last.
#pragma once

constexpr int COLUMNS = 64;    // of a value row, of a group

#include "linear/chunk.cuh"
#include "linear/scan.cuh"

constexpr int THREADS = 256, SLICES = 8, RUN = 4;

// An instance: a scan, the rows and columns of the state that a group has room for. SUMS: rows
// add and none reads.
template <scan WHICH_, int ROWS_, int COLS_, bool SUMS_ = false> struct shape {
    static constexpr scan WHICH = WHICH_;
    static constexpr int ROWS = ROWS_, COLS = COLS_, KEEP = ROWS / SLICES, WIDE = COLS / 32;
    static constexpr bool SUMS = SUMS_, BY_D = rows_are_d(WHICH), BOTH = WHICH == GRAD_KV;
    static constexpr int ALONG = BY_D ? ROWS : COLS;         // of z or r
    static constexpr int MOST = larger(ROWS, COLS);
};

// Groups that a multiprocessor has registers for.
template <class S> __host__ __device__ constexpr int blocks_of()
{
    return S::KEEP * S::WIDE > 32 ? 1 : 2;
}

// Rows of a run, what they were divided by, and what was summed.
template <class S> struct alignas(16) run_rows {
    float a[RUN][S::ROWS], x[RUN][S::ROWS], b[RUN][S::COLS];
    float y[S::BOTH ? RUN : 1][S::COLS];
    float c[RUN], top[RUN][SLICES];
};
template <class S> struct alignas(16) run_sums {
    float sums[RUN][SLICES][S::COLS];
    float rows[S::BOTH ? RUN : 1][S::ROWS];
    float last[RUN][S::MOST];    // what z or r adds
    float up[RUN], den[RUN][SLICES];
};
template <class S> struct shared_lmha {
    run_rows<S> in[2];
    run_sums<S> out[2];
};

struct unit {
    scan_head h;
    chunk_work w;
    tokens all;
    int rows, width;    // of the state, from column w.column on
    int lane, slice;
};

// Place k of a thread in a run of rows of WIDTH elements.
template <int WIDTH> struct places {
    static constexpr int N = RUN * WIDTH / THREADS;

    static __device__ __forceinline__ int token(int k)
    {
        return (int)threadIdx.x / WIDTH + k * (THREADS / WIDTH);
    }
    static __device__ __forceinline__ int element() { return (int)threadIdx.x % WIDTH; }
};

// Token n of a run.
template <class S>
DEVICE token token_at(const attn_linear_kparams &p, const unit &u, token t, int n)
{
    #pragma unroll
    for (int i = 0; i < RUN - 1; i++)
        if (i < n)
            t = next_token<S::WHICH>(p, u.h, u.all, t);
    return t;
}

template <class S> struct arriving {
    element a[places<S::ROWS>::N], x[places<S::ROWS>::N];
    element b[places<S::COLS>::N], y[places<S::COLS>::N];
    float c;
};

// Sends for the run that begins with token t.
template <class S>
DEVICE void fetch(const attn_linear_kparams &p, const unit &u, token first, arriving<S> &in)
{
    constexpr scan WHICH = S::WHICH;
    const int e = places<S::ROWS>::element(), c = places<S::COLS>::element();

    in = {};
    #pragma unroll
    for (int k = 0; k < places<S::ROWS>::N; k++) {
        const token t = token_at<S>(p, u, first, places<S::ROWS>::token(k));

        if (t.add >= 0 && e < u.rows)
            in.a[k] = load_element<adds_row(WHICH)>(p, u.h, t.add_x, t.add, e);
        if (!S::SUMS && t.read >= 0 && e < u.rows)
            in.x[k] = load_element<reads_row(WHICH)>(p, u.h, t.read_x, t.read, e);
    }
    #pragma unroll
    for (int k = 0; k < places<S::COLS>::N; k++) {
        const token t = token_at<S>(p, u, first, places<S::COLS>::token(k));

        if (t.add >= 0 && c < u.width)
            in.b[k] =
                load_element<adds_column(WHICH)>(p, u.h, t.add_x, t.add, u.w.column + c);
        if (S::BOTH && !S::SUMS && t.read >= 0 && c < u.width)
            in.y[k] = load_element<OF_V>(p, u.h, 0, t.read, u.w.column + c);
    }
    if (WHICH != OUTPUT && linear_has(p, LINEAR_NORMALIZE) && threadIdx.x < RUN) {
        const token t = token_at<S>(p, u, first, threadIdx.x);

        if (WHICH == GRAD_Q ? t.read >= 0 : t.add >= 0)
            in.c = WHICH == GRAD_Q ? load_c(p, u.h, t.read_x, t.read)
                                   : load_c(p, u.h, t.add_x, t.add);
    }
}

// What an operand is of an element; 0 past the last, and where no row is.
template <scan WHICH, operand OF>
DEVICE float take(const attn_linear_kparams &p, bool there, element a)
{
    return there ? take_element<WHICH, OF>(p, a) : 0.0f;
}

// What has arrived to shared memory, and the largest |q| of each token.
template <class S>
DEVICE void stash(const attn_linear_kparams &p, const unit &u, token first,
                  const arriving<S> &in, run_rows<S> &to)
{
    constexpr scan WHICH = S::WHICH;
    const int e = places<S::ROWS>::element(), c = places<S::COLS>::element();

    #pragma unroll
    for (int k = 0; k < places<S::ROWS>::N; k++) {
        const int n = places<S::ROWS>::token(k);
        const token t = token_at<S>(p, u, first, n);

        to.a[n][e] = take<WHICH, adds_row(WHICH)>(p, t.add >= 0 && e < u.rows, in.a[k]);
        if (S::SUMS)
            continue;

        const float x = take<WHICH, reads_row(WHICH)>(p, t.read >= 0 && e < u.rows, in.x[k]);

        to.x[n][e] = x;
        if (WHICH == OUTPUT) {
            float top = fabsf(x);

            #pragma unroll
            for (int mask = 16; mask; mask /= 2)
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, mask));
            if (u.lane == 0)
                to.top[n][e / 32] = top;
        }
    }
    #pragma unroll
    for (int k = 0; k < places<S::COLS>::N; k++) {
        const int n = places<S::COLS>::token(k);
        const token t = token_at<S>(p, u, first, n);

        to.b[n][c] = take<WHICH, adds_column(WHICH)>(p, t.add >= 0 && c < u.width, in.b[k]);
        if (S::BOTH && !S::SUMS)
            to.y[n][c] = take<WHICH, OF_V>(p, t.read >= 0 && c < u.width, in.y[k]);
    }
    if (WHICH != OUTPUT && threadIdx.x < RUN)
        to.c[threadIdx.x] = in.c;
}

// This thread's part of the state.
template <class S> struct tile {
    float s[S::KEEP][S::WIDE];
};

template <class S> DEVICE void clear_tile(tile<S> &my)
{
    #pragma unroll
    for (int r = 0; r < S::KEEP; r++)
        #pragma unroll
        for (int c = 0; c < S::WIDE; c++)
            my.s[r][c] = 0.0f;
}

template <class S> DEVICE void add_token(const run_rows<S> &in, int n, const unit &u, tile<S> &my)
{
    float b[S::WIDE];

    #pragma unroll
    for (int c = 0; c < S::WIDE; c++)
        b[c] = in.b[n][c * 32 + u.lane];
    #pragma unroll
    for (int r = 0; r < S::KEEP; r += 4) {
        const float4 a = *(const float4 *)&in.a[n][u.slice * S::KEEP + r];

        #pragma unroll
        for (int c = 0; c < S::WIDE; c++) {
            my.s[r][c] += a.x * b[c];
            my.s[r + 1][c] += a.y * b[c];
            my.s[r + 2][c] += a.z * b[c];
            my.s[r + 3][c] += a.w * b[c];
        }
    }
}

// The warp's part of x S, x divided by 1 / down.
template <class S>
DEVICE void read_columns(const run_rows<S> &in, int n, const unit &u, const tile<S> &my,
                         float down, run_sums<S> &out)
{
    float sum[S::WIDE] = {};

    #pragma unroll
    for (int r = 0; r < S::KEEP; r += 4) {
        const float4 x = *(const float4 *)&in.x[n][u.slice * S::KEEP + r];

        #pragma unroll
        for (int c = 0; c < S::WIDE; c++) {
            sum[c] += x.x * down * my.s[r][c];
            sum[c] += x.y * down * my.s[r + 1][c];
            sum[c] += x.z * down * my.s[r + 2][c];
            sum[c] += x.w * down * my.s[r + 3][c];
        }
    }
    #pragma unroll
    for (int c = 0; c < S::WIDE; c++)
        out.sums[n][u.slice][c * 32 + u.lane] = sum[c];
}

// The warp's rows of S y: all columns are here. A lane gives half of its sums away and takes
// the other half, until it has one.
template <class S>
DEVICE void read_rows(const run_rows<S> &in, int n, const unit &u, const tile<S> &my,
                      run_sums<S> &out)
{
    constexpr int EACH = 32 / S::KEEP;    // lanes of a row at the end
    float y[S::WIDE], sum[S::KEEP];

    #pragma unroll
    for (int c = 0; c < S::WIDE; c++)
        y[c] = in.y[n][c * 32 + u.lane];
    #pragma unroll
    for (int r = 0; r < S::KEEP; r++) {
        sum[r] = 0.0f;
        #pragma unroll
        for (int c = 0; c < S::WIDE; c++)
            sum[r] += my.s[r][c] * y[c];
    }
    #pragma unroll
    for (int half = S::KEEP / 2, mask = 16; mask; half /= 2, mask /= 2) {
        const bool upper = u.lane & mask;

        #pragma unroll
        for (int r = 0; r < larger(half, 1); r++) {
            const float mine = half && upper ? sum[r + half] : sum[r];
            const float other = half && !upper ? sum[r + half] : sum[r];

            sum[r] = mine + __shfl_xor_sync(0xffffffffu, other, mask);
        }
    }
    if (u.lane % EACH == 0)
        out.rows[n][u.slice * S::KEEP + u.lane / EACH] = sum[0];
}

// z and den, or r: what this thread's element of it adds to a token's results.
template <class S>
DEVICE void take_last(const attn_linear_kparams &p, const run_rows<S> &in, int n, token t,
                      const unit &u, float down, float &z, run_sums<S> &out)
{
    const int i = threadIdx.x;
    const float weight = S::WHICH == GRAD_K || S::WHICH == GRAD_KV ? in.c[n] : 1.0f;

    if (!linear_has(p, LINEAR_NORMALIZE) || u.slice >= S::ALONG / 32)
        return;
    if (t.add >= 0)
        z += weight * (S::BY_D ? in.a[n][i] : in.b[n][i]);
    if (S::SUMS || t.read < 0)
        return;
    if (S::WHICH != OUTPUT) {
        out.last[n][i] = S::WHICH == GRAD_Q ? in.c[n] * z : z;
        return;
    }

    float den = in.x[n][i] * down * z;

    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        den += __shfl_xor_sync(0xffffffffu, den, mask);
    if (u.lane == 0)
        out.den[n][u.slice] = den;
}

template <class S>
DEVICE void compute(const attn_linear_kparams &p, const unit &u, token t,
                    const run_rows<S> &in, tile<S> &my, float &z, run_sums<S> &out)
{
    #pragma unroll
    for (int n = 0; n < RUN; n++) {
        float up = 1.0f;

        if (S::WHICH == OUTPUT && t.read >= 0) {
            float top = 0.0f;

            #pragma unroll
            for (int w = 0; w < S::ROWS / 32; w++)
                top = fmaxf(top, in.top[n][w]);
            up = power_for(top);
            if (threadIdx.x == 0)
                out.up[n] = up;
        }
        if (t.add >= 0)
            add_token(in, n, u, my);
        if (S::WHICH != GRAD_V)
            take_last<S>(p, in, n, t, u, 1.0f / up, z, out);
        if (!S::SUMS && t.read >= 0) {
            read_columns(in, n, u, my, 1.0f / up, out);
            if (S::BOTH)
                read_rows(in, n, u, my, out);
        }
        t = next_token<S::WHICH>(p, u.h, u.all, t);
    }
}
