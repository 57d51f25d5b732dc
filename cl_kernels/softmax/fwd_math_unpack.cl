/* SPDX-License-Identifier: MIT */
/* softmax/fwd_math_unpack.cl: step 7 of softmax_fwd_math: the matrix O to the tensor.
 *
 * Computes  o_id = O_di * factor_i, rounded to the computing type; 0 where the factor is 0
 * Grid      1-D, any number of groups; best one for every CHUNK queries
 * Group     BLOCK work-items, every BLOCK-th element of a row each
 * Local     none
 * Layout    any strides; matrices as math.clh says
 * Numerics  one rounding, to nearest even
 * Requires  nothing; rows past a batch's queries are not written
 * Tunables  CHUNK, BLOCK
 * Oracle    src/host/softmax_fwd_reference.c
 */
#define VW 1
#ifndef CHUNK
#define CHUNK 32
#endif
#include "common/params.h"
#include "common/work.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"
#include "softmax/math.clh"

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_fwd_math_unpack(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_work w = work_of(&p);
    const int chunks = CEIL_DIV(p.round_queries, CHUNK), step = work_step(w.cols, NR);

    for (long id = get_group_id(0); id < (long)p.round_heads * chunks && p.want_o;
         id += get_num_groups(0)) {
        const int n = (int)(id / chunks), i0 = (int)(id % chunks) * CHUNK;
        const long b = work_batch(&p, n), pair = n / w.group;
        const attn_sequence s = range_sequence(&p, b);
        const attn_rows rows = ADDRESS_QUERIES(&p, o, &s, b, work_head(&p, n));

        for (int i = i0; i < min(i0 + CHUNK, work_queries(&p, &s)); i++) {
            const int c = n % w.group * w.pitch + i;
            const __global float *from = p.work + w.o + pair * DVP * w.cols +
                                         work_column(DVP, NR, c);
            const float factor = p.work[w.f + pair * w.cols + c];
            const long row = address_row(&rows, p.round_query + i);

            for (int d = (int)get_local_id(0); d < DV; d += BLOCK)
                elem_store(p.o, address_elem(&rows, row, d, CONTIG_O),
                           factor == 0.0f ? 0.0f : from[(long)d * step] * factor);
        }
    }
}
