/* SPDX-License-Identifier: MIT */
/* host/linear_fwd_recurrent.c: linear attention token by token, on vectors: for single
 * steps, and for every rule.
 *
 * Computes  O, den, and S and z as they come out, as written in include/attn/linear.h, of
 *           every rule; those of them that are there
 * Method    the recurrence. A unit of work is up to `columns` columns of the state of one
 *           batch and key/value head, with the query heads that read it; the row that a
 *           key adds to, the decay, and what the first of the heads reads go over the state
 *           once, its columns in registers (a delta rule reads it once before)
 * Workspace of each thread the columns of the state, z, k, q and the row that is added, in
 *           f32; then z as it came in [B, Hkv, D]: z_out may be z_in
 * Layout    any strides, 64-bit; any types
 * Numerics  f32
 * Oracle    linear_fwd_reference
 */
#include "host/linear_level.h"
#include "host/linear_load.h"

enum { VECTORS = 4, MOST = VECTORS * LANES }; /* columns at once */

typedef struct unit {
    const attn_host_linear *s;
    int64_t b, kvh, group, first, n, row; /* row: between two of the state */
    float *state, *z, *k, *q, *decay, *add, *o;
} unit;

static float *shared_z(const attn_host_linear *s, int64_t bh)
{
    return (float *)attn_linear_shared(s) + bh * s->dim_qk;
}

static unit unit_of(const attn_host_linear *s, int64_t i)
{
    const int64_t slices = attn_ceil_div(s->dim_v, s->columns), bh = i / slices;
    const int64_t e = attn_round_up(s->dim_qk, 16);
    unit u = { .s = s,
               .b = bh / s->heads_kv,
               .kvh = bh % s->heads_kv,
               .group = s->heads_q / s->heads_kv,
               .first = i % slices * s->columns };

    u.n = attn_min(s->columns, s->dim_v - u.first);
    u.row = attn_round_up(u.n, 16);
    u.state = attn_linear_scratch(s);
    u.z = u.state + s->dim_qk * u.row;
    u.k = u.z + e;
    u.q = u.k + e;
    u.decay = u.q + e;
    u.add = u.decay + e;
    u.o = u.add + u.row;
    return u;
}

static void load_state(const unit *u)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *t = &s->t.state_in;

    for (int64_t e = 0; e < s->dim_qk; e++)
        if (attn_linear_has(t))
            linear_row(u->state + e * u->row, t, attn_linear_at(t, u->b, u->kvh, e),
                       u->first, u->n);
        else
            linear_zero(u->state + e * u->row, 0, attn_round_up(u->n, LANES));
    linear_zero(u->z, 0, attn_round_up(s->dim_qk, LANES));
    for (int64_t e = 0; e < s->dim_qk && s->normalize; e++)
        u->z[e] = shared_z(s, u->b * s->heads_kv + u->kvh)[e];
}

static void store_state(const unit *u)
{
    const attn_tensor *t = &u->s->t.state_out, *z = &u->s->t.z_out;

    for (int64_t e = 0; e < u->s->dim_qk; e++) {
        if (attn_linear_has(t))
            attn_row_store(t, attn_linear_at(t, u->b, u->kvh, e) + u->first * t->stride[3],
                           u->state + e * u->row, 1, u->n);
        if (u->first == 0 && attn_linear_has(z))
            ((float *)z->data)[attn_linear_at(z, u->b, u->kvh, e)] = u->z[e];
    }
}

/* exp(g) of each row of the state, for key j. */
static void load_decay(const unit *u, int64_t j)
{
    const attn_tensor *t = &u->s->t.decay;
    const int64_t n = attn_round_up(u->s->dim_qk, LANES);

    linear_row(u->decay, t, attn_linear_at(t, u->b, u->kvh, j), 0, u->s->dim_qk);
    for (int64_t e = 0; e < n; e += LANES) { /* a decay of more than 1 is one, too */
        const vf g = vf_load(u->decay + e), fall = vf_exp(vf_keep(~(g > 0.0f), g));
        const vf rise = vf_exp(vf_keep(g > 0.0f, -g));

        vf_store(u->decay + e, vf_select(g > 0.0f, 1.0f / rise, fall));
    }
}

#define COLUMNS_INLINE static inline __attribute__((always_inline))

/* add = beta (V - S^T k), of nv vectors of columns from x on; the state decays first. */
COLUMNS_INLINE void under_key(const unit *u, float beta, int64_t x, const int nv)
{
    vf sum[VECTORS];

    VF_UNROLL for (int v = 0; v < nv; v++) sum[v] = vf_load(u->add + x + v * LANES);
    for (int64_t e = 0; e < u->s->dim_qk; e++) {
        const float *row = u->state + e * u->row + x;
        const vf k = vf_set(u->k[e] * u->decay[e]);

        VF_UNROLL for (int v = 0; v < nv; v++) sum[v] -= k * vf_load(row + v * LANES);
    }
    VF_UNROLL for (int v = 0; v < nv; v++) vf_store(u->add + x + v * LANES, sum[v] * beta);
}

/* S = decay S + k add^T, and o = S^T q. */
COLUMNS_INLINE void fold_columns(const unit *u, bool gated, int64_t x, const int nv)
{
    vf add[VECTORS], o[VECTORS];

    VF_UNROLL for (int v = 0; v < nv; v++)
    {
        add[v] = vf_load(u->add + x + v * LANES);
        o[v] = vf_set(0);
    }
    for (int64_t e = 0; e < u->s->dim_qk; e++) {
        float *row = u->state + e * u->row + x;
        const vf k = vf_set(u->k[e]), q = vf_set(u->q[e]), g = vf_set(u->decay[e]);

        VF_UNROLL for (int v = 0; v < nv; v++)
        {
            vf now = vf_load(row + v * LANES);

            if (gated)
                now *= g;
            now += k * add[v];

            vf_store(row + v * LANES, now);
            o[v] += q * now;
        }
    }
    VF_UNROLL for (int v = 0; v < nv; v++) vf_store(u->o + x + v * LANES, o[v]);
}

COLUMNS_INLINE void read_columns(const unit *u, int64_t x, const int nv)
{
    vf o[VECTORS];

    VF_UNROLL for (int v = 0; v < nv; v++) o[v] = vf_set(0);
    for (int64_t e = 0; e < u->s->dim_qk; e++) {
        const float *row = u->state + e * u->row + x;
        const vf q = vf_set(u->q[e]);

        VF_UNROLL for (int v = 0; v < nv; v++) o[v] += q * vf_load(row + v * LANES);
    }
    VF_UNROLL for (int v = 0; v < nv; v++) vf_store(u->o + x + v * LANES, o[v]);
}

/* What key j does to the state; o is what the q in hand then reads. */
static void fold(const unit *u, int64_t j)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *v = &s->t.v, *beta = &s->t.beta;
    const bool gated = attn_linear_has(&s->t.decay);
    int64_t x = 0;

    linear_feature(s, u->k, &s->t.k, attn_linear_at(&s->t.k, u->b, u->kvh, j), 0, s->dim_qk,
                   1);
    linear_row(u->add, v, attn_linear_at(v, u->b, u->kvh, j), u->first, u->n);
    if (gated)
        load_decay(u, j);
    if (attn_linear_has(beta)) {
        float strength;

        attn_row_load(&strength, beta, attn_linear_at(beta, u->b, u->kvh, j), 1);
        for (x = 0; x + MOST <= u->n; x += MOST)
            under_key(u, strength, x, VECTORS);
        for (; x < u->n; x += LANES)
            under_key(u, strength, x, 1);
    }
    for (x = 0; x + MOST <= u->n; x += MOST)
        if (gated)
            fold_columns(u, true, x, VECTORS);
        else
            fold_columns(u, false, x, VECTORS);
    for (; x < u->n; x += LANES)
        fold_columns(u, gated, x, 1);
    for (int64_t e = 0; e < s->dim_qk && s->normalize; e += LANES) {
        const vf z = vf_load(u->z + e);

        vf_store(u->z + e, z * vf_load(u->decay + e) + vf_load(u->k + e));
    }
}

static void read_state(const unit *u)
{
    int64_t x = 0;

    for (; x + MOST <= u->n; x += MOST)
        read_columns(u, x, VECTORS);
    for (; x < u->n; x += LANES)
        read_columns(u, x, 1);
}

/* Row i of O of head h, and its den, of what was read. */
static void store(const unit *u, int64_t h, int64_t i, float up)
{
    const attn_host_linear *s = u->s;
    const attn_tensor *o = &s->t.o, *t = &s->t.den;

    if (s->normalize) {
        const float den =
            s->sum_scale * linear_dot(u->q, u->z, s->dim_qk) + s->sum_eps / up;

        if (u->first == 0 && attn_linear_has(t))
            ((float *)t->data)[attn_linear_at(t, u->b, h, i)] = linear_in_units(s, den, up);
        linear_divide(s, u->o, u->n, den);
    } else {
        linear_lift(s, u->o, u->n, up);
    }
    if (attn_linear_has(o))
        attn_row_store(o, attn_linear_at(o, u->b, h, i) + u->first * o->stride[3], u->o, 1,
                       u->n);
}

static void run(const unit *u)
{
    const attn_host_linear *s = u->s;
    const int64_t keys = attn_linear_keys(s, u->b), h = u->kvh * u->group;

    load_state(u);
    for (int64_t e = 0; e < attn_round_up(s->dim_qk, LANES); e++)
        u->decay[e] = 1;
    linear_zero(u->q, 0, attn_round_up(s->dim_qk, 16));
    for (int64_t j = 0; j < keys && !s->causal; j++)
        fold(u, j);
    for (int64_t i = 0; i < s->len_q; i++)
        for (int64_t g = 0; g < u->group; g++) {
            const float up = linear_query(s, u->q, attn_linear_at(&s->t.q, u->b, h + g, i));

            if (g == 0 && s->causal && i < keys)
                fold(u, i);
            else
                read_state(u);
            store(u, h + g, i, up);
        }
    store_state(u);
}

void ATTN_LINEAR_LEVEL(fwd_recurrent)(const attn_host_linear *s)
{
    const attn_tensor *z = &s->t.z_in;
    const int64_t states = s->batch * s->heads_kv;
    const int64_t units = states * attn_ceil_div(s->dim_v, s->columns);

    for (int64_t n = 0; n < states && s->normalize; n++)
        for (int64_t e = 0; e < s->dim_qk; e++)
            shared_z(s, n)[e] =
                attn_linear_has(z)
                    ? ((const float *)
                           z->data)[attn_linear_at(z, n / s->heads_kv, n % s->heads_kv, e)]
                    : 0;
    ATTN_LINEAR_PARALLEL
    for (int64_t i = 0; i < units; i++) {
        const unit u = unit_of(s, i);

        run(&u);
    }
}
