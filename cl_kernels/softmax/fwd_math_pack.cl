/* SPDX-License-Identifier: MIT */
/* softmax/fwd_math_pack.cl: steps 1 to 3 of softmax_fwd_math: Q, K or V to f32 matrices
 * in the workspace. Types, strides, pages and packed sequences end here.
 *
 * Computes  with PACK 0 the matrix Q, 1 K, 2 V of common/work.h; zeros in columns without
 *           a query, and for keys that no query of the round sees by length, causal or
 *           window: what lies in their rows, NaN too, never comes further
 * Grid      1-D, any number of groups; best one for every CHUNK rows of the tensor
 * Group     BLOCK work-items, every BLOCK-th element of a row each
 * Local     none
 * Layout    any strides; matrices as math.clh says
 * Numerics  exact
 * Requires  nothing
 * Tunables  CHUNK, BLOCK
 * Oracle    src/host/softmax_fwd_reference.c
 */
#define VW 1
#ifndef PACK
#define PACK 0    /* 0: Q, 1: K, 2: V */
#endif
#ifndef CHUNK
#define CHUNK 32
#endif
#include "common/params.h"
#include "common/work.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"
#include "softmax/math.clh"

/* One row of a tensor, or zeros, along a matrix from `to` on: a column of Q and K, a row
 * of V. */
static inline void put_row(const attn_kparams *p, const attn_work *w, long to,
                           const __global ELEM *x, const attn_rows *rows, int row,
                           int there, int contig)
{
    const int step = PACK == 0 ? work_step(w->cols, NR) : work_step(w->keys, MR);
    const int depth = PACK == 2 ? DVP : D, real = PACK == 2 ? DV : D;
    const long from = there ? address_row(rows, row) : 0;

    for (int d = (int)get_local_id(0); d < depth; d += BLOCK) {
        const long at = PACK == 2 ? work_column(w->keys, MR, d) : (long)d * step;

        p->work[to + at] = there && d < real
            ? elem_load(x, address_elem(rows, from, d, contig)) : 0.0f;
    }
}

static inline void pack_queries(const attn_kparams *p, const attn_work *w, int pair, int c0)
{
    for (int c = c0; c < min(c0 + CHUNK, w->cols); c++) {
        const int g = min(c / w->pitch, w->group - 1), i = c - g * w->pitch;
        const int n = pair * w->group + g;
        const attn_sequence s = range_sequence(p, work_batch(p, n));
        const attn_rows rows = ADDRESS_QUERIES(p, q, &s, work_batch(p, n), work_head(p, n));

        put_row(p, w, (long)pair * D * w->cols + work_column(D, NR, c), p->q,
                &rows, p->round_query + i, i < work_queries(p, &s), CONTIG_Q);
    }
}

static inline void pack_keys(const attn_kparams *p, const attn_work *w, int pair, int j0)
{
    const int n = pair * w->group, h = address_head_kv(p, work_head(p, n));
    const long b = work_batch(p, n);
    const attn_sequence s = range_sequence(p, b);
    const attn_range seen = range_any(p, &s, p->round_query, work_queries(p, &s));
    const attn_rows k_rows = ADDRESS_KEYS(p, k, &s, b, h);
    const attn_rows v_rows = ADDRESS_KEYS(p, v, &s, b, h);

    for (int j = j0; j < min(j0 + CHUNK, w->keys); j++) {
        const int there = j >= seen.first && j < seen.end;

        if (PACK == 1)
            put_row(p, w, w->k + (long)pair * D * w->keys + work_column(D, MR, j),
                    p->k, &k_rows, j, there, CONTIG_K);
        else
            put_row(p, w, w->v + (long)pair * w->keys * DVP +
                    (long)j * work_step(DVP, MR), p->v, &v_rows, j, there, CONTIG_V);
    }
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_fwd_math_pack(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_work w = work_of(&p);
    const int chunks = CEIL_DIV(PACK == 0 ? w.cols : w.keys, CHUNK);

    for (long id = get_group_id(0); id < (long)w.pairs * chunks; id += get_num_groups(0)) {
        const int pair = (int)(id / chunks), at = (int)(id % chunks) * CHUNK;

        if (PACK == 0)
            pack_queries(&p, &w, pair, at);
        else if (PACK == 1 || p.want_o)
            pack_keys(&p, &w, pair, at);
    }
}
