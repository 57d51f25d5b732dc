// SPDX-License-Identifier: MIT
// linear/phi16.cuh: phi of numbers of 16 bits, two at a time. TYPE is the image's.
#pragma once
#include "linear/linear.cuh"

DEVICE float f32_of_low(uint32_t u)
{
    return TYPE == TYPE_F16 ? device_f32_of_f16((uint16_t)u) : f32_of_bf16(u & 0xffffu);
}

DEVICE float f32_of_high(uint32_t u)
{
    return TYPE == TYPE_F16 ? device_f32_of_f16((uint16_t)(u >> 16))
                            : __uint_as_float(u & 0xffff0000u);
}

// phi, for numbers that are rounded to the type next.
template <bool ELU1> DEVICE float phi_rounded(float x)
{
    const float below = ELU1 ? device_exp2(x * 1.44269504088896340736f) : 0.0f;

    return x <= 0.0f ? below : ELU1 ? x + 1.0f : x;
}

template <bool ELU1> DEVICE uint32_t phi_of_pair(uint32_t u)
{
    return device_pair<TYPE>(phi_rounded<ELU1>(f32_of_low(u)), phi_rounded<ELU1>(f32_of_high(u)));
}
