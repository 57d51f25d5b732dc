/* SPDX-License-Identifier: MIT */
/* host/linear_scan.h: one scan over a sequence in chunks, which O, dQ, dK and dV all are:
 *
 *     Y_i = A_i State + sum over the rows j of the chunk that i sees of (A_i . B_j) X_j
 *     State = State + sum over the rows j of the chunk of B_j^T X_j
 *
 *     what   A          B          X     j seen by i    state, at first
 *     O      phi(Q)     k          V     j <= i         S_in
 *     dQ     [G, c]     [V, 1]     k     j <= i         [S_in, z_in]^T
 *     dK     [V, 1]     [G, c]     q     j >= i         [dS, dz]^T
 *     dV     k          q          G     j >= i         dS
 *
 * O is multiplied by scale at last (linear_load.h). The column beside G and V is there with
 * the normaliser. One of A and (B, X) is a query's and comes from each head of the group in
 * turn. In the full form all B are folded into the state first, and nothing is left for the
 * sum over pairs. A unit of work is some columns of X, and so of the state and of Y; no bit
 * of a column depends on the others. */
#ifndef ATTN_HOST_LINEAR_SCAN_H
#define ATTN_HOST_LINEAR_SCAN_H

#include "host/linear_load.h"
#include "host/linear_mm.h"

typedef enum scan_what { SCAN_O, SCAN_DQ, SCAN_DK, SCAN_DV } scan_what;

typedef struct scan {
    const attn_host_linear *s;
    scan_what what;
    int64_t b, kvh, group;
    int64_t first, n;       /* columns of X                               */
    int64_t dim;            /* of A and B, without the column beside them */
    int64_t wide;           /* ... and with it                            */
    int64_t rows_a, rows_b; /* of the sequence                            */
    bool backwards, stores; /* in time; Y is wanted                       */
    matrix a, bt, x, pairs, y, state, rows;
    float *z, *den, *up, *room;
} scan;

static inline bool scan_divides(const scan *u)
{
    return u->what == SCAN_O && u->s->normalize;
}

static inline bool scan_of_query(const scan *u)
{
    return u->what == SCAN_O || u->what == SCAN_DQ;
}

/* [tile] rows are C below. Everything begins at a multiple of 64 bytes. */
static inline void scan_memory(scan *u, float *at)
{
    const int64_t c = u->s->tile, wide = attn_round_up(u->wide, 16);
    const int64_t n = attn_round_up(u->n, 16);
    const int64_t longest = attn_round_up(attn_max(u->s->dim_qk, u->s->dim_v), 16);

    u->a = (matrix){ at, wide }, at += c * wide;
    u->rows = (matrix){ at, wide }, at += c * wide;
    u->bt = (matrix){ at, c }, at += wide * c;
    u->x = (matrix){ at, n }, at += c * n;
    u->y = (matrix){ at, n }, at += c * n;
    u->state = (matrix){ at, n }, at += wide * n;
    u->pairs = (matrix){ at, c }, at += c * c;
    u->z = at, at += wide;
    u->den = at, at += c;
    u->up = at, at += c;
    u->room = at, at += longest;
}

/* The column beside G and V. */
static inline void scan_beside(const scan *u, float *row, float x)
{
    if (u->wide == u->dim)
        return;
    row[u->dim] = x;
    linear_zero(row, u->wide, attn_round_up(u->wide, 16));
}

/* Row i of A of a head into u->a. */
static inline void scan_load_a(scan *u, int64_t h, int64_t i, int64_t r)
{
    const attn_host_linear *s = u->s;
    float *to = u->a.at + r * u->a.row;
    float c;

    switch (u->what) {
    case SCAN_O:
        u->up[r] = linear_query(s, to, attn_linear_at(&s->t.q, u->b, h, i));
        return;
    case SCAN_DQ:
        c = linear_grad_all(s, to, u->room, u->b, h, i);
        scan_beside(u, to, c);
        return;
    case SCAN_DK:
        linear_row(to, &s->t.v, attn_linear_at(&s->t.v, u->b, u->kvh, i), 0, u->dim);
        scan_beside(u, to, 1);
        return;
    case SCAN_DV:
        linear_feature(s, to, &s->t.k, attn_linear_at(&s->t.k, u->b, u->kvh, i), 0, u->dim,
                       1);
    }
}

/* Row j of B into u->rows, of X into u->x. */
static inline void scan_load_b(scan *u, int64_t h, int64_t j, int64_t r)
{
    const attn_host_linear *s = u->s;
    const int64_t at_q = attn_linear_at(&s->t.q, u->b, h, j);
    const int64_t at_k = attn_linear_at(&s->t.k, u->b, u->kvh, j);
    const int64_t at_v = attn_linear_at(&s->t.v, u->b, u->kvh, j);
    float *to = u->rows.at + r * u->rows.row, *x = u->x.at + r * u->x.row;
    float c;

    switch (u->what) {
    case SCAN_O:
        linear_feature(s, to, &s->t.k, at_k, 0, u->dim, 1);
        linear_row(x, &s->t.v, at_v, u->first, u->n);
        return;
    case SCAN_DQ:
        linear_row(to, &s->t.v, at_v, 0, u->dim);
        scan_beside(u, to, 1);
        linear_feature(s, x, &s->t.k, at_k, u->first, u->n, 1);
        return;
    case SCAN_DK:
        c = linear_grad_all(s, to, u->room, u->b, h, j);
        scan_beside(u, to, c);
        linear_feature(s, x, &s->t.q, at_q, u->first, u->n, s->scale);
        return;
    case SCAN_DV:
        linear_feature(s, to, &s->t.q, at_q, 0, u->dim, s->scale);
        linear_grad(s, x, u->b, h, j, u->first, u->n);
    }
}

/* Rows j0 .. of B and X, at most a chunk; returns how many. */
static inline int64_t scan_load_chunk(scan *u, int64_t h, int64_t j0)
{
    const int64_t n = attn_max(0, attn_min(u->s->tile, u->rows_b - j0));

    for (int64_t r = 0; r < n; r++)
        scan_load_b(u, h, j0 + r, r);
    for (int64_t r = n; r < attn_round_up(n, LANES); r++)
        linear_zero(u->rows.at + r * u->rows.row, 0, attn_round_up(u->wide, LANES));
    mm_transpose(u->bt, u->rows, n, u->wide);
    return n;
}

/* State += B^T X. */
static inline void scan_fold(scan *u, int64_t n)
{
    mm(u->state, u->bt, u->x, u->wide, u->n, n, MM_ADD);
    for (int64_t e = 0; e < u->dim && scan_divides(u); e += LANES) {
        vf sum = vf_set(0);

        for (int64_t r = 0; r < n; r++)
            sum += vf_load(u->rows.at + r * u->rows.row + e);
        vf_store(u->z + e, vf_load(u->z + e) + sum);
    }
}

/* Y += sum over the pairs of the chunk that see each other; n rows of A, m of B. */
static inline void scan_pairs(scan *u, int64_t n, int64_t m)
{
    const int64_t columns = attn_round_up(u->n, LANES);

    for (int64_t r = 0; r < n; r += MR) {
        const int64_t begin = u->backwards ? attn_round_down(r, LANES) : 0;
        const int64_t end = u->backwards ? m : attn_min(m, r + MR);
        const matrix p = { u->pairs.at + r * u->pairs.row, u->pairs.row };
        const matrix a = { u->a.at + r * u->a.row, u->a.row };

        if (begin >= end)
            continue;
        mm_rows((matrix){ p.at + begin, p.row }, a,
                (matrix){ u->bt.at + begin, u->bt.row },
                attn_round_up(end - begin, LANES), 0, u->wide, MM_SET);
        for (int64_t i = 0; i < MR; i++) /* those that do not */
            if (u->backwards)
                linear_zero(p.at + i * p.row, begin, attn_min(r + i, end));
            else
                linear_zero(p.at + i * p.row, r + i + 1, attn_round_up(end, LANES));
        mm_rows((matrix){ u->y.at + r * u->y.row, u->y.row }, p, u->x, columns, begin, end,
                MM_ADD);
    }
}

/* den of n rows, without eps, of LANES rows together: with z, and the pairs with m keys of
 * the chunk. Rows past the last one give numbers that nobody reads. */
static inline void scan_den(scan *u, int64_t n, int64_t m)
{
    for (int64_t r = 0; r < n && scan_divides(u); r += LANES) {
        vf sum[LANES];

        for (int i = 0; i < LANES; i++) {
            const float *a = u->a.at + (r + i) * u->a.row;
            const float *p = u->pairs.at + (r + i) * u->pairs.row;
            const int64_t end = attn_min(m, attn_round_down(r + i, MR) + MR);

            sum[i] = vf_set(0);
            for (int64_t d = 0; d < u->dim; d += LANES)
                sum[i] += vf_load(a + d) * vf_load(u->z + d);
            for (int64_t j = 0; j < end; j += LANES)
                sum[i] += vf_load(p + j);
        }
        vf_store(u->den + r, vf_sums(sum));
    }
}

/* The rows that one chunk has of A, of a head. */
static inline int64_t scan_load_rows(scan *u, int64_t h, int64_t i0)
{
    const int64_t n = attn_max(0, attn_min(u->s->tile, u->rows_a - i0));

    for (int64_t r = 0; r < n; r++)
        scan_load_a(u, h, i0 + r, r);
    for (int64_t r = n; r < attn_round_up(n, MR); r++)
        linear_zero(u->a.at + r * u->a.row, 0, u->wide);
    return n;
}

/* Y = A State. */
static inline void scan_read(scan *u, int64_t n)
{
    mm(u->y, u->a, u->state, n, u->n, u->wide, MM_SET);
}

/* num becomes O; den goes to where it goes. */
static inline void scan_divide(const scan *u, int64_t h, int64_t i, int64_t r, float *y)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *t = &s->t.den;
    const float up = u->up[r];

    if (scan_divides(u)) {
        const float den = s->sum_scale * u->den[r] + s->sum_eps / up;

        if (u->first == 0 && attn_linear_has(t))
            ((float *)t->data)[attn_linear_at(t, u->b, h, i)] = linear_in_units(s, den, up);
        linear_divide(s, y, u->n, den);
    } else {
        linear_lift(s, y, u->n, up);
    }
}

/* Row i of Y to where it goes. */
static inline void scan_store(scan *u, int64_t h, int64_t i, int64_t r)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *const to[] = { &s->t.o, &s->t.grad_q, &s->t.grad_k, &s->t.grad_v };
    const attn_tensor *t = to[u->what];
    const int64_t head = scan_of_query(u) ? h : u->kvh;
    float *y = u->y.at + r * u->y.row;

    if (u->what == SCAN_DQ)
        linear_slope(s, s->scale, y, u->room, &s->t.q,
                     attn_linear_at(&s->t.q, u->b, h, i) + u->first * s->t.q.stride[3],
                     u->n);
    if (u->what == SCAN_DK)
        linear_slope(s, 1, y, u->room, &s->t.k,
                     attn_linear_at(&s->t.k, u->b, u->kvh, i) + u->first * s->t.k.stride[3],
                     u->n);
    if (u->what == SCAN_O)
        scan_divide(u, h, i, r, y);
    if (attn_linear_has(t))
        attn_row_store(t, attn_linear_at(t, u->b, head, i) + u->first * t->stride[3], y, 1,
                       u->n);
}

static inline void scan_store_rows(scan *u, int64_t h, int64_t i0, int64_t n)
{
    for (int64_t r = 0; r < n; r++)
        scan_store(u, h, i0 + r, r);
}

/* One chunk of the causal form. */
static inline void scan_chunk(scan *u, int64_t at)
{
    const int64_t h = u->kvh * u->group;

    if (scan_of_query(u)) {
        const int64_t m = scan_load_chunk(u, h, at);

        for (int64_t g = 0; g < u->group && u->stores; g++) {
            const int64_t n = scan_load_rows(u, h + g, at);

            scan_read(u, n);
            scan_pairs(u, n, m);
            scan_den(u, n, m);
            scan_store_rows(u, h + g, at, n);
        }
        scan_fold(u, m);
        return;
    }
    const int64_t n = u->stores ? scan_load_rows(u, 0, at) : 0;

    scan_read(u, n);
    for (int64_t g = 0; g < u->group; g++) {
        const int64_t m = scan_load_chunk(u, h + g, at);

        scan_pairs(u, n, m);
        scan_fold(u, m);
    }
    scan_store_rows(u, 0, at, n);
}

/* The full form: all of B, then all of A. */
static inline void scan_full(scan *u)
{
    const int64_t c = u->s->tile, h = u->kvh * u->group;

    for (int64_t g = 0; g < (scan_of_query(u) ? 1 : u->group); g++)
        for (int64_t at = 0; at < u->rows_b; at += c)
            scan_fold(u, scan_load_chunk(u, h + g, at));
    for (int64_t g = 0; g < (scan_of_query(u) ? u->group : 1) && u->stores; g++)
        for (int64_t at = 0; at < u->rows_a; at += c) {
            const int64_t n = scan_load_rows(u, h + g, at);

            scan_read(u, n);
            scan_den(u, n, 0);
            scan_store_rows(u, h + g, at, n);
        }
}

static inline void scan_run(scan *u)
{
    const int64_t c = u->s->tile;
    const int64_t rows = attn_max(u->rows_a, u->rows_b);

    if (!u->s->causal)
        scan_full(u);
    else if (u->backwards)
        for (int64_t at = (attn_ceil_div(rows, c) - 1) * c; at >= 0; at -= c)
            scan_chunk(u, at);
    else
        for (int64_t at = 0; at < rows; at += c)
            scan_chunk(u, at);
}

#endif
