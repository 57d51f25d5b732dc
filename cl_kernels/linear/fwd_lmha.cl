/* SPDX-License-Identifier: MIT */
/* linear/fwd_lmha.cl: linear attention token by token, a group for a head.
 *
 * Computes  O, den, and S and z as they come out, as written in include/attn/linear.h; with SUMS
 *           what the keys of each segment add to the state
 * Method    the recurrence (lmha.clh): a group owns COLUMNS columns of the state of one batch and
 *           key/value head, and walks all tokens with them, RUN from barrier to barrier. The
 *           method is that of the kernels of A. Katharopoulos et al., "Transformers are RNNs"
 *           (2020). linear_fwd_lmha_split cuts the sequence into segments: with SUMS, then
 *           fwd_chunk_scan.cl, if they are many, then each segment is a walk of its own
 * Grid      1-D, ceil(DV / COLUMNS) * segments * Hkv * B groups, columns fastest
 * Group     SPAN * SLICES work-items
 * Local     rows of RUN tokens and what they summed, twice; with IN_LOCAL the state
 * Barriers  one for RUN tokens and query heads, where every item passes
 * Workspace z as it came in (fwd_begin.cl), if there is one and several groups of a head read
 *           it; with SPLIT the slots (slots.clh)
 * Numerics  f32; huge rows of q are scaled by a power of 2 until they are divided
 * Tunables  SPAN, SLICES, WIDE, RUN: powers of 2; IN_LOCAL (src/plan/opencl/linear_lmha.c)
 * Oracle    linear_fwd_reference
 */
#include "linear/scan_fwd.clh"
#include "linear/lmha_walk.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_fwd_lmha(SIGNATURE(LINEAR_FWD_PARAMS))
{
    LMHA_LOCAL(l);
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);

    lmha_group(&p, &l);
}
