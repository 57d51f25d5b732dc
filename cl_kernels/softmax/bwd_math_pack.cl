/* SPDX-License-Identifier: MIT */
/* softmax/bwd_math_pack.cl: the second step of softmax_bwd_math: Q, dO, K and V to f32
 * matrices in the workspace. Types, strides and packed sequences end here.
 *
 * Computes  q_t, q_r, g_t, g_r, k_t, k_r and v_t of common/work.h. Zeros for queries that
 *           are not there or saw no key, and for keys that no query of the round sees by
 *           length, causal or window. In q_r and k_r what is not finite is 0: those are
 *           multiplied by gradients of scores, which are NaN where it counts and 0 where the
 *           row was hidden, and 0 times it must be 0
 * Grid      1-D, any number of groups; best one for every CHUNK rows of the tensors
 * Group     BLOCK work-items, every BLOCK-th element of a row each
 * Local     none
 * Layout    any strides; matrices as bwd_math.clh says
 * Numerics  exact
 * Requires  nothing
 * Tunables  CHUNK, BLOCK
 * Oracle    src/host/softmax_bwd_reference.c
 */
#ifndef CHUNK
#define CHUNK 32
#endif
#include "softmax/bwd_math.clh"

/* One row of a tensor, or zeros, to column n of a matrix [real][cols] and, unless `row` is
 * negative, to the row there, of `depth` columns, in a matrix of rows_of rows in panels of
 * `width`. */
static inline void put_row(const attn_kparams *p, long column, int step, long row, int depth,
                           long rows_of, int width, const __global ELEM *x,
                           const attn_rows *rows, int at, int there, int real,
                           int contig, int finite)
{
    const long from = there ? address_row(rows, at) : 0;

    for (int d = (int)get_local_id(0); d < LARGER(depth, real); d += BLOCK) {
        const float value = there && d < real
            ? elem_load(x, address_elem(rows, from, d, contig)) : 0.0f;

        if (d < real)
            p->work[column + (long)d * step] = value;
        if (row >= 0 && d < depth)
            p->work[row + work_column(rows_of, width, d)] =
                !finite || isfinite(value) ? value : 0.0f;
    }
}

static inline void pack_queries(const attn_kparams *p, const attn_matrices *m, int pair,
                                int c0)
{
    const int step = work_step(m->cols, NR);

    for (int c = c0; c < min(c0 + CHUNK, m->cols); c++) {
        const int g = min(c / m->pitch, m->group - 1), i = c - g * m->pitch;
        const int n = pair * m->group + g, h = work_head(p, n);
        const long b = work_batch(p, n);
        const attn_sequence s = range_sequence(p, b);
        const int query = p->round_query + i;
        const int there = i < work_queries(p, &s) &&
                          back_lse(p, &s, b, h, query) != INFINITY;
        const attn_rows q = ADDRESS_QUERIES(p, q, &s, b, h);
        const attn_rows grad = ADDRESS_QUERIES(p, grad_o, &s, b, h);

        put_row(p, matrix_at(m->q_t, pair, D, m->cols, NR, 0, c), step,
                matrix_at(m->q_r, pair, m->cols, m->dn, NB, c, 0), m->dn, m->cols, NB, p->q, &q,
                query, there, D, CONTIG_Q, 1);
        put_row(p, matrix_at(m->g_t, pair, DV, m->cols, NR, 0, c), step,
                matrix_at(m->g_r, pair, m->cols, m->dvn, NB, c, 0), m->dvn, m->cols, NB, p->grad_o,
                &grad, query, there && p->has & HAS_GRAD_O, DV, CONTIG_GRAD_O, 0);
    }
}

static inline void pack_keys(const attn_kparams *p, const attn_matrices *m, int pair, int j0)
{
    const int n = pair * m->group, h = address_head_kv(p, work_head(p, n));
    const int step = work_step(m->keys, MR);
    const long b = work_batch(p, n);
    const attn_sequence s = range_sequence(p, b);
    const attn_range seen = range_any(p, &s, p->round_query, work_queries(p, &s));
    const attn_rows k = ADDRESS_KEYS(p, k, &s, b, h), v = ADDRESS_KEYS(p, v, &s, b, h);

    for (int j = j0; j < min(j0 + CHUNK, m->keys); j++) {
        const int there = j >= seen.first && j < seen.end;

        put_row(p, matrix_at(m->k_t, pair, D, m->keys, MR, 0, j), step,
                matrix_at(m->k_r, pair, m->keys, m->dm, MR, j, 0), m->dm, m->keys, MR, p->k, &k, j,
                there, D, CONTIG_K, 1);
        put_row(p, matrix_at(m->v_t, pair, DV, m->keys, MR, 0, j), step, -1, 0, 1, 1, p->v, &v,
                j, there, DV, CONTIG_V, 0);
    }
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_bwd_math_pack(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const attn_matrices m = matrices_of(&p);
    const int of_queries = CEIL_DIV(m.cols, CHUNK);
    const int chunks = of_queries + CEIL_DIV(m.keys, CHUNK);

    for (long id = get_group_id(0); id < (long)m.pairs * chunks; id += get_num_groups(0)) {
        const int pair = (int)(id / chunks), at = (int)(id % chunks);

        if (at < of_queries)
            pack_queries(&p, &m, pair, at * CHUNK);
        else
            pack_keys(&p, &m, pair, (at - of_queries) * CHUNK);
    }
}
