/* SPDX-License-Identifier: MIT */
/* linear/bwd_chunk_scan.cl: linear_bwd_chunk, the step between: from what segments add to the
 * state to the state before each of them in the walk.
 *
 * Computes  slot s = sum of the slots 0 .. s, in their order; in place (chunk.clh)
 * Grid      1-D, ceil(WIDTH / COLUMNS) * segments * Hkv * B groups; those of the segments share
 *           the rows of the state
 * Group     ITEMS work-items, each a column of some rows
 * Numerics  f32
 * Tunables  ITEMS: any; COLUMNS as the other steps
 * Oracle    linear_bwd_reference
 */
#include "linear/chunk_bwd.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_bwd_chunk_scan(SIGNATURE(LINEAR_BWD_PARAMS))
{
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);
    chunk_unit u;

    find_chunks(&p, p.heads_kv, tokens_of_sums(&p), &u);
    for (int x = u.segment * ITEMS + (int)get_local_id(0); x < (FEATURES + HAS_Z) * COLUMNS;
         x += u.pieces * ITEMS) {
        const int c = u.column + x % COLUMNS;

        if (c < WIDTH)
            scan_slots(find_slot(&p, &u, 0) + (long)(x / COLUMNS) * WIDTH + c,
                       slots_of(&p, &u));
    }
}
