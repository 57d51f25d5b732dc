/* SPDX-License-Identifier: MIT */
/* host/linear_mm.h: products of small matrices for the chunks of linear attention: MR rows
 * and two vectors of columns at once in registers. The order of every sum is the same
 * whatever block its element lies in. */
#ifndef ATTN_HOST_LINEAR_MM_H
#define ATTN_HOST_LINEAR_MM_H

#include "core/size.h"
#include "host/vector.h"

#define MM_INLINE static inline __attribute__((always_inline))

/* What a product becomes. */
typedef enum mm_how { MM_SET, MM_ADD } mm_how;

/* Rows of memory with a stride each. */
typedef struct matrix {
    float *at;
    int64_t row;
} matrix;

/* c[MR][nv * LANES] = or += a[MR][k0 .. k1 - 1] b[k0 .. k1 - 1][nv * LANES]. The sum is
 * made before it is added to c. */
MM_INLINE void mm_block(matrix c, matrix a, matrix b, int64_t k0, int64_t k1, mm_how how,
                        const int nv)
{
    vf sum[MR][2];

    VF_UNROLL for (int r = 0; r < MR; r++)
        VF_UNROLL for (int v = 0; v < nv; v++) sum[r][v] = vf_set(0);
    for (int64_t k = k0; k < k1; k++) {
        vf x[2];

        VF_UNROLL for (int v = 0; v < nv; v++) x[v] =
            vf_load(b.at + k * b.row + v * LANES);
        VF_UNROLL for (int r = 0; r < MR; r++)
        {
            const vf y = vf_set(a.at[r * a.row + k]);

            VF_UNROLL for (int v = 0; v < nv; v++) sum[r][v] += y * x[v];
        }
    }
    VF_UNROLL for (int r = 0; r < MR; r++)
        VF_UNROLL for (int v = 0; v < nv; v++)
    {
        float *to = c.at + r * c.row + v * LANES;

        if (how == MM_ADD)
            sum[r][v] += vf_load(to);
        vf_store(to, sum[r][v]);
    }
}

/* MR rows of c, all of its n columns, a multiple of LANES. */
static void mm_rows(matrix c, matrix a, matrix b, int64_t n, int64_t k0, int64_t k1,
                    mm_how how)
{
    int64_t x = 0;

    for (; x + 2 * LANES <= n; x += 2 * LANES)
        mm_block((matrix){ c.at + x, c.row }, a, (matrix){ b.at + x, b.row }, k0, k1, how,
                 2);
    if (x < n)
        mm_block((matrix){ c.at + x, c.row }, a, (matrix){ b.at + x, b.row }, k0, k1, how,
                 1);
}

/* c[m][n] = or += a[m][k] b[k][n]. m is rounded up to MR, n to LANES: c has room for that,
 * and a rows of any numbers. */
static void mm(matrix c, matrix a, matrix b, int64_t m, int64_t n, int64_t k, mm_how how)
{
    n = attn_round_up(n, LANES);
    for (int64_t r = 0; r < m; r += MR)
        mm_rows((matrix){ c.at + r * c.row, c.row }, (matrix){ a.at + r * a.row, a.row }, b,
                n, 0, k, how);
}

/* to[n][m] = from[m][n], m and n rounded up to LANES. */
static void mm_transpose(matrix to, matrix from, int64_t m, int64_t n)
{
    for (int64_t y = 0; y < m; y += LANES)
        for (int64_t x = 0; x < n; x += LANES) {
            vf r[LANES];

            VF_UNROLL for (int i = 0; i < LANES; i++) r[i] =
                vf_load(from.at + (y + i) * from.row + x);
            vf_transpose(r);
            VF_UNROLL for (int i = 0; i < LANES; i++)
                vf_store(to.at + (x + i) * to.row + y, r[i]);
        }
}

#endif
