/* SPDX-License-Identifier: MIT */
/* host/panel.h: the arithmetic of one panel of queries against a tile of keys.
 *
 * A panel is nv vectors of queries, one query to a lane: every array below has
 * the queries as its fast dimension, so that all of the softmax is vertical and
 * a row of K or V only ever enters as a broadcast number.
 *
 *     q  [D][nv]    queries, transposed
 *     s  [keys][nv] scores, then weights
 *     o  [Dv][nv]   sums of weighted values
 *     m, l  [nv]    running maximum, sum of weights
 *
 * Each function is compiled once per nv = 1 .. NV and inlined with its tile
 * sizes constant, which keeps the accumulators in registers: MR x NV of them,
 * 8 for one vector (to hide the latency of 4 cycles of 2 units). The order of
 * every sum is the same for all nv. */
#ifndef ATTN_HOST_PANEL_H
#define ATTN_HOST_PANEL_H

#include <stdint.h>

#include "host/vector.h"

#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

#define LOG2E 0x1.715476p0f

/* Values are packed in blocks of VB: [Dv / VB][tile_k][VB]. */
#define VB 4

/* Keys taken at once by nv vectors of queries; a multiple of VB. */
#define ROWS(nv) ((nv) == 1 ? 8 : MR)

typedef struct panel {
    vf *q, *o, *m, *l;
    int64_t first;   /* query of lane 0                     */
    int queries;     /* of them real; other lanes hold zeros */
    int nv;
} panel;

/* s = scale * K Q for ROWS(nv) rows of K. */
INLINE void score_block(vf *s, const float *const *k, const vf *q, int64_t dim,
                        float scale, const int nv)
{
    const int mr = ROWS(nv);
    vf acc[8][NV];

    UNROLL for (int r = 0; r < mr; r++)
        UNROLL for (int v = 0; v < nv; v++)
            acc[r][v] = vf_set(0);
    for (int64_t d = 0; d < dim; d++, q += nv)
        UNROLL for (int r = 0; r < mr; r++)
            UNROLL for (int v = 0; v < nv; v++)
                acc[r][v] += k[r][d] * q[v];
    UNROLL for (int r = 0; r < mr; r++)
        UNROLL for (int v = 0; v < nv; v++)
            s[r * nv + v] = acc[r][v] * scale;
}

/* n rows of K. Past the last one it is read again; s has room for whole blocks. */
INLINE void score(vf *s, const float *k, int n, const vf *q, int64_t dim, float scale,
                  const int nv)
{
    const int mr = ROWS(nv);

    for (int j = 0; j < n; j += mr) {
        const float *row[8];
        UNROLL for (int r = 0; r < mr; r++)
            row[r] = k + (j + r < n ? j + r : n - 1) * dim;
        score_block(s + j * nv, row, q, dim, scale, nv);
    }
}

/* Hides what is not visible: query lane x sees row j for low <= j - x <= high. */
INLINE void hide(vf *s, int n, int low, int high, const int nv)
{
    vi lane[NV];

    for (int v = 0; v < nv; v++)
        for (int x = 0; x < LANES; x++)
            lane[v][x] = v * LANES + x;
    for (int j = 0; j < n; j++)
        for (int v = 0; v < nv; v++) {
            vi seen = (lane[v] <= j - low) & (lane[v] >= j - high);
            s[j * nv + v] = vf_select(seen, s[j * nv + v], vf_set(-INFINITY));
        }
}

/* Scores become weights, relative to the maximum so far; alpha scales what was
 * summed before. A lane that has seen no key yet keeps m = -Inf and weights 0.
 * The difference is taken before it goes to log2 units: there every finite score
 * is a number, and large ones lose nothing. */
INLINE void weigh(vf *s, int n, const panel *p, vf *alpha, const int nv)
{
    vf top[NV], base[NV], sum[NV];

    UNROLL for (int v = 0; v < nv; v++)
        top[v] = p->m[v];
    for (int j = 0; j < n; j++)
        UNROLL for (int v = 0; v < nv; v++)
            top[v] = vf_max(top[v], s[j * nv + v]);
    UNROLL for (int v = 0; v < nv; v++) {
        base[v] = vf_keep(top[v] != -INFINITY, top[v]);
        alpha[v] = vf_exp2((p->m[v] - base[v]) * LOG2E);
        p->m[v] = top[v];
        sum[v] = vf_set(0);
    }
    for (int j = 0; j < n; j++)
        UNROLL for (int v = 0; v < nv; v++) {
            vf w = vf_exp2((s[j * nv + v] - base[v]) * LOG2E);
            s[j * nv + v] = w;
            sum[v] += w;
        }
    UNROLL for (int v = 0; v < nv; v++)
        p->l[v] = p->l[v] * alpha[v] + sum[v];
}

/* o = alpha * o + V^T weights, for ROWS(nv) values; packed blocks of V are
 * `block` elements apart. The tile is summed apart from what came before, which
 * keeps the error of long sums small. Where alpha is 0 the old sum is dropped,
 * even an infinite one: those keys weigh exactly nothing. */
INLINE void value_block(vf *o, const vf *s, int n, const float *v, int64_t block,
                        const vf *alpha, const int nv)
{
    const int mr = ROWS(nv);
    vf acc[8][NV];

    UNROLL for (int r = 0; r < mr; r++)
        UNROLL for (int x = 0; x < nv; x++)
            acc[r][x] = vf_set(0);
    for (int j = 0; j < n; j++, s += nv, v += VB)
        UNROLL for (int r = 0; r < mr; r++)
            UNROLL for (int x = 0; x < nv; x++)
                acc[r][x] += v[r / VB * block + r % VB] * s[x];
    UNROLL for (int r = 0; r < mr; r++)
        UNROLL for (int x = 0; x < nv; x++) {
            vf old = vf_keep(alpha[x] != 0.0f, o[r * nv + x]);
            o[r * nv + x] = old * alpha[x] + acc[r][x];
        }
}

#endif
