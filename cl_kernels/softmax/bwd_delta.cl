/* SPDX-License-Identifier: MIT */
/* softmax/bwd_delta.cl: the first step of the backward: what every pass over pairs takes
 * from its products.
 *
 * Computes  delta_i = sum_d dO_id O_id - dLSE_i, those that are there, into the workspace; where
 *           O is 0, as it is in rows that see no key, dO counts for nothing, whatever it is
 * Grid      1-D, ceil(queries / ROWS) groups for each head of the round, queries fastest
 * Group     ROWS * LANES work-items: LANES for a row, side by side
 * Local     4 * ROWS * (LANES + 1) bytes
 * Numerics  f32
 * Tunables  ROWS LANES: any
 */
#ifndef ROWS
#define ROWS 8
#endif
#ifndef LANES_OF_ROW
#define LANES_OF_ROW 8
#endif
#include "softmax/bwd.clh"

__kernel __attribute__((reqd_work_group_size(ROWS * LANES_OF_ROW, 1, 1)))
void attn_softmax_bwd_delta(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    __local float part[ROWS * (LANES_OF_ROW + 1)];
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const int lane = get_local_id(0) % LANES_OF_ROW, row = get_local_id(0) / LANES_OF_ROW;
    const long tiles = CEIL_DIV(p.round_queries, ROWS), id = get_group_id(0);
    const int at = (int)(id % tiles) * ROWS + row, i = p.round_query + at;
    const long n = p.round_head + id / tiles, h = n % p.heads_q, b = n / p.heads_q;
    const attn_sequence seq = range_sequence(&p, b);
    const int there = at < p.round_queries && i < seq.queries;
    __local float *const sums = part + row * (LANES_OF_ROW + 1);
    float sum = 0.0f;

    if (p.has & HAS_GRAD_O && there) {
        const attn_rows grad = ADDRESS_QUERIES(&p, grad_o, &seq, b, h);
        const attn_rows o = ADDRESS_QUERIES(&p, o, &seq, b, h);
        const long grad_i = address_row(&grad, i), o_i = address_row(&o, i);

        for (int d = lane; d < DV; d += LANES_OF_ROW) {
            const float x = elem_load(p.grad_o, address_elem(&grad, grad_i, d, CONTIG_GRAD_O));
            const float y = elem_load(p.o, address_elem(&o, o_i, d, CONTIG_O));

            sum += (y != 0.0f ? x : 0.0f) * y;
        }
    }
    sums[lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0 && there) {
        for (int x = 1; x < LANES_OF_ROW; x++)
            sum += sums[x];
        if (p.has & HAS_GRAD_LSE)
            sum -= p.grad_lse[p.grad_lse_offset +
                              (FEAT_PACKED_Q ? 0 : b * p.grad_lse_stride_b) +
                              h * p.grad_lse_stride_h +
                              (seq.q_first + (long)i) * p.grad_lse_stride_l];
        p.work[back_delta_at(&p, b, h, i)] = sum;
    }
}
