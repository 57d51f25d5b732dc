/* SPDX-License-Identifier: MIT */
/* linear/bwd_lmha.cl: gradients of linear attention token by token, a group for a head.
 *
 * Computes  dQ; dK, dV, dS_in and dz_in, as written in include/attn/linear.h; with SUMS what the
 *           rows of each segment add to the state
 * Method    scans (scan.clh, lmha.clh): one forwards in time for dQ, one backwards for dK and
 *           dV, which read the same state along both of its sides; a scan for each where D or Dv
 *           is over 128, or what they sum does not fit local memory. The normaliser is a column
 *           of ones beside V, its gradient c beside G. linear_bwd_lmha_split cuts the sequence
 *           into segments, as the forward
 * Grid      1-D, ceil(columns / COLUMNS) * segments * Hkv * B groups, columns fastest; SCAN_KV
 *           one for all columns
 * Group     SPAN * SLICES work-items
 * Local     rows of RUN tokens and what they summed, twice; with IN_LOCAL the state
 * Barriers  one for RUN tokens and query heads, where every item passes
 * Workspace c (bwd_begin.cl), if normalised; with SPLIT then the slots (slots.clh)
 * Numerics  f32
 * Tunables  SPAN, SLICES, WIDE, RUN; IN_LOCAL (src/plan/opencl/linear_lmha.c)
 * Oracle    linear_bwd_reference
 */
#include "linear/scan_bwd.clh"
#include "linear/lmha_walk.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_bwd_lmha(SIGNATURE(LINEAR_BWD_PARAMS))
{
    LMHA_LOCAL(l);
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);

    lmha_group(&p, &l);
}
