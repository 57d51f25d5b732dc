/* SPDX-License-Identifier: MIT */
/* host/row.h: rows of a tensor of any type and stride, as f32 rows and back. */
#ifndef ATTN_HOST_ROW_H
#define ATTN_HOST_ROW_H

#include <stdint.h>
#include <string.h>

#include <attn/tensor.h>

#include "core/float16.h"

#if defined __F16C__
#include <immintrin.h>
#endif

/* Asks for the n elements of a row that will be loaded soon: where the rows of a
 * head lie a page apart ([B, L, H, D]) the processor does not foresee it. A hint:
 * `at` may be past the end, nothing is read. */
static inline void attn_row_fetch(const attn_tensor *t, int64_t at, int64_t n)
{
    int64_t bytes = t->type == ATTN_F32 ? 4 : 2;
    uintptr_t first = (uintptr_t)t->data + (uintptr_t)(at * bytes);

    for (int64_t d = 0; t->stride[3] == 1 && d < n * bytes; d += 64)
        __builtin_prefetch((const void *)(first + (uintptr_t)d));
}

/* n contiguous f16 numbers; the scalar loop becomes vector code by itself. */
static inline void attn_row_from_f16(float *to, const uint16_t *from, int64_t n)
{
    int64_t d = 0;

#if defined __F16C__
    for (; d + 8 <= n; d += 8)
        _mm256_storeu_ps(to + d,
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + d))));
#endif
    for (; d < n; d++)
        to[d] = attn_f32_from_f16(from[d]);
}

/* The n elements of the row that starts at element `at`. */
static inline void attn_row_load(float *to, const attn_tensor *t, int64_t at, int64_t n)
{
    const float *f = t->data;
    const uint16_t *h = t->data;
    int64_t step = t->stride[3];

    if (t->type == ATTN_F32 && step == 1)
        memcpy(to, f + at, (size_t)n * sizeof *f);
    else if (t->type == ATTN_F32)
        for (int64_t d = 0; d < n; d++)
            to[d] = f[at + d * step];
    else if (t->type == ATTN_F16 && step == 1)
        attn_row_from_f16(to, h + at, n);
    else if (t->type == ATTN_F16)
        for (int64_t d = 0; d < n; d++)
            to[d] = attn_f32_from_f16(h[at + d * step]);
    else if (step == 1)
        for (int64_t d = 0; d < n; d++)
            to[d] = attn_f32_from_bf16(h[at + d]);
    else
        for (int64_t d = 0; d < n; d++)
            to[d] = attn_f32_from_bf16(h[at + d * step]);
}

/* The row that starts at element `at` of t becomes from[0], from[step], ... */
static inline void attn_row_store(const attn_tensor *t, int64_t at, const float *from,
                                  int64_t step, int64_t n)
{
    float *f = t->data;
    uint16_t *h = t->data;
    int64_t to = t->stride[3];

    if (t->type == ATTN_F32)
        for (int64_t d = 0; d < n; d++)
            f[at + d * to] = from[d * step];
    else if (t->type == ATTN_F16)
        for (int64_t d = 0; d < n; d++)
            h[at + d * to] = attn_f16_from_f32(from[d * step]);
    else
        for (int64_t d = 0; d < n; d++)
            h[at + d * to] = attn_bf16_from_f32(from[d * step]);
}

#endif
