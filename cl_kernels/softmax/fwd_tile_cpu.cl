/* SPDX-License-Identifier: MIT */
/* softmax/fwd_tile_cpu.cl: softmax attention forward for processors: one
 * work-item computes one tile of queries, on vectors, without barriers.
 *
 * Computes  O = softmax(score(Q K^T)) V and its LSE, as in include/attn/softmax.h
 * Method    online softmax (Milakov and Gimelshein 2018) over tiles of keys
 *           (FlashAttention, Dao et al. 2022), with queries along the lanes: a
 *           panel is NR = NV * VW queries, Q and O lie transposed in scratch, and
 *           both products are register tiles of MR rows x NV vectors, fed by
 *           broadcasts of single elements of K and V. Max and sum run along the
 *           keys: no operation crosses the lanes
 * Grid      1-D, ceil(Lq / BR) * Hq * B work-items, tile fastest; the last tile
 *           first if the right side is bounded, since it is the longest
 * Group     1 work-item
 * Local     scratch of the one item, in f32 and bytes:
 *             4 * ( BR * (D + 2 * ceil(DV / MR) * MR + 4)   Q; O, m and l, twice
 *                 + ceil(BC / MR) * MR * NV * VW          scores of a panel
 *                 + (terms ? max(BC, ceil(BC / VW) * VW) * NV * VW : VW)
 *                 + (K direct ? 1 : BC * D) + (V direct ? 1 : BC * DV) )
 *           and up to 256 more for alignment. K is direct if it is f32 with
 *           CONTIG_K and PACK_K is 0; V likewise. Terms: of bias and mask
 * Layout    any strides, in elements; CONTIG_ macros promise stride 1
 * Numerics  f32 throughout, m in natural units; a row without visible keys: O = 0,
 *           LSE = -inf. Steps lie on a grid: a row's bits do not depend on other rows,
 *           on B or H.
 *           Sums at three levels, lest errors grow with Lk: a step, a span of SPAN
 *           steps, the total, which is compensated (sum_move)
 * Features  all, through common/ and softmax/panel_terms.clh. Rows of keys that a mask
 *           or a bias of -inf hides from the whole panel are not used at all
 * Requires  no barrier, no subgroup; reads no row of K or V outside the range of
 *           the panel, and packed rows only inside that of the tile
 * Tunables  VW NV MR BR BC PACK_K PACK_V, below. VW: the device's native width,
 *           at least 4. MR * NV + NV + 1 vectors should fit the registers: 4 x 3
 *           with 16 of them, 8 x 3 with 32. Lq < NR wastes lanes: choose NV = 1
 *           and BR = VW for few queries
 * Oracle    src/host/softmax_fwd_reference.c
 */
#ifndef VW
#define VW 8    /* f32 lanes of a vector: 4, 8 or 16 */
#endif
#ifndef NV
#define NV 3    /* vectors of queries in a panel: 1, 2 or 3 */
#endif
#ifndef MR
#define MR 4    /* keys, or elements of a value row, in a register tile: 4 or 8 */
#endif
#ifndef BR
#define BR (4 * NV * VW)    /* queries of a tile: a multiple of NV * VW */
#endif
#ifndef BC
#define BC 64    /* keys of a step */
#endif
#ifndef PACK_K
#define PACK_K 0    /* 1: f32 keys with stride 1 go through scratch too */
#endif
#ifndef PACK_V
#define PACK_V 0    /* 1: ... values */
#endif
#include "common/params.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"

#define NR (NV * VW)
#define DVP (CEIL_DIV(DV, MR) * MR)
#define BCP (CEIL_DIV(BC, MR) * MR)
#define TERMS (FEAT_HIDES ? CEIL_DIV(BC, VW) * VW : 0)
#define SPAN 16    /* steps summed before they move to the total */

/* Rows of keys and values are read where they are, or through f32 scratch. */
#define K_DIRECT (TYPE == TYPE_F32 && CONTIG_K && !PACK_K)
#define V_DIRECT (TYPE == TYPE_F32 && CONTIG_V && !PACK_V)
#if K_DIRECT
#define K_SPACE __global
#define K_ROWS(p, scratch) ((const __global float *)(p)->k)
#else
#define K_SPACE __local
#define K_ROWS(p, scratch) (scratch)
#endif
#if V_DIRECT
#define V_SPACE __global
#define V_ROWS(p, scratch) ((const __global float *)(p)->v)
#else
#define V_SPACE __local
#define V_ROWS(p, scratch) (scratch)
#endif

#include "softmax/panel_rows.clh"
#include "softmax/panel_terms.clh"
#include "softmax/panel_products.clh"

PANEL_DOTS(panel_dots, K_SPACE)
PANEL_SUMS(panel_sums, V_SPACE)

/* One panel: its queries, its scratch, its row states. */
typedef struct attn_panel {
    __local const floatv *q;    /* [D][NV]   */
    __local floatv *s;          /* [BCP][NV] scores, then weights, of one step */
    __local floatv *term;       /* [TERMS][NV] what is added to them           */
    __local floatv *o;          /* [DVP][NV] of one span */
    __local attn_row *row;      /* [NV]      */
    __local floatv *total_o;    /* the same, of the spans before */
    __local attn_row *total_row;
} attn_panel;

/* The panel that begins with query c of the tile; `t` is the one of query 0. */
static inline attn_panel panel_at(const attn_panel *t, int c)
{
    attn_panel at = *t;

    at.q += c / VW * D;
    at.o += c / VW * DVP;
    at.row += c / VW;
    at.total_o += c / VW * DVP;
    at.total_row += c / VW;
    return at;
}

/* S = K Q for n keys, whose rows begin at k[from[..]], and the panel at `at`; the largest
 * go to top. Without terms these are keys j .. j + n - 1, and hidden ones are among them
 * if `masked`. */
static inline void panel_scores(const attn_panel *t, const K_SPACE float *k,
                                const long *from, const attn_score *at, int j, int n,
                                int masked, floatv *top)
{
    for (int b = 0; b < n; b += MR) {
        const K_SPACE float *key[MR];
        floatv c[MR][NV];

        /* past the last key that key is taken again; nobody reads the result */
        #pragma unroll
        for (int r = 0; r < MR; r++)
            key[r] = k + from[min(b + r, n - 1)];
        panel_dots(c, key, t->q, D);
        #pragma unroll
        for (int r = 0; r < MR; r++) {
            const int e = min(b + r, n - 1);

            #pragma unroll
            for (int v = 0; v < NV; v++) {
                floatv s = score_value(at, c[r][v]);

                if (FEAT_HIDES)
                    s = score_add(s, t->term[e * NV + v]);
                else if (FEAT_ALIBI)
                    s += score_alibi(at, v * VW, j + e);
                if (!FEAT_HIDES && masked)
                    s = score_masked(at, v * VW, j + e, s);
                t->s[(b + r) * NV + v] = s;
                top[v] = state_max(s, top[v]);
            }
        }
    }
}

/* Scores to weights, and the row states with them; factor is for O. */
static inline void panel_weights(const attn_panel *t, int n, const floatv *top,
                                 floatv *factor)
{
    #pragma unroll
    for (int v = 0; v < NV; v++) {
        attn_row row = t->row[v];
        floatv reference, sum = 0.0f;

        factor[v] = state_fold(&row, top[v]);
        reference = state_reference(&row);
        for (int j = 0; j < n; j++) {
            const floatv w = state_weight(t->s[j * NV + v], reference);

            sum += w;
            t->s[j * NV + v] = w;
        }
        row.l += sum;
        t->row[v] = row;
    }
}

/* A sum times its factor. Where that is 0 the sum is dropped, even an infinite one:
 * its keys weigh exactly nothing. */
static inline floatv sum_scaled(floatv sum, floatv factor)
{
    return select(sum, (floatv)(0.0f), factor == 0.0f) * factor;
}

/* total * factor + part. What the rounding took away stays in `part`, for the next
 * time, if too little to change the total: nothing stays of what is not finite. */
static inline floatv sum_move(floatv total, floatv factor, __local floatv *part)
{
    const floatv old = sum_scaled(total, factor), sum = old + *part;
    const floatv rest = *part - (sum - old);

    *part = select((floatv)(0.0f), rest, sum + rest == sum);
    return sum;
}

/* Moves the sums of a span to the totals. */
static inline void panel_total(const attn_panel *t)
{
    for (int v = 0; v < NV; v++) {
        attn_row total = t->total_row[v];
        const floatv l = total.l, factor = state_fold(&total, t->row[v].m);

        total.l = sum_move(l, factor, &t->row[v].l);
        t->total_row[v] = total;
        for (int d = v; d < DV * NV; d += NV)
            t->total_o[d] = sum_move(t->total_o[d], factor, &t->o[d]);
    }
}

/* O = O * factor + V P for the n keys whose rows begin at value[from[..]], which are
 * summed apart from what came before. */
static inline void panel_values(const attn_panel *t, const V_SPACE float *value,
                                const long *from, int n, const floatv *factor)
{
    for (int b = 0; b < DV; b += MR) {
        floatv c[MR][NV];

        panel_sums(c, value, from, b, DV, t->s, n);
        #pragma unroll
        for (int r = 0; r < MR; r++) {
            #pragma unroll
            for (int v = 0; v < NV; v++) {
                __local floatv *o = &t->o[(b + r) * NV + v];

                *o = sum_scaled(*o, factor[v]) + c[r][v];
            }
        }
    }
}

/* Writes the first n queries of a panel; query 0 of it is query i. */
static inline void panel_store(const attn_panel *t, const attn_kparams *p,
                               const attn_sequence *s, long b, int h, int i, int n)
{
    const attn_rows rows = ADDRESS_QUERIES(p, o, s, b, h);
    __local const float *o = (__local const float *)t->total_o;
    const float sink = state_sink(p, h);
    floatv scale[NV], lse[NV];
    float lane_scale[NR], lane_lse[NR];

    for (int v = 0; v < NV; v++) {
        attn_row row = t->total_row[v];

        scale[v] = state_finish_sink(&row, sink);
        lse[v] = state_lse(&row);
        PASTE(vstore, VW)(scale[v], v, lane_scale);
        PASTE(vstore, VW)(lse[v], v, lane_lse);
    }
    for (int c = 0; c < n; c++) {
        long row = address_row(&rows, i + c);

        if (p->want_o)
            for (int d = 0; d < DV; d++)
                elem_store(p->o, address_elem(&rows, row, d, CONTIG_O),
                           o[d * NR + c] * lane_scale[c]);
        if (FEAT_LSE && p->want_lse)
            p->lse[address_lse(p, s, b, h, i + c)] = lane_lse[c];
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void attn_softmax_fwd_tile_cpu(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    __local floatv q_tile[BR * D / VW], s_tile[BCP * NV], term_tile[LARGER(TERMS * NV, 1)];
    __local floatv o_tile[BR * DVP / VW], o_total[BR * DVP / VW];
    __local attn_row row_tile[BR / VW], row_total[BR / VW];
    __local float k_tile[K_DIRECT ? 1 : BC * D], v_tile[V_DIRECT ? 1 : BC * DV];
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const int tiles = CEIL_DIV(p.len_q, BR);
    const long id = get_group_id(0);
    const int tile = (int)(id % tiles);
    const int h = (int)(id / tiles % p.heads_q);
    const long b = id / tiles / p.heads_q;
    const int i0 = (FEAT_RANGE_RIGHT ? tiles - 1 - tile : tile) * BR;
    const attn_sequence s = range_sequence(&p, b);
    const int queries = clamp(s.queries - i0, 0, BR);
    const attn_range range = range_any(&p, &s, i0, queries);
    const attn_rows q_rows = ADDRESS_QUERIES(&p, q, &s, b, h);
    const attn_rows k_rows = ADDRESS_KEYS(&p, k, &s, b, address_head_kv(&p, h));
    const attn_rows v_rows = ADDRESS_KEYS(&p, v, &s, b, address_head_kv(&p, h));
    const attn_panel panel0 = { q_tile, s_tile, term_tile, o_tile, row_tile, o_total,
                                row_total };
    const attn_rows k_packed = ADDRESS_PACKED(D), v_packed = ADDRESS_PACKED(DV);
    long k_at[BC], v_at[BC], k_seen[BC], v_seen[BC];
    int key_seen[FEAT_DROPOUT ? BC : 1];

    load_columns((__local float *)q_tile, p.q, &q_rows, i0, queries, D, CONTIG_Q);
    for (int r = 0; r < BR / VW; r++)
        row_tile[r] = row_total[r] = state_init();
    for (int r = 0; r < BR * DVP / VW; r++)
        o_tile[r] = o_total[r] = 0.0f;

    for (int j0 = range.first, j1; j0 < range.end; j0 = j1) {
        j1 = j0 + min(BC - j0 % BC, range.end - j0);
        if (!K_DIRECT)
            load_rows(k_tile, D, p.k, &k_rows, j0, j1 - j0, D, CONTIG_K);
        if (!V_DIRECT)
            load_rows(v_tile, DV, p.v, &v_rows, j0, j1 - j0, DV, CONTIG_V);
        for (int e = 0; e < j1 - j0; e++) {
            k_at[e] = K_DIRECT ? address_row(&k_rows, j0 + e) : address_row(&k_packed, e);
            v_at[e] = V_DIRECT ? address_row(&v_rows, j0 + e) : address_row(&v_packed, e);
        }

        for (int c = 0; c < queries; c += NR) {
            /* a panel visits the part of the step that its own queries see */
            const int n_q = min(NR, queries - c);
            const attn_range any = range_any(&p, &s, i0 + c, n_q);
            const attn_range all = range_all(&p, &s, i0 + c, n_q);
            const int j = max(j0, any.first), visited = min(j1, any.end) - j;
            const int masked = j < all.first || j + visited > all.end;
            const attn_score at = score_run(&p, &s, b, h, i0 + c, n_q);
            const attn_panel t = panel_at(&panel0, c);
            const long *k_from = k_at + (j - j0), *v_from = v_at + (j - j0);
            floatv top[NV], factor[NV];
            int n = visited;

            if (FEAT_HIDES && n > 0) {
                n = terms_seen(t.term, &p, &at, j, n, masked || n_q < NR, k_from, v_from,
                               k_seen, v_seen, key_seen);
                k_from = k_seen;
                v_from = v_seen;
            }
            if (n <= 0)
                continue;
            #pragma unroll
            for (int v = 0; v < NV; v++)
                top[v] = -INFINITY;
            panel_scores(&t, K_ROWS(&p, k_tile), k_from, &at, j, n, masked, top);
            panel_weights(&t, n, top, factor);
            if (FEAT_DROPOUT)
                terms_drop(t.s, &p, &at, j, n, key_seen);
            if (p.want_o)
                panel_values(&t, V_ROWS(&p, v_tile), v_from, n, factor);
        }
        for (int c = 0; j0 / (SPAN * BC) != j1 / (SPAN * BC) && c < queries; c += NR) {
            const attn_panel t = panel_at(&panel0, c);

            panel_total(&t);
        }
    }

    for (int c = 0; c < queries; c += NR) {
        const attn_panel t = panel_at(&panel0, c);

        panel_total(&t);
        panel_store(&t, &p, &s, b, h, i0 + c, min(NR, queries - c));
    }
}
