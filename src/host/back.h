/* SPDX-License-Identifier: MIT */
/* host/back.h: pairs of a backward tile: the weights P and the gradients dS of a panel of
 * queries and some keys, or of a panel of keys and some queries.
 *
 * What a unit of work owns lies along the vector lanes, in panels as in host/panel.h; what
 * it visits are rows, which enter as broadcast numbers:
 *
 *     own        queries              keys
 *     rows       keys                 queries
 *     a, b       q and dO, own        k and v, own          transposed, [D][panel]
 *     rows_a, _b k and v              q and dO              [rows][D8 + 8]
 *
 * The gap of 8 keeps rows out of each other's cache sets. */
#ifndef ATTN_HOST_BACK_H
#define ATTN_HOST_BACK_H

#include "host/address.h"
#include "host/drop.h"
#include "host/panel.h"
#include "host/panel_score.h"
#include "host/row.h"
#include "host/score.h"
#include "host/softmax.h"

#define VECTORS 1
#include "host/back_fold.h"
#undef VECTORS
#define VECTORS 2
#include "host/back_fold.h"
#undef VECTORS
#if NV == 3
#define VECTORS 3
#include "host/back_fold.h"
#define BACK_EACH(name) { name##_1, name##_2, name##_3 }
#else
#define BACK_EACH(name) { name##_1, name##_2 }
#endif

typedef void back_dots_fn(vf *s, const float *rows, int64_t step, int n, const vf *own,
                          int64_t dim, float factor);
typedef void back_weigh_fn(vf *s, vf *dp, int n, const float *lse, const float *delta,
                           bool by_row);
typedef void back_sums_fn(vf *out, const vf *w, const panel_run *run, int runs,
                          const float *rows, int64_t step, int64_t dim);

static back_dots_fn *const back_dots[NV] = BACK_EACH(back_dots);
static back_weigh_fn *const back_weigh[NV] = BACK_EACH(back_weigh);
static back_sums_fn *const back_sums[NV] = BACK_EACH(back_sums);

#define BACK_PANEL (NV * LANES)
#define BACK_AHEAD 8 /* rows fetched ahead of the one being taken */

/* Panel x of what a unit owns. */
typedef struct back_panel {
    vf *a, *b;               /* [D8][vectors], [Dv8][vectors]                 */
    vf *da, *db;             /* sums of a span of tiles                       */
    vf *total_a, *total_b;   /* of the spans before                           */
    float *lse, *delta;      /* [panel], of queries                           */
    int64_t first;           /* the query or key of lane 0                    */
    int n, vectors;          /* lanes that are real; vectors that they need   */
} back_panel;

/* One unit of work, for one head at a time, and this thread's scratch. */
typedef struct back {
    const attn_host_softmax *s;
    bool keys;               /* it owns keys, and visits queries              */
    int64_t b, h, kvh;
    attn_sequence x;         /* of the batch                                  */
    attn_terms terms;
    attn_dropout drop;
    int64_t first;           /* of what it owns, and how many                 */
    int n;
    int64_t d8, dv8, rows;   /* rounded up to whole blocks of 8               */
    int64_t a_step, b_step;  /* from a row to the next                        */
    float *panels, *rows_a, *rows_b, *row_lse, *row_delta, *taken;
    int64_t taken_step;
    vf *p, *ds, *cap;        /* [rows][vectors] of one panel                  */
    vf *kept;                /* likewise: factors of dropout; NULL: none      */
    double *sums;            /* [rows][panel], for biases                     */
    panel_run *live;
} back;

static inline bool back_is_there(const attn_tensor *t)
{
    return t->type != ATTN_TYPE_NONE;
}

/* delta [B, Hq, Lq], behind the scratch of all threads. */
static inline float *back_deltas(const attn_host_softmax *s)
{
    return (float *)(void *)((char *)s->workspace + (size_t)s->threads * s->scratch_bytes);
}

/* Floats of a panel for one lane. */
static inline int64_t back_panel_floats(const back *u)
{
    return 3 * (u->d8 + u->dv8) + 2;
}

/* As src/plan/host/softmax_bwd_tile.c counts it. */
static inline back back_make(const attn_host_softmax *s, bool keys, float *scratch)
{
    back u = { .s = s,
               .keys = keys,
               .d8 = attn_round_up(s->dim_qk, 8),
               .dv8 = attn_round_up(s->dim_v, 8),
               .rows = attn_round_up(s->tile_k, 8),
               .panels = scratch };

    u.a_step = u.d8 + 8;
    u.b_step = u.dv8 + 8;
    u.p = (vf *)(void *)(u.panels +
                         attn_round_up(s->tile_q, BACK_PANEL) * back_panel_floats(&u));
    u.ds = (vf *)(void *)((float *)u.p + u.rows * BACK_PANEL);
    u.cap = (vf *)(void *)((float *)u.ds + u.rows * BACK_PANEL);
    u.sums = (double *)(void *)((float *)u.cap + u.rows * BACK_PANEL);
    if (s->dropout > 0) {
        u.kept = (vf *)(void *)u.sums;
        u.sums = (double *)(void *)((float *)u.kept + u.rows * BACK_PANEL);
    }
    u.rows_a = (float *)(u.sums + u.rows * BACK_PANEL);
    u.rows_b = u.rows_a + u.rows * u.a_step;
    u.row_lse = u.rows_b + u.rows * u.b_step;
    u.row_delta = u.row_lse + u.rows;
    u.live = (panel_run *)(void *)(u.row_delta + u.rows);
    u.taken = (float *)(u.live + u.rows / 2 + 8);
    u.taken_step = u.rows + 24;
    return u;
}

static inline void back_batch(back *u, int64_t b)
{
    u->b = b;
    u->x = attn_host_sequence(u->s, b);
}

static inline void back_head(back *u, int64_t h)
{
    u->h = h;
    u->kvh = h / (u->s->heads_q / u->s->heads_kv);
    if (attn_host_terms(u->s))
        u->terms = attn_terms_of(u->s, &u->x, u->b, h);
    if (u->kept)
        u->drop = attn_host_dropout(u->s, u->b, h);
}

/* What a unit owns from `first` on: a tile, or what is left of it. */
static inline void back_own(back *u, int64_t first)
{
    const int64_t all = u->keys ? u->x.keys : u->x.queries;

    u->first = first;
    u->n = (int)attn_max(0, attn_min(u->s->tile_q, all - first));
}

static inline back_panel back_panel_at(const back *u, int x)
{
    const int n = (int)attn_min(BACK_PANEL, u->n - x * BACK_PANEL);
    const int vectors = (n + LANES - 1) / LANES;
    const int64_t d = u->d8 * vectors, dv = u->dv8 * vectors;
    float *at = u->panels + x * BACK_PANEL * back_panel_floats(u);
    vf *a = (vf *)(void *)at;

    return (back_panel){ .a = a,
                         .b = a + d,
                         .da = a + d + dv,
                         .db = a + 2 * d + dv,
                         .total_a = a + 2 * (d + dv),
                         .total_b = a + 3 * d + 2 * dv,
                         .lse = at + BACK_PANEL * 3 * (u->d8 + u->dv8),
                         .delta = at + BACK_PANEL * (3 * (u->d8 + u->dv8) + 1),
                         .first = u->first + x * BACK_PANEL,
                         .n = n,
                         .vectors = vectors };
}

/* The LSE of query i as weights want it: without a key in sight +Inf, which leaves none. */
static inline float back_lse(const back *u, int64_t i)
{
    const attn_tensor *t = &u->s->t.lse;
    const float lse =
        ((const float *)t->data)[attn_host_query_at(u->s, t, &u->x, u->b, u->h, i)];

    return lse == -INFINITY ? INFINITY : lse;
}

static inline float back_delta(const back *u, int64_t i)
{
    const attn_host_softmax *s = u->s;
    return back_deltas(s)[(u->b * s->heads_q + u->h) * s->len_q + i];
}

/* Row i of q or dO, or of k or v. */
static inline int64_t back_query_at(const back *u, const attn_tensor *t, int64_t i)
{
    return attn_host_query_at(u->s, t, &u->x, u->b, u->h, i);
}

static inline int64_t back_key_at(const back *u, const attn_tensor *t, int64_t j)
{
    return attn_host_key_at(u->s, t, &u->x, u->b, u->kvh, j);
}

/* Rows of a tensor become columns; lanes past the last are 0. `row` is scratch. */
static inline void back_turn(const back *u, const back_panel *p, vf *to, float *row,
                             const attn_tensor *t, int64_t dim)
{
    const int lanes = p->vectors * LANES;
    float *column = (float *)to;

    for (int x = 0; x < lanes; x++) {
        const int64_t i = p->first + x;

        if (x < p->n)
            attn_row_load(row, t, u->keys ? back_key_at(u, t, i) : back_query_at(u, t, i),
                          dim);
        for (int64_t d = 0; d < dim; d++)
            column[d * lanes + x] = x < p->n ? row[d] : 0;
    }
}

/* Takes what panel p owns; the rows are scratch. */
static inline void back_take_own(const back *u, const back_panel *p)
{
    const attn_args *t = &u->s->t;

    back_turn(u, p, p->a, u->rows_a, u->keys ? &t->k : &t->q, u->s->dim_qk);
    if (back_is_there(&t->grad_o))
        back_turn(u, p, p->b, u->rows_b, u->keys ? &t->v : &t->grad_o, u->s->dim_v);
    for (int x = 0; x < BACK_PANEL && !u->keys; x++) {
        p->lse[x] = x < p->n ? back_lse(u, p->first + x) : INFINITY;
        p->delta[x] = x < p->n ? back_delta(u, p->first + x) : 0;
    }
}

/* n rows of a tensor from `first` on; their padding is 0. */
static inline void back_take(const back *u, float *to, int64_t step, const attn_tensor *t,
                             bool keys, int64_t first, int n, int64_t dim)
{
    for (int x = 0; x < n; x++) {
        const int64_t at = keys ? back_key_at(u, t, first + x)
                                : back_query_at(u, t, first + x);

        attn_row_fetch(t, at + BACK_AHEAD * t->stride[2], dim);
        attn_row_load(to + x * step, t, at, dim);
        for (int64_t d = dim; d < attn_round_up(dim, 8); d++)
            to[x * step + d] = 0;
    }
}

/* Takes the rows first .. first + n - 1 that are visited. */
static inline void back_take_rows(const back *u, int64_t first, int n)
{
    const attn_args *t = &u->s->t;

    back_take(u, u->rows_a, u->a_step, u->keys ? &t->q : &t->k, !u->keys, first, n,
              u->s->dim_qk);
    if (back_is_there(&t->grad_o))
        back_take(u, u->rows_b, u->b_step, u->keys ? &t->grad_o : &t->v, !u->keys, first, n,
                  u->s->dim_v);
    for (int x = 0; x < n && u->keys; x++) {
        u->row_lse[x] = back_lse(u, first + x);
        u->row_delta[x] = back_delta(u, first + x);
    }
}

/* The rows that what panel p owns visits. */
static inline attn_range back_range(const back *u, const back_panel *p)
{
    return u->keys ? attn_host_queries(u->s, &u->x, p->first, p->n)
                   : attn_host_range(u->s, &u->x, p->first, p->n);
}

/* The cap; its derivative, 1 / cosh^2, goes to u->cap. */
static inline void back_softcap(const back *u, int n)
{
    const float softcap = u->s->softcap;

    for (int x = 0; x < n; x++) {
        const vf at = u->p[x] / softcap;
        const vf e = vf_exp2(vf_abs(at) * -0x1.715476p1f);

        u->p[x] = softcap * vf_tanh(at);
        u->cap[x] = 4.0f * e / ((1.0f + e) * (1.0f + e));
    }
}

/* Terms of, and what hides, the scores of a panel of queries: as the forward has it. */
static inline bool back_score_queries(const back *u, const back_panel *p, int64_t first,
                                      int n)
{
    const attn_host_softmax *s = u->s;
    const int64_t position = p->first + u->x.position, last = position + p->n - 1;
    const panel own = { .first = p->first, .queries = p->n, .vectors = p->vectors };
    const panel_keys t = {
        .first = first,
        .n = n,
        .edge = first < last - s->left || first + n - 1 > position + s->right,
        .low = (int)attn_max(position - s->left - first, -(1 << 24)),
        .high = (int)attn_min(position + s->right - first, 1 << 24),
        .terms = attn_host_terms(s) ? &u->terms : NULL,
        .taken = u->taken,
        .taken_step = u->taken_step,
    };

    if (t.terms)
        panel_score_take(&t, &own, 0, n);
    return panel_score(u->p, &t, &own);
}

/* The same of a panel of keys and the queries first .. first + n - 1. */
static inline bool back_score_keys(const back *u, const back_panel *p, int64_t first, int n)
{
    const attn_host_softmax *s = u->s;
    const int64_t position = first + u->x.position;
    const bool edge = p->first < position + n - 1 - s->left ||
                      p->first + p->n - 1 > position + s->right;
    vi hidden = { 0 };

    for (int j = 0; j < n; j++) {
        vf *row = u->p + j * p->vectors;
        /* Beyond +-2^24 lanes there is no edge within the panel. */
        const int64_t low = attn_max(position + j - s->left - p->first, -(1 << 24));
        const int64_t high = attn_min(position + j + s->right - p->first, 1 << 24);

        if (attn_host_terms(s))
            attn_terms_row(u->taken, &u->terms, first + j, p->first, p->n);
        for (int v = 0; v < p->vectors; v++) {
            const vi lane = vi_lanes() + v * LANES;

            if (attn_host_terms(s)) {
                const vf term = vf_load(u->taken + v * LANES);

                row[v] = attn_terms_add(row[v], term);
                hidden |= term == -INFINITY;
            }
            if (edge)
                row[v] = vf_select((lane >= (int)attn_min(low, 1 << 24)) &
                                       (lane <= (int)attn_max(high, -(1 << 24))),
                                   row[v], vf_set(-INFINITY));
        }
    }
    return vi_any(hidden);
}

/* The factors of dropout of panel p and n rows from `first` on, to u->kept; takes dP by
 * them. */
static inline void back_drop(const back *u, const back_panel *p,
                                                int64_t first, int n)
{
    if (u->keys)
        drop_keys(u->kept, &u->drop, p->first, first, n, p->vectors);
    else
        drop_queries(u->kept, &u->drop, p->first, first, n, p->vectors);
    for (int x = 0; x < n * p->vectors; x++)
        u->ds[x] = vf_keep(u->kept[x] != 0.0f, u->ds[x] * u->kept[x]);
}

/* P (before dropout) and dS (before the cap) of panel p and n rows from `first` on, the
 * first of which is row `at` of those that were taken. Returns how many runs of rows, in
 * u->live, weigh something. */
static inline int back_pairs(const back *u, const back_panel *p, int64_t first, int n, int at)
{
    const attn_host_softmax *s = u->s;
    const panel_keys count = { .n = n };
    const int v = p->vectors - 1;
    bool hidden;

    back_dots[v](u->p, u->rows_a + at * u->a_step, u->a_step, n, p->a, s->dim_qk, s->scale);
    if (back_is_there(&s->t.grad_o))
        back_dots[v](u->ds, u->rows_b + at * u->b_step, u->b_step, n, p->b, s->dim_v, 1);
    else
        memset(u->ds, 0, (size_t)(n * p->vectors) * sizeof *u->ds);
    if (u->kept)
        back_drop(u, p, first, n);
    if (s->softcap > 0)
        back_softcap(u, n * p->vectors);
    hidden = u->keys ? back_score_keys(u, p, first, n) : back_score_queries(u, p, first, n);
    if (u->keys)
        back_weigh[v](u->p, u->ds, n, u->row_lse + at, u->row_delta + at, true);
    else
        back_weigh[v](u->p, u->ds, n, p->lse, p->delta, false);
    if (hidden)
        return panel_live(u->live, u->p, &count, p->vectors);
    u->live[0] = (panel_run){ 0, n };
    return 1;
}

#endif
