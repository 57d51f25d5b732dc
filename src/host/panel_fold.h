/* SPDX-License-Identifier: MIT */
/* host/panel_fold.h: the arithmetic of a panel of VECTORS vectors. Included once for
 * each number of them (no guard): constant bounds keep the accumulators in registers,
 * ROWS x VECTORS of them, enough to hide the latency of the multipliers. The order of
 * every sum is the same for all VECTORS. */

#define ROWS (VECTORS == 1 ? 8 : MR)  /* keys or values at once, a multiple of VB */
#define NAME2(a, b) a##b
#define NAME1(a, b) NAME2(a, b)
#define NAME(a) NAME1(a##_, VECTORS)
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif
#define EACH_ROW UNROLL for (int r = 0; r < ROWS; r++)
#define EACH_VECTOR UNROLL for (int x = 0; x < VECTORS; x++)

/* s[keys][VECTORS] = scale * K Q, keys `first` .. end - 1. Past the last key it is read
 * again; s has room for whole blocks of 8. */
static inline void NAME(score)(vf *s, const panel_keys *t, const vf *q, int64_t dim,
                               int first, int end)
{
    const float *k = t->k;
    const float scale = t->scale;
    const int n = t->n;

    for (int j = first; j < end; j += ROWS) {
        vf acc[ROWS][VECTORS];
        const float *row[ROWS];

        EACH_ROW {
            row[r] = k + (j + r < n ? j + r : n - 1) * dim;
            EACH_VECTOR acc[r][x] = vf_set(0);
        }
        for (int64_t d = 0; d < dim; d++)
            EACH_ROW EACH_VECTOR acc[r][x] += row[r][d] * q[d * VECTORS + x];
        EACH_ROW EACH_VECTOR s[(j + r) * VECTORS + x] = acc[r][x] * scale;
    }
}

/* Scores become weights, relative to the maximum so far; alpha scales what was
 * summed before. A lane that has seen no key yet keeps m = -Inf and weights 0.
 * The difference is taken before it goes to log2 units: there every finite score
 * is a number, and large ones lose nothing. */
static inline void NAME(weigh)(vf *s, int n, const panel *p, vf *alpha)
{
    const float log2e = 0x1.715476p0f;
    vf top[VECTORS], base[VECTORS], sum[VECTORS];

    EACH_VECTOR top[x] = p->m[x];
    for (int j = 0; j < n; j++)
        EACH_VECTOR top[x] = vf_max(top[x], s[j * VECTORS + x]);
    EACH_VECTOR {
        base[x] = vf_keep(top[x] != -INFINITY, top[x]);
        alpha[x] = vf_exp2((p->m[x] - base[x]) * log2e);
        p->m[x] = top[x];
        sum[x] = vf_set(0);
    }
    for (int j = 0; j < n; j++)
        EACH_VECTOR {
            vf w = vf_exp2((s[j * VECTORS + x] - base[x]) * log2e);
            s[j * VECTORS + x] = w;
            sum[x] += w;
        }
    EACH_VECTOR p->l[x] = p->l[x] * alpha[x] + sum[x];
}

/* o = alpha * o + V^T weights, for ROWS values, over the keys of some runs. The keys are
 * summed apart from what came before, which keeps the error of long sums small. Where
 * alpha is 0 the old sum is dropped, even an infinite one: those keys weigh exactly
 * nothing. */
static inline void NAME(value)(vf *o, const vf *s, const panel_run *run, int runs,
                               const float *v, int64_t block, const vf *alpha)
{
    vf acc[ROWS][VECTORS];

    EACH_ROW EACH_VECTOR acc[r][x] = vf_set(0);
    for (const panel_run *end = run + runs; run < end; run++) {
        const vf *w = s + run->first * VECTORS;
        const float *at = v + run->first * VB;

        for (int j = run->first; j < run->end; j++, w += VECTORS, at += VB)
            EACH_ROW EACH_VECTOR acc[r][x] += at[r / VB * block + r % VB] * w[x];
    }
    EACH_ROW EACH_VECTOR {
        vf old = vf_keep(alpha[x] != 0.0f, o[r * VECTORS + x]);
        o[r * VECTORS + x] = old * alpha[x] + acc[r][x];
    }
}

static void NAME(panel_fold)(const panel *p, const panel_keys *t, vf *s, int64_t dim_qk,
                             int64_t dim_v)
{
    const panel_run all = { 0, t->n };
    const int share = t->terms ? 8 : t->n;
    const panel_run *live = &all;
    int runs = 1;
    bool hidden;
    vf alpha[VECTORS];

    for (int j = 0; j < t->n; j += share) {
        if (t->terms)
            panel_score_take(t, p, j, j + share);
        NAME(score)(s, t, p->q, dim_qk, j, j + share < t->n ? j + share : t->n);
    }
    hidden = panel_score(s, t, p);
    NAME(weigh)(s, t->n, p, alpha);
    if (hidden) {
        runs = panel_live(t->live, s, t, VECTORS);
        live = t->live;
    }
    if (t->drop)
        panel_drop(s, t, p);
    for (int64_t d = 0; t->v && d < dim_v; d += ROWS)
        NAME(value)(p->o + d * VECTORS, s, live, runs, t->v + d / VB * t->block, t->block,
                    alpha);
}

#undef ROWS
#undef NAME
#undef NAME1
#undef NAME2
#undef UNROLL
#undef EACH_ROW
#undef EACH_VECTOR
