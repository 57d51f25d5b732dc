/* SPDX-License-Identifier: MIT */
/* softmax/fwd_split_merge.cl: softmax attention forward for few queries and many
 * keys, step 2: the partial states that fwd_split.cl wrote become O and the LSE.
 *
 * Computes  over the pieces of a row, in order, and then the sink as one more that has no
 *           values (m = sink, l = 1, o = 0):
 *             m = max m_p    l = sum exp(m_p - m) l_p    O = sum exp(m_p - m) o_p / l
 * Method    each item has its own columns and goes over the pieces for itself
 * Grid      1-D, round_queries * round_heads groups, the query fastest
 * Group     ITEMS work-items, 1-D
 * Local     none
 * Barriers  none
 * Layout    work as in fwd_split.cl, with the same PIECE; O of any strides
 * Numerics  f32; for TYPE_F32 the sums over the pieces are compensated (Kahan 1965). The
 *           o of a piece without a visible key (l = 0) was not written and is not read
 * Features  lengths and packed queries (rows that there are not are not written), sinks
 * Tunables  PIECE ITEMS VW, below
 * Oracle    src/host/softmax_fwd_reference.c
 */
#ifndef PIECE
#define PIECE 512  /* as in fwd_split.cl */
#endif
#ifndef ITEMS
#define ITEMS 1    /* work-items of a group */
#endif
#ifndef VW
#define VW 8       /* f32 lanes of a vector: 4, 8 or 16 columns of O */
#endif
#include "common/params.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

/* The partial states of one row. */
typedef struct attn_parts {
    const __global float *ml;    /* [pieces][2]  */
    const __global float *o;     /* [pieces][DV] */
    int pieces;
} attn_parts;

/* Columns d .. d + VW - 1; past DV they are 0. */
static inline floatv load_columns(const __global float *x, int d)
{
    float lane[VW];

    if (DV % VW == 0 || d + VW <= DV)
        return PASTE(vload, VW)(0, x + d);
    for (int l = 0; l < VW; l++)
        lane[l] = d + l < DV ? x[d + l] : 0.0f;
    return PASTE(vload, VW)(0, lane);
}

/* sum += x; `extra` is what was added too much before. Where that is no finite number
 * there is none. */
static inline floatv add(floatv sum, floatv x, floatv *extra)
{
    const floatv y = x - *extra, total = sum + y, rest = (total - sum) - y;

    if (TYPE != TYPE_F32)
        return sum + x;
    *extra = select((floatv)(0.0f), rest, isfinite(rest));
    return total;
}

/* m and l of the whole row, in all lanes, without the sink. */
static inline void merge_row(const attn_parts *t, attn_row *row)
{
    floatv reference, extra = 0.0f;

    for (int i = 0; i < t->pieces; i++)
        row->m = state_max((floatv)(t->ml[i * 2]), row->m);
    reference = state_reference(row);
    for (int i = 0; i < t->pieces; i++) {
        const float l = t->ml[i * 2 + 1];

        if (l != 0.0f)
            row->l = add(row->l, l * state_weight((floatv)(t->ml[i * 2]), reference),
                         &extra);
    }
}

/* Columns d .. d + VW - 1 of O, up to the last factor. */
static inline floatv merge_columns(const attn_parts *t, floatv reference, int d)
{
    floatv sum = 0.0f, extra = 0.0f;

    for (int i = 0; i < t->pieces; i++) {
        const floatv w = state_weight((floatv)(t->ml[i * 2]), reference);

        /* a piece of no weight is left out, even an infinite sum */
        if (t->ml[i * 2 + 1] != 0.0f)
            sum = add(sum, select(load_columns(t->o + (long)i * DV, d), (floatv)(0.0f),
                                  w == 0.0f) * w, &extra);
    }
    return sum;
}

static inline void store_columns(const attn_kparams *p, const attn_rows *rows, long at,
                                 int d, floatv x)
{
    float lane[VW];

    PASTE(vstore, VW)(x, 0, lane);
    for (int l = 0; l < VW && d + l < DV; l++)
        elem_store(p->o, address_elem(rows, at, d + l, CONTIG_O), lane[l]);
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_softmax_fwd_split_merge(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const int group = p.heads_q / p.heads_kv;
    const int pieces = max(CEIL_DIV(p.len_kv, PIECE), 1);
    const int i = (int)(get_group_id(0) % p.round_queries);
    const long at_head = get_group_id(0) / p.round_queries;    /* of the round */
    const long head = p.round_head + at_head, b = head / p.heads_q, h = head % p.heads_q;
    const long rows = (long)p.round_heads * p.round_queries;
    const long row = (at_head / group * p.round_queries + i) * group + at_head % group;
    const attn_parts t = { p.work + row * pieces * 2,
                           p.work + rows * pieces * 2 + row * pieces * DV, pieces };
    const attn_sequence s = range_sequence(&p, b);
    const attn_rows o_rows = ADDRESS_QUERIES(&p, o, &s, b, h);
    const long at = address_row(&o_rows, p.round_query + i);
    attn_row state = state_init();
    floatv reference, factor;

    if (p.round_query + i >= s.queries)
        return;
    merge_row(&t, &state);
    reference = state_reference(&state);
    factor = state_finish_sink(&state, state_sink(&p, h));
    if (FEAT_LSE && p.want_lse && get_local_id(0) == 0) {
        float lane[VW];

        PASTE(vstore, VW)(state_lse(&state), 0, lane);
        p.lse[address_lse(&p, &s, b, h, p.round_query + i)] = lane[0];
    }
    if (p.want_o)
        for (int d = get_local_id(0) * VW; d < DV; d += ITEMS * VW)
            store_columns(&p, &o_rows, at, d, merge_columns(&t, reference, d) * factor);
}
