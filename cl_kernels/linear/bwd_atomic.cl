/* SPDX-License-Identifier: MIT */
/* linear/bwd_atomic.cl: gradients of linear attention token by token, groups of 8 rows of a state,
 * whose parts of a gradient are added atomically.
 *
 * Computes  sums of dQ; of dV; of dK, and dS_in and dz_in, as written in include/attn/linear.h,
 *           each by an instance of its own
 * Method    bwd_atomic_begin.cl zeroes the sums of a query or key; this adds (atomic.clh);
 *           bwd_atomic_finish.cl takes them through phi and rounds
 * Grid      1-D, ceil(rows / PART) * Hkv * B groups of rows of the state (scan.clh), fastest
 * Group     ITEMS work-items
 * Local     rows of RUN tokens, twice: 16 * RUN * (PART + 1) bytes
 * Barriers  one for RUN tokens and query heads, where every item passes
 * Workspace c (bwd_begin.cl), if normalised, then the sums
 * Numerics  f32; the order of the sums over groups is not fixed
 * Tunables  ITEMS: any; PART, RUN
 * Oracle    linear_bwd_reference
 */
#include "linear/scan_bwd.clh"
#include "linear/atomic_walk.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_bwd_atomic(SIGNATURE(LINEAR_BWD_PARAMS))
{
    __local float rows[2 * OF_RUN];
    const atomic_local l = { rows };
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);

    atomic_group(&p, &l);
}
