/* SPDX-License-Identifier: MIT */
/* softmax/fwd_naive_mask.cl: step 3 of softmax_fwd_naive: bias, ALiBi, and what hides.
 *
 * Computes  s_ij = s_ij + bias_ij - slope * |p_i - j|, and -inf where key j is hidden
 *           from query i: by mask, causal, window or length
 * Numerics  in f32, rounded to the computing type
 * Grid, Group, Layout, Tunables   as fwd_naive_product.cl
 * Oracle    src/host/softmax_fwd_reference.c
 */
#define VW 1
#include "common/params.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"
#include "softmax/naive.clh"

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_fwd_naive_mask(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_query me = naive_query_of_group(&p, naive_pieces(&p));
    const attn_score at = score_run(&p, &me.s, me.b, me.h, me.i, 1);
    const int j = naive_key(&p);

    if (me.i < me.s.queries && j < p.len_kv) {
        const long e = naive_row(&p, &me, COPY) + j;
        float s = elem_load(SCORES(&p), e);

        if (FEAT_TERMS && j >= me.range.first && j < me.range.end)
            s = score_add(s, score_term(&p, &at, 0, j));
        elem_store(SCORES(&p), e, score_masked(&at, 0, j, s));
    }
}
