/* SPDX-License-Identifier: MIT */
/* linear/fwd_atomic_finish.cl: linear_fwd_atomic, the last step: the sums of a query become O and
 * den.
 *
 * Grid      1-D, ceil(Lq / ROWS) * Hq * B groups, queries fastest
 * Group     ROWS * LANES_OF_ROW work-items: LANES_OF_ROW for a row, side by side
 * Tunables  ROWS, LANES_OF_ROW: any
 */
#include "linear/scan_fwd.clh"
#include "linear/atomic.clh"

__kernel __attribute__((reqd_work_group_size(ROWS * LANES_OF_ROW, 1, 1)))
void attn_linear_fwd_atomic_finish(SIGNATURE(LINEAR_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);
    const __global float *sums;
    scan_head h;
    scan_token t;
    tensor_row r;

    find_row(&p, &r);
    if (!r.there)
        return;
    sums = sums_of(&p, r.b, r.head, r.l);
    h.b = r.b;
    h.share = p.heads_q / p.heads_kv;
    h.kvh = r.head / h.share;
    t.read = r.l;
    t.read_x = (int)r.head - (int)h.kvh * h.share;
    for (int m = r.lane; m < DV; m += LANES_OF_ROW)
        put_sum(&p, &h, &t, m, 0.0f, sums[m], sums[DV], sums[AT_UP]);
}
