/* SPDX-License-Identifier: MIT */
/* softmax/bwd_sinks.cl: the gradient of the sinks, from the LSE and delta alone.
 *
 * Computes  dSink_h = - sum over batches and i of exp(sink_h - LSE_i) delta_i
 * Grid      1-D, Hq groups
 * Group     ITEMS work-items; each sums every ITEMS-th query of a batch, and the first one
 *           adds up in their order
 * Local     4 * ITEMS bytes
 * Numerics  f32, sums compensated; a weight is at most 1
 * Tunables  ITEMS: any
 */
#ifndef ITEMS
#define ITEMS 64
#endif
#include "softmax/bwd.clh"

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_softmax_bwd_sinks(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    __local float part[ITEMS];
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const int lane = get_local_id(0);
    const long h = get_group_id(0);
    const float sink = state_sink(&p, h);
    float sum = 0.0f, extra = 0.0f;

    for (long b = 0; b < p.batch; b++) {
        const attn_sequence seq = range_sequence(&p, b);

        for (int i = lane; sink != -INFINITY && i < seq.queries; i += ITEMS) {
            const float over = sink - back_lse(&p, &seq, b, h, i);
            const float weight = over <= 0.0f ? exp(over) : 1.0f;    /* of +inf: 1 */

            if (weight != 0.0f)
                sum = back_add(sum, -weight * p.work[back_delta_at(&p, b, h, i)], &extra);
        }
    }
    part[lane] = sum - extra;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0) {
        sum = extra = 0.0f;
        for (int x = 0; x < ITEMS; x++)
            sum = back_add(sum, part[x], &extra);
        p.grad_sinks[p.grad_sinks_offset + h * p.grad_sinks_stride_h] = sum - extra;
    }
}
