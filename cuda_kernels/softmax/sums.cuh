// SPDX-License-Identifier: MIT
// softmax/sums.cuh: sums of products with V, and of weights: compensated, and held against
// the largest score so far.
#pragma once
#include "common/types.cuh"

// The compensated sum + x; *fine stays true as long as its rest is a finite number.
DEVICE void add_rest(float &sum, float &extra, float x, bool &fine)
{
    const float y = x - extra, total = sum + y, rest = (total - sum) - y;

    sum = total;
    extra = rest;
    fine = fine && fabsf(rest) < INFINITE;
}

// Sums of values held against an older maximum; 0 where none of it is left, even of Inf.
// Not for sums of weights: those are finite or NaN, and a NaN has to stay, since it is all
// that tells of a NaN score.
DEVICE float rescaled(float sum, float factor)
{
    return factor > 0.0f || factor != factor ? sum * factor : 0.0f;
}

// sum += x; TYPE_F32 with compensation. Where the sum is no finite number there is no rest.
template <int TYPE> DEVICE void add_compensated(float &sum, float &rest, float x)
{
    bool fine = true;

    if (TYPE != TYPE_F32) {
        sum += x;
        return;
    }
    add_rest(sum, rest, x, fine);
    if (!fine)
        rest = 0.0f;
}

// The rests of two sums in one register, 8 bits of each: they are below 2^-24 of their
// sums, and registers are what kernels have least of.
struct rests {
    uint32_t pair;
};

DEVICE float first_rest(rests x) { return __uint_as_float(x.pair << 16); }
DEVICE float second_rest(rests x) { return __uint_as_float(x.pair & 0xffff0000u); }

// Towards 0: a rest that is taken off its sum then changes no bit of it that the exact one
// would not.
DEVICE rests pack_rests(float a, float b)
{
    return { __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632) };
}

DEVICE rests rescaled_rests(rests x, float factor)
{
    return pack_rests(rescaled(first_rest(x), factor), rescaled(second_rest(x), factor));
}

// f16 has nothing below 2^-24. Weights that meet V in the type are 2^LIFT times what they
// are, and so are all sums of them: those down to 2^-24 of a row's largest are as exact as the
// type is, and a million of smaller ones are off by less than 2^-14 together.
template <int TYPE> constexpr float LIFT = TYPE == TYPE_F16 ? 10.0f : 0.0f;

// The log2 of what a weight may be before its row moves to its new maximum: 2^LIFT times that
// is a number of the type, and sums have room. f32, whose V may be any number, has none.
template <int TYPE>
constexpr float HEADROOM = TYPE == TYPE_F16 ? 5.75f : TYPE == TYPE_F32 ? 0.0f : 8.0f;

template <int TYPE> DEVICE float unlifted(float sum)
{
    return TYPE == TYPE_F16 ? sum * 0x1p-10f : sum;
}
