/* SPDX-License-Identifier: MIT */
/* linear/fwd_atomic.cl: linear attention token by token, groups of 8 rows of the state, whose parts
 * of O are added atomically.
 *
 * Computes  sums of O and of den, and S and z as they come out, as written in
 *           include/attn/linear.h
 * Method    fwd_atomic_begin.cl zeroes the sums of a query and finds what its q is divided by;
 *           this adds (atomic.clh); fwd_atomic_finish.cl divides and rounds. The method is that
 *           of the general kernel of A. Katharopoulos et al., "Transformers are RNNs" (2020)
 * Grid      1-D, ceil(D / PART) * Hkv * B groups, rows fastest
 * Group     ITEMS work-items
 * Local     rows of RUN tokens, twice: 16 * RUN * (PART + 1) bytes
 * Barriers  one for RUN tokens and query heads, where every item passes
 * Workspace the sums
 * Numerics  f32; the order of the sums over groups is not fixed. Huge rows of q are
 *           scaled by a power of 2 until they are divided
 * Tunables  ITEMS: any; PART, RUN
 * Oracle    linear_fwd_reference
 */
#include "linear/scan_fwd.clh"
#include "linear/atomic_walk.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_fwd_atomic(SIGNATURE(LINEAR_FWD_PARAMS))
{
    __local float rows[2 * OF_RUN];
    const atomic_local l = { rows };
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);

    atomic_group(&p, &l);
}
