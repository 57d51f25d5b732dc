/* SPDX-License-Identifier: MIT */
/* softmax/fwd_naive_copy.cl: the step that softmax_fwd_naive_copy has more than
 * softmax_fwd_naive: the scores are copied, and what follows leaves the first ones alone.
 *
 * Computes  the second array of scores from the first
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
void attn_softmax_fwd_naive_copy(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_query me = naive_query_of_group(&p, naive_pieces(&p));
    const int j = naive_key(&p);

    if (me.i < me.s.queries && j < p.len_kv)
        elem_store(SCORES(&p), naive_row(&p, &me, 1) + j,
                   elem_load(SCORES(&p), naive_row(&p, &me, 0) + j));
}
