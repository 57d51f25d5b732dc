/* SPDX-License-Identifier: MIT */
/* softmax/bwd_math_unpack.cl: the last steps of softmax_bwd_math: gradients to their tensors.
 *
 * Computes  dQ of the round's queries; with KEYS dK and dV, those that are there, after the
 *           last round of their queries; rounded to the computing type
 * Grid      1-D, any number of groups; best one for every CHUNK rows
 * Group     BLOCK work-items, every BLOCK-th element of a row each
 * Local     none
 * Layout    any strides; matrices as bwd_math.clh says
 * Numerics  one product with the scale, one rounding, to nearest even
 * Requires  nothing; rows past a batch's queries, or keys, are not written
 * Tunables  KEYS; CHUNK, BLOCK
 * Oracle    src/host/softmax_bwd_reference.c
 */
#ifndef CHUNK
#define CHUNK 32
#endif
#ifndef KEYS
#define KEYS 0
#endif
#include "softmax/bwd_math.clh"

/* A row of a gradient, from a matrix of so many rows: the row of it that begins at
 * `from`, or for dQ the column. Zeros if nothing was summed. */
static inline void put(const attn_kparams *p, __global ELEM *to, const attn_rows *rows,
                       int row, long from, long rows_of, int step, int summed, int depth,
                       float factor, int contig)
{
    const long at = address_row(rows, row);

    for (int d = (int)get_local_id(0); d < depth; d += BLOCK) {
        const long x = KEYS ? work_column(rows_of, NB, d) : (long)d * step;

        elem_store(to, address_elem(rows, at, d, contig),
                   summed ? p->work[from + x] * factor : 0.0f);
    }
}

static inline void queries(const attn_kparams *p, const attn_matrices *m, int n, int i0)
{
    const long b = work_batch(p, n), pair = n / m->group;
    const attn_sequence s = range_sequence(p, b);
    const attn_rows rows = ADDRESS_QUERIES(p, grad_q, &s, b, work_head(p, n));

    for (int i = i0; i < min(i0 + CHUNK, work_queries(p, &s)); i++)
        put(p, p->grad_q, &rows, p->round_query + i,
            matrix_at(m->dq, pair, m->dm, m->cols, NR, 0, n % m->group * m->pitch + i),
            m->dm, work_step(m->cols, NR), 1, D, p->scale, CONTIG_GRAD_Q);
}

static inline void keys(const attn_kparams *p, const attn_matrices *m, int pair, int j0)
{
    const int n = pair * m->group, h = address_head_kv(p, work_head(p, n));
    const long b = work_batch(p, n);
    const attn_sequence s = range_sequence(p, b);
    const attn_rows k = ADDRESS_KEYS(p, grad_k, &s, b, h);
    const attn_rows v = ADDRESS_KEYS(p, grad_v, &s, b, h);
    const int summed = p->len_q > 0;

    for (int j = j0; j < min(j0 + CHUNK, s.keys); j++) {
        if (p->has & HAS_GRAD_K)
            put(p, p->grad_k, &k, j, matrix_at(m->dk, pair, m->keys, m->dn, NB, j, 0),
                m->keys, 0, summed, D, p->scale, CONTIG_GRAD_K);
        if (p->has & HAS_GRAD_V)
            put(p, p->grad_v, &v, j, matrix_at(m->dvs, pair, m->keys, m->dvn, NB, j, 0),
                m->keys, 0, summed && p->has & HAS_GRAD_O, DV, 1.0f, CONTIG_GRAD_V);
    }
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_bwd_math_unpack(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const attn_matrices m = matrices_of(&p);
    const int chunks = CEIL_DIV(KEYS ? p.len_kv : p.round_queries, CHUNK);
    const long all = (long)(KEYS ? m.pairs : p.round_heads) * chunks;

    for (long id = get_group_id(0); id < all && (!KEYS || matrices_whole(&p));
         id += get_num_groups(0)) {
        const int n = (int)(id / chunks), at = (int)(id % chunks) * CHUNK;

        if (KEYS)
            keys(&p, &m, n, at);
        else
            queries(&p, &m, n, at);
    }
}
