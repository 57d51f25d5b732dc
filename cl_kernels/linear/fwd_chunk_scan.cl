/* SPDX-License-Identifier: MIT */
/* linear/fwd_chunk_scan.cl: linear_fwd_chunk, the step between: from what segments add to the
 * state to the state before each of them.
 *
 * Computes  slot s = sum of the slots 0 .. s, in their order; in place (chunk.clh)
 * Grid      1-D, ceil(DV / COLUMNS) * segments * Hkv * B groups; those of the segments share
 *           the rows of the state
 * Group     ITEMS work-items, each a column of some rows
 * Numerics  f32
 * Tunables  ITEMS: any; COLUMNS as the other steps
 * Oracle    linear_fwd_reference
 */
#include "linear/chunk.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_fwd_chunk_scan(SIGNATURE(LINEAR_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);
    __global float *first;
    chunk_unit u;
    int slots;

    find_chunks(&p, p.heads_kv, tokens_of_sums(&p), &u);
    slots = slots_of(&p, &u);
    first = find_slot(&p, &u, 0);
    for (int x = u.segment * ITEMS + (int)get_local_id(0); x < D * COLUMNS;
         x += u.pieces * ITEMS) {
        const int e = x / COLUMNS, c = u.column + x % COLUMNS;

        if (c < DV)
            scan_slots(first + (long)e * DV + c, slots);
        if (FEAT_NORMALIZE && c == 0)
            scan_slots(first + (long)D * DV + e, slots);
    }
}
