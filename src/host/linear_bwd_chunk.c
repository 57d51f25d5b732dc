/* SPDX-License-Identifier: MIT */
/* host/linear_bwd_chunk.c: gradients of linear attention in chunks, on vectors.
 *
 * Computes  dQ, dK, dV, dS_in and dz_in as written in include/attn/linear.h, those that
 *           are there
 * Method    the three scans of linear_scan.h, dQ forwards in time, dK and dV backwards; the
 *           state's gradients are what the scan of dK ends with. A unit of work is
 *           `columns` columns of one of the gradients, of one batch and key/value head
 * Workspace of each thread a chunk of rows (twice), of columns and of results, its pairs,
 *           and the state's columns, in f32
 * Layout    any strides, 64-bit; any types
 * Numerics  f32; sums of a chunk before they are added to the state
 * Oracle    linear_bwd_reference
 */
#include "host/linear_level.h"
#include "host/linear_scan.h"

/* State row r, column c of dQ and dK is element (c, r) of a state tensor, and column c of
 * its z in the last row; of dV it is element (r, c). */
static void load_state(scan *u, const attn_tensor *t, const attn_tensor *z)
{
    const int64_t n = attn_round_up(u->n, LANES);

    for (int64_t r = 0; r < attn_round_up(u->wide, MR); r++)
        linear_zero(u->state.at + r * u->state.row, 0, n);
    for (int64_t r = 0; r < u->dim && attn_linear_has(t); r++)
        for (int64_t c = 0; c < u->n; c++)
            u->state.at[r * u->state.row + c] = ((const float *)t->data)
                [u->what == SCAN_DV
                     ? attn_linear_at(t, u->b, u->kvh, r) + (u->first + c) * t->stride[3]
                     : attn_linear_at(t, u->b, u->kvh, u->first + c) + r * t->stride[3]];
    for (int64_t c = 0; c < u->n && u->wide > u->dim && attn_linear_has(z); c++)
        u->state.at[u->dim * u->state.row + c] =
            ((const float *)z->data)[attn_linear_at(z, u->b, u->kvh, u->first + c)];
}

static void store_state(const scan *u)
{
    const attn_tensor *t = &u->s->t.grad_state_in, *z = &u->s->t.grad_z_in;

    for (int64_t c = 0; c < u->n; c++) {
        const int64_t e = u->first + c;

        for (int64_t r = 0; r < u->dim && attn_linear_has(t); r++)
            ((float *)t->data)[attn_linear_at(t, u->b, u->kvh, e) + r * t->stride[3]] =
                u->state.at[r * u->state.row + c];
        if (attn_linear_has(z))
            ((float *)z->data)[attn_linear_at(z, u->b, u->kvh, e)] =
                u->state.at[u->dim * u->state.row + c];
    }
}

/* Keys past the last query of the causal form have gradients of 0. */
static void store_unseen(const scan *u, const attn_tensor *t)
{
    linear_zero(u->room, 0, u->n);
    for (int64_t j = u->rows_a; j < attn_linear_length(u->s, u->b); j++)
        attn_row_store(t, attn_linear_at(t, u->b, u->kvh, j) + u->first * t->stride[3],
                       u->room, 1, u->n);
}

static void run(const attn_host_linear *s, scan_what what, int64_t i)
{
    const attn_args *t = &s->t;
    const int64_t columns = what == SCAN_DV ? s->dim_v : s->dim_qk;
    const int64_t slices = attn_ceil_div(columns, s->columns), bh = i / slices;
    scan u = { .s = s,
               .what = what,
               .b = bh / s->heads_kv,
               .kvh = bh % s->heads_kv,
               .group = s->heads_q / s->heads_kv,
               .first = i % slices * s->columns,
               .dim = what == SCAN_DV ? s->dim_qk : s->dim_v,
               .backwards = what != SCAN_DQ };

    u.n = attn_min(s->columns, columns - u.first);
    u.wide = u.dim + (s->normalize && what != SCAN_DV);
    u.rows_a = what == SCAN_DQ ? s->len_q : attn_linear_keys(s, u.b);
    u.rows_b = what == SCAN_DQ ? attn_linear_keys(s, u.b) : s->len_q;
    u.stores = what != SCAN_DK || attn_linear_has(&t->grad_k);
    scan_memory(&u, attn_linear_scratch(s));
    if (what == SCAN_DQ)
        load_state(&u, &t->state_in, &t->z_in);
    else
        load_state(&u, &t->grad_state_out, &t->grad_z_out);
    scan_run(&u);
    if (what == SCAN_DK)
        store_state(&u);
    if (what != SCAN_DQ && u.stores)
        store_unseen(&u, what == SCAN_DK ? &t->grad_k : &t->grad_v);
}

void ATTN_LINEAR_LEVEL(bwd_chunk)(const attn_host_linear *s)
{
    const attn_args *t = &s->t;
    const bool q = attn_linear_has(&t->grad_q), v = attn_linear_has(&t->grad_v);
    const bool k = attn_linear_has(&t->grad_k) || attn_linear_has(&t->grad_state_in) ||
                   attn_linear_has(&t->grad_z_in);
    const int64_t states = s->batch * s->heads_kv;
    const int64_t by_d = states * attn_ceil_div(s->dim_qk, s->columns);
    const int64_t by_dv = states * attn_ceil_div(s->dim_v, s->columns);
    const int64_t end_q = q ? by_d : 0, end_k = end_q + (k ? by_d : 0);
    const int64_t end = end_k + (v ? by_dv : 0);

    ATTN_LINEAR_PARALLEL
    for (int64_t i = 0; i < end; i++)
        run(s,
            i < end_q   ? SCAN_DQ
            : i < end_k ? SCAN_DK
                        : SCAN_DV,
            i < end_q   ? i
            : i < end_k ? i - end_q
                        : i - end_k);
}
