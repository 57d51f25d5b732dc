/* SPDX-License-Identifier: MIT */
/* softmax/bwd_tile_cpu_bias.cl: the gradient of the bias for processors.
 *
 * Computes  dBias = dS before the softcap, summed over the dimensions in which the bias was
 *           broadcast
 * Method    a work-item has a panel of NR x BC elements of dBias to itself, queries along
 *           the lanes, and visits every pair that they were added to: in a dimension that
 *           dBias has, its part of it; in one that was broadcast, all of it, in order. Where
 *           queries or keys were broadcast, the sums of lanes or rows meet at the end
 * Grid      1-D, ceil(keys of dBias / BC) * ceil(its queries / NR) * its heads * its batches
 *           work-items, keys fastest
 * Group     1 work-item
 * Local     scratch of the one item, in bytes:
 *             4 * ( NR * (D + DV + 2)                              q and dO; LSE, delta
 *                 + BC * (D + DV + 16)                             rows
 *                 + 2 * (ceil(BC / MR) * MR + BC) * NR             weights, dS; sums
 *                 + ceil(BC / VW) * VW * NR )                      terms
 * Numerics  f32, sums compensated (Kahan 1965), in an order of their own. What no pair adds
 *           to is exactly 0
 * Features  Requires, Tunables: as bwd_tile_cpu.cl
 * Oracle    src/host/softmax_bwd_reference.c
 */
#ifndef VW
#define VW 8    /* f32 lanes of a vector: 4, 8 or 16 */
#endif
#ifndef NV
#define NV 1    /* vectors of a panel: 1, 2 or 3 */
#endif
#ifndef MR
#define MR 4    /* rows in a register tile: 4 or 8 */
#endif
#ifndef BC
#define BC 64   /* keys of a panel */
#endif
#define KEYS 0
#define CAPPED 0
#define DROPS 0
#include "softmax/bwd_panel.clh"

BACK_ADD(lanes_add, floatv)

/* Which dimensions dBias has, where the panel's elements are in those, and how many panels
 * of pairs, heads and batches it visits in the others. */
typedef struct attn_part {
    int has_i, has_j;
    int i, j, n_i, n_j, n_h, n_b;
    long h, b;
} attn_part;

static inline attn_part part_of(const attn_kparams *p, long id)
{
    const int tiles_j = CEIL_DIV(p->grad_bias_size_d, BC);
    const int tiles_i = CEIL_DIV(p->grad_bias_size_l, NR);
    attn_part x;

    x.has_i = p->grad_bias_size_l == p->len_q;
    x.has_j = p->grad_bias_size_d == p->len_kv;
    x.j = (int)(id % tiles_j) * BC;
    x.i = (int)(id / tiles_j % tiles_i) * NR;
    x.h = id / tiles_j / tiles_i % p->grad_bias_size_h;
    x.b = id / tiles_j / tiles_i / p->grad_bias_size_h;
    x.n_j = x.has_j ? 1 : CEIL_DIV(p->len_kv, BC);
    x.n_i = x.has_i ? 1 : CEIL_DIV(p->len_q, NR);
    x.n_h = p->grad_bias_size_h == p->heads_q ? 1 : p->heads_q;
    x.n_b = p->grad_bias_size_b == p->batch ? 1 : p->batch;
    return x;
}

/* Adds the pairs of one head of a panel of queries from i0 on and keys from j0 on. Left to
 * itself LLVM 17 (PoCL 5) may lose the sums of dropout. */
INLINE void part_add(const attn_panel *t, const attn_kparams *p, long b, long h,
                            int i0, int j0, __local floatv *sum, __local floatv *extra)
{
    const attn_sequence s = range_sequence(p, b);
    const int n_q = clamp(s.queries - i0, 0, NR);
    const attn_range any = range_any(p, &s, i0, n_q), all = range_all(p, &s, i0, n_q);
    const int j = max(any.first, j0), n = min(any.end, j0 + BC) - j;
    const int masked = n_q < NR || j < all.first || j + n > all.end;
    const attn_score at = score_run(p, &s, b, h, i0, n_q);
    const long head_kv = address_head_kv(p, (int)h);
    const attn_rows q = ADDRESS_QUERIES(p, q, &s, b, h);
    const attn_rows g = ADDRESS_QUERIES(p, grad_o, &s, b, h);
    const attn_rows k = ADDRESS_KEYS(p, k, &s, b, head_kv);
    const attn_rows v = ADDRESS_KEYS(p, v, &s, b, head_kv);
    long from_a[BC], from_b[BC];

    if (n <= 0)
        return;
    load_columns((__local float *)t->a, p->q, &q, i0, n_q, D, CONTIG_Q);
    load_rows(t->rows_a, A_PITCH, p->k, &k, j, n, D, CONTIG_K);
    if (p->has & HAS_GRAD_O) {
        load_columns((__local float *)t->b, p->grad_o, &g, i0, n_q, DV, CONTIG_GRAD_O);
        load_rows(t->rows_b, B_PITCH, p->v, &v, j, n, DV, CONTIG_V);
    }
    panel_take(t->lse, t->delta, p, &s, b, h, i0, n_q, NR);
    panel_pairs(t, p, &at, 0, j, n, masked, 1, from_a, from_b);
    sum += (j - j0) * NV;
    extra += (j - j0) * NV;
    for (int e = 0; e < n * NV; e++) {
        floatv rest = extra[e];

        sum[e] = lanes_add(sum[e], t->ds[e], &rest);
        extra[e] = rest;
    }
}

/* Writes the panel's elements; sums of lanes, or of rows, where those were broadcast. */
static inline void part_store(const attn_kparams *p, const attn_part *x,
                              __local const floatv *sum)
{
    __local const float *lane = (__local const float *)sum;
    const int n_i = x->has_i ? min(NR, p->grad_bias_size_l - x->i) : 1;
    const int n_j = x->has_j ? min(BC, p->grad_bias_size_d - x->j) : 1;

    for (int e = 0; e < n_i * n_j; e++) {
        const int i = e / n_j, j = e % n_j;
        float total = 0.0f, rest = 0.0f;

        for (int c = x->has_i ? i : 0; c < (x->has_i ? i + 1 : NR); c++)
            for (int r = x->has_j ? j : 0; r < (x->has_j ? j + 1 : BC); r++)
                total = back_add(total, lane[r * NR + c], &rest);
        p->grad_bias[p->grad_bias_offset + x->b * p->grad_bias_stride_b +
                     x->h * p->grad_bias_stride_h + (x->i + i) * p->grad_bias_stride_l +
                     (x->j + j) * p->grad_bias_stride_d] = total - rest;
    }
}

__kernel __attribute__((reqd_work_group_size(1, 1, 1)))
void attn_softmax_bwd_tile_cpu_bias(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    __local floatv a[D * NV], b[DV * NV], w_tile[BCP * NV], ds_tile[BCP * NV];
    __local floatv term_tile[LARGER(TERMS * NV, 1)], sum[BC * NV], extra[BC * NV];
    __local float rows_a[BC * A_PITCH], rows_b[BC * B_PITCH];
    __local float lse_tile[NR], delta_tile[NR];
    const attn_panel t = {
        .a = a, .b = b, .w = w_tile, .ds = ds_tile, .term = term_tile,
        .rows_a = rows_a, .rows_b = rows_b, .lse = lse_tile, .delta = delta_tile
    };
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const attn_part x = part_of(&p, get_group_id(0));

    for (int e = 0; e < BC * NV; e++)
        sum[e] = extra[e] = 0.0f;
    for (int b0 = 0; b0 < x.n_b; b0++)
        for (int h0 = 0; h0 < x.n_h; h0++)
            for (int i0 = 0; i0 < x.n_i; i0++)
                for (int j0 = 0; j0 < x.n_j; j0++)
                    part_add(&t, &p, x.b + b0, x.h + h0, x.i + i0 * NR, x.j + j0 * BC, sum,
                             extra);
    for (int e = 0; e < BC * NV; e++)
        sum[e] -= extra[e];
    part_store(&p, &x, sum);
}
