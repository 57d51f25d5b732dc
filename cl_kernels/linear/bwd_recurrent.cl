/* SPDX-License-Identifier: MIT */
/* linear/bwd_recurrent.cl: gradients of linear attention token by token, any sizes.
 *
 * Computes  dQ; dV; dK, dS_in and dz_in, as written in include/attn/linear.h, each by an
 *           instance of its own
 * Method    a scan (scan.clh): SCAN_Q, SCAN_K or SCAN_V. A group owns COLUMNS columns of the
 *           state; SLICES work-items share one: each has every SLICES-th row of it, and their
 *           sums meet in local memory. The last row of two of them is the normaliser's: 1
 *           beside V, c beside G
 * Grid      1-D, ceil(columns / COLUMNS) * Hkv * B groups, columns fastest
 * Group     COLUMNS * SLICES work-items
 * Local     4 * (4 * PITCH + 2 * COLUMNS * SLICES) bytes, PITCH the rows padded to a
 *           multiple of SLICES; with IN_LOCAL the state's columns, 4 * PITCH * COLUMNS
 * Barriers  one a token and query head, where every item passes
 * Workspace c (bwd_begin.cl), if normalised; with IN_GLOBAL then the columns of each group
 * Numerics  f32. The bits of a head depend on nothing but its rows
 * Tunables  COLUMNS, SLICES: any; PLACE: where an item's part of a column lies
 * Oracle    linear_bwd_reference
 */
#define IN_PRIVATE 0
#define IN_LOCAL 1
#define IN_GLOBAL 2

#ifndef SCAN
#define SCAN 0 /* SCAN_Q */
#endif
#ifndef COLUMNS
#define COLUMNS 32
#endif
#ifndef SLICES
#define SLICES 8
#endif
#ifndef PLACE
#define PLACE IN_LOCAL
#endif
#include "linear/scan_bwd.clh"
#include "linear/scan_rows.clh"

#define ITEMS (COLUMNS * SLICES)
#define SHARE CEIL_DIV(ALL_ROWS, SLICES)    /* rows of an item */
#define PITCH (SHARE * SLICES)

/* What a group shares. Local arrays travel in a struct for PoCL (CONTRIBUTING.md), of
 * their own. */
typedef struct linear_local {
    __local float *rows;    /* A and X of a token, twice       */
    __local float *sums;    /* of every item, twice            */
    __local float *state;
} linear_local;

/* An item: its column of which state, and its rows of that. The column is an int: Mesa 22.3
 * compares longs that come of a remainder wrong. */
typedef struct linear_unit {
    scan_head h;
    scan_walk walk;
    int column, lane, slice;
} linear_unit;

/* The item's part of its column. */
typedef struct linear_column {
    float kept[PLACE == IN_PRIVATE ? SHARE : 1];
    __local float *fast;
    __global float *slow;
} linear_column;

static inline float state_get(const linear_column *s, int n)
{
    return PLACE == IN_PRIVATE ? s->kept[n]
           : PLACE == IN_LOCAL ? s->fast[n * ITEMS]
                               : s->slow[(long)n * ITEMS];
}

static inline void state_put(linear_column *s, int n, float x)
{
    if (PLACE == IN_PRIVATE)
        s->kept[n] = x;
    else if (PLACE == IN_LOCAL)
        s->fast[n * ITEMS] = x;
    else
        s->slow[(long)n * ITEMS] = x;
}

/* All rows of an item; those in registers need loops without one. */
#if PLACE == IN_PRIVATE
#define EACH_ROW(n) _Pragma("unroll") for (int n = 0; n < SHARE; n++)
#else
#define EACH_ROW(n) for (int n = 0; n < SHARE; n++)
#endif

/* Row n of an item as scan_rows.clh counts them; -1: it pads the state. */
static inline int row_of(const linear_unit *u, int n)
{
    const int r = n * SLICES + u->slice;

    return r < ALL_ROWS ? r : -1;
}

/* The rows of a token to local memory, by all items. Rows that pad the state are 0. */
static inline void stash(const attn_kparams *p, const linear_local *l, const linear_unit *u,
                         const scan_token *t, int buffer)
{
    __local float *const a = l->rows + 2 * buffer * PITCH, *const x = a + PITCH;

    for (int r = get_local_id(0); r < PITCH; r += ITEMS) {
        a[r] = load_row(p, &u->h, t, 0, r < ALL_ROWS ? r : -1);
        x[r] = load_row(p, &u->h, t, 1, r < ALL_ROWS ? r : -1);
    }
}

/* What has been read, the sum of all slices, becomes an element of a gradient. */
static inline void write_out(const attn_kparams *p, const linear_local *l,
                             const linear_unit *u, int buffer, const scan_token *t)
{
    float sum = 0.0f;

    #pragma unroll
    for (int w = 0; w < SLICES; w++)
        sum += l->sums[(buffer * SLICES + w) * COLUMNS + u->lane];
    put_sum(p, &u->h, t, u->column, load_own(p, &u->h, t, u->column), sum, 1.0f, 1.0f);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_bwd_recurrent(SIGNATURE(LINEAR_BWD_PARAMS))
{
    __local float rows[4 * PITCH], sums[2 * ITEMS];
    __local float states[PLACE == IN_LOCAL ? PITCH * COLUMNS : 1];
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);
    /* 32 bits: Mesa's remainder of longs is wrong in its upper half */
    const uint tiles = CEIL_DIV(STATE_COLUMNS, COLUMNS), group = get_group_id(0);
    const int id = get_local_id(0);
    const linear_local l = { rows, sums, states };
    linear_column s;
    scan_token t;
    linear_unit u;
    float now;
    int tokens;

    find_head(&p, group / tiles, &u.h);
    all_tokens(&p, &u.h, &u.walk);
    u.lane = id % COLUMNS;
    u.slice = id / COLUMNS;
    u.column = (int)(group % tiles) * COLUMNS + u.lane;
    s.fast = l.state + (PLACE == IN_LOCAL ? id : 0);
    s.slow = p.work + (FEAT_NORMALIZE ? (long)p.batch * p.heads_q * p.len_q : 0L) +
             (long)group * PITCH * COLUMNS + id;
    EACH_ROW(n)
        state_put(&s, n, first_at(&p, &u.h, row_of(&u, n), u.column));
    /* one of nothing at least: PoCL's loops with barriers must run */
    tokens = max(tokens_of(&u.h, &u.walk), 1);
    token_at(&u.h, &u.walk, 0, &t);
    now = load_column(&p, &u.h, &t, u.column);
    stash(&p, &l, &u, &t, 0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int at = 0; at < tokens; at++) {
        const int buffer = at % 2;
        const __local float *const a = l.rows + 2 * buffer * PITCH + u.slice;
        const __local float *const x = a + PITCH;
        float then, sum = 0.0f;
        scan_token next;

        token_at(&u.h, &u.walk, at + 1, &next);
        then = load_column(&p, &u.h, &next, u.column);
        if (t.add >= 0)
            EACH_ROW(n)
                state_put(&s, n, state_get(&s, n) + a[n * SLICES] * now);
        if (t.read >= 0)
            EACH_ROW(n)
                sum += x[n * SLICES] * state_get(&s, n);
        l.sums[(buffer * SLICES + u.slice) * COLUMNS + u.lane] = sum;
        stash(&p, &l, &u, &next, 1 - buffer);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (t.read >= 0 && u.column < STATE_COLUMNS && u.slice == at % SLICES)
            write_out(&p, &l, &u, buffer, &t);
        t = next;
        now = then;
    }
    if (SCAN == SCAN_K)
        EACH_ROW(n)
            put_at(&p, &u.h, row_of(&u, n), u.column, state_get(&s, n));
    put_zeros(&p, &u.h, u.column - u.lane, COLUMNS, ITEMS);
}
