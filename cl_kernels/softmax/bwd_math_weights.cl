/* SPDX-License-Identifier: MIT */
/* softmax/bwd_math_weights.cl: the fourth step of softmax_bwd_math: scores to weights, and
 * the gradients of scores.
 *
 * Computes  in place, columns of w and s for PITCH queries: P_ij = exp(score(w_ij) - LSE_i),
 *           dS_ij = P_ij (s_ij - delta_i), with CAPPED before the cap; 0 for keys out of range, in
 *           columns without a query, and dS where P is
 * Method    PITCH queries along the lanes
 * Grid      1-D, any number of groups; best one for every PITCH * BLOCK columns
 * Group     BLOCK work-items, PITCH columns each
 * Local     none
 * Numerics  f32
 * Features  all but dropout and pages, through common/
 * Requires  delta in the workspace (bwd_delta.cl), unless no gradient is there but V's
 * Tunables  CAPPED, 0: for the gradient of a bias; PITCH, BLOCK
 * Oracle    src/host/softmax_bwd_reference.c
 */
#ifndef PITCH
#define PITCH 4
#endif
#define VW PITCH
#ifndef CAPPED
#define CAPPED 1    /* gradients go on through the softcap */
#endif
#include "softmax/bwd_math.clh"
#include "softmax/math_lanes.clh"

/* Zeros for keys j0 .. j1 - 1 of the columns that begin at w and s. */
static inline void clear(__global float *w, __global float *s, int step, int j0, int j1)
{
    for (int j = j0; j < j1; j++) {
        STORE((floatv)(0.0f), w + (long)j * step);
        STORE((floatv)(0.0f), s + (long)j * step);
    }
}

/* LSE and delta of n queries of one head, from query i on; behind the last there is no
 * weight. */
static inline void take(const attn_kparams *p, const attn_sequence *seq, long b, int h, int i,
                        int n, floatv *lse, floatv *delta)
{
    const int wanted = p->has & HAS_OF_SCORES;    /* else there is no delta */
    float l[VW], d[VW];

    for (int x = 0; x < VW; x++) {
        l[x] = x < n ? back_lse(p, seq, b, h, i + x) : INFINITY;
        d[x] = x < n && wanted ? p->work[back_delta_at(p, b, h, i + x)] : 0.0f;
    }
    *lse = LOAD(l);
    *delta = LOAD(d);
}

/* n queries of one head, from query i on, whose columns begin at w and s. */
static inline void column(const attn_kparams *p, const attn_matrices *m,
                          const attn_sequence *seq, long b, int h, int i, int n,
                          __global float *w, __global float *s)
{
    const int step = work_step(m->cols, NR);
    const attn_range any = range_any(p, seq, i, n), all = range_all(p, seq, i, n);
    const attn_score at = score_run(p, seq, b, h, i, n);
    const int with_s = p->has & HAS_GRAD_O && p->has & HAS_OF_SCORES;
    floatv lse, delta;

    take(p, seq, b, h, i, n, &lse, &delta);
    for (int j = any.first; j < any.end; j++) {
        const floatv product = LOAD(w + (long)j * step);
        floatv x = score_value(&at, product), weight, ds = 0.0f;

        if (FEAT_TERMS)
            x = score_add(x, terms(p, &at, j));
        if (j < all.first || j >= all.end || n < VW)
            x = score_masked(&at, 0, j, x);
        weight = back_weight(x, lse);
        if (with_s)
            ds = LOAD(s + (long)j * step);
        ds = weight * (ds - delta);
        if (CAPPED && FEAT_SOFTCAP)
            ds *= score_slope(&at, product);
        STORE(weight, w + (long)j * step);
        STORE(select((floatv)(0.0f), ds, weight != (floatv)(0.0f)), s + (long)j * step);
    }
    clear(w, s, step, 0, min(any.first, m->keys));
    clear(w, s, step, max(any.end, any.first), m->keys);
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_bwd_math_weights(SIGNATURE(SOFTMAX_BWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_BWD_PARAMS);
    const attn_matrices m = matrices_of(&p);
    const int runs = m.cols / PITCH;

    for (long id = get_global_id(0); id < (long)m.pairs * runs; id += get_global_size(0)) {
        const int pair = (int)(id / runs), c = (int)(id % runs) * PITCH;
        const int g = min(c / m.pitch, m.group - 1), i = c - g * m.pitch;
        const int n = pair * m.group + g;
        const attn_sequence seq = range_sequence(&p, work_batch(&p, n));
        const int queries = min(work_queries(&p, &seq) - i, PITCH);
        __global float *w = p.work + matrix_at(m.w, pair, m.keys, m.cols, NR, 0, c);
        __global float *s = p.work + matrix_at(m.s, pair, m.keys, m.cols, NR, 0, c);

        if (queries > 0)
            column(&p, &m, &seq, work_batch(&p, n), work_head(&p, n), p.round_query + i,
                   queries, w, s);
        else
            clear(w, s, work_step(m.cols, NR), 0, m.keys);
    }
}
