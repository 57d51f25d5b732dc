/* SPDX-License-Identifier: MIT */
/* softmax/fwd_naive_output.cl: step 5 of softmax_fwd_naive: the product with V.
 *
 * Computes  o_id = sum_j s_ij v_jd over the keys in range of query i
 * Grid      1-D, queries * heads groups of the round, queries fastest
 * Group     BLOCK work-items, every BLOCK-th element of the row each
 * Local     none
 * Layout    any strides; weights as naive.clh says
 * Numerics  sums in f32, in spans of SPAN keys
 * Requires  nothing; no row of V is read whose weight is 0: it may hold anything
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
void attn_softmax_fwd_naive_output(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_query me = naive_query_of_group(&p, 1);
    const attn_rows v_rows = ADDRESS_KEYS(&p, v, &me.s, me.b, address_head_kv(&p, me.h));
    const attn_rows o_rows = ADDRESS_QUERIES(&p, o, &me.s, me.b, me.h);
    const __global ELEM *const weight = SCORES(&p) + naive_row(&p, &me, COPY);

    if (!p.want_o || me.i >= me.s.queries)
        return;
    for (int d = (int)get_local_id(0); d < DV; d += BLOCK) {
        float total = 0.0f;

        for (int j0 = me.range.first, j1; j0 < me.range.end; j0 = j1) {
            float sum = 0.0f;

            j1 = j0 + min(SPAN, me.range.end - j0);
            for (int j = j0; j < j1; j++) {
                const float w = elem_load(weight, j);

                if (w != 0.0f)
                    sum += w * elem_load(p.v, address_elem(&v_rows, address_row(&v_rows, j),
                                                           d, CONTIG_V));
            }
            total += sum;
        }
        elem_store(p.o, address_elem(&o_rows, address_row(&o_rows, me.i), d, CONTIG_O),
                   total);
    }
}
