// SPDX-License-Identifier: MIT
// softmax/bwd.cuh: what the kernels of the backward share.
//
// delta of query i of head h of batch b lies in the workspace, [B, Hq, Lq] in f32.
#pragma once
#include "common/device.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/state.cuh"

DEVICE int64_t back_delta_at(const attn_kparams &p, int64_t b, int64_t h, int64_t i)
{
    return (b * p.heads_q + h) * p.len_q + i;
}

// The LSE of query i as weights want it: without a key in sight +inf, which leaves none.
template <int CAN>
DEVICE float back_lse(const attn_kparams &p, const attn_sequence &s, int64_t b, int64_t h,
                      int64_t i)
{
    const float lse = p.lse[address_lse<CAN>(p, s, b, h, i)];

    return lse == -INFINITE ? INFINITE : lse;
}

// A weight is at most 1, whatever the rounding of the LSE, and that of a hidden pair 0, of a row
// whose LSE is NaN too.
DEVICE float back_weight(float score, float lse)
{
    return score == -INFINITE ? 0.0f : state_weight(score > lse ? lse : score, lse);
}

// The compensated sum + x (Kahan 1965): *extra is what was added too much.
DEVICE float back_add(float sum, float x, float *extra)
{
    const float y = x - *extra, total = sum + y, rest = (total - sum) - y;

    *extra = fabsf(rest) < INFINITE ? rest : 0.0f;
    return total;
}
