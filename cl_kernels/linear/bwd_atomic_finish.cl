/* SPDX-License-Identifier: MIT */
/* linear/bwd_atomic_finish.cl: linear_bwd_atomic, the last step of a scan: the sums of a query, or
 * key, become its gradient. Rows of keys that no query sees are zeros, those past the length are
 * left alone.
 *
 * Grid      1-D, ceil(rows / ROWS) * heads * B groups, rows fastest
 * Group     ROWS * LANES_OF_ROW work-items: LANES_OF_ROW for a row, side by side
 * Tunables  ROWS, LANES_OF_ROW: any
 */
#include "linear/scan_bwd.clh"
#include "linear/atomic.clh"

__kernel __attribute__((reqd_work_group_size(ROWS * LANES_OF_ROW, 1, 1)))
void attn_linear_bwd_atomic_finish(SIGNATURE(LINEAR_BWD_PARAMS))
{
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);
    const int share = SCAN == SCAN_Q ? p.heads_q / p.heads_kv : 1;
    const __global float *sums;
    scan_head h;
    scan_token t;
    tensor_row r;
    int seen;

    find_row(&p, &r);
    if (!r.there)
        return;
    sums = sums_of(&p, r.b, r.head, r.l);
    find_head(&p, (uint)r.b * (uint)p.heads_kv + (uint)r.head / (uint)share, &h);
    if (BACKWARDS && r.l >= h.length)
        return;
    seen = !BACKWARDS || r.l < h.keys;
    t.read = r.l;
    t.read_x = (int)r.head % share;
    for (int i = r.lane; i < STATE_COLUMNS; i += LANES_OF_ROW)
        put_sum(&p, &h, &t, i, seen ? load_own(&p, &h, &t, i) : 0.0f, seen ? sums[i] : 0.0f, 1.0f,
                1.0f);
}
