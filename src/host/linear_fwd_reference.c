/* SPDX-License-Identifier: MIT */
/* host/linear_fwd_reference.c: the oracle, token by token in double.
 *
 * Computes  O, den, and S and z as they come out, as written in include/attn/linear.h, of
 *           every rule; those of them that are there
 * Method    the recurrence itself. A unit of work is a block of columns of the state of
 *           one batch and key/value head, with the query heads that read it; columns do
 *           not mix, in any rule, and z goes with each
 * Workspace of each thread a block of the state, z and two rows, in double; then z as it
 *           came in [B, Hkv, D], in double: z_out may be z_in
 * Layout    any strides, 64-bit; any types
 * Numerics  everything in double; one rounding to f32, from there to 16 bits
 */
#include "host/element.h"
#include "host/linear_row.h"

/* Columns first .. first + n - 1 of one state. */
typedef struct unit {
    const attn_host_linear *s;
    int64_t b, kvh, first, n;
    double *state; /* [D][n]                  */
    double *z;     /* [D]                     */
    double *key;   /* [D], phi(K), or phi(Q)  */
} unit;

static unit unit_of(const attn_host_linear *s, int64_t i)
{
    const int64_t blocks = attn_ceil_div(s->dim_v, s->columns), bh = i / blocks;
    unit u = { .s = s, .b = bh / s->heads_kv, .kvh = bh % s->heads_kv };

    u.first = i % blocks * s->columns;
    u.n = attn_min(s->columns, s->dim_v - u.first);
    u.state = attn_linear_scratch(s);
    u.z = u.state + s->dim_qk * s->columns;
    u.key = u.z + s->dim_qk;
    return u;
}

static void load_state(const unit *u)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *t = &s->t.state_in;
    const double *z =
        (const double *)attn_linear_shared(s) + (u->b * s->heads_kv + u->kvh) * s->dim_qk;

    for (int64_t e = 0; e < s->dim_qk; e++) {
        for (int64_t m = 0; m < u->n; m++)
            u->state[e * u->n + m] =
                attn_linear_has(t)
                    ? attn_element_load(t, attn_linear_at(t, u->b, u->kvh, e) +
                                               (u->first + m) * t->stride[3])
                    : 0;
        u->z[e] = s->normalize ? z[e] : 0;
    }
}

static void store_state(const unit *u)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *t = &s->t.state_out, *z = &s->t.z_out;

    for (int64_t e = 0; e < s->dim_qk; e++) {
        for (int64_t m = 0; m < u->n && attn_linear_has(t); m++)
            attn_element_store(
                t, attn_linear_at(t, u->b, u->kvh, e) + (u->first + m) * t->stride[3],
                u->state[e * u->n + m]);
        if (u->first == 0 && attn_linear_has(z))
            attn_element_store(z, attn_linear_at(z, u->b, u->kvh, e), u->z[e]);
    }
}

static void load_row(const unit *u, const attn_tensor *t, int64_t at)
{
    for (int64_t e = 0; e < u->s->dim_qk; e++)
        u->key[e] = attn_linear_phi(u->s->phi, attn_element_load(t, at + e * t->stride[3]));
}

static void decay(const unit *u, int64_t j)
{
    const attn_tensor *t = &u->s->t.decay;

    for (int64_t e = 0; e < u->s->dim_qk; e++) {
        const double g = exp(
            attn_element_load(t, attn_linear_at(t, u->b, u->kvh, j) + e * t->stride[3]));

        for (int64_t m = 0; m < u->n; m++)
            u->state[e * u->n + m] *= g;
        u->z[e] *= g;
    }
}

/* What key j does to the state. */
static void fold(const unit *u, int64_t j)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *v = &s->t.v, *beta = &s->t.beta;
    double strength = 1;

    load_row(u, &s->t.k, attn_linear_at(&s->t.k, u->b, u->kvh, j));
    if (attn_linear_has(&s->t.decay))
        decay(u, j);
    if (attn_linear_has(beta))
        strength = attn_element_load(beta, attn_linear_at(beta, u->b, u->kvh, j));
    for (int64_t m = 0; m < u->n; m++) {
        double add = attn_element_load(v, attn_linear_at(v, u->b, u->kvh, j) +
                                              (u->first + m) * v->stride[3]);

        for (int64_t e = 0; e < s->dim_qk && attn_linear_has(beta); e++)
            add -= u->state[e * u->n + m] * u->key[e];
        add *= strength;
        for (int64_t e = 0; e < s->dim_qk; e++)
            u->state[e * u->n + m] += u->key[e] * add;
    }
    for (int64_t e = 0; e < s->dim_qk; e++)
        u->z[e] += u->key[e];
}

/* Row i of O and den of query head h. */
static void read_out(const unit *u, int64_t h, int64_t i)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *o = &s->t.o, *t = &s->t.den;
    double den = (double)s->eps;

    load_row(u, &s->t.q, attn_linear_at(&s->t.q, u->b, h, i));
    for (int64_t e = 0; e < s->dim_qk; e++)
        den += (double)s->scale * u->key[e] * u->z[e];
    for (int64_t m = 0; m < u->n && attn_linear_has(o); m++) {
        double sum = 0;

        for (int64_t e = 0; e < s->dim_qk; e++)
            sum += (double)s->scale * u->key[e] * u->state[e * u->n + m];
        if (s->normalize)
            sum = den == 0 ? 0 : sum / den;
        attn_element_store(o, attn_linear_at(o, u->b, h, i) + (u->first + m) * o->stride[3],
                           sum);
    }
    if (u->first == 0 && attn_linear_has(t))
        attn_element_store(t, attn_linear_at(t, u->b, h, i), den);
}

static void run(const unit *u)
{
    const attn_host_linear *s = u->s;
    const int64_t keys = attn_linear_keys(s, u->b), group = s->heads_q / s->heads_kv;

    load_state(u);
    for (int64_t j = 0; j < keys && !s->causal; j++)
        fold(u, j);
    for (int64_t i = 0; i < s->len_q; i++) {
        if (s->causal && i < keys)
            fold(u, i);
        for (int64_t h = u->kvh * group; h < (u->kvh + 1) * group; h++)
            read_out(u, h, i);
    }
    store_state(u);
}

void attn_host_linear_fwd_reference(const attn_host_linear *s)
{
    const attn_tensor *z = &s->t.z_in;
    const int64_t states = s->batch * s->heads_kv;
    const int64_t units = states * attn_ceil_div(s->dim_v, s->columns);
    double *shared = attn_linear_shared(s);

    for (int64_t n = 0; n < states * s->dim_qk && s->normalize; n++) {
        const int64_t bh = n / s->dim_qk;

        shared[n] =
            attn_linear_has(z)
                ? attn_element_load(z, attn_linear_at(z, bh / s->heads_kv, bh % s->heads_kv,
                                                      n % s->dim_qk))
                : 0;
    }
    ATTN_LINEAR_PARALLEL
    for (int64_t i = 0; i < units; i++) {
        const unit u = unit_of(s, i);

        run(&u);
    }
}
