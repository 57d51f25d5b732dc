/* SPDX-License-Identifier: MIT */
/* host/vector.h: LANES f32 numbers as one value, in the compiler's own vector
 * extension (gcc, clang): no instruction set is named but for max. */
#ifndef ATTN_HOST_VECTOR_H
#define ATTN_HOST_VECTOR_H

#include <math.h>
#include <stdint.h>

#if defined __SSE2__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

typedef float vf __attribute__((vector_size(LANES * 4), may_alias));
typedef int32_t vi __attribute__((vector_size(LANES * 4), may_alias));
typedef uint32_t vu __attribute__((vector_size(LANES * 4), may_alias));

static inline vf vf_set(float x)
{
    return x - (vf){ 0 };
}

static inline vi vi_set(int32_t x)
{
    return x - (vi){ 0 };
}

/* x where mask is -1, 0 where it is 0. */
static inline vf vf_keep(vi mask, vf x)
{
    return (vf)(mask & (vi)x);
}

static inline vf vf_select(vi mask, vf yes, vf no)
{
    return (vf)((mask & (vi)yes) | (~mask & (vi)no));
}

/* A NaN in b is the result; one in a may get lost. */
static inline vf vf_max(vf a, vf b)
{
#if defined __AVX512F__ && LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX__ && LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined __SSE2__ && LANES == 4
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#elif defined __aarch64__ && LANES == 4
    return (vf)vmaxq_f32((float32x4_t)a, (float32x4_t)b);
#else
    return vf_select(a > b, a, b);
#endif
}

/* 2^x for x <= 0, within 1 ulp (1.3 without FMA); exactly 1 at 0, exactly 0 below
 * -126 (and at -Inf); NaN stays NaN.
 *
 * x = n + f, n the nearest integer: adding 1.5 * 2^23 leaves n in the low bits,
 * and with 127 more they are the exponent of 2^n. On [-1/2, 1/2] the polynomial
 * is 2^f within 2e-9 (least maximum of the relative error, 1 at 0 given). */
static inline vf vf_exp2(vf x)
{
    const float magic = 0x1.8p23f + 127;
    vf t = x + magic, f = x - (t - magic);
    vf scale = (vf)((vu)t << 23);
    vf p = vf_set(0x1.41fbbcp-13f);

    p = p * f + 0x1.5f3e52p-10f;
    p = p * f + 0x1.3b2d4cp-7f;
    p = p * f + 0x1.c6aee8p-5f;
    p = p * f + 0x1.ebfbdcp-3f;
    p = p * f + 0x1.62e430p-1f;
    p = p * f + 1.0f;
    return vf_keep(~(x < -126.0f), p * scale);
}

#endif
