/* SPDX-License-Identifier: MIT */
/* softmax/bwd_tile_cpu.cl: gradients of softmax attention for processors: one work-item
 * computes the dQ of a tile of queries, or the dK and dV of a tile of keys, on vectors,
 * without barriers.
 *
 * Computes  dQ; with KEYS dK and dV, those that are there; as in include/attn/softmax.h
 * Method    FlashAttention-2 (Dao 2023) in passes that share no output, so that nothing is
 *           added atomically: each computes the weights again from the LSE. What a tile
 *           owns lies along the lanes, in panels of NR = NV * VW, transposed in scratch;
 *           what it visits are rows, which enter as broadcasts of single elements
 *           (panel_products.clh). A tile of keys visits the queries of all heads that read
 *           them, head by head. No operation crosses the lanes
 * Grid      1-D, dQ: ceil(Lq / BR) * Hq * B work-items, KEYS: ceil(Lk / BR) * Hkv * B, tiles
 *           fastest; first those that visit most under a causal rule
 * Group     1 work-item
 * Local     scratch of the one item, in f32 and bytes, with N = KEYS ? D + DV : D and both
 *           padded to MR:
 *             4 * ( BR * (D + DV + 2 * N + 2)                 own; gradients, twice; LSE
 *                 + BC * (D + DV + 16 + 2)                    rows; LSE, delta
 *                 + 2 * ceil(BC / MR) * MR * NR               weights, dS
 *                 + (terms ? ceil(BC / VW) * VW * NR : VW) )
 *           and up to 256 more for alignment. Terms: of bias and mask
 * Layout    any strides, in elements; CONTIG_ macros promise stride 1
 * Numerics  f32. Steps lie on a grid: the bits of a row depend on what it visits and BC, not
 *           on B, H, the tile, or what else is asked for. Sums at three levels, lest errors
 *           grow with the length: a step, a span of SPAN steps, the total
 * Features  all but pages, through common/ and softmax/panel_terms.clh. Rows that a mask or
 *           a bias of -inf hides from a whole panel are not multiplied
 * Requires  delta in the workspace (bwd_delta.cl); no barrier, no subgroup
 * Tunables  KEYS; VW NV MR BR BC, as fwd_tile_cpu.cl
 * Oracle    src/host/softmax_bwd_reference.c
 */
#ifndef VW
#define VW 8    /* f32 lanes of a vector: 4, 8 or 16 */
#endif
#ifndef NV
#define NV 3    /* vectors of a panel: 1, 2 or 3 */
#endif
#ifndef MR
#define MR 4    /* rows, or elements of a row, in a register tile: 4 or 8 */
#endif
#ifndef BR
#define BR (2 * NV * VW)    /* queries, or keys, of a tile: a multiple of NV * VW */
#endif
#ifndef BC
#define BC 64    /* rows of a step */
#endif
#ifndef KEYS
#define KEYS 0    /* 1: a tile owns keys and visits queries */
#endif
#define CAPPED 1
#define DROPS FEAT_HIDES
#include "softmax/bwd_panel.clh"

#define SPAN 16    /* steps summed before they move to the total */
#define KEYS_OF(n) (KEYS ? (n) : 1)

/* The panel that begins with row c of the tile; `t` is the one of row 0. */
static inline attn_panel panel_at(const attn_panel *t, int c)
{
    attn_panel at = *t;

    at.a += c / VW * D;
    at.b += c / VW * DV;
    at.da += c / VW * DP;
    at.total_a += c / VW * DP;
    if (KEYS) {
        at.db += c / VW * DVP;
        at.total_b += c / VW * DVP;
    } else {
        at.lse += c;
        at.delta += c;
    }
    return at;
}

/* to [depth][NV] += the weighted sums of n rows. */
INLINE void panel_add(__local floatv *to, __local const float *rows, const long *from,
                      int depth, __local const floatv *w, int n)
{
    for (int d = 0; d < depth; d += MR) {
        floatv c[MR][NV];

        panel_sums(c, rows, from, d, depth, w, n);
        #pragma unroll
        for (int r = 0; r < MR; r++) {
            #pragma unroll
            for (int v = 0; v < NV; v++)
                to[(d + r) * NV + v] += c[r][v];
        }
    }
}

static inline void panel_move(__local floatv *total, __local floatv *part, int n)
{
    for (int x = 0; x < n; x++) {
        total[x] += part[x];
        part[x] = 0.0f;
    }
}

/* Moves the sums of a span to the totals, of `owned` rows of a tile. */
static inline void tile_total(const attn_panel *t, int owned)
{
    for (int c = 0; c < owned; c += NR) {
        const attn_panel at = panel_at(t, c);

        panel_move(at.total_a, at.da, D * NV);
        if (KEYS)
            panel_move(at.total_b, at.db, DV * NV);
    }
}

/* Row c of a panel, for the first n rows of it, from row i of the tensor on. */
static inline void panel_store(__global ELEM *to, const attn_rows *rows,
                               __local const floatv *total, float factor, int i, int n,
                               int depth, int contig)
{
    __local const float *x = (__local const float *)total;

    for (int c = 0; c < n; c++) {
        const long row = address_row(rows, i + c);

        for (int d = 0; d < depth; d++)
            elem_store(to, address_elem(rows, row, d, contig), x[d * NR + c] * factor);
    }
}

/* What a work-item computes. */
typedef struct attn_tile {
    long b;
    int owner, first, owned;    /* its head, its first row, how many there are */
    attn_sequence s;
} attn_tile;

/* Brings what the tile owns; of queries with their LSE and delta. */
static inline void tile_load(const attn_panel *t, const attn_kparams *p, const attn_tile *x)
{
    const attn_rows q = ADDRESS_QUERIES(p, q, &x->s, x->b, x->owner);
    const attn_rows g = ADDRESS_QUERIES(p, grad_o, &x->s, x->b, x->owner);
    const attn_rows k = ADDRESS_KEYS(p, k, &x->s, x->b, x->owner);
    const attn_rows v = ADDRESS_KEYS(p, v, &x->s, x->b, x->owner);

    load_columns((__local float *)t->a, KEYS ? p->k : p->q, KEYS ? &k : &q, x->first,
                 x->owned, D, KEYS ? CONTIG_K : CONTIG_Q);
    if (p->has & HAS_GRAD_O)
        load_columns((__local float *)t->b, KEYS ? p->v : p->grad_o, KEYS ? &v : &g,
                     x->first, x->owned, DV, KEYS ? CONTIG_V : CONTIG_GRAD_O);
    if (!KEYS)
        panel_take(t->lse, t->delta, p, &x->s, x->b, x->owner, x->first, x->owned, BR);
    for (int e = 0; e < BR / VW * DP; e++)
        t->da[e] = t->total_a[e] = 0.0f;
    for (int e = 0; KEYS && e < BR / VW * DVP; e++)
        t->db[e] = t->total_b[e] = 0.0f;
}

/* Brings rows i .. i + n - 1 of what query head h has the tile visit. */
static inline void tile_take(const attn_panel *t, const attn_kparams *p, const attn_tile *x,
                             int h, int i, int n)
{
    const int head_kv = address_head_kv(p, h);
    const attn_rows q = ADDRESS_QUERIES(p, q, &x->s, x->b, h);
    const attn_rows g = ADDRESS_QUERIES(p, grad_o, &x->s, x->b, h);
    const attn_rows k = ADDRESS_KEYS(p, k, &x->s, x->b, head_kv);
    const attn_rows v = ADDRESS_KEYS(p, v, &x->s, x->b, head_kv);

    load_rows(t->rows_a, A_PITCH, KEYS ? p->q : p->k, KEYS ? &q : &k, i, n, D,
              KEYS ? CONTIG_Q : CONTIG_K);
    if (p->has & HAS_GRAD_O)
        load_rows(t->rows_b, B_PITCH, KEYS ? p->grad_o : p->v, KEYS ? &g : &v, i, n, DV,
                  KEYS ? CONTIG_GRAD_O : CONTIG_V);
    if (KEYS)
        panel_take(t->lse, t->delta, p, &x->s, x->b, h, i, n, n);
}

/* Adds rows i0 .. i1 - 1, which were taken, to the panel that begins with row c: the part of
 * them that it visits. */
static inline void tile_add(const attn_panel *t0, const attn_kparams *p, const attn_tile *x,
                            int h, int c, int i0, int i1)
{
    const attn_panel t = panel_at(t0, c);
    const int first = x->first + c, n_own = min(NR, x->owned - c);
    const attn_range mine = KEYS ? range_queries(p, &x->s, first, n_own)
                                 : range_any(p, &x->s, first, n_own);
    const int row = max(i0, mine.first), n = min(i1, mine.end) - row;
    const int i = KEYS ? row : first, j = KEYS ? first : row;
    const int n_q = KEYS ? n : n_own, n_k = KEYS ? n_own : n;
    const attn_range all = range_all(p, &x->s, i, n_q);
    const int masked = n_own < NR || j < all.first || j + n_k > all.end;
    const attn_score at = score_run(p, &x->s, x->b, h, i, n_q);
    const int want_a = !KEYS || p->has & HAS_GRAD_K;
    const int want_b = KEYS && p->has & HAS_GRAD_V && p->has & HAS_GRAD_O;
    long from_a[BC], from_b[BC];
    int seen;

    if (n <= 0)
        return;
    seen = panel_pairs(&t, p, &at, row - i0, j, n, masked, want_a, from_a, from_b);
    if (want_b)
        panel_add(t.db, t.rows_b, from_b, DV, t.w, seen);
    if (want_a)
        panel_add(t.da, t.rows_a, from_a, D, t.ds, seen);
}

/* All that query head h has the tile visit. */
static inline void tile_visit(const attn_panel *t, const attn_kparams *p,
                              const attn_tile *x, int h)
{
    const attn_range range = KEYS ? range_queries(p, &x->s, x->first, x->owned)
                                  : range_any(p, &x->s, x->first, x->owned);

    for (int i0 = range.first, i1; i0 < range.end; i0 = i1) {
        i1 = i0 + min(BC - i0 % BC, range.end - i0);
        tile_take(t, p, x, h, i0, i1 - i0);
        for (int c = 0; c < x->owned; c += NR)
            tile_add(t, p, x, h, c, i0, i1);
        if (i0 / (SPAN * BC) != i1 / (SPAN * BC))
            tile_total(t, x->owned);
    }
    tile_total(t, x->owned);
}

static inline void tile_store(const attn_panel *t0, const attn_kparams *p,
                              const attn_tile *x)
{
    const attn_rows q = ADDRESS_QUERIES(p, grad_q, &x->s, x->b, x->owner);
    const attn_rows k = ADDRESS_KEYS(p, grad_k, &x->s, x->b, x->owner);
    const attn_rows v = ADDRESS_KEYS(p, grad_v, &x->s, x->b, x->owner);

    for (int c = 0; c < x->owned; c += NR) {
        const attn_panel t = panel_at(t0, c);
        const int i = x->first + c, n = min(NR, x->owned - c);

        if (!KEYS || p->has & HAS_GRAD_K)
            panel_store(KEYS ? p->grad_k : p->grad_q, KEYS ? &k : &q, t.total_a, p->scale,
                        i, n, D, KEYS ? CONTIG_GRAD_K : CONTIG_GRAD_Q);
        if (KEYS && p->has & HAS_GRAD_V)
            panel_store(p->grad_v, &v, t.total_b, 1.0f, i, n, DV, CONTIG_GRAD_V);
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void attn_softmax_bwd_tile_cpu(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    __local floatv a[BR * D / VW], b[BR * DV / VW];
    __local floatv da[BR * DP / VW], total_a[BR * DP / VW];
    __local floatv db[KEYS_OF(BR * DVP / VW)], total_b[KEYS_OF(BR * DVP / VW)];
    __local floatv w_tile[BCP * NV], ds_tile[BCP * NV], term_tile[LARGER(TERMS * NV, 1)];
    __local float rows_a[BC * A_PITCH], rows_b[BC * B_PITCH];
    __local float lse_tile[KEYS ? BC : BR], delta_tile[KEYS ? BC : BR];
    const attn_panel t = { a, b, da, db, total_a, total_b, w_tile, ds_tile, term_tile, rows_a,
                           rows_b, lse_tile, delta_tile };
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const int tiles = CEIL_DIV(KEYS ? p.len_kv : p.len_q, BR);
    const int heads = KEYS ? p.heads_kv : p.heads_q;
    const int group = KEYS ? p.heads_q / p.heads_kv : 1;
    const long id = get_group_id(0);
    const int tile = (int)(id % tiles);
    attn_tile x;

    x.owner = (int)(id / tiles % heads);
    x.b = id / tiles / heads;
    x.first = (!KEYS && FEAT_RANGE_RIGHT ? tiles - 1 - tile : tile) * BR;
    x.s = range_sequence(&p, x.b);
    x.owned = clamp((KEYS ? x.s.keys : x.s.queries) - x.first, 0, BR);
    tile_load(&t, &p, &x);
    for (int h = x.owner * group; h < (x.owner + 1) * group; h++)
        tile_visit(&t, &p, &x, h);
    tile_store(&t, &p, &x);
}
