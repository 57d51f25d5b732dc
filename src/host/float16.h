/* SPDX-License-Identifier: MIT */
/* host/float16.h: one number between f32 and the 16-bit types, and back. */
#ifndef ATTN_HOST_FLOAT16_H
#define ATTN_HOST_FLOAT16_H

#include <stdint.h>
#include <string.h>

/* No branches but selects, so that a loop over these becomes vector code, and
 * only normal f32 numbers inside, so that "denormals are zero" modes of the
 * caller's thread change nothing. Roundings are to nearest even; NaN stays NaN. */

static inline uint32_t attn_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float attn_f32_of_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* f16: 1 sign, 5 exponent, 10 mantissa bits; exponent bias 15, f32's is 127. */
static inline float attn_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t mag = (uint32_t)(h & 0x7fffu) << 13;
    uint32_t normal = mag + (112u << 23);
    /* 2^-14 (1 + m) - 2^-14 for the subnormal 2^-14 m */
    uint32_t small = attn_f32_bits(attn_f32_of_bits(mag + (113u << 23)) - 0x1p-14f);
    uint32_t large = mag | 0x7f800000u;     /* Inf and NaN */
    uint32_t u = mag < (1u << 23) ? small : normal;

    return attn_f32_of_bits(sign | (mag >= (31u << 23) ? large : u));
}

static inline uint16_t attn_f16_from_f32(float x)
{
    uint32_t u = attn_f32_bits(x), sign = u >> 16 & 0x8000u, mag = u & 0x7fffffffu;
    /* Below 2^-14 the sum with 1/2 leaves the 24 bits that f16 keeps: the adder
     * rounds. At least 65520 rounds to Inf. */
    uint32_t m = mag < (113u << 23) ? mag : 0;
    uint32_t small = attn_f32_bits(attn_f32_of_bits(m) + 0.5f) - (126u << 23);
    uint32_t normal = (mag - (112u << 23) + 0xfffu + (mag >> 13 & 1)) >> 13;
    uint32_t large = mag > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t h = mag < (113u << 23) ? small : normal;

    return (uint16_t)(sign | (mag >= 0x477ff000u ? large : h));
}

static inline float attn_f32_from_bf16(uint16_t h)
{
    return attn_f32_of_bits((uint32_t)h << 16);
}

static inline uint16_t attn_bf16_from_f32(float x)
{
    uint32_t u = attn_f32_bits(x);
    uint32_t r = (u + 0x7fffu + (u >> 16 & 1)) >> 16;

    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? (u >> 16 | 0x40u) : r);
}

#endif
