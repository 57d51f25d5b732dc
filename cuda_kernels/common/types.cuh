// SPDX-License-Identifier: MIT
// common/types.cuh: how elements are stored, and what a kernel instance can do.
//
// All arithmetic is f32; f16 and bf16 are storage only, moved as 16-bit words, so no
// header of the toolkit is needed. Template parameters read here and in the other files
// of common/:
//
//   TYPE   TYPE_F32, TYPE_F16 or TYPE_BF16: of Q, K, V and O
//   CAN    the bits of KFEATURE_LIST that this instance knows; what it does not know
//          costs it no instruction
#pragma once
#include "common/device.cuh"
#include "common/params.h"

// The instances: ranges of keys only (causal, window, lengths, packed sequences), or all.
enum {
    CAN_LAYOUTS = CONTIG_Q | CONTIG_K | CONTIG_V | CONTIG_O | WIDE_Q | WIDE_K | WIDE_V |
                  WIDE_O | WHOLE_Q | WHOLE_K | WHOLE_V | WHOLE_O | WIDE_GRADS | WHOLE_GRADS,
    CAN_RANGES = CAN_LAYOUTS | FEAT_RANGE_LEFT | FEAT_RANGE_RIGHT | FEAT_ALIGN_BR |
                 FEAT_OFFSETS | FEAT_LENS_Q | FEAT_LENS_KV | FEAT_PACKED_Q | FEAT_PACKED_K |
                 FEAT_SINKS | FEAT_LSE,
    CAN_ALL = CAN_RANGES | FEAT_PAGES | FEAT_SOFTCAP | FEAT_TERMS | FEAT_DROPOUT
};

// Whether the problem has one of these features. Uniform over the grid.
template <int CAN>
DEVICE bool has(const attn_kparams &p, int features)
{
    return (CAN & features) != 0 && (p.features & CAN & features) != 0;
}

template <typename T> DEVICE T clamp(T x, T low, T high)
{
    return x < low ? low : x > high ? high : x;
}

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int larger(int a, int b) { return a > b ? a : b; }

#define INFINITE __int_as_float(0x7f800000)

DEVICE float f32_of_bf16(uint32_t u) { return __uint_as_float(u << 16); }

// Round to nearest even; NaN stays NaN.
DEVICE uint16_t bf16_of_f32(float f)
{
    const uint32_t u = __float_as_uint(f);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x40u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Element i of a tensor of a type known only now, and of the computing type.
DEVICE float type_load(int type, const void *x, int64_t i)
{
    if (type == TYPE_F32)
        return ((const float *)x)[i];
    return type == TYPE_F16 ? device_f32_of_f16(((const uint16_t *)x)[i])
                            : f32_of_bf16(((const uint16_t *)x)[i]);
}

template <int TYPE> __host__ __device__ constexpr int elem_bytes()
{
    return TYPE == TYPE_F32 ? 4 : 2;
}

template <int TYPE> DEVICE float elem_load(const void *x, int64_t i)
{
    return type_load(TYPE, x, i);
}

template <int TYPE> DEVICE void elem_store(void *x, int64_t i, float f)
{
    if (TYPE == TYPE_F32)
        ((float *)x)[i] = f;
    else
        ((uint16_t *)x)[i] = TYPE == TYPE_F16 ? device_f16_of_f32(f) : bf16_of_f32(f);
}

// Four elements at once, where their bytes divide the address.
template <int TYPE> DEVICE float4 elem_load4(const void *x, int64_t i)
{
    if (TYPE == TYPE_F32)
        return *(const float4 *)((const float *)x + i);

    const uint2 u = *(const uint2 *)((const uint16_t *)x + i);

    if (TYPE == TYPE_F16)
        return make_float4(device_f32_of_f16((uint16_t)u.x),
                           device_f32_of_f16((uint16_t)(u.x >> 16)),
                           device_f32_of_f16((uint16_t)u.y),
                           device_f32_of_f16((uint16_t)(u.y >> 16)));
    return make_float4(f32_of_bf16(u.x), __uint_as_float(u.x & 0xffff0000u),
                       f32_of_bf16(u.y), __uint_as_float(u.y & 0xffff0000u));
}

template <int TYPE> DEVICE uint32_t elem_pair(float low, float high)
{
    const uint32_t a = TYPE == TYPE_F16 ? device_f16_of_f32(low) : bf16_of_f32(low);
    const uint32_t b = TYPE == TYPE_F16 ? device_f16_of_f32(high) : bf16_of_f32(high);

    return a | b << 16;
}

template <int TYPE> DEVICE void elem_store4(void *x, int64_t i, float4 f)
{
    if (TYPE == TYPE_F32)
        *(float4 *)((float *)x + i) = f;
    else
        *(uint2 *)((uint16_t *)x + i) =
            make_uint2(elem_pair<TYPE>(f.x, f.y), elem_pair<TYPE>(f.z, f.w));
}
