/* SPDX-License-Identifier: MIT */
/* softmax/fwd_naive_softmax.cl: step 4 of softmax_fwd_naive: scores to weights, a row at
 * a time, and the LSE.
 *
 * Computes  s_ij = exp(s_ij - m_i) / l_i over the keys in range of query i, with the sink
 *           in m_i and l_i; and LSE_i
 * Grid      1-D, ceil(queries / BLOCK) * heads groups of the round, queries fastest
 * Group     BLOCK work-items, a row each
 * Local     none
 * Layout    scores as naive.clh says
 * Numerics  safe softmax in f32, sums in spans of SPAN keys; weights are rounded to the
 *           computing type. A row without visible keys: weights 0, LSE = -inf or the sink
 * Requires  nothing; weights of keys out of range are not written, and nobody reads them
 * Tunables  BLOCK
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

#define SPAN 256

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_fwd_naive_softmax(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const int tiles = CEIL_DIV(p.round_queries, BLOCK);
    const int x = (int)(get_group_id(0) % tiles) * BLOCK + (int)get_local_id(0);
    const attn_query me =
        naive_query(&p, (int)(get_group_id(0) / tiles), p.round_query + x);
    __global ELEM *const s = SCORES(&p) + naive_row(&p, &me, COPY);
    attn_row row = state_init();
    float top = -INFINITY, reference, factor;

    if (x >= p.round_queries || me.i >= me.s.queries)
        return;
    for (int j = me.range.first; j < me.range.end; j++)
        top = state_max(elem_load(s, j), top);
    state_fold(&row, top);
    reference = state_reference(&row);
    for (int j0 = me.range.first, j1; j0 < me.range.end; j0 = j1) {
        float sum = 0.0f;

        j1 = j0 + min(SPAN, me.range.end - j0);
        for (int j = j0; j < j1; j++)
            sum += state_weight(elem_load(s, j), reference);
        row.l += sum;
    }
    factor = state_finish_sink(&row, state_sink(&p, me.h));
    for (int j = me.range.first; j < me.range.end; j++)
        elem_store(s, j, factor * state_weight(elem_load(s, j), reference));
    if (FEAT_LSE && p.want_lse)
        p.lse[address_lse(&p, &me.s, me.b, me.h, me.i)] = state_lse(&row);
}
