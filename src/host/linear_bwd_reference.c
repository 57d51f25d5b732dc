/* SPDX-License-Identifier: MIT */
/* host/linear_bwd_reference.c: gradients, token by token in double.
 *
 * Computes  dQ, dK, dV, dS_in and dz_in as written in include/attn/linear.h, those that
 *           are there
 * Method    the recurrences themselves: S forwards in time for dQ, R backwards for dK, dV
 *           and the state's. A unit of work is a block of rows of the state of one batch
 *           and key/value head for dQ, dK and dS_in, a block of its columns for dV
 * Workspace of each thread a block of the state, a row of z or r, and two rows, in double
 * Layout    any strides, 64-bit; any types
 * Numerics  everything in double; one rounding to f32, from there to 16 bits
 */
#include "host/element.h"
#include "host/linear_row.h"

/* Rows (or, for dV, columns) first .. first + n - 1 of one state. */
typedef struct unit {
    const attn_host_linear *s;
    int64_t b, kvh, first, n;
    double *state; /* rows: [n][Dv]; columns: [D][n] */
    double *z;     /* [n]                            */
    double *g;     /* [Dv]                           */
} unit;

static unit unit_of(const attn_host_linear *s, int64_t i, int64_t dim)
{
    const int64_t blocks = attn_ceil_div(dim, s->columns), bh = i / blocks;
    unit u = { .s = s, .b = bh / s->heads_kv, .kvh = bh % s->heads_kv };

    u.first = i % blocks * s->columns;
    u.n = attn_min(s->columns, dim - u.first);
    u.state = attn_linear_scratch(s);
    u.z = u.state + attn_max(s->dim_qk, s->dim_v) * s->columns;
    u.g = u.z + s->columns;
    return u;
}

/* Element d of row i; 0 of what is not there. */
static double at(const attn_tensor *t, int64_t b, int64_t h, int64_t i, int64_t d)
{
    return attn_linear_has(t)
               ? attn_element_load(t, attn_linear_at(t, b, h, i) + d * t->stride[3])
               : 0;
}

static double q_of(const unit *u, int64_t h, int64_t i, int64_t e)
{
    return (double)u->s->scale * attn_linear_phi(u->s->phi, at(&u->s->t.q, u->b, h, i, e));
}

static double k_of(const unit *u, int64_t j, int64_t e)
{
    return attn_linear_phi(u->s->phi, at(&u->s->t.k, u->b, u->kvh, j, e));
}

/* G of query i into u->g; returns c. */
static double load_g(const unit *u, int64_t h, int64_t i)
{
    const attn_host_linear *s = u->s;
    const double den = s->normalize ? at(&s->t.den, u->b, h, i, 0) : 1;
    double c = 0;

    for (int64_t m = 0; m < s->dim_v; m++) {
        const double g = at(&s->t.grad_o, u->b, h, i, m);

        u->g[m] = den == 0 ? 0 : g / den;
        if (s->normalize && den != 0 && attn_linear_has(&s->t.grad_o))
            c -= u->g[m] * at(&s->t.o, u->b, h, i, m);
    }
    return c;
}

/* Rows of the state and of z from these tensors, zeros where there are none. */
static void load_rows(const unit *u, const attn_tensor *state, const attn_tensor *z)
{
    for (int64_t e = 0; e < u->n; e++) {
        for (int64_t m = 0; m < u->s->dim_v; m++)
            u->state[e * u->s->dim_v + m] = at(state, u->b, u->kvh, u->first + e, m);
        u->z[e] = at(z, u->b, u->kvh, u->first + e, 0);
    }
}

static void add_key(const unit *u, int64_t j)
{
    for (int64_t e = 0; e < u->n; e++) {
        const double k = k_of(u, j, u->first + e);

        for (int64_t m = 0; m < u->s->dim_v; m++)
            u->state[e * u->s->dim_v + m] += k * at(&u->s->t.v, u->b, u->kvh, j, m);
        u->z[e] += k;
    }
}

static void grad_q(const unit *u)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *t = &s->t.grad_q;
    const int64_t keys = attn_linear_keys(s, u->b), group = s->heads_q / s->heads_kv;

    load_rows(u, &s->t.state_in, &s->t.z_in);
    for (int64_t j = 0; j < keys && !s->causal; j++)
        add_key(u, j);
    for (int64_t i = 0; i < s->len_q; i++) {
        if (s->causal && i < keys)
            add_key(u, i);
        for (int64_t h = u->kvh * group; h < (u->kvh + 1) * group; h++) {
            const double c = load_g(u, h, i);

            for (int64_t e = 0; e < u->n; e++) {
                const double x = at(&s->t.q, u->b, h, i, u->first + e);
                double sum = c * u->z[e];

                for (int64_t m = 0; m < s->dim_v; m++)
                    sum += u->state[e * s->dim_v + m] * u->g[m];
                attn_element_store(
                    t, attn_linear_at(t, u->b, h, i) + (u->first + e) * t->stride[3],
                    (double)s->scale * attn_linear_slope(s->phi, x) * sum);
            }
        }
    }
}

/* What query i of the group's heads adds to rows of R and r. */
static void add_query(const unit *u, int64_t i)
{
    const attn_host_linear *s = u->s;
    const int64_t group = s->heads_q / s->heads_kv;

    for (int64_t h = u->kvh * group; h < (u->kvh + 1) * group; h++) {
        const double c = load_g(u, h, i);

        for (int64_t e = 0; e < u->n; e++) {
            const double q = q_of(u, h, i, u->first + e);

            for (int64_t m = 0; m < s->dim_v; m++)
                u->state[e * s->dim_v + m] += q * u->g[m];
            u->z[e] += c * q;
        }
    }
}

/* Row j of dK; 0 for a key that no query sees. */
static void store_k(const unit *u, int64_t j, bool seen)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *t = &s->t.grad_k;

    for (int64_t e = 0; e < u->n && attn_linear_has(t); e++) {
        double sum = seen ? u->z[e] : 0;

        for (int64_t m = 0; m < s->dim_v && seen; m++)
            sum += u->state[e * s->dim_v + m] * at(&s->t.v, u->b, u->kvh, j, m);
        if (seen)
            sum *= attn_linear_slope(s->phi, at(&s->t.k, u->b, u->kvh, j, u->first + e));
        attn_element_store(
            t, attn_linear_at(t, u->b, u->kvh, j) + (u->first + e) * t->stride[3], sum);
    }
}

static void grad_k(const unit *u)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *ds = &s->t.grad_state_in, *dz = &s->t.grad_z_in;
    const int64_t keys = attn_linear_keys(s, u->b);

    load_rows(u, &s->t.grad_state_out, &s->t.grad_z_out);
    for (int64_t i = s->len_q - 1; i >= 0; i--) {
        add_query(u, i);
        if (s->causal && i < keys)
            store_k(u, i, true);
    }
    for (int64_t j = s->causal ? keys : 0; j < attn_linear_length(s, u->b); j++)
        store_k(u, j, !s->causal);
    for (int64_t e = 0; e < u->n; e++) {
        for (int64_t m = 0; m < s->dim_v && attn_linear_has(ds); m++)
            attn_element_store(
                ds, attn_linear_at(ds, u->b, u->kvh, u->first + e) + m * ds->stride[3],
                u->state[e * s->dim_v + m]);
        if (attn_linear_has(dz))
            attn_element_store(dz, attn_linear_at(dz, u->b, u->kvh, u->first + e), u->z[e]);
    }
}

static void store_v(const unit *u, int64_t j, bool seen)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *t = &s->t.grad_v;

    for (int64_t m = 0; m < u->n; m++) {
        double sum = 0;

        for (int64_t e = 0; e < s->dim_qk && seen; e++)
            sum += u->state[e * u->n + m] * k_of(u, j, e);
        attn_element_store(
            t, attn_linear_at(t, u->b, u->kvh, j) + (u->first + m) * t->stride[3], sum);
    }
}

static void grad_v(const unit *u)
{
    const attn_host_linear *s = u->s;
    const int64_t keys = attn_linear_keys(s, u->b), group = s->heads_q / s->heads_kv;

    for (int64_t e = 0; e < s->dim_qk; e++)
        for (int64_t m = 0; m < u->n; m++)
            u->state[e * u->n + m] =
                at(&s->t.grad_state_out, u->b, u->kvh, e, u->first + m);
    for (int64_t i = s->len_q - 1; i >= 0; i--) {
        for (int64_t h = u->kvh * group; h < (u->kvh + 1) * group; h++) {
            load_g(u, h, i);
            for (int64_t e = 0; e < s->dim_qk; e++) {
                const double q = q_of(u, h, i, e);

                for (int64_t m = 0; m < u->n; m++)
                    u->state[e * u->n + m] += q * u->g[u->first + m];
            }
        }
        if (s->causal && i < keys)
            store_v(u, i, true);
    }
    for (int64_t j = s->causal ? keys : 0; j < attn_linear_length(s, u->b); j++)
        store_v(u, j, !s->causal);
}

void attn_host_linear_bwd_reference(const attn_host_linear *s)
{
    const attn_args *t = &s->t;
    const int64_t states = s->batch * s->heads_kv;
    const int64_t rows = states * attn_ceil_div(s->dim_qk, s->columns);
    const int64_t columns = states * attn_ceil_div(s->dim_v, s->columns);

    if (attn_linear_has(&t->grad_q)) {
        ATTN_LINEAR_PARALLEL
        for (int64_t i = 0; i < rows; i++) {
            const unit u = unit_of(s, i, s->dim_qk);

            grad_q(&u);
        }
    }
    if (attn_linear_has(&t->grad_k) || attn_linear_has(&t->grad_state_in) ||
        attn_linear_has(&t->grad_z_in)) {
        ATTN_LINEAR_PARALLEL
        for (int64_t i = 0; i < rows; i++) {
            const unit u = unit_of(s, i, s->dim_qk);

            grad_k(&u);
        }
    }
    if (attn_linear_has(&t->grad_v)) {
        ATTN_LINEAR_PARALLEL
        for (int64_t i = 0; i < columns; i++) {
            const unit u = unit_of(s, i, s->dim_v);

            grad_v(&u);
        }
    }
}
