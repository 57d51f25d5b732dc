// SPDX-License-Identifier: MIT
// softmax/bwd_mma_finish.cu: the last step of the backward on tensor cores: the sums that
// bwd_mma.cu left in the workspace become dQ.
//
// Computes  dQ = scale * sums, rounded to the type
// Grid      1-D, ceil(Lq / ROWS) * Hq * B groups, queries fastest
// Block     32 * ROWS threads, 1-D: a warp for a row
// Shared    none
// Layout    dQ of any strides, in elements; WIDE_GRADS promises more (params.h). work:
//           bwd_mma_work.cuh
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for f16 and bf16: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_mma_finish_f16
#endif

#include "softmax/bwd_mma_work.cuh"

constexpr int ROWS = 8;    // src/plan/cuda/softmax_bwd_mma.c
constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

extern "C" __global__ __launch_bounds__(32 * ROWS) void NAME(
    const __grid_constant__ attn_kparams p)
{
    const int lane = threadIdx.x % 32, tiles = ceil_div(p.len_q, ROWS);
    const int i = (int)(blockIdx.x % tiles) * ROWS + (int)threadIdx.x / 32;
    const int head = blockIdx.x / tiles, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const attn_sequence seq = range_sequence<CAN>(p, b);

    if (i >= seq.queries)
        return;

    const back_work work = find_back_work(p);
    const float *const sums = work.sums + back_delta_at(p, b, h, i) * work.pitch;
    const attn_rows rows = ADDRESS_QUERIES(p, grad_q, seq, b, h);
    const int64_t to = address_row<CAN>(p, rows, i);

    for (int d = lane * 4; d < p.d; d += 32 * 4) {
        const float4 x = *(const float4 *)(sums + d);
        const float four[4] = { x.x * p.scale, x.y * p.scale, x.z * p.scale, x.w * p.scale };

        if (has<CAN>(p, WIDE_GRADS)) {
            elem_store4<TYPE>(p.grad_q, to + d,
                              make_float4(four[0], four[1], four[2], four[3]));
            continue;
        }
        for (int k = 0; k < 4; k++)
            if (d + k < p.d)
                elem_store<TYPE>(p.grad_q, to + (d + k) * rows.stride_d, four[k]);
    }
}
