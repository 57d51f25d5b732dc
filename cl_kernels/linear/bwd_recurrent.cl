/* SPDX-License-Identifier: MIT */
/* linear/bwd_recurrent.cl: gradients of linear attention token by token, any sizes.
 *
 * Computes  dQ; dV; dK, dS_in and dz_in, as written in include/attn/linear.h, each by an
 *           instance of its own
 * Method    one scan with other operands: rows of A add to a state, A^T B, rows of X read
 *           it. A group owns COLUMNS columns of the state; SLICES work-items share one: each
 *           has every SLICES-th row of it, and their sums meet in local memory
 *
 *               SCAN    rows of the state  columns  adds (A, B)   reads X  time
 *               SCAN_Q  DV, and 1          D        (V 1), K      (G c)    forwards
 *               SCAN_K  DV, and 1          D        (G c), q      (V 1)    backwards
 *               SCAN_V  D                  DV       q, G          K        backwards
 *
 *           The last row of two of them is the normaliser's: 1 beside V, c beside G
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
#define SCAN_Q 0
#define SCAN_K 1
#define SCAN_V 2
#define IN_PRIVATE 0
#define IN_LOCAL 1
#define IN_GLOBAL 2

#ifndef SCAN
#define SCAN SCAN_Q
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
#define KERNEL_PARAMS LINEAR_BWD_PARAMS
#include "linear/linear.clh"

#define ITEMS (COLUMNS * SLICES)
#define ROWS (SCAN == SCAN_V ? D : DV + FEAT_NORMALIZE)
#define WIDTH (SCAN == SCAN_V ? DV : D)
#define SHARE CEIL_DIV(ROWS, SLICES)    /* rows of an item */
#define PITCH (SHARE * SLICES)

/* A token: the row that adds, of query (add, add_x) or of key add; -1: none. And the row
 * that reads, likewise. x counts the query heads that share the key/value head. */
typedef struct linear_token {
    int add, add_x, read, read_x;
} linear_token;

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
    long b, kvh;
    int column, length, keys, share, lane, slice;
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

static inline float k_of(const attn_kparams *p, const linear_unit *u, long j, long e)
{
    return elem_load(p->k, LINEAR_AT(p, k, u->b, u->kvh, j, e));
}

static inline float q_of(const attn_kparams *p, const linear_unit *u, int x, long i, long e)
{
    return elem_load(p->q, LINEAR_AT(p, q, u->b, u->kvh * u->share + x, i, e));
}

/* G. */
static inline float g_of(const attn_kparams *p, const linear_unit *u, int x, long i, long m)
{
    const long h = u->kvh * u->share + x;
    float g, den;

    if (!(p->has & LHAS_GRAD_O))
        return 0.0f;
    g = elem_load(p->grad_o, LINEAR_AT(p, grad_o, u->b, h, i, m));
    if (!FEAT_NORMALIZE)
        return g;
    den = p->den[LINEAR_AT(p, den, u->b, h, i, 0L)];
    return den == 0.0f ? 0.0f : g / den;
}

/* Element r of the row of a key, or a query, as those of dQ and dK are: (V 1), (G c). */
static inline float key_row(const attn_kparams *p, const linear_unit *u, long j, int r)
{
    return r == DV ? 1.0f : elem_load(p->v, LINEAR_AT(p, v, u->b, u->kvh, j, r));
}

static inline float query_row(const attn_kparams *p, const linear_unit *u, int x, long i,
                              int r)
{
    return r == DV ? p->work[(u->b * p->heads_q + u->kvh * u->share + x) * p->len_q + i]
                   : g_of(p, u, x, i, r);
}

/* The rows of a token to local memory, by all items. Rows that pad the state are 0. */
static inline void stash(const attn_kparams *p, const linear_local *l, const linear_unit *u,
                         const linear_token *t, int buffer)
{
    __local float *const a = l->rows + 2 * buffer * PITCH, *const x = a + PITCH;

    for (int r = get_local_id(0); r < PITCH; r += ITEMS) {
        float add = 0.0f, read = 0.0f;

        if (r < ROWS && t->add >= 0)
            add = SCAN == SCAN_Q   ? key_row(p, u, t->add, r)
                  : SCAN == SCAN_K ? query_row(p, u, t->add_x, t->add, r)
                                   : p->scale * linear_phi(q_of(p, u, t->add_x, t->add, r));
        if (r < ROWS && t->read >= 0)
            read = SCAN == SCAN_Q   ? query_row(p, u, t->read_x, t->read, r)
                   : SCAN == SCAN_K ? key_row(p, u, t->read, r)
                                    : linear_phi(k_of(p, u, t->read, r));
        a[r] = add;
        x[r] = read;
    }
}

/* The item's number of the row B that is added. */
static inline float add_column(const attn_kparams *p, const linear_unit *u,
                               const linear_token *t)
{
    if (t->add < 0 || u->column >= WIDTH)
        return 0.0f;
    if (SCAN == SCAN_Q)
        return linear_phi(k_of(p, u, t->add, u->column));
    return SCAN == SCAN_K ? p->scale * linear_phi(q_of(p, u, t->add_x, t->add, u->column))
                          : g_of(p, u, t->add_x, t->add, u->column);
}

/* Token n of the walk; from its end on there is nothing. The full form adds everything
 * before the first row reads. Backwards, rows of the queries of all heads add before the
 * key of their token reads. */
static inline void token_at(const attn_kparams *p, const linear_unit *u, int n,
                            linear_token *t)
{
    const int queries = p->len_q * u->share, keys = u->keys;
    const int first = FEAT_CAUSAL ? 0 : SCAN == SCAN_Q ? keys : queries;
    const int then = n - first;

    t->add = t->read = -1;
    t->add_x = t->read_x = 0;
    if (SCAN == SCAN_Q) {
        if (then < 0) {
            t->add = n;
        } else if (then < queries) {
            t->read = then / u->share;
            t->read_x = then % u->share;
            if (FEAT_CAUSAL && t->read_x == 0 && t->read < keys)
                t->add = t->read;
        }
    } else if (n < queries) {
        t->add = FEAT_CAUSAL ? p->len_q - 1 - n / u->share : n / u->share;
        t->add_x = n % u->share;
        if (FEAT_CAUSAL && t->add_x == u->share - 1 && t->add < keys)
            t->read = t->add;
    } else if (!FEAT_CAUSAL) {
        if (then < keys)
            t->read = then;
    }
}

/* At least one, of which there may be nothing: PoCL's loops with barriers must run. */
static inline int tokens_of(const attn_kparams *p, const linear_unit *u)
{
    return max(p->len_q * u->share + (FEAT_CAUSAL ? 0 : u->keys), 1);
}

/* What has been read, the sum of all slices, becomes an element of a gradient. */
static inline void write_out(const attn_kparams *p, const linear_local *l,
                             const linear_unit *u, int buffer, const linear_token *t)
{
    const long c = u->column;
    float sum = 0.0f;

    #pragma unroll
    for (int w = 0; w < SLICES; w++)
        sum += l->sums[(buffer * SLICES + w) * COLUMNS + u->lane];
    if (SCAN == SCAN_Q)
        elem_store(p->grad_q,
                   LINEAR_AT(p, grad_q, u->b, u->kvh * u->share + t->read_x, t->read, c),
                   p->scale * linear_slope(q_of(p, u, t->read_x, t->read, c)) * sum);
    else if (SCAN == SCAN_V)
        elem_store(p->grad_v, LINEAR_AT(p, grad_v, u->b, u->kvh, t->read, c), sum);
    else if (p->has & LHAS_GRAD_K)
        elem_store(p->grad_k, LINEAR_AT(p, grad_k, u->b, u->kvh, t->read, c),
                   linear_slope(k_of(p, u, t->read, c)) * sum);
}

/* Element (r, column) of the state that the walk begins with. */
static inline float first_state(const attn_kparams *p, const linear_unit *u, int r)
{
    const long c = u->column;

    if (r >= ROWS || u->column >= WIDTH)
        return 0.0f;
    if (SCAN == SCAN_Q) {
        if (!FEAT_STATE)
            return 0.0f;
        return r == DV ? p->z_in[LINEAR_AT(p, z_in, u->b, u->kvh, c, 0L)]
                       : p->state_in[LINEAR_AT(p, state_in, u->b, u->kvh, c, r)];
    }
    if (SCAN == SCAN_K && r == DV)
        return p->has & LHAS_GRAD_Z_OUT
                   ? p->grad_z_out[LINEAR_AT(p, grad_z_out, u->b, u->kvh, c, 0L)]
                   : 0.0f;
    if (!(p->has & LHAS_GRAD_STATE_OUT))
        return 0.0f;
    return p->grad_state_out[SCAN == SCAN_K
                                 ? LINEAR_AT(p, grad_state_out, u->b, u->kvh, c, r)
                                 : LINEAR_AT(p, grad_state_out, u->b, u->kvh, r, c)];
}

/* dS_in and dz_in: of SCAN_K, R and r after the last token. */
static inline void write_state(const attn_kparams *p, const linear_unit *u,
                               const linear_column *s)
{
    const long c = u->column;

    if (u->column >= WIDTH)
        return;
    EACH_ROW(n)
    {
        const int r = n * SLICES + u->slice;

        if (r < DV && p->has & LHAS_GRAD_STATE_IN)
            p->grad_state_in[LINEAR_AT(p, grad_state_in, u->b, u->kvh, c, r)] =
                state_get(s, n);
        if (r == DV && r < ROWS && p->has & LHAS_GRAD_Z_IN)
            p->grad_z_in[LINEAR_AT(p, grad_z_in, u->b, u->kvh, c, 0L)] = state_get(s, n);
    }
}

/* Keys that no query sees. */
static inline void write_zeros(const attn_kparams *p, const linear_unit *u)
{
    const long c = u->column;

    for (int j = u->keys + u->slice; j < u->length && u->column < WIDTH; j += SLICES) {
        if (SCAN == SCAN_V)
            elem_store(p->grad_v, LINEAR_AT(p, grad_v, u->b, u->kvh, j, c), 0.0f);
        else if (p->has & LHAS_GRAD_K)
            elem_store(p->grad_k, LINEAR_AT(p, grad_k, u->b, u->kvh, j, c), 0.0f);
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_bwd_recurrent(SIGNATURE(LINEAR_BWD_PARAMS))
{
    __local float rows[4 * PITCH], sums[2 * ITEMS];
    __local float states[PLACE == IN_LOCAL ? PITCH * COLUMNS : 1];
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);
    /* 32 bits: Mesa's remainder of longs is wrong in its upper half */
    const uint tiles = CEIL_DIV(WIDTH, COLUMNS), group = get_group_id(0);
    const uint head = group / tiles;
    const int id = get_local_id(0);
    const linear_local l = { rows, sums, states };
    linear_column s;
    linear_token t;
    linear_unit u;
    float now;
    int tokens;

    u.b = head / (uint)p.heads_kv;
    u.kvh = head % (uint)p.heads_kv;
    u.share = p.heads_q / p.heads_kv;
    u.lane = id % COLUMNS;
    u.slice = id / COLUMNS;
    u.column = (int)(group % tiles) * COLUMNS + u.lane;
    u.length = linear_length(&p, u.b);
    u.keys = linear_keys(&p, u.b);
    s.fast = l.state + (PLACE == IN_LOCAL ? id : 0);
    s.slow = p.work + (FEAT_NORMALIZE ? (long)p.batch * p.heads_q * p.len_q : 0L) +
             (long)group * PITCH * COLUMNS + id;
    EACH_ROW(n)
        state_put(&s, n, first_state(&p, &u, n * SLICES + u.slice));
    tokens = tokens_of(&p, &u);
    token_at(&p, &u, 0, &t);
    now = add_column(&p, &u, &t);
    stash(&p, &l, &u, &t, 0);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int at = 0; at < tokens; at++) {
        const int buffer = at % 2;
        const __local float *const a = l.rows + 2 * buffer * PITCH + u.slice;
        const __local float *const x = a + PITCH;
        float then, sum = 0.0f;
        linear_token next;

        token_at(&p, &u, at + 1, &next);
        then = add_column(&p, &u, &next);
        if (t.add >= 0)
            EACH_ROW(n)
                state_put(&s, n, state_get(&s, n) + a[n * SLICES] * now);
        if (t.read >= 0)
            EACH_ROW(n)
                sum += x[n * SLICES] * state_get(&s, n);
        l.sums[(buffer * SLICES + u.slice) * COLUMNS + u.lane] = sum;
        stash(&p, &l, &u, &next, 1 - buffer);
        barrier(CLK_LOCAL_MEM_FENCE);
        if (t.read >= 0 && u.column < WIDTH && u.slice == at % SLICES)
            write_out(&p, &l, &u, buffer, &t);
        t = next;
        now = then;
    }
    if (SCAN == SCAN_K)
        write_state(&p, &u, &s);
    if (SCAN != SCAN_Q)
        write_zeros(&p, &u);
}
