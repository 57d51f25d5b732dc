/* SPDX-License-Identifier: MIT */
/* host/softmax_bwd_tile.c: gradients of softmax attention by tiles. Compiled once per
 * instruction level.
 *
 * Computes  dQ, dK, dV, dBias and dSinks as written in include/attn/softmax.h, those that
 *           are there
 * Method    T. Dao, "FlashAttention-2" (2023), in passes that share no output, so that
 *           nothing is added atomically: delta of every query; dQ by tiles of queries,
 *           which visit the keys; dK and dV by tiles of keys, which visit the queries of
 *           all heads that read them, and a dBias that has every pair to itself; any
 *           other dBias (softmax_bwd_bias.c); dSinks by heads. Weights are computed again
 *           from the LSE in each
 * Units     dQ: ceil(Lq / tile_q) * B * Hq, dK and dV: ceil(Lk / tile_q) * B * Hkv, those
 *           that visit most under a causal rule first, handed out one by one
 * Ranges    exactly what is visited: other rows are not read. A key that mask or bias
 *           hide from a whole panel is not multiplied
 * Layout    any types and strides; rows are converted once per tile
 * Numerics  f32. Sums at three levels, lest errors grow with the length: a tile of tile_k
 *           rows, a span of SPAN tiles, the total. delta, dBias and dSinks in double, each
 *           rounded once
 * Scratch   of one thread as host/back.h lays it out; then delta [B, Hq, Lq] in f32
 * Tunables  LANES, NV, MR: as in softmax_fwd_tile.c
 * Bits      of a row depend on the rows that it sees and tile_k: not on B, H, tile_q,
 *           strides, the number of threads, or what else is asked for. Wants
 *           -ffp-contract=fast
 * Oracle    host/softmax_bwd_reference.c
 */
#include "host/softmax.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#include "host/back.h"
#include "host/level.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b)  JOIN2(a, b)
#define SPAN        16 /* tiles of rows summed before they move to the total */

/* delta of query i; the rows are taken to the scratch. Where O is 0, as it is in rows that see
 * no key, dO counts for nothing, whatever it is. */
static float delta_of(const back *u, int64_t i)
{
    const attn_args *t = &u->s->t;
    double sum = 0;

    if (back_is_there(&t->grad_o)) {
        float *const grad = u->rows_b, *const o = grad + u->b_step;

        attn_row_load(grad, &t->grad_o, back_query_at(u, &t->grad_o, i), u->s->dim_v);
        attn_row_load(o, &t->o, back_query_at(u, &t->o, i), u->s->dim_v);
        for (int64_t e = 0; e < u->s->dim_v; e++)
            sum += o[e] != 0 ? (double)grad[e] * (double)o[e] : 0;
    }
    if (back_is_there(&t->grad_lse))
        sum -= (double)((const float *)t->grad_lse.data)[back_query_at(u, &t->grad_lse, i)];
    return (float)sum;
}

/* Of queries n * tile_q and on, of all batches and heads. */
static void delta_unit(const attn_host_softmax *s, int64_t n, float *scratch)
{
    const int64_t tiles = attn_ceil_div(s->len_q, s->tile_q);
    back u = back_make(s, false, scratch);

    back_batch(&u, n / tiles / s->heads_q);
    back_head(&u, n / tiles % s->heads_q);
    back_own(&u, n % tiles * s->tile_q);
    for (int64_t i = u.first; i < u.first + u.n; i++)
        back_deltas(s)[(u.b * s->heads_q + u.h) * s->len_q + i] = delta_of(&u, i);
}

/* Whether dBias has every pair to itself: then the pass of dK and dV writes it, and what no
 * query of it sees is 0 before. */
static bool bias_is_whole(const attn_host_softmax *s)
{
    const int64_t *size = s->t.grad_bias.size;

    return back_is_there(&s->t.grad_bias) && size[0] == s->batch && size[1] == s->heads_q &&
           size[2] == s->len_q && size[3] == s->len_kv;
}

/* Zeros in row n of dBias. */
static void zero_unit(const attn_host_softmax *s, int64_t n, float *scratch)
{
    const attn_tensor *t = &s->t.grad_bias;
    const int64_t bh = n / s->len_q;
    float *to = (float *)t->data +
                attn_host_pair_at(t, bh / s->heads_q, bh % s->heads_q, n % s->len_q, 0);

    (void)scratch;
    for (int64_t j = 0; j < s->len_kv; j++)
        to[j * t->stride[3]] = 0;
}

/* dS of panel p of keys and n queries from `first` on, before the cap. */
static void store_bias(const back *u, const back_panel *p, int64_t first, int n)
{
    const attn_tensor *t = &u->s->t.grad_bias;
    const int lanes = p->vectors * LANES;

    for (int j = 0; j < n; j++) {
        const float *ds = (const float *)u->ds + j * lanes;
        float *to =
            (float *)t->data + attn_host_pair_at(t, u->b, u->h, first + j, p->first);

        if (t->stride[3] == 1)
            memcpy(to, ds, (size_t)p->n * sizeof *to);
        for (int x = 0; t->stride[3] != 1 && x < p->n; x++)
            to[x * t->stride[3]] = ds[x];
    }
}

static void start(const back_panel *p, const back *u)
{
    memset(p->da, 0, (size_t)(2 * (u->d8 + u->dv8) * p->vectors) * sizeof *p->da);
}

static void move(vf *total, vf *part, int64_t n)
{
    for (int64_t x = 0; x < n; x++) {
        total[x] += part[x];
        part[x] = vf_set(0);
    }
}

/* Moves the sums of a span to the totals. */
static void total(const back_panel *p, const back *u)
{
    move(p->total_a, p->da, u->d8 * p->vectors);
    if (u->keys)
        move(p->total_b, p->db, u->dv8 * p->vectors);
}

/* Adds n rows from `first` on, of which row `at` is the first of those that were taken. */
static void add_rows(const back *u, const back_panel *p, int64_t first, int n, int at)
{
    const attn_args *t = &u->s->t;
    const int v = p->vectors - 1, runs = back_pairs(u, p, first, n, at);

    for (int x = 0; u->kept && u->keys && x < n * p->vectors; x++)
        u->p[x] *= u->kept[x];
    if (u->keys && back_is_there(&t->grad_v) && back_is_there(&t->grad_o))
        back_sums[v](p->db, u->p, u->live, runs, u->rows_b + at * u->b_step, u->b_step,
                     u->s->dim_v);
    if (u->keys && bias_is_whole(u->s))
        store_bias(u, p, first, n);
    if (u->keys && !back_is_there(&t->grad_k))
        return;
    for (int x = 0; u->s->softcap > 0 && x < n * p->vectors; x++)
        u->ds[x] = vf_keep(u->ds[x] != 0.0f, u->ds[x] * u->cap[x]);
    back_sums[v](p->da, u->ds, u->live, runs, u->rows_a + at * u->a_step, u->a_step,
                 u->s->dim_qk);
}

/* All rows that one of the panels visits, a tile at a time, each panel those that it
 * visits. Tiles begin at multiples of tile_k and spans end at multiples of SPAN tiles. */
static void visit(const back *u)
{
    const int64_t tile = u->s->tile_k;
    const attn_range r = u->keys ? attn_host_queries(u->s, &u->x, u->first, u->n)
                                 : attn_host_range(u->s, &u->x, u->first, u->n);

    for (int64_t j = r.first, next; j < r.end; j = next) {
        next = attn_min(attn_round_down(j, tile) + tile, r.end);
        back_take_rows(u, j, (int)(next - j));
        for (int x = 0; x * BACK_PANEL < u->n; x++) {
            const back_panel p = back_panel_at(u, x);
            const attn_range mine = back_range(u, &p);
            const int64_t first = attn_max(mine.first, j), end = attn_min(mine.end, next);

            if (first < end)
                add_rows(u, &p, first, (int)(end - first), (int)(first - j));
            if (next % (SPAN * tile) == 0)
                total(&p, u);
        }
    }
    for (int x = 0; x * BACK_PANEL < u->n; x++) {
        const back_panel p = back_panel_at(u, x);
        total(&p, u);
    }
}

/* Lane x of `from` [dim][vectors], times a factor, becomes a row. */
static void store(const back_panel *p, const attn_tensor *t, int64_t at, int x, vf *from,
                  int64_t dim)
{
    attn_row_store(t, at, (const float *)from + x, p->vectors * LANES, dim);
}

static void finish(const back *u, const back_panel *p)
{
    const attn_args *t = &u->s->t;
    const int64_t d = u->s->dim_qk, dv = u->s->dim_v;

    for (int64_t x = 0; x < d * p->vectors; x++)
        p->total_a[x] *= u->s->scale;
    for (int x = 0; x < p->n; x++) {
        const int64_t i = p->first + x;

        if (!u->keys)
            store(p, &t->grad_q, back_query_at(u, &t->grad_q, i), x, p->total_a, d);
        if (u->keys && back_is_there(&t->grad_k))
            store(p, &t->grad_k, back_key_at(u, &t->grad_k, i), x, p->total_a, d);
        if (u->keys && back_is_there(&t->grad_v))
            store(p, &t->grad_v, back_key_at(u, &t->grad_v, i), x, p->total_b, dv);
    }
}

static void start_all(const back *u)
{
    for (int x = 0; x * BACK_PANEL < u->n; x++) {
        const back_panel p = back_panel_at(u, x);
        back_take_own(u, &p);
        start(&p, u);
    }
}

static void finish_all(const back *u)
{
    for (int x = 0; x * BACK_PANEL < u->n; x++) {
        const back_panel p = back_panel_at(u, x);
        finish(u, &p);
    }
}

static void query_unit(const attn_host_softmax *s, int64_t n, float *scratch)
{
    const int64_t heads = s->batch * s->heads_q, tiles = attn_ceil_div(s->len_q, s->tile_q);
    back u = back_make(s, false, scratch);

    back_batch(&u, n % heads / s->heads_q);
    back_head(&u, n % s->heads_q);
    back_own(&u, (tiles - 1 - n / heads) * s->tile_q);
    start_all(&u);
    visit(&u);
    finish_all(&u);
}

static void key_unit(const attn_host_softmax *s, int64_t n, float *scratch)
{
    const int64_t heads = s->batch * s->heads_kv, group = s->heads_q / s->heads_kv;
    const int64_t kvh = n % s->heads_kv;
    back u = back_make(s, true, scratch);

    back_batch(&u, n % heads / s->heads_kv);
    back_head(&u, kvh * group);
    back_own(&u, n / heads * s->tile_q);
    start_all(&u);
    for (int64_t h = kvh * group; h < (kvh + 1) * group; h++) {
        back_head(&u, h);
        visit(&u);
    }
    finish_all(&u);
}

/* dSink of head h. */
static void sink_unit(const attn_host_softmax *s, int64_t h, float *scratch)
{
    const attn_tensor *t = &s->t.grad_sinks;
    const double sink = (double)attn_host_sink(s, h);
    back u = back_make(s, false, scratch);
    double sum = 0;

    for (int64_t b = 0; b < s->batch && sink != -INFINITY; b++) {
        back_batch(&u, b);
        back_head(&u, h);
        for (int64_t i = 0; i < u.x.queries; i++) { /* an LSE of +Inf: no key, no sink */
            const double over = sink - (double)back_lse(&u, i);

            sum -= (over <= 0 ? exp(over) : 1) * (double)back_delta(&u, i); /* of +inf: 1 */
        }
    }
    ((float *)t->data)[t->offset + h * t->stride[1]] = (float)sum;
}

typedef void unit_fn(const attn_host_softmax *s, int64_t n, float *scratch);

static void run(const attn_host_softmax *s, int64_t units, unit_fn *unit)
{
#ifdef _OPENMP
#pragma omp parallel for num_threads(s->threads) schedule(dynamic)
    for (int64_t n = 0; n < units; n++)
        unit(s, n,
             (float *)((char *)s->workspace +
                       (size_t)omp_get_thread_num() * s->scratch_bytes));
#else
    for (int64_t n = 0; n < units; n++)
        unit(s, n, s->workspace);
#endif
}

void JOIN(attn_host_softmax_bwd_tile_, ATTN_LEVEL)(const attn_host_softmax *s)
{
    const int64_t tiles_q = attn_ceil_div(s->len_q, s->tile_q);
    const int64_t tiles_k = attn_ceil_div(s->len_kv, s->tile_q);

    run(s, s->batch * s->heads_q * tiles_q, delta_unit);
    if (back_is_there(&s->t.grad_q))
        run(s, s->batch * s->heads_q * tiles_q, query_unit);
    if (bias_is_whole(s))
        run(s, s->batch * s->heads_q * s->len_q, zero_unit);
    if (back_is_there(&s->t.grad_k) || back_is_there(&s->t.grad_v) || bias_is_whole(s))
        run(s, s->batch * s->heads_kv * tiles_k, key_unit);
    if (back_is_there(&s->t.grad_bias) && !bias_is_whole(s))
        run(s, JOIN(attn_host_softmax_bwd_bias_units_, ATTN_LEVEL)(s),
            JOIN(attn_host_softmax_bwd_bias_, ATTN_LEVEL));
    if (back_is_there(&s->t.grad_sinks))
        run(s, s->heads_q, sink_unit);
}
