// SPDX-License-Identifier: MIT
// linear/atomic.cuh: a scan (scan.cuh) by groups of few rows of its state each: what these rows
// make of a token is a part of its result, and is added atomically to f32 sums in the
// workspace. The order of additions is the device's, so that bits may differ from run to run.
//
// A group has ROWS rows of a state, all of its columns, two for each thread and 512 at a time,
// and walks all tokens with them; the last group of a head has the normaliser's row besides,
// where V or G are rows. Rows of the state of RUN tokens pass through shared memory from
// barrier to barrier, the next on their way meanwhile.
//
// The sums of a query, or of a key where those read, lie at sums_of(): of OUTPUT a column of
// ones stands behind V, so den behind num, then what q was divided by.
#pragma once
#include "linear/scan.cuh"

constexpr int ROWS = 8, RUN = 8, THREADS = 256, COLUMNS = 2 * THREADS;
constexpr int ROWS_OF_TENSORS = 8;    // of a group that begins or finishes, a warp for each

// Columns of a scan's state, and rows but for the normaliser's.
DEVICE int width_of(const attn_linear_kparams &p, scan which)
{
    if (which == OUTPUT)
        return p.dv + (linear_has(p, LINEAR_NORMALIZE) ? 1 : 0);
    return which == GRAD_V ? p.dv : p.d;
}

DEVICE int rows_of(const attn_linear_kparams &p, scan which)
{
    return rows_are_d(which) ? p.d : p.dv;
}

// Floats of a row of sums: even, since two are added at once.
DEVICE int64_t pitch_of(const attn_linear_kparams &p, scan which)
{
    return which == OUTPUT ? (p.dv + 2) / 2 * 2 + 2 : (width_of(p, which) + 1) / 2 * 2;
}

// The place of what a row of OUTPUT was divided by.
DEVICE int64_t place_of_up(const attn_linear_kparams &p) { return pitch_of(p, OUTPUT) - 2; }

// The sums of row l of a head, which is a query head if queries read. c lies before them.
DEVICE float *sums_of(const attn_linear_kparams &p, scan which, int64_t b, int64_t head,
                      int64_t l)
{
    const int64_t heads = is_backwards(which) ? p.heads_kv : p.heads_q;
    const int64_t rows = is_backwards(which) ? p.len_kv : p.len_q;
    const bool has_c = which != OUTPUT && linear_has(p, LINEAR_NORMALIZE);
    const int64_t c = has_c ? (int64_t)p.batch * p.heads_q * p.len_q : 0;

    return p.work + (c + 1) / 2 * 2 + ((b * heads + head) * rows + l) * pitch_of(p, which);
}

// A warp's row of a tensor: groups run over ROWS_OF_TENSORS of its rows, fastest, heads and
// batches. false: none.
struct tensor_row {
    int64_t b, head, l;
};

DEVICE bool find_row(const attn_linear_kparams &p, scan which, tensor_row &row)
{
    const int heads = is_backwards(which) ? p.heads_kv : p.heads_q;
    const int rows = is_backwards(which) ? p.len_kv : p.len_q;
    const int tiles = ceil_div(rows, ROWS_OF_TENSORS), head = blockIdx.x / tiles;

    row.b = head / heads;
    row.head = head % heads;
    row.l = (int64_t)(blockIdx.x % tiles) * ROWS_OF_TENSORS + (int)threadIdx.x / 32;
    return row.l < rows;
}

DEVICE void clear_row(const attn_linear_kparams &p, scan which, const tensor_row &row)
{
    float *const to = sums_of(p, which, row.b, row.head, row.l);

    for (int i = threadIdx.x % 32; i < pitch_of(p, which); i += 32)
        to[i] = 0.0f;
}

// Rows of RUN tokens: what adds and what reads.
struct shared_atomic {
    float rows[2][2][RUN][ROWS + 1];
};

struct unit {
    scan_head h;
    tokens all;
    int first, rows;    // of the state, the normaliser's beside
    int all_rows, width;
};

// Row r of the group's as scan.cuh counts them; past the last: none.
DEVICE int row_at(const attn_linear_kparams &p, const unit &u, int r)
{
    return r == ROWS ? p.dv : r < u.rows ? u.first + r : u.all_rows;
}

// This thread's number of a run of rows that begins with a token.
template <scan WHICH>
DEVICE float fetch_row(const attn_linear_kparams &p, const unit &u, token t)
{
    const int i = threadIdx.x, r = i % (ROWS + 1), n = i / (ROWS + 1) % RUN;
    const int which = i / (ROWS + 1) / RUN;
    const bool none = r == ROWS && (rows_are_d(WHICH) || u.first + ROWS < p.dv);

    if (which > 1)
        return 0.0f;
    for (int k = 0; k < n; k++)
        t = next_token<WHICH>(p, u.h, u.all, t);
    if (none)
        return 0.0f;
    return which ? read_row<WHICH>(p, u.h, u.all_rows, t, row_at(p, u, r))
                 : add_row<WHICH>(p, u.h, u.all_rows, t, row_at(p, u, r));
}

DEVICE void stash_row(shared_atomic &mem, int buffer, float x)
{
    const int i = threadIdx.x, which = i / (ROWS + 1) / RUN;

    if (which <= 1)
        mem.rows[buffer][which][i / (ROWS + 1) % RUN][i % (ROWS + 1)] = x;
}

// The group's rows of two columns.
struct columns_of_two {
    float s[ROWS + 1][2];
};

// Element (r, c) of the state that the walk begins with, as row_at() counts rows.
template <scan WHICH>
DEVICE float first_of(const attn_linear_kparams &p, const unit &u, int r, int c)
{
    const int row = row_at(p, u, r);

    if (row >= u.all_rows || c >= u.width || (r == ROWS && rows_are_d(WHICH)))
        return 0.0f;
    if (rows_are_d(WHICH))
        return c == p.dv ? first_z<WHICH>(p, u.h, row) : first_state<WHICH>(p, u.h, row, c);
    if (r == ROWS)
        return u.first + ROWS < p.dv ? 0.0f : first_z<WHICH>(p, u.h, c);
    return first_state<WHICH>(p, u.h, c, row);
}

// S and z as they come out; dS_in and dz_in.
template <scan WHICH>
DEVICE void put_state(const attn_linear_kparams &p, const unit &u, int c,
                      const columns_of_two &my)
{
    const int64_t b = u.h.b, h = u.h.kvh;

    #pragma unroll
    for (int i = 0; i < 2; i++) {
        const int64_t column = c + i;

        if (column >= u.width)
            return;
        #pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int64_t row = u.first + r;

            if (r >= u.rows)
                continue;
            if (WHICH == GRAD_K && p.has & LHAS_GRAD_STATE_IN)
                p.grad_state_in[LINEAR_AT(p, grad_state_in, b, h, column, row)] = my.s[r][i];
            if (WHICH == OUTPUT && p.want_state && column < p.dv)
                p.state_out[LINEAR_AT(p, state_out, b, h, row, column)] = my.s[r][i];
            if (WHICH == OUTPUT && p.want_z && column == p.dv)
                p.z_out[LINEAR_AT(p, z_out, b, h, row, 0)] = my.s[r][i];
        }
        if (WHICH == GRAD_K && p.has & LHAS_GRAD_Z_IN && u.first + ROWS >= p.dv)
            p.grad_z_in[LINEAR_AT(p, grad_z_in, b, h, column, 0)] = my.s[ROWS][i];
    }
}

// One token with this thread's columns.
template <scan WHICH>
DEVICE void take_token(const attn_linear_kparams &p, const unit &u, token t, int c,
                       const float *a, const float *x, columns_of_two &my)
{
    if (t.add >= 0) {
        const float b[2] = { add_column<WHICH>(p, u.h, u.width, t, c),
                             add_column<WHICH>(p, u.h, u.width, t, c + 1) };

        #pragma unroll
        for (int r = 0; r <= ROWS; r++) {
            my.s[r][0] += a[r] * b[0];
            my.s[r][1] += a[r] * b[1];
        }
    }
    if (t.read < 0 || c >= u.width)
        return;

    const int64_t head =
        is_backwards(WHICH) ? u.h.kvh : u.h.kvh * p.group + t.read_x;
    float *const to = sums_of(p, WHICH, u.h.b, head, t.read);
    const float down = WHICH == OUTPUT ? 1.0f / to[place_of_up(p)] : 1.0f;
    float sum[2] = { 0.0f, 0.0f };

    #pragma unroll
    for (int r = 0; r <= ROWS; r++) {
        sum[0] += x[r] * down * my.s[r][0];
        sum[1] += x[r] * down * my.s[r][1];
    }
    device_add_pair(to + c, sum[0], sum[1]);
}

template <scan WHICH> DEVICE void atomic_walk(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_atomic &mem = *(shared_atomic *)memory;
    const int tiles = ceil_div(rows_of(p, WHICH), ROWS);
    unit u;

    u.h = find_head(p, blockIdx.x / tiles);
    u.all = all_tokens<WHICH>(p, u.h);
    u.first = (int)(blockIdx.x % tiles) * ROWS;
    u.rows = min(rows_of(p, WHICH) - u.first, ROWS);
    u.all_rows =
        rows_of(p, WHICH) + (!rows_are_d(WHICH) && linear_has(p, LINEAR_NORMALIZE) ? 1 : 0);
    u.width = width_of(p, WHICH);
    #pragma unroll 1
    for (int column = 0; column < u.width; column += COLUMNS) {
        const int c = column + 2 * (int)threadIdx.x;
        token t = first_token<WHICH>(p, u.h, u.all), ahead = t;
        columns_of_two my;

        #pragma unroll
        for (int r = 0; r <= ROWS; r++)
            for (int i = 0; i < 2; i++)
                my.s[r][i] = first_of<WHICH>(p, u, r, c + i);
        stash_row(mem, 0, fetch_row<WHICH>(p, u, t));
        __syncthreads();
        #pragma unroll 1
        for (int n = 0; is_token(t); n++) {
            float next;

            for (int k = 0; k < RUN; k++)
                ahead = next_token<WHICH>(p, u.h, u.all, ahead);
            next = fetch_row<WHICH>(p, u, ahead);
            #pragma unroll 1
            for (int k = 0; k < RUN; k++) {
                take_token<WHICH>(p, u, t, c, mem.rows[n % 2][0][k], mem.rows[n % 2][1][k],
                                  my);
                t = next_token<WHICH>(p, u.h, u.all, t);
            }
            stash_row(mem, (n + 1) % 2, next);
            __syncthreads();
        }
        put_state<WHICH>(p, u, c, my);
        __syncthreads();
    }
}
