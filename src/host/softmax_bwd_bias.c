/* SPDX-License-Identifier: MIT */
/* host/softmax_bwd_bias.c: the pass of softmax_bwd_tile that computes the dBias of a bias
 * that was broadcast. Compiled once per instruction level.
 *
 * Method    a unit has some elements of dBias for itself, and visits every pair that they
 *           were added to: in a dimension that dBias has, a tile of it; in one that was
 *           broadcast, all of it. Keys lie along the lanes, queries are the rows
 * Units     (tiles of keys, or 1) * (tiles of queries, or 1) * heads or 1 * batches or 1
 * Numerics  dS in f32, their sums in double, rounded once
 */
#include "host/back.h"
#include "host/level.h"

#define JOIN2(a, b) a##b
#define JOIN(a, b)  JOIN2(a, b)

/* What one unit has, and the rest: dimensions as [B, H, Lq, Lk]. */
typedef struct share {
    int64_t first[4], end[4]; /* elements of dBias that it has            */
    int64_t from[4], to[4];   /* of the pairs                             */
} share;

/* Tiles of queries are tile_k rows, those of keys one panel. */
static int64_t tiles_of(const attn_host_softmax *s, int dimension)
{
    const int64_t size = s->t.grad_bias.size[dimension];

    return dimension == 2   ? attn_ceil_div(size, s->tile_k)
           : dimension == 3 ? attn_ceil_div(size, BACK_PANEL)
                            : size;
}

int64_t JOIN(attn_host_softmax_bwd_bias_units_, ATTN_LEVEL)(const attn_host_softmax *s)
{
    return tiles_of(s, 0) * tiles_of(s, 1) * tiles_of(s, 2) * tiles_of(s, 3);
}

static share share_of(const attn_host_softmax *s, int64_t n)
{
    const int64_t full[4] = { s->batch, s->heads_q, s->len_q, s->len_kv };
    const int64_t tile[4] = { 1, 1, s->tile_k, BACK_PANEL };
    share x;

    for (int k = 3; k >= 0; k--) {
        const int64_t size = s->t.grad_bias.size[k], tiles = tiles_of(s, k);
        const bool whole = size == full[k];

        x.first[k] = n % tiles * tile[k];
        x.end[k] = attn_min(x.first[k] + tile[k], size);
        x.from[k] = whole ? x.first[k] : 0;
        x.to[k] = whole ? x.end[k] : full[k];
        n /= tiles;
    }
    return x;
}

/* Adds dS of a panel of keys and a tile of queries. With `apart`, row i of the sums is
 * query i of the unit's, else all rows are one. */
static void add_tile(const back *u, const back_panel *p, int64_t first, int n, int64_t row,
                     bool apart)
{
    const int lanes = p->vectors * LANES;
    const float *ds = (const float *)u->ds;

    back_pairs(u, p, first, n, 0);
    for (int j = 0; j < n; j++) {
        double *to = u->sums + (apart ? (row + j) * BACK_PANEL : 0);

        for (int x = 0; x < p->n; x++)
            to[x] += (double)ds[j * lanes + x];
    }
}

/* The pairs of one head: panels of keys, each with the queries that see it. */
static void add_head(back *u, const share *x, bool apart)
{
    const int64_t tile = u->s->tile_k;

    for (int64_t j = x->from[3]; j < x->to[3]; j += BACK_PANEL) {
        back_panel p;
        attn_range r;

        back_own(u, j);
        u->n = (int)attn_min(u->n, BACK_PANEL);
        if (u->n <= 0)
            return;
        p = back_panel_at(u, 0);
        r = back_range(u, &p);
        r.first = attn_max(r.first, x->from[2]);
        r.end = attn_min(r.end, x->to[2]);
        if (r.first >= r.end)
            continue;
        back_take_own(u, &p);
        for (int64_t i = r.first, next; i < r.end; i = next) {
            next = attn_min(attn_round_down(i, tile) + tile, r.end);
            back_take_rows(u, i, (int)(next - i));
            add_tile(u, &p, i, (int)(next - i), i - x->from[2], apart);
        }
    }
}

/* Where keys were broadcast, the lanes are one element. */
static void store(const back *u, const share *x)
{
    const attn_tensor *t = &u->s->t.grad_bias;
    const bool wide = t->size[3] == u->s->len_kv;

    for (int64_t i = x->first[2]; i < x->end[2]; i++) {
        const double *sums = u->sums + (i - x->first[2]) * BACK_PANEL;
        const int64_t at = attn_host_pair_at(t, x->first[0], x->first[1], i, x->first[3]);
        double all = 0;

        for (int l = 0; l < BACK_PANEL; l++)
            all += sums[l];
        for (int64_t j = x->first[3]; j < x->end[3]; j++)
            ((float *)t->data)[at + (j - x->first[3]) * t->stride[3]] =
                (float)(wide ? sums[j - x->first[3]] : all);
    }
}

void JOIN(attn_host_softmax_bwd_bias_, ATTN_LEVEL)(const attn_host_softmax *s, int64_t n,
                                                   float *scratch)
{
    const share x = share_of(s, n);
    const bool apart = s->t.grad_bias.size[2] == s->len_q;
    back u = back_make(s, true, scratch);

    memset(u.sums, 0, (size_t)(u.rows * BACK_PANEL) * sizeof *u.sums);
    for (int64_t b = x.from[0]; b < x.to[0]; b++)
        for (int64_t h = x.from[1]; h < x.to[1]; h++) {
            back_batch(&u, b);
            back_head(&u, h);
            add_head(&u, &x, apart);
        }
    store(&u, &x);
}
