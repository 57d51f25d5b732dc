/* SPDX-License-Identifier: MIT */
/* linear/bwd_atomic_begin.cl: linear_bwd_atomic, the first step of a scan: sums of zero for each
 * query, or key.
 *
 * Grid      1-D, ceil(rows / ROWS) * heads * B groups, rows fastest
 * Group     ROWS * LANES_OF_ROW work-items: LANES_OF_ROW for a row, side by side
 * Tunables  ROWS, LANES_OF_ROW: any
 */
#include "linear/scan_bwd.clh"
#include "linear/atomic.clh"

__kernel __attribute__((reqd_work_group_size(ROWS * LANES_OF_ROW, 1, 1)))
void attn_linear_bwd_atomic_begin(SIGNATURE(LINEAR_BWD_PARAMS))
{
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);
    tensor_row r;

    find_row(&p, &r);
    if (!r.there)
        return;
    for (int i = r.lane; i < SUMS_PITCH; i += LANES_OF_ROW)
        sums_of(&p, r.b, r.head, r.l)[i] = 0.0f;
}
