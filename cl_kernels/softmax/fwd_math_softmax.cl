/* SPDX-License-Identifier: MIT */
/* softmax/fwd_math_softmax.cl: step 5 of softmax_fwd_math: scores to weights, and the LSE.
 *
 * Computes  in place, a column of S for a query: score(s_ij), then exp(s_ij - m_i), and 0
 *           for keys out of range; the column's factor 1 / l_i; LSE_i. Sinks are in m and l
 * Method    safe softmax; PITCH queries along the lanes, so max and sum run along the keys
 *           and no operation crosses the lanes
 * Grid      1-D, any number of groups; best one for every PITCH * BLOCK queries
 * Group     BLOCK work-items, PITCH queries each
 * Local     none
 * Numerics  f32; sums in spans of SPAN keys. A row without visible keys: factor 0, LSE =
 *           -inf or the sink
 * Features  all but dropout, through common/
 * Requires  nothing; columns past a batch's queries are left as they are, nobody reads them
 * Tunables  PITCH, BLOCK
 * Oracle    src/host/softmax_fwd_reference.c
 */
#ifndef PITCH
#define PITCH 4
#endif
#define VW PITCH
#include "common/params.h"
#include "common/work.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"
#include "softmax/math.clh"
#include "softmax/math_lanes.clh"

#define SPAN 256

/* n queries of one head, from query i on; their scores begin at s. */
static inline void column(const attn_kparams *p, const attn_work *w,
                          const attn_sequence *seq, long b, int h, int i, int n,
                          __global float *s, __global float *factor)
{
    const int step = work_step(w->cols, NR);
    const attn_range any = range_any(p, seq, i, n), all = range_all(p, seq, i, n);
    const attn_score at = score_run(p, seq, b, h, i, n);
    attn_row row = state_init();
    floatv top = -INFINITY, reference;
    float lse[VW];

    for (int j = any.first; j < any.end; j++) {
        floatv x = score_value(&at, LOAD(s + (long)j * step));

        if (FEAT_TERMS)
            x = score_add(x, terms(p, &at, j));
        if (j < all.first || j >= all.end)
            x = score_masked(&at, 0, j, x);
        top = state_max(x, top);
        STORE(x, s + (long)j * step);
    }
    state_fold(&row, top);
    reference = state_reference(&row);
    for (int j0 = any.first, j1; j0 < any.end; j0 = j1) {
        floatv sum = 0.0f;

        j1 = j0 + min(SPAN, any.end - j0);
        for (int j = j0; j < j1; j++) {
            const floatv x = state_weight(LOAD(s + (long)j * step), reference);

            sum += x;
            STORE(x, s + (long)j * step);
        }
        row.l += sum;
    }
    for (int j = 0; j < min(any.first, w->keys); j++)
        STORE((floatv)(0.0f), s + (long)j * step);
    for (int j = max(any.end, any.first); j < w->keys; j++)
        STORE((floatv)(0.0f), s + (long)j * step);

    STORE(state_finish_sink(&row, state_sink(p, h)), factor);
    STORE(state_lse(&row), lse);
    for (int x = 0; FEAT_LSE && p->want_lse && x < n; x++)
        p->lse[address_lse(p, seq, b, h, i + x)] = lse[x];
}

__kernel __attribute__((reqd_work_group_size(BLOCK, 1, 1)))
void attn_softmax_fwd_math_softmax(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const attn_work w = work_of(&p);
    const int runs = w.pitch / PITCH;

    for (long id = get_global_id(0); id < (long)p.round_heads * runs;
         id += get_global_size(0)) {
        const int n = (int)(id / runs), i = (int)(id % runs) * PITCH;
        const int c = n % w.group * w.pitch + i;
        const long pair = n / w.group;
        const attn_sequence s = range_sequence(&p, work_batch(&p, n));
        const int queries = min(work_queries(&p, &s) - i, PITCH);

        if (queries > 0)
            column(&p, &w, &s, work_batch(&p, n), work_head(&p, n), p.round_query + i,
                   queries, p.work + w.s + pair * w.keys * w.cols +
                   work_column(w.keys, NR, c), p.work + w.f + pair * w.cols + c);
    }
}
