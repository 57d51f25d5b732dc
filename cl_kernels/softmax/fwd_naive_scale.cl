/* SPDX-License-Identifier: MIT */
/* softmax/fwd_naive_scale.cl: step 2 of softmax_fwd_naive: scale and softcap.
 *
 * Computes  s_ij = scale * s_ij, then softcap * tanh(s_ij / softcap) if there is one
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
void attn_softmax_fwd_naive_scale(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_query me = naive_query_of_group(&p, naive_pieces(&p));
    const attn_score at = score_run(&p, &me.s, me.b, me.h, me.i, 1);
    const int j = naive_key(&p);

    if (me.i < me.s.queries && j < p.len_kv) {
        const long e = naive_row(&p, &me, COPY) + j;

        elem_store(SCORES(&p), e, score_value(&at, elem_load(SCORES(&p), e)));
    }
}
