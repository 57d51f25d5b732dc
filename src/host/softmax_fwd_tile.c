/* SPDX-License-Identifier: MIT */
/* host/softmax_fwd_tile.c: softmax attention forward, one tile of queries per
 * unit of work. Compiled once per instruction level.
 *
 * Computes  O and LSE as written in include/attn/softmax.h
 * Method    online softmax (papers there): fold key tiles into the row state
 *           (m, l, o); queries lie along the lanes, see host/panel.h;
 *           the arithmetic is in host/panel_fold.h
 * Units     ceil(Lq / tile_q) * B * Hq, the last queries (under a causal rule the
 *           longest) first, handed out one by one to the threads
 * Key range exactly the keys that a query of the tile sees: other rows of K and V
 *           are not read. Only panels on the edge of visibility select. A key that
 *           mask or bias hide from a whole panel is not multiplied with its value
 * Layout    any types and strides; K and V are converted once per key tile
 * Numerics  scores, m, l, o in f32; empty row: O = 0, LSE = -Inf. Sums at three
 *           levels, lest errors grow with Lk: a key tile, a span of SPAN key tiles,
 *           the total, which is compensated (move)
 * Scratch   of one thread, in floats, in this order (panel = NV * LANES, Dv8 = Dv
 *           rounded up to 8, rows = tile_k rounded up to 8; nothing is allocated):
 *               per panel of the tile:  q [D][panel], o [Dv8][panel],
 *                                       m [panel], l [panel], totals of o, m, l
 *               scores [rows][panel], V [Dv8 / 4][rows + 4][4], one row of V [Dv8],
 *               K [rows][D]; if scores have terms [panel][rows + 24] of them and runs
 *               of keys [rows / 2 + 1][2]
 *           = roundup(tile_q, panel) * (D + 2 * Dv8 + 4) + rows * (panel + D + Dv8)
 *             + 5 * Dv8 (+ panel * (rows + 24) + rows + 2)
 *           (4 rows more: a power of two between blocks would share few cache sets)
 * Tunables  LANES, NV (2 or 3), MR (4 or 8): f32 lanes, vectors of a panel, rows or
 *           values per register block; set per level by src/host/meson.build
 * Bits      of a row depend on its query, the keys it sees and tile_k: not on B, H,
 *           Lq, tile_q, strides or the number of threads. Wants -ffp-contract=fast (gcc
 *           turns contraction off with -std=c11)
 * Oracle    host/softmax_fwd_reference.c
 */
#include "host/softmax.h"

#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "host/address.h"
#include "host/drop.h"
#include "host/level.h"
#include "host/panel.h"
#include "host/panel_score.h"
#include "host/row.h"
#include "host/score.h"

#define VECTORS 1
#include "host/panel_fold.h"
#undef VECTORS
#define VECTORS 2
#include "host/panel_fold.h"
#undef VECTORS
#if NV == 3
#define VECTORS 3
#include "host/panel_fold.h"
static panel_fold_fn *const folds[NV] = { panel_fold_1, panel_fold_2, panel_fold_3 };
#else
static panel_fold_fn *const folds[NV] = { panel_fold_1, panel_fold_2 };
#endif

#define JOIN2(a, b) a##b
#define JOIN(a, b)  JOIN2(a, b)
#define PANEL       (NV * LANES)
#define AHEAD       8  /* rows fetched ahead of the one being taken */
#define SPAN        16 /* key tiles summed before they move to the total */

/* One unit of work: a tile of queries of one head, and this thread's scratch. */
typedef struct unit {
    const attn_host_softmax *s;
    int64_t b, h, kvh, first; /* first query                                 */
    int queries;
    attn_sequence x; /* of the batch                                */
    int64_t rows, dim_v8;
    int64_t v_block; /* elements from one block of V to the next    */
    float *panels, *scores, *v, *v_row, *k;
    float *taken; /* for the terms, see panel_keys               */
    int64_t taken_step;
    panel_run *live;
    attn_terms terms;
    attn_dropout drop;
} unit;

/* Floats of a panel for one query. */
static int64_t panel_floats(const attn_host_softmax *s)
{
    return s->dim_qk + 2 * attn_round_up(s->dim_v, 8) + 4;
}

static unit unit_make(const attn_host_softmax *s, int64_t n, float *scratch)
{
    int64_t heads = s->batch * s->heads_q, tiles = attn_ceil_div(s->len_q, s->tile_q);
    int64_t b = n % heads / s->heads_q, h = n % s->heads_q;
    int64_t first = (tiles - 1 - n / heads) * s->tile_q;
    unit u = {
        .s = s,
        .b = b,
        .h = h,
        .kvh = h / (s->heads_q / s->heads_kv),
        .first = first,
        .x = attn_host_sequence(s, b),
        .rows = attn_round_up(s->tile_k, 8),
        .dim_v8 = attn_round_up(s->dim_v, 8),
        .panels = scratch,
        .v_block = (attn_round_up(s->tile_k, 8) + 4) * VB,
    };

    u.queries = (int)attn_max(0, attn_min(s->tile_q, u.x.queries - first));
    u.scores = u.panels + attn_round_up(s->tile_q, PANEL) * panel_floats(s);
    u.v = u.scores + u.rows * PANEL;
    u.v_row = u.v + u.dim_v8 / VB * u.v_block;
    u.k = u.v_row + u.dim_v8;
    u.taken = u.k + u.rows * s->dim_qk;
    u.taken_step = u.rows + 24;
    u.live = (panel_run *)(u.taken + PANEL * u.taken_step);
    if (attn_host_terms(s))
        u.terms = attn_terms_of(s, &u.x, b, h);
    if (s->dropout > 0)
        u.drop = attn_host_dropout(s, b, h);
    return u;
}

/* Panel x of the tile. A short one has only as many vectors as it needs, so
 * that a single query costs one vector and not NV. */
static panel panel_at(const unit *u, int x)
{
    int queries = (int)attn_min(PANEL, u->queries - x * PANEL);
    int vectors = (queries + LANES - 1) / LANES;
    vf *q = (vf *)(u->panels + x * PANEL * panel_floats(u->s));
    vf *o = q + u->s->dim_qk * vectors, *m = o + u->dim_v8 * vectors;
    vf *total_o = m + 2 * vectors, *total_m = total_o + u->dim_v8 * vectors;

    return (panel){ .q = q,
                    .o = o,
                    .m = m,
                    .l = m + vectors,
                    .total_o = total_o,
                    .total_m = total_m,
                    .total_l = total_m + vectors,
                    .vectors = vectors,
                    .queries = queries,
                    .first = u->first + x * PANEL };
}

static void panel_start(const unit *u, const panel *p)
{
    const attn_host_softmax *s = u->s;
    int lanes = p->vectors * LANES;

    for (int x = 0; x < lanes; x++) {
        float *q = (float *)p->q + x;
        if (x < p->queries) {
            attn_row_load(u->k, &s->t.q,
                          attn_host_query_at(s, &s->t.q, &u->x, u->b, u->h, p->first + x),
                          s->dim_qk);
            for (int64_t d = 0; d < s->dim_qk; d++)
                q[d * lanes] = u->k[d];
        } else {
            for (int64_t d = 0; d < s->dim_qk; d++)
                q[d * lanes] = 0;
        }
    }
    for (int64_t d = 0; d < u->dim_v8 * p->vectors; d++)
        p->o[d] = p->total_o[d] = vf_set(0);
    for (int v = 0; v < p->vectors; v++) {
        p->m[v] = p->total_m[v] = vf_set(-INFINITY);
        p->l[v] = p->total_l[v] = vf_set(0);
    }
}

/* total = total * alpha + part, dropping the old total where alpha is 0 (see `value`
 * in panel_fold.h). What the rounding took away stays in `part`, for the next time,
 * but only if too little to change the total now: to move twice is then to move once,
 * and nothing stays of what is not finite. */
static inline void move(vf *total, vf *part, vf alpha)
{
    vf old = vf_keep(alpha != 0.0f, *total) * alpha, sum = old + *part;
    vf rest = *part - (sum - old);

    *part = vf_keep(sum + rest == sum, rest);
    *total = sum;
}

/* Moves the sums of a span of key tiles to the totals. */
static void panel_total(const unit *u, const panel *p)
{
    const float log2e = 0x1.715476p0f;
    bool want_o = u->s->t.o.type != ATTN_TYPE_NONE;

    for (int v = 0; v < p->vectors; v++) {
        vf base = vf_keep(p->m[v] != -INFINITY, p->m[v]);
        vf alpha = vf_exp2((p->total_m[v] - base) * log2e);

        p->total_m[v] = p->m[v];
        move(&p->total_l[v], &p->l[v], alpha);
        for (int64_t d = v; want_o && d < u->dim_v8 * p->vectors; d += p->vectors)
            move(&p->total_o[d], &p->o[d], alpha);
    }
}

/* Takes a sink into the totals, and writes what O is multiplied by to p->l. After all keys:
 * held against a sink of +inf, hidden ones would not weigh 0. Its own weight is 1 where it
 * is the largest, also then. */
static void panel_sink(const panel *p, float sink)
{
    float *m = (float *)p->total_m, *l = (float *)p->total_l, *factor = (float *)p->l;

    for (int x = 0; x < p->vectors * LANES; x++) {
        const bool none = l[x] == 0;
        const float top = sink > m[x] ? sink : m[x], base = top == -INFINITY ? 0 : top;
        const float kept = none ? 0 : expf(m[x] - base);

        l[x] = l[x] * kept + (sink == base ? 1 : expf(sink - base));
        m[x] = top;
        factor[x] = none ? 0 : kept / l[x];
    }
}

static void panel_finish(const unit *u, const panel *p)
{
    const attn_host_softmax *s = u->s;
    int lanes = p->vectors * LANES;
    const float *m = (const float *)p->total_m, *l = (const float *)p->total_l;
    bool want_o = s->t.o.type != ATTN_TYPE_NONE, sinks = s->t.sinks.type != ATTN_TYPE_NONE;

    if (sinks)
        panel_sink(p, attn_host_sink(s, u->h));
    for (int v = 0; want_o && v < p->vectors; v++) {
        vi some = p->total_l[v] != 0.0f;
        for (int64_t d = v; d < s->dim_v * p->vectors; d += p->vectors)
            if (sinks)
                p->total_o[d] *= p->l[v];
            else
                p->total_o[d] = vf_keep(some, p->total_o[d] / p->total_l[v]);
    }
    for (int x = 0; x < p->queries; x++) {
        if (want_o)
            attn_row_store(&s->t.o,
                           attn_host_query_at(s, &s->t.o, &u->x, u->b, u->h, p->first + x),
                           (const float *)p->total_o + x, lanes, s->dim_v);
        if (s->t.lse.type != ATTN_TYPE_NONE)
            ((float *)s->t.lse
                 .data)[attn_host_query_at(s, &s->t.lse, &u->x, u->b, u->h, p->first + x)] =
                l[x] == 0 ? -INFINITY : (float)(m[x] + log(l[x]));
    }
}

/* Takes keys j .. j + n - 1 of K, row by row, and of V, in blocks of VB columns, to
 * the scratch. Every panel then reads them in order, key after key, whatever the
 * type and the strides were; in place it was slower, even for a single query. */
static void take_keys(const unit *u, int64_t j, int n)
{
    const attn_tensor *k = &u->s->t.k;
    int64_t at = attn_host_key_at(u->s, k, &u->x, u->b, u->kvh, j), step = k->stride[2];
    int64_t dim = u->s->dim_qk;

    for (int x = 0; x < n; x++) {
        if (x)
            at = attn_host_key_next(u->s, k, &u->x, u->b, u->kvh, j + x, at);
        attn_row_fetch(k, at + AHEAD * step, dim);
        attn_row_load(u->k + x * dim, k, at, dim);
    }
}

static void take_values(const unit *u, int64_t j, int n)
{
    const attn_tensor *v = &u->s->t.v;
    int64_t at = attn_host_key_at(u->s, v, &u->x, u->b, u->kvh, j), step = v->stride[2];
    int64_t dim = u->s->dim_v;

    for (int64_t d = dim; d < u->dim_v8; d++)
        u->v_row[d] = 0;
    for (int x = 0; x < n; x++) {
        if (x)
            at = attn_host_key_next(u->s, v, &u->x, u->b, u->kvh, j + x, at);
        attn_row_fetch(v, at + AHEAD * step, dim);
        attn_row_load(u->v_row, v, at, dim);
        for (int64_t d = 0; d < u->dim_v8; d += VB)
            memcpy(u->v + x * VB + d / VB * u->v_block, u->v_row + d, VB * sizeof *u->v);
    }
}

/* Folds keys first .. end - 1 into a panel; `row` is the first one's in the scratch. */
static void fold(const unit *u, const panel *p, int64_t first, int64_t end, int64_t row)
{
    const attn_host_softmax *s = u->s;
    int64_t position = p->first + u->x.position, last = position + p->queries - 1;
    panel_keys t = {
        .k = u->k + row * s->dim_qk,
        .v = s->t.o.type != ATTN_TYPE_NONE ? u->v + row * VB : NULL,
        .block = u->v_block,
        .first = first,
        .n = (int)(end - first),
        .scale = s->scale,
        .softcap = s->softcap,
        .edge = first < last - s->left || end - 1 > position + s->right,
        /* Beyond +-2^24 rows there is no edge within the tile. */
        .low = (int)attn_max(position - s->left - first, -(1 << 24)),
        .high = (int)attn_min(position + s->right - first, 1 << 24),
        .drop = s->dropout > 0 ? &u->drop : NULL,
        .terms = attn_host_terms(s) ? &u->terms : NULL,
        .taken = u->taken,
        .taken_step = u->taken_step,
        .live = u->live,
    };

    folds[p->vectors - 1](p, &t, (vf *)u->scores, s->dim_qk, s->dim_v);
}

/* Folds keys j .. j + n - 1 into all panels, each over those that it sees. */
static void key_tile(const unit *u, int64_t j, int n)
{
    take_keys(u, j, n);
    if (u->s->t.o.type != ATTN_TYPE_NONE)
        take_values(u, j, n);
    for (int x = 0; x * PANEL < u->queries; x++) {
        panel p = panel_at(u, x);
        attn_range r = attn_host_range(u->s, &u->x, p.first, p.queries);
        int64_t first = attn_max(r.first, j), end = attn_min(r.end, j + n);
        if (first < end)
            fold(u, &p, first, end, first - j);
    }
}

/* Key tiles begin at multiples of tile_k and spans end at multiples of SPAN tiles, so
 * that a row's bits do not depend on which other queries share its tile. */
static void unit_run(const attn_host_softmax *s, int64_t n, float *scratch)
{
    unit u = unit_make(s, n, scratch);
    attn_range r = attn_host_range(s, &u.x, u.first, u.queries);

    for (int x = 0; x * PANEL < u.queries; x++) {
        panel p = panel_at(&u, x);
        panel_start(&u, &p);
    }
    for (int64_t j = r.first, next; j < r.end; j = next) {
        next = attn_min(attn_round_down(j, s->tile_k) + s->tile_k, r.end);
        key_tile(&u, j, (int)(next - j));
        for (int x = 0; next % (SPAN * s->tile_k) == 0 && x * PANEL < u.queries; x++) {
            panel p = panel_at(&u, x);
            panel_total(&u, &p);
        }
    }
    for (int x = 0; x * PANEL < u.queries; x++) {
        panel p = panel_at(&u, x);
        panel_total(&u, &p);
        panel_finish(&u, &p);
    }
}

void JOIN(attn_host_softmax_fwd_tile_, ATTN_LEVEL)(const attn_host_softmax *s)
{
    int64_t units = s->batch * s->heads_q * attn_ceil_div(s->len_q, s->tile_q);

#ifdef _OPENMP
#pragma omp parallel for num_threads(s->threads) schedule(dynamic)
    for (int64_t n = 0; n < units; n++)
        unit_run(s, n,
                 (float *)((char *)s->workspace +
                           (size_t)omp_get_thread_num() * s->scratch_bytes));
#else
    for (int64_t n = 0; n < units; n++)
        unit_run(s, n, s->workspace);
#endif
}
