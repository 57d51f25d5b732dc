/* SPDX-License-Identifier: MIT */
/* softmax/fwd_naive_product.cl: step 1 of softmax_fwd_naive: the scores, each by itself.
 *
 * Computes  s_ij = <q_i, k_j> for the keys in range of query i, 0 for others
 * Grid      1-D, ceil(Lk / BLOCK) * queries * heads groups of the round, keys fastest
 * Group     BLOCK work-items, a key each
 * Local     none
 * Layout    any strides; scores as naive.clh says
 * Numerics  sums in f32; a score is rounded to the computing type, so in f16 a large one
 *           becomes infinite
 * Requires  nothing; no row of K outside the query's range is read
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

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_fwd_naive_product(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_query me = naive_query_of_group(&p, naive_pieces(&p));
    const attn_rows q_rows = ADDRESS_QUERIES(&p, q, &me.s, me.b, me.h);
    const attn_rows k_rows = ADDRESS_KEYS(&p, k, &me.s, me.b, address_head_kv(&p, me.h));
    const int j = naive_key(&p);
    float sum = 0.0f;

    if (me.i >= me.s.queries || j >= p.len_kv)
        return;
    if (j >= me.range.first && j < me.range.end) {
        const long q_row = address_row(&q_rows, me.i), k_row = address_row(&k_rows, j);

        for (int d = 0; d < D; d++)
            sum += elem_load(p.q, address_elem(&q_rows, q_row, d, CONTIG_Q)) *
                   elem_load(p.k, address_elem(&k_rows, k_row, d, CONTIG_K));
    }
    elem_store(SCORES(&p), naive_row(&p, &me, 0) + j, sum);
}
