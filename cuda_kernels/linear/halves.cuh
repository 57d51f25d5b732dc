// SPDX-License-Identifier: MIT
// linear/halves.cuh: numbers of f32 as sums of two of f16, and the powers of two that bring them to
// what f16 holds.
//
// x = high + low to 2^-24 of x, as f32 itself rounds, where x is brought to below 2^15 and not
// below 2^-2; below that low is a multiple of 2^-24, so that of rows whose largest number comes to
// [2^14, 2^15) none is off by more than 2^-39 of that. Of the products of two such sums low * low
// is left out, 2^-24 of the product and less in the mean.
#pragma once
#include "linear/chunk.cuh"

constexpr int HALF_TOP = 14;    // the exponent that the largest numbers are brought to

// The largest of numbers; a NaN counts where there is nothing else.
DEVICE float larger_size(float x, float y) { return fmaxf(fabsf(x), fabsf(y)); }

DEVICE uint32_t size_of(const float4 &x)
{
    return __float_as_uint(larger_size(larger_size(x.x, x.y), larger_size(x.z, x.w)));
}

// The exponent of what is so large, if it is not below LEAST; 128 of what is not finite.
template <int LEAST> DEVICE int exponent_of(uint32_t size)
{
    return max((int)(size >> 23), 127 + LEAST) - 127;
}

// For exponents from -149 to 127; power_of_2() has those over -127 alone.
DEVICE float any_power_of_2(int exponent)
{
    return exponent < -126 ? __int_as_float(1 << (exponent + 149)) : power_of_2(exponent);
}

// Two numbers as words of two parts, x in the lower half.
DEVICE void split_halves(float x, float y, uint32_t (&part)[2])
{
    const uint32_t high = device_pair<TYPE_F16>(x, y);

    part[0] = high;
    part[1] = device_pair<TYPE_F16>(x - device_f32_of_f16((uint16_t)high),
                                    y - device_f32_of_f16((uint16_t)(high >> 16)));
}

// Of a chunk: rows of K are divided by 2^b of their own, and those of V are multiplied by that and
// divided by 2^c of the chunk, so that the rows of both are operands as they are.
struct chunk_scales {
    float keys[CHUNK];     // 2^b; 0: of a row of zeros
    float unit;            // 2^c
    int wide;              // whether a query sees rows of V alone that 2^c leaves too little of
    int top[8][2];         // of warps, while c is looked for
};

// Rows that come before all larger ones, and are so many powers of two below those, are too small.
constexpr int WIDE = 12;
constexpr int NO_ROW = -127;    // in place of b, so that 2^b becomes 0

// What pairs of rows of Q and K, sums of DIM products below 2^(2 HALF_TOP + 2), are divided by.
constexpr int PAIRS_DOWN = HALF_TOP + 1 + (DIM > 64 ? 7 : 6), LIFT = 8;
constexpr int OUT_OF_PAIRS = PAIRS_DOWN - LIFT;    // wgmma_halves.cuh
