/* SPDX-License-Identifier: MIT */
/* softmax/bwd_math_bias.cl: the step of softmax_bwd_math that sums up the gradient of a bias.
 *
 * Computes  dBias: what the round's gradients of scores, before the cap, add to it; zeros
 *           before in the first round. A dimension in which the bias was broadcast is summed
 *           over
 * Grid      1-D, any number of groups; best a work-item for BI x BJ elements of dBias
 * Group     BLOCK work-items
 * Local     none
 * Numerics  f32; sums of a round are compensated (Kahan 1965), in an order of their own
 * Requires  s to be 0 where no query sees a key, and in columns without a query
 * Tunables  BI BJ; BLOCK
 * Oracle    src/host/softmax_bwd_reference.c
 */
#ifndef BI
#define BI 4    /* queries of a work-item */
#endif
#ifndef BJ
#define BJ 8    /* keys of it */
#endif
#include "softmax/bwd_math.clh"

/* A tile of dBias and its sums. A dimension that was broadcast has one element, and all of
 * the problem's belong to it. */
typedef struct attn_part {
    int b, h, i, j;                /* its first element                   */
    int has_b, has_h, has_i, has_j;
    float sum[BI][BJ], extra[BI][BJ];
} attn_part;

/* Adds the gradients of scores of head n of the round. */
static inline void add_head(attn_part *x, const attn_kparams *p, const attn_matrices *m,
                            int n)
{
    const int i0 = p->round_query, i1 = i0 + p->round_queries;
    const int first_i = x->has_i ? max(x->i, i0) : i0;
    const int end_i = x->has_i ? min(x->i + BI, i1) : i1;
    const int first_j = x->has_j ? x->j : 0;
    const int end_j = x->has_j ? min(x->j + BJ, p->len_kv) : p->len_kv;

    for (int j = first_j; j < end_j; j++)
        for (int i = first_i; i < end_i; i++) {
            const int r = x->has_i ? i - x->i : 0, c = x->has_j ? j - x->j : 0;
            const int column = n % m->group * m->pitch + i - i0;

            x->sum[r][c] = back_add(x->sum[r][c],
                                    p->work[matrix_at(m->s, n / m->group, m->keys, m->cols,
                                                      NR, j, column)],
                                    &x->extra[r][c]);
        }
}

static inline void add_heads(attn_part *x, const attn_kparams *p, const attn_matrices *m)
{
    for (int b = x->has_b ? x->b : 0; b < (x->has_b ? x->b + 1 : p->batch); b++)
        for (int h = x->has_h ? x->h : 0; h < (x->has_h ? x->h + 1 : p->heads_q); h++) {
            const long n = (long)b * p->heads_q + h - p->round_head;

            if (n >= 0 && n < p->round_heads)
                add_head(x, p, m, (int)n);
        }
}

static inline void store(const attn_part *x, const attn_kparams *p)
{
    const int first = p->round_head == 0 && p->round_query == 0;

    for (int r = 0; r < BI && x->i + r < p->grad_bias_size_l; r++)
        for (int c = 0; c < BJ && x->j + c < p->grad_bias_size_d; c++) {
            __global float *to = p->grad_bias + p->grad_bias_offset +
                                 x->b * p->grad_bias_stride_b + x->h * p->grad_bias_stride_h +
                                 (x->i + r) * p->grad_bias_stride_l +
                                 (x->j + c) * p->grad_bias_stride_d;

            *to = (first ? 0.0f : *to) + (x->sum[r][c] - x->extra[r][c]);
        }
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_bwd_math_bias(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const attn_matrices m = matrices_of(&p);
    const int tiles_i = CEIL_DIV(p.grad_bias_size_l, BI);
    const int tiles_j = CEIL_DIV(p.grad_bias_size_d, BJ);
    const long heads = (long)p.grad_bias_size_b * p.grad_bias_size_h;

    for (long id = get_global_id(0); id < heads * tiles_i * tiles_j;
         id += get_global_size(0)) {
        const int row = (int)(id / tiles_j), head = row / tiles_i;
        attn_part x;

        x.has_b = p.grad_bias_size_b == p.batch;
        x.has_h = p.grad_bias_size_h == p.heads_q;
        x.has_i = p.grad_bias_size_l == p.len_q;
        x.has_j = p.grad_bias_size_d == p.len_kv;
        x.b = head / p.grad_bias_size_h;
        x.h = head % p.grad_bias_size_h;
        x.i = row % tiles_i * BI;
        x.j = (int)(id - (long)row * tiles_j) * BJ;
        for (int e = 0; e < BI * BJ; e++)
            x.sum[e / BJ][e % BJ] = x.extra[e / BJ][e % BJ] = 0.0f;
        add_heads(&x, &p, &m);
        store(&x, &p);
    }
}
