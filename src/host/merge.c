/* SPDX-License-Identifier: MIT */
/* host/merge.c: merges partial results, row by row, as attn/merge.h says. */
#include "host/merge.h"

#include <math.h>
#include <stdbool.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/float16.h"

enum { BLOCK = 64 }; /* columns of a row that are summed at once */

/* Element 0 of row (b, h, l). */
static int64_t row_of(const attn_tensor *t, int64_t b, int64_t h, int64_t l)
{
    return t->offset + b * t->stride[0] + h * t->stride[1] + l * t->stride[2];
}

static float load(const attn_tensor *t, int64_t i)
{
    if (t->type == ATTN_F32)
        return ((const float *)t->data)[i];
    return t->type == ATTN_F16 ? attn_f32_from_f16(((const uint16_t *)t->data)[i])
                               : attn_f32_from_bf16(((const uint16_t *)t->data)[i]);
}

static void store(const attn_tensor *t, int64_t i, float x)
{
    if (t->type == ATTN_F32)
        ((float *)t->data)[i] = x;
    else
        ((uint16_t *)t->data)[i] =
            t->type == ATTN_F16 ? attn_f16_from_f32(x) : attn_bf16_from_f32(x);
}

/* exp(LSE_p - m), 0 for an empty part, 1 for one with the largest LSE, which may be +inf. */
static float weight(float lse, float m)
{
    return lse == -INFINITY ? 0.0f : lse == m ? 1.0f : expf(lse - m);
}

/* Columns d .. d + n - 1 of a row of O: the weighed mean of the parts. */
static void merge_columns(const attn_merge_args *a, int64_t b, int64_t h, int64_t i,
                          int64_t d, int64_t n, float m, float l)
{
    const int64_t to = row_of(&a->o, b, h, i);
    float sum[BLOCK] = { 0 };

    for (int64_t p = 0; l != 0.0f && p < a->n_parts; p++) {
        const attn_tensor *x = &a->part_o[p], *lse = &a->part_lse[p];
        /* divided first: a mean never leaves the range of its parts */
        const float w = weight(load(lse, row_of(lse, b, h, i)), m) / l;
        const int64_t from = row_of(x, b, h, i);

        if (w == 0.0f)
            continue; /* may hold anything */
        for (int64_t c = 0; c < n; c++)
            sum[c] += w * load(x, from + (d + c) * x->stride[3]);
    }
    for (int64_t c = 0; c < n; c++)
        store(&a->o, to + (d + c) * a->o.stride[3], sum[c]);
}

static void merge_row(const attn_merge_args *a, int64_t b, int64_t h, int64_t i)
{
    float m = -INFINITY, l = 0.0f;

    for (int64_t p = 0; p < a->n_parts; p++) {
        const float lse = load(&a->part_lse[p], row_of(&a->part_lse[p], b, h, i));
        m = lse > m ? lse : m; /* a NaN comes through its weight */
    }
    for (int64_t p = 0; p < a->n_parts; p++)
        l += weight(load(&a->part_lse[p], row_of(&a->part_lse[p], b, h, i)), m);
    for (int64_t d = 0; a->o.type != ATTN_TYPE_NONE && d < a->o.size[3]; d += BLOCK) {
        const int64_t left = a->o.size[3] - d;
        merge_columns(a, b, h, i, d, left < BLOCK ? left : BLOCK, m, l);
    }
    if (a->lse.type != ATTN_TYPE_NONE)
        store(&a->lse, row_of(&a->lse, b, h, i), l == 0.0f ? -INFINITY : m + logf(l));
}

void attn_host_merge(const attn_merge_args *a, int threads)
{
    const attn_tensor *rows = &a->part_lse[0];
    const int64_t n = rows->size[0] * rows->size[1] * rows->size[2];

#ifdef _OPENMP
    threads = threads > 0 ? threads : omp_get_max_threads();
#else
    (void)threads;
#endif
#pragma omp parallel for num_threads(threads) schedule(static) if (n > 64)
    for (int64_t r = 0; r < n; r++)
        merge_row(a, r / rows->size[2] / rows->size[1], r / rows->size[2] % rows->size[1],
                  r % rows->size[2]);
}
