/* SPDX-License-Identifier: MIT */
/* linear/fwd_recurrent.cl: linear attention token by token, any sizes, every rule.
 *
 * Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
 * Method    the recurrence: a work-item owns a column of the state of one batch and
 *           key/value head and walks all tokens with it; the rows of k and q, phi taken, and
 *           z are shared by the group. z is kept by each group of a head
 * Grid      1-D, ceil(Dv / ITEMS) * Hkv * B groups
 * Group     ITEMS work-items, a column each
 * Local     4 * 4 * D bytes, and with FAST the state's columns, 4 * D * ITEMS
 * Workspace z as it came in (fwd_begin.cl); without FAST then the columns of each group
 * Numerics  f32; huge rows of q are scaled by a power of 2 until they are divided
 * Tunables  ITEMS: any; FAST: whether the state lies in local memory
 * Oracle    linear_fwd_reference
 */
#ifndef ITEMS
#define ITEMS 64
#endif
#ifndef FAST
#define FAST 1
#endif
#include "linear/linear.clh"

/* What a group shares. Local arrays travel in a struct for PoCL (CONTRIBUTING.md), of
 * their own. */
typedef struct linear_local {
    __local float *k, *q, *g, *z, *fast;
} linear_local;

/* A work-item: its column of which state. */
typedef struct linear_unit {
    long b, kvh, column;
    int lane;
} linear_unit;

static inline float state_get(const linear_local *l, const __global float *slow,
                              const linear_unit *u, int e)
{
    return FAST ? l->fast[e * ITEMS + u->lane] : slow[(long)e * ITEMS + u->lane];
}

static inline void state_put(const linear_local *l, __global float *slow,
                             const linear_unit *u, int e, float x)
{
    if (FAST)
        l->fast[e * ITEMS + u->lane] = x;
    else
        slow[(long)e * ITEMS + u->lane] = x;
}

/* The group's part of key j: k, what decays, and z with it. */
static inline void load_key(const attn_kparams *p, const linear_local *l,
                        const linear_unit *u, long j)
{
    for (int e = u->lane; e < D; e += ITEMS) {
        const float k = linear_phi(elem_load(p->k, LINEAR_AT(p, k, u->b, u->kvh, j, e)));
        float g = 1.0f;

        if (FEAT_DECAY)
            g = exp(type_load(DECAY_TYPE, p->decay,
                              LINEAR_AT(p, decay, u->b, u->kvh, j, e)));
        l->k[e] = k;
        l->g[e] = g;
        l->z[e] = g * l->z[e] + k;
    }
}

static inline void load_query(const attn_kparams *p, const linear_local *l,
                        const linear_unit *u, long h, long i)
{
    for (int e = u->lane; e < D; e += ITEMS)
        l->q[e] = linear_phi(elem_load(p->q, LINEAR_AT(p, q, u->b, h, i, e)));
}

/* The work-item's part of key j. */
static inline void fold(const attn_kparams *p, const linear_local *l, __global float *slow,
                        const linear_unit *u, long j)
{
    const long at = LINEAR_AT(p, v, u->b, u->kvh, j, u->column);
    float add = u->column < DV ? elem_load(p->v, at) : 0.0f;

    if (FEAT_BETA) {
        for (int e = 0; e < D; e++)
            add -= l->k[e] * (l->g[e] * state_get(l, slow, u, e));
        add *= type_load(BETA_TYPE, p->beta, LINEAR_AT(p, beta, u->b, u->kvh, j, 0L));
    }
    for (int e = 0; e < D; e++) {
        const float before = state_get(l, slow, u, e);

        state_put(l, slow, u, e, (FEAT_DECAY ? l->g[e] * before : before) + l->k[e] * add);
    }
}

/* O and den of the query in u->q. */
static inline void read_out(const attn_kparams *p, const linear_local *l, __global float *slow,
                        const linear_unit *u, long h, long i)
{
    float largest = 0.0f, up = 1.0f, num = 0.0f, den = 0.0f;

    for (int e = 0; e < D; e++)
        largest = fmax(largest, fabs(l->q[e]));
    if (largest > 0x1p32f && largest < INFINITY)
        up = ldexp(1.0f, min(ilogb(largest), 126));
    for (int e = 0; e < D; e++) {
        const float q = l->q[e] * (1.0f / up);

        num += q * state_get(l, slow, u, e);
        if (FEAT_NORMALIZE)
            den += q * l->z[e];
    }
    if (FEAT_NORMALIZE) {
        den = p->sum_scale * den + p->sum_eps / up;
        if (u->column == 0 && p->has & LHAS_DEN)
            p->den[LINEAR_AT(p, den, u->b, h, i, 0L)] = in_units(p->sum_unit, den, up);
        num = den == 0.0f ? 0.0f : p->sum_scale * num / den;
    } else {
        num = in_units(p->sum_unit, num, up);
    }
    if (u->column < DV && p->has & LHAS_O)
        elem_store(p->o, LINEAR_AT(p, o, u->b, h, i, u->column), num);
}

static inline void load_state(const attn_kparams *p, const linear_local *l, __global float *slow,
                        const linear_unit *u)
{
    const long head = u->b * p->heads_kv + u->kvh;

    for (int e = 0; e < D; e++)
        state_put(l, slow, u, e, FEAT_STATE && u->column < DV
                            ? p->state_in[LINEAR_AT(p, state_in, u->b, u->kvh, e, u->column)]
                            : 0.0f);
    for (int e = u->lane; e < D; e += ITEMS)
        l->z[e] = FEAT_NORMALIZE ? p->work[head * D + e] : 0.0f;
}

static inline void store_state(const attn_kparams *p, const linear_local *l, __global float *slow,
                        const linear_unit *u)
{
    for (int e = 0; e < D && p->has & LHAS_STATE_OUT && u->column < DV; e++)
        p->state_out[LINEAR_AT(p, state_out, u->b, u->kvh, e, u->column)] =
            state_get(l, slow, u, e);
    for (int e = 0; e < D && p->has & LHAS_Z_OUT && u->column == 0; e++)
        p->z_out[LINEAR_AT(p, z_out, u->b, u->kvh, e, 0L)] = l->z[e];
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_fwd_recurrent(SIGNATURE(LINEAR_FWD_PARAMS))
{
    __local float key[D], query[D], decays[D], sums[D], fast[FAST ? D * ITEMS : 1];
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);
    /* 32 bits: Mesa's remainder of longs is wrong in its upper half */
    const uint tiles = CEIL_DIV(DV, ITEMS), group = get_group_id(0), head = group / tiles;
    const int lane = get_local_id(0), share = p.heads_q / p.heads_kv;
    const linear_local l = { key, query, decays, sums, fast };
    __global float *slow = p.work + (FEAT_NORMALIZE ? (long)p.batch * p.heads_kv * D : 0L) +
                           (long)group * D * ITEMS;
    linear_unit u;
    int keys;

    u.b = head / (uint)p.heads_kv;
    u.kvh = head % (uint)p.heads_kv;
    u.lane = lane;
    u.column = group % tiles * ITEMS + (uint)lane;
    keys = linear_keys(&p, u.b);
    load_state(&p, &l, slow, &u);
    for (int j = 0; !FEAT_CAUSAL && j < keys; j++) {
        barrier(CLK_LOCAL_MEM_FENCE);
        load_key(&p, &l, &u, j);
        barrier(CLK_LOCAL_MEM_FENCE);
        fold(&p, &l, slow, &u, j);
    }
    for (int i = 0; i < p.len_q; i++)
        for (int x = 0; x < share; x++) {
            const long h = u.kvh * share + x;
            const int adds = FEAT_CAUSAL && x == 0 && i < keys;

            barrier(CLK_LOCAL_MEM_FENCE);
            if (adds)
                load_key(&p, &l, &u, i);
            load_query(&p, &l, &u, h, i);
            barrier(CLK_LOCAL_MEM_FENCE);
            if (adds)
                fold(&p, &l, slow, &u, i);
            read_out(&p, &l, slow, &u, h, i);
        }
    barrier(CLK_LOCAL_MEM_FENCE);
    store_state(&p, &l, slow, &u);
}
