// SPDX-License-Identifier: MIT
// softmax/bwd_store.cuh: how sums on plain CUDA cores become rows of a gradient. TYPE is the
// image's.
#pragma once
#include "softmax/bwd.cuh"
#include "softmax/products.cuh"
#include "softmax/stage.cuh"

// Rows first + ty + r * TY of a gradient, of `owned` from `first` on, times a factor, with
// `more` added to what is there; and the sums begin anew.
template <typename T, int CAN>
DEVICE void store_rows(const attn_kparams &p, const place<T> &my, int first, int owned, void *to,
                       const attn_rows &rows, int depth, float factor, bool more,
                       float4 (&sum)[T::RM][T::RV])
{
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        const int i = my.ty + r * T::TY;
        const int64_t row = rows.base + (first + i) * rows.stride_l;

        #pragma unroll
        for (int g = 0; g < T::RV; g++) {
            const int c = 4 * (my.tx + g * T::TX);
            float4 x = sum[r][g];

            sum[r][g] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (i >= owned || c >= depth)
                continue;
            if (has<CAN>(p, WIDE_GRADS)) {
                if (TYPE == TYPE_F32 && more)
                    add_scaled(x, 1.0f, elem_load4<TYPE>(to, row + c));
                elem_store4<TYPE>(to, row + c, make_float4(x.x * factor, x.y * factor,
                                                           x.z * factor, x.w * factor));
                continue;
            }

            const float four[4] = { x.x, x.y, x.z, x.w };

            #pragma unroll
            for (int k = 0; k < 4; k++) {
                const int64_t e = row + (c + k) * rows.stride_d;

                if (c + k >= depth)
                    continue;

                const float before = TYPE == TYPE_F32 && more ? elem_load<TYPE>(to, e) : 0.0f;

                elem_store<TYPE>(to, e, (before + four[k]) * factor);
            }
        }
    }
}
