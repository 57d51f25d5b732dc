/* SPDX-License-Identifier: MIT */
/* linear/fwd_begin.cl: a copy of z as it came in, which z_out may be.
 *
 * Computes  work[b, kvh, d] = z_in[b, kvh, d], or 0
 * Grid      1-D, B * Hkv groups
 * Group     ITEMS work-items; each takes every ITEMS-th number
 * Tunables  ITEMS: any
 */
#ifndef ITEMS
#define ITEMS 64
#endif
#include "linear/linear.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_linear_fwd_begin(SIGNATURE(LINEAR_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(LINEAR_FWD_PARAMS);
    const uint unit = get_group_id(0);
    const long b = unit / (uint)p.heads_kv, h = unit % (uint)p.heads_kv;

    for (int e = get_local_id(0); e < D; e += ITEMS)
        p.work[(long)unit * D + e] = FEAT_STATE ? p.z_in[LINEAR_AT(&p, z_in, b, h, e, 0L)] : 0.0f;
}
