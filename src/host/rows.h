/* SPDX-License-Identifier: MIT */
/* host/rows.h: the arithmetic of a few rows of queries, each along its own memory: dot
 * products with keys, weighted sums of values. Every key enters once for all rows. The
 * order of every sum is the same for all numbers of rows. */
#ifndef ATTN_HOST_ROWS_H
#define ATTN_HOST_ROWS_H

#include "host/vector.h"

/* Accumulators at once: a whole number of vectors of them become sums together. */
#define ROWS_DOTS    (LANES == 4 ? 8 : LANES)
#define ROWS_MOST    4                        /* rows at once                     */
#define ROWS_KEYS    16                       /* keys at once, for all rows       */
#define ROWS_COLUMNS (LANES == 16 ? 8 : 4)    /* vectors of a value at once       */

#ifdef __clang__
#define ROWS_EACH(i, n) _Pragma("unroll") for (int i = 0; i < (n); i++)
#else
#define ROWS_EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif
#define ROWS_INLINE static inline __attribute__((always_inline))

/* Asks for what lies so many elements on: at what is read itself if that is 0. Spread over
 * the arithmetic, for in a burst requests wait for each other and all else for them. To the
 * second cache: the first has too few places for what is on its way. */
ROWS_INLINE void rows_fetch(const float *at, int64_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)(ahead * 4)), 0, 2);
}

/* out[r][x] = <q[r], key[x]> for `rows` rows and ROWS_DOTS / rows keys; dim is a multiple
 * of LANES. */
ROWS_INLINE void rows_dot(float *out, int64_t out_step, const float *q, int64_t q_step,
                          const float *const key[], int64_t ahead, int64_t dim,
                          const int rows)
{
    const int keys = ROWS_DOTS / rows;
    vf acc[ROWS_DOTS];
    float sum[ROWS_DOTS];

    ROWS_EACH(i, ROWS_DOTS) acc[i] = vf_set(0);
    ROWS_EACH(x, keys) for (int64_t d = 0; d < dim; d += LANES) {
        const vf k = vf_load(key[x] + d);

        rows_fetch(key[x] + d, ahead);
        ROWS_EACH(r, rows) acc[r * keys + x] += k * vf_load(q + r * q_step + d);
    }
    for (int i = 0; i < ROWS_DOTS; i += LANES)
        vf_store(sum + i, vf_sums(acc + i));
    for (int r = 0; r < rows; r++)
        memcpy(out + r * out_step, sum + r * keys, (size_t)keys * sizeof *sum);
}

/* o[r] += sum over n keys x of w[r][x] * v[x], for `rows` rows and so many vectors of
 * columns; the keys are summed first. */
ROWS_INLINE void rows_value(float *o, int64_t o_step, const float *w, int64_t w_step,
                            const float *const v[], int64_t ahead, int64_t column, int n,
                            const int rows, const int vectors)
{
    vf acc[ROWS_MOST][ROWS_COLUMNS];

    ROWS_EACH(r, rows) ROWS_EACH(c, vectors) acc[r][c] = vf_set(0);
    for (int x = 0; x < n; x++) {
        vf value[ROWS_COLUMNS];

        ROWS_EACH(c, vectors) {
            value[c] = vf_load(v[x] + column + c * LANES);
            rows_fetch(v[x] + column + c * LANES, ahead);
        }
        ROWS_EACH(r, rows) {
            const vf weight = vf_set(w[r * w_step + x]);
            ROWS_EACH(c, vectors) acc[r][c] += weight * value[c];
        }
    }
    ROWS_EACH(r, rows) ROWS_EACH(c, vectors) {
        float *to = o + r * o_step + column + c * LANES;
        vf_store(to, vf_load(to) + acc[r][c]);
    }
}

/* How many of n rows go at once. */
static inline int rows_at_once(int n)
{
    return n >= 4 ? 4 : n >= 2 ? 2 : 1;
}

/* Scores of n rows and ROWS_KEYS keys; fetches the keys that lie `ahead` elements on. */
static inline void rows_scores(float *out, int64_t out_step, const float *q, int64_t q_step,
                               const float *const key[], int64_t ahead, int64_t dim, int n)
{
    for (int r = 0, many; r < n; r += many, ahead = 0) {
        many = rows_at_once(n - r);
        for (int x = 0; x < ROWS_KEYS; x += ROWS_DOTS / many) {
            float *to = out + r * out_step + x;
            const float *row = q + r * q_step;

            switch (many) {
            case 4: rows_dot(to, out_step, row, q_step, key + x, ahead, dim, 4); break;
            case 2: rows_dot(to, out_step, row, q_step, key + x, ahead, dim, 2); break;
            default: rows_dot(to, out_step, row, q_step, key + x, ahead, dim, 1); break;
            }
        }
    }
}

/* Adds n weighted keys to the sums of some rows; dim is a multiple of LANES. Fetches the
 * values that lie `ahead` elements on. */
static inline void rows_values(float *o, int64_t o_step, const float *w, int64_t w_step,
                               const float *const v[], int64_t ahead, int64_t dim, int n,
                               int rows)
{
    const int64_t wide = ROWS_COLUMNS * LANES, whole = dim / wide * wide;

    for (int r = 0, many; r < rows; r += many, ahead = 0) {
        float *to = o + r * o_step;
        const float *from = w + r * w_step;

        many = rows - r >= 2 ? 2 : 1;
        for (int64_t e = 0; e < whole; e += wide)
            if (many == 2)
                rows_value(to, o_step, from, w_step, v, ahead, e, n, 2, ROWS_COLUMNS);
            else
                rows_value(to, o_step, from, w_step, v, ahead, e, n, 1, ROWS_COLUMNS);
        for (int64_t e = whole; e < dim; e += LANES)
            if (many == 2)
                rows_value(to, o_step, from, w_step, v, ahead, e, n, 2, 1);
            else
                rows_value(to, o_step, from, w_step, v, ahead, e, n, 1, 1);
    }
}

#endif
