/* SPDX-License-Identifier: MIT */
/* linear/fwd_atomic_begin.cl: linear_fwd_atomic, the first step: sums of zero for each query, and
 * what its q is divided by until the end, a power of 2.
 *
 * Grid      1-D, ceil(Lq / ROWS) * Hq * B groups, queries fastest
 * Group     ROWS * LANES_OF_ROW work-items: LANES_OF_ROW for a row, side by side
 * Local     4 * ROWS * (LANES_OF_ROW + 1) bytes
 * Tunables  ROWS, LANES_OF_ROW: any
 */
#include "linear/scan_fwd.clh"
#include "linear/atomic.clh"

__kernel __attribute__((reqd_work_group_size(ROWS * LANES_OF_ROW, 1, 1)))
void attn_linear_fwd_atomic_begin(SIGNATURE(LINEAR_FWD_PARAMS))
{
    __local float part[ROWS * (LANES_OF_ROW + 1)];
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);
    __local float *tops;
    __global float *to;
    tensor_row r;
    float top = 0.0f;

    find_row(&p, &r);
    tops = part + (int)get_local_id(0) / LANES_OF_ROW * (LANES_OF_ROW + 1);
    to = sums_of(&p, r.b, r.head, r.l);
    for (int e = r.lane; r.there && e < D; e += LANES_OF_ROW) {
        const float q = elem_load(p.q, LINEAR_AT(&p, q, r.b, r.head, (long)r.l, (long)e));

        top = fmax(top, fabs(linear_phi(q)));
    }
    for (int i = r.lane; r.there && i < AT_UP; i += LANES_OF_ROW)
        to[i] = 0.0f;
    tops[r.lane] = top;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (r.there && r.lane == 0) {
        for (int x = 1; x < LANES_OF_ROW; x++)
            top = fmax(top, tops[x]);
        to[AT_UP] = power_for(top);
    }
}
