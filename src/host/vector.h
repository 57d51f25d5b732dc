/* SPDX-License-Identifier: MIT */
/* host/vector.h: LANES f32 numbers as one value, in the compiler's own vector
 * extension (gcc, clang): no instruction set is named but for max. */
#ifndef ATTN_HOST_VECTOR_H
#define ATTN_HOST_VECTOR_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

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

static inline vf vf_load(const float *from)
{
    vf x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline void vf_store(float *to, vf x)
{
    memcpy(to, &x, sizeof x);
}

static inline vf vf_abs(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}

/* 0, 1, 2, ... */
static inline vi vi_lanes(void)
{
#if LANES == 4
    return (vi){ 0, 1, 2, 3 };
#elif LANES == 8
    return (vi){ 0, 1, 2, 3, 4, 5, 6, 7 };
#else
    return (vi){ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 };
#endif
}

/* Whether a lane of a mask (-1 or 0 each) is set. */
static inline bool vi_any(vi mask)
{
#if defined __AVX512F__ && LANES == 16
    return _mm512_test_epi32_mask((__m512i)mask, (__m512i)mask) != 0;
#elif defined __AVX__ && LANES == 8
    return _mm256_movemask_ps((__m256)mask) != 0;
#elif defined __SSE2__ && LANES == 4
    return _mm_movemask_ps((__m128)mask) != 0;
#else
    int32_t any = 0;
    for (int i = 0; i < LANES; i++)
        any |= mask[i];
    return any != 0;
#endif
}

#ifdef __clang__
#define VF_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define VF_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (vi){ __VA_ARGS__ })
#endif

#ifdef __clang__
#define VF_UNROLL _Pragma("unroll")
#else
#define VF_UNROLL _Pragma("GCC unroll 16")
#endif

/* Zips row i with row i + LANES / 2: lane by lane in turn, first halves, then second. */
static inline void vf_zip(vf to[LANES], const vf r[LANES])
{
    VF_UNROLL for (int i = 0; i < LANES / 2; i++) {
        const vf a = r[i], b = r[i + LANES / 2];
#if LANES == 4
        to[2 * i] = VF_SHUFFLE(a, b, 0, 4, 1, 5);
        to[2 * i + 1] = VF_SHUFFLE(a, b, 2, 6, 3, 7);
#elif LANES == 8
        to[2 * i] = VF_SHUFFLE(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
        to[2 * i + 1] = VF_SHUFFLE(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
        to[2 * i] =
            VF_SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        to[2 * i + 1] =
            VF_SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#endif
    }
}

/* Rows become columns: zipping moves the first bit of the column to the row, and the
 * other way; log2(LANES) times all bits have moved. */
static inline void vf_transpose(vf r[LANES])
{
    vf t[LANES];

    vf_zip(t, r);
    vf_zip(r, t);
#if LANES == 8
    vf_zip(t, r);
    VF_UNROLL for (int i = 0; i < LANES; i++) r[i] = t[i];
#elif LANES == 16
    vf_zip(t, r);
    vf_zip(r, t);
#endif
}

/* Lane i: the sum of the lanes of r[i], for each in the same order: halves onto halves,
 * two rows at once. r is scratch. */
static inline vf vf_sums(vf r[LANES])
{
#define FOLD(n, a, b) VF_UNROLL for (int i = 0; i < n; i++) r[i] = a + b;
#define PICK(n, ...)  VF_SHUFFLE(r[i], r[i + n], __VA_ARGS__)
#if LANES == 16
    FOLD(8, PICK(8, 0, 1, 2, 3, 4, 5, 6, 7, 24, 25, 26, 27, 28, 29, 30, 31),
         PICK(8, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23))
    FOLD(4, PICK(4, 0, 1, 2, 3, 20, 21, 22, 23, 8, 9, 10, 11, 28, 29, 30, 31),
         PICK(4, 4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27))
    FOLD(2, PICK(2, 0, 1, 18, 19, 4, 5, 22, 23, 8, 9, 26, 27, 12, 13, 30, 31),
         PICK(2, 2, 3, 16, 17, 6, 7, 20, 21, 10, 11, 24, 25, 14, 15, 28, 29))
    FOLD(1, PICK(1, 0, 17, 2, 19, 4, 21, 6, 23, 8, 25, 10, 27, 12, 29, 14, 31),
         PICK(1, 1, 16, 3, 18, 5, 20, 7, 22, 9, 24, 11, 26, 13, 28, 15, 30))
#elif LANES == 8
    FOLD(4, PICK(4, 0, 1, 2, 3, 12, 13, 14, 15), PICK(4, 4, 5, 6, 7, 8, 9, 10, 11))
    FOLD(2, PICK(2, 0, 1, 10, 11, 4, 5, 14, 15), PICK(2, 2, 3, 8, 9, 6, 7, 12, 13))
    FOLD(1, PICK(1, 0, 9, 2, 11, 4, 13, 6, 15), PICK(1, 1, 8, 3, 10, 5, 12, 7, 14))
#else
    FOLD(2, PICK(2, 0, 1, 6, 7), PICK(2, 2, 3, 4, 5))
    FOLD(1, PICK(1, 0, 5, 2, 7), PICK(1, 1, 4, 3, 6))
#endif
#undef FOLD
#undef PICK
    return r[0];
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
#define VF_MAGIC (0x1.8p23f + 127)

/* 2^n 2^f, of t = n + VF_MAGIC and f in [-1/2, 1/2]. */
static inline vf vf_exp2_of(vf t, vf f)
{
    vf scale = (vf)((vu)t << 23);
    vf p = vf_set(0x1.41fbbcp-13f);

    p = p * f + 0x1.5f3e52p-10f;
    p = p * f + 0x1.3b2d4cp-7f;
    p = p * f + 0x1.c6aee8p-5f;
    p = p * f + 0x1.ebfbdcp-3f;
    p = p * f + 0x1.62e430p-1f;
    p = p * f + 1.0f;
    return p * scale;
}

static inline vf vf_exp2(vf x)
{
    vf t = x + VF_MAGIC, f = x - (t - VF_MAGIC);

    return vf_keep(~(x < -126.0f), vf_exp2_of(t, f));
}

/* exp(x) for x <= 0, within 2 ulp; exactly 1 at 0, exactly 0 below -87; NaN stays NaN.
 * n ln 2 is taken off in two parts, the first of which n times is exact. */
static inline vf vf_exp(vf x)
{
    vf t = x * 0x1.715476p0f + VF_MAGIC, n = t - VF_MAGIC;
    vf r = (x - n * 0x1.63p-1f) + n * 0x1.bd0106p-13f;

    return vf_keep(~(x < -87.0f), vf_exp2_of(t, r * 0x1.715476p0f));
}

/* tanh(x) within 2 ulp. From e = exp(-2 |x|), but near 0, where 1 - e would cancel, an
 * odd polynomial (least maximum of the relative error, 1e-8). */
static inline vf vf_tanh(vf x)
{
    const vf a = vf_abs(x), xx = x * x;
    const vf e = vf_exp2(a * -0x1.715476p1f), far = (1.0f - e) / (1.0f + e);
    vf p = vf_set(-5.70498872e-3f);

    p = p * xx + 2.06390887e-2f;
    p = p * xx - 5.37397155e-2f;
    p = p * xx + 1.33314422e-1f;
    p = p * xx - 3.33332819e-1f;
    p = p * xx * x + x;
    return vf_select(a < 0.625f, p, (vf)((vi)far | ((vi)x & INT32_MIN)));
}

#endif
