/* SPDX-License-Identifier: MIT */
/* host/linear_fwd_chunk.c: linear attention in chunks, on vectors.
 *
 * Computes  O, den, and S and z as they come out, as written in include/attn/linear.h, of
 *           the rule LINEAR; those of them that are there
 * Method    chunks of `tile` tokens (linear_scan.h): within a chunk (q k^T, masked) V, across
 *           chunks q S, all as products of matrices in registers. A unit of work is
 *           `columns` columns of the state of one batch and key/value head, with the query
 *           heads that read it
 * Workspace of each thread a chunk of q, k (twice), V and O, its pairs, and the state's
 *           columns, in f32; then z as it came in [B, Hkv, D]: z_out may be z_in
 * Layout    any strides, 64-bit; any types
 * Numerics  f32; sums of a chunk before they are added to the state; den with z in f32
 * Oracle    linear_fwd_reference
 */
#include "host/linear_level.h"
#include "host/linear_scan.h"

static float *shared_z(const attn_host_linear *s, int64_t b, int64_t kvh)
{
    return (float *)attn_linear_shared(s) + (b * s->heads_kv + kvh) * s->dim_qk;
}

static void load_state(scan *u)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *t = &s->t.state_in;

    for (int64_t e = 0; e < u->dim; e++) {
        float *row = u->state.at + e * u->state.row;

        if (attn_linear_has(t))
            linear_row(row, t, attn_linear_at(t, u->b, u->kvh, e), u->first, u->n);
        else
            linear_zero(row, 0, attn_round_up(u->n, LANES));
    }
    for (int64_t e = u->dim; e < attn_round_up(u->dim, MR); e++)
        linear_zero(u->state.at + e * u->state.row, 0, attn_round_up(u->n, LANES));
    linear_zero(u->z, 0, attn_round_up(u->dim, LANES));
    for (int64_t e = 0; e < u->dim && s->normalize; e++)
        u->z[e] = shared_z(s, u->b, u->kvh)[e];
}

static void store_state(const scan *u)
{
    const attn_tensor *t = &u->s->t.state_out, *z = &u->s->t.z_out;

    for (int64_t e = 0; e < u->dim; e++) {
        if (attn_linear_has(t))
            attn_row_store(t, attn_linear_at(t, u->b, u->kvh, e) + u->first * t->stride[3],
                           u->state.at + e * u->state.row, 1, u->n);
        if (u->first == 0 && attn_linear_has(z))
            ((float *)z->data)[attn_linear_at(z, u->b, u->kvh, e)] = u->z[e];
    }
}

static void run(const attn_host_linear *s, int64_t i)
{
    const int64_t slices = attn_ceil_div(s->dim_v, s->columns), bh = i / slices;
    scan u = { .s = s,
               .what = SCAN_O,
               .b = bh / s->heads_kv,
               .kvh = bh % s->heads_kv,
               .group = s->heads_q / s->heads_kv,
               .first = i % slices * s->columns,
               .dim = s->dim_qk,
               .wide = s->dim_qk,
               .rows_a = s->len_q,
               .stores = attn_linear_has(&s->t.o) || attn_linear_has(&s->t.den) };

    u.n = attn_min(s->columns, s->dim_v - u.first);
    u.rows_b = attn_linear_keys(s, u.b);
    scan_memory(&u, attn_linear_scratch(s));
    load_state(&u);
    scan_run(&u);
    store_state(&u);
}

void ATTN_LINEAR_LEVEL(fwd_chunk)(const attn_host_linear *s)
{
    const attn_tensor *z = &s->t.z_in;
    const int64_t states = s->batch * s->heads_kv;
    const int64_t units = states * attn_ceil_div(s->dim_v, s->columns);

    for (int64_t n = 0; n < states && s->normalize; n++)
        for (int64_t e = 0; e < s->dim_qk; e++)
            shared_z(s, n / s->heads_kv, n % s->heads_kv)[e] =
                attn_linear_has(z)
                    ? ((const float *)
                           z->data)[attn_linear_at(z, n / s->heads_kv, n % s->heads_kv, e)]
                    : 0;
    ATTN_LINEAR_PARALLEL
    for (int64_t i = 0; i < units; i++)
        run(s, i);
}
