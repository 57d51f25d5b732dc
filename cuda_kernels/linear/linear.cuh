// SPDX-License-Identifier: MIT
// linear/linear.cuh: what kernels of linear attention share: phi, lengths, addresses.
#pragma once
#include "common/types.cuh"

// Whether the problem has one of these features (LFEATURE_LIST). Uniform over the grid.
DEVICE bool linear_has(const attn_linear_kparams &p, uint32_t features)
{
    return (p.features & features) != 0;
}

DEVICE float linear_phi(const attn_linear_kparams &p, float x)
{
    if (linear_has(p, LINEAR_ELU1))
        return x > 0.0f ? x + 1.0f : expf(x);
    if (linear_has(p, LINEAR_RELU))
        return x <= 0.0f ? 0.0f : x;
    return x;
}

// phi'(x).
DEVICE float linear_slope(const attn_linear_kparams &p, float x)
{
    if (linear_has(p, LINEAR_ELU1))
        return x > 0.0f ? 1.0f : expf(x);
    if (linear_has(p, LINEAR_RELU))
        return x > 0.0f ? 1.0f : 0.0f;
    return 1.0f;
}

// A forward's sum over a row of phi(Q) that was divided by up >= 1, in the caller's units. Nothing
// leaves f32 on the way unless the result does.
DEVICE float in_units(float unit, float sum, float up)
{
    return fabsf(unit) <= 1.0f ? sum * (unit * up) : sum * up * unit;
}

// Keys of batch b; what is out of range is clamped and reported.
DEVICE int linear_length(const attn_linear_kparams &p, int64_t b)
{
    int n = p.len_kv;

    if (linear_has(p, LINEAR_LENS_KV)) {
        const int given = p.lens_kv[p.lens_kv_offset + b * p.lens_kv_stride_b];

        n = clamp(given, 0, p.len_kv);
        if (n != given && p.want_status)
            atomicOr(p.status + p.status_offset, CLAMPED_LENS_KV);
    }
    return n;
}

// Those that reach its state.
DEVICE int linear_keys(const attn_linear_kparams &p, int64_t b)
{
    const int n = linear_length(p, b);

    return linear_has(p, LINEAR_CAUSAL) ? min(n, p.len_q) : n;
}

// Element (b, h, l, d) of a view.
#define LINEAR_AT(p, name, b, h, l, d)                                        \
    ((p).name##_offset + (b) * (p).name##_stride_b + (h) * (p).name##_stride_h + \
     (l) * (p).name##_stride_l + (d) * (p).name##_stride_d)
