/* SPDX-License-Identifier: MIT */
/* linear/bwd_begin.cl: what gradients of normalised linear attention take of each query.
 *
 * Computes  work[b, h, l] = c_l = - <dO_l, O_l> / den_l; 0 where den_l is 0
 * Grid      1-D, ceil(Lq / ROWS) * Hq * B groups, queries fastest
 * Group     ROWS * LANES_OF_ROW work-items: LANES_OF_ROW for a row, side by side
 * Local     4 * ROWS * (LANES_OF_ROW + 1) bytes
 * Numerics  f32
 * Tunables  ROWS LANES_OF_ROW: any
 * Oracle    src/host/linear_bwd_reference.c
 */
#ifndef ROWS
#define ROWS 8
#endif
#ifndef LANES_OF_ROW
#define LANES_OF_ROW 8
#endif
#define KERNEL_PARAMS LINEAR_BWD_PARAMS
#include "linear/linear.clh"

__kernel __attribute__((reqd_work_group_size(ROWS * LANES_OF_ROW, 1, 1)))
void attn_linear_bwd_begin(SIGNATURE(LINEAR_BWD_PARAMS))
{
    __local float part[ROWS * (LANES_OF_ROW + 1)];
    const attn_kparams p = KPARAMS(LINEAR_BWD_PARAMS);
    const int lane = get_local_id(0) % LANES_OF_ROW, row = get_local_id(0) / LANES_OF_ROW;
    /* 32 bits: Mesa's remainder of longs is wrong in its upper half */
    const uint tiles = CEIL_DIV((uint)p.len_q, ROWS), id = get_group_id(0);
    const uint head = id / tiles;
    const long h = head % (uint)p.heads_q, b = head / (uint)p.heads_q;
    const long i = (long)(id % tiles) * ROWS + row;
    __local float *const sums = part + row * (LANES_OF_ROW + 1);
    float sum = 0.0f;

    if (i < p.len_q && p.has & LHAS_GRAD_O) {
        const float den = p.den[LINEAR_AT(&p, den, b, h, i, 0L)];

        for (int m = lane; m < DV && den != 0.0f; m += LANES_OF_ROW)
            sum -= elem_load(p.grad_o, LINEAR_AT(&p, grad_o, b, h, i, m)) / den *
                   elem_load(p.o, LINEAR_AT(&p, o, b, h, i, m));
    }
    sums[lane] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (lane == 0 && i < p.len_q) {
        for (int x = 1; x < LANES_OF_ROW; x++)
            sum += sums[x];
        p.work[(long)head * p.len_q + i] = sum;
    }
}
