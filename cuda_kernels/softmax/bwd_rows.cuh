// SPDX-License-Identifier: MIT
// softmax/bwd_rows.cuh: delta of a row, by a warp. TYPE is the image's.
#pragma once
#include "softmax/bwd.cuh"

// The products of row i of dO and O that are this lane's; added up in one order, whatever
// the layout.
template <int CAN>
DEVICE float back_products(const attn_kparams &p, const attn_rows &grad, const attn_rows &o,
                           int i, int lane)
{
    const int64_t grad_i = address_row<CAN>(p, grad, i), o_i = address_row<CAN>(p, o, i);
    float sum = 0.0f;

    for (int d = lane * 4; d < p.dv; d += 32 * 4) {
        if (has<CAN>(p, WIDE_O) && has<CAN>(p, WIDE_GRADS)) {
            const float4 x = elem_load4<TYPE>(p.grad_o, grad_i + d);
            const float4 y = elem_load4<TYPE>(p.o, o_i + d);

            sum += x.x * y.x;
            sum += x.y * y.y;
            sum += x.z * y.z;
            sum += x.w * y.w;
            continue;
        }
        for (int k = d; k < min(d + 4, p.dv); k++)
            sum += elem_load<TYPE>(p.grad_o, grad_i + k * grad.stride_d) *
                   elem_load<TYPE>(p.o, o_i + k * o.stride_d);
    }
    return sum;
}

// delta of row i of head h, which is one of the batch's queries: of the lanes' products.
template <int CAN>
DEVICE float back_delta(const attn_kparams &p, const attn_sequence &seq, int64_t b, int h, int i,
                        int lane)
{
    float sum = 0.0f;

    if (p.has & HAS_GRAD_O)
        sum = back_products<CAN>(p, ADDRESS_QUERIES(p, grad_o, seq, b, h),
                                 ADDRESS_QUERIES(p, o, seq, b, h), i, lane);
    for (int mask = 16; mask > 0; mask /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (p.has & HAS_GRAD_LSE)
        sum -= p.grad_lse[p.grad_lse_offset +
                          (has<CAN>(p, FEAT_PACKED_Q) ? 0 : b * p.grad_lse_stride_b) +
                          h * p.grad_lse_stride_h +
                          (seq.q_first + (int64_t)i) * p.grad_lse_stride_l];
    return sum;
}
