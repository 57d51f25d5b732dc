/* SPDX-License-Identifier: MIT */
/* host/back_fold.h: the arithmetic of a backward panel of VECTORS vectors. Included once
 * for each number of them (no guard), as host/panel_fold.h is and with its blocks of ROWS
 * by VECTORS accumulators. The order of every sum is the same for all VECTORS. */

#define ROWS (VECTORS == 1 ? 8 : MR)  /* rows or columns at once */
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

/* s[n][VECTORS] = factor * <row, column of own>, for n rows of `dim` numbers, own
 * [dim][VECTORS]. Past the last row it is read again; s has room for whole blocks of 8. */
static void NAME(back_dots)(vf *s, const float *rows, int64_t step, int n, const vf *own,
                            int64_t dim, float factor)
{
    for (int j = 0; j < n; j += ROWS) {
        vf acc[ROWS][VECTORS];
        const float *row[ROWS];

        EACH_ROW {
            row[r] = rows + (j + r < n ? j + r : n - 1) * step;
            EACH_VECTOR acc[r][x] = vf_set(0);
        }
        for (int64_t d = 0; d < dim; d++)
            EACH_ROW EACH_VECTOR acc[r][x] += row[r][d] * own[d * VECTORS + x];
        EACH_ROW EACH_VECTOR s[(j + r) * VECTORS + x] = acc[r][x] * factor;
    }
}

/* Scores become weights, and dp their gradients. The LSE and delta belong to the lanes, or
 * `by_row` to the rows. A weight is at most 1; where it is 0, the gradient is, whatever dp
 * holds. As in panel_fold.h the difference is taken before it goes to log2 units. */
static void NAME(back_weigh)(vf *s, vf *dp, int n, const float *lse, const float *delta,
                             bool by_row)
{
    const float log2e = 0x1.715476p0f;

    for (int j = 0; j < n; j++)
        EACH_VECTOR {
            const int at = j * VECTORS + x;
            const vf base = by_row ? vf_set(lse[j]) : vf_load(lse + x * LANES);
            const vf less = by_row ? vf_set(delta[j]) : vf_load(delta + x * LANES);
            const vf d = s[at] - base;
            const vf p = vf_keep(s[at] != -INFINITY, /* of a row whose LSE is NaN, too */
                                 vf_exp2(vf_keep(~(d > 0.0f), d) * log2e));

            s[at] = p;
            dp[at] = vf_keep(p != 0.0f, p * (dp[at] - less));
        }
}

/* out[dim][VECTORS] += sum over rows of row[d] * w[row], over some runs of rows; rows have
 * whole blocks of ROWS columns. The rows are summed apart from what came before. */
static void NAME(back_sums)(vf *out, const vf *w, const panel_run *run, int runs,
                            const float *rows, int64_t step, int64_t dim)
{
    for (int64_t d = 0; d < dim; d += ROWS) {
        vf acc[ROWS][VECTORS];

        EACH_ROW EACH_VECTOR acc[r][x] = vf_set(0);
        for (const panel_run *at = run; at < run + runs; at++) {
            const vf *weight = w + at->first * VECTORS;
            const float *row = rows + at->first * step + d;

            for (int j = at->first; j < at->end; j++, weight += VECTORS, row += step)
                EACH_ROW EACH_VECTOR acc[r][x] += row[r] * weight[x];
        }
        EACH_ROW EACH_VECTOR out[(d + r) * VECTORS + x] += acc[r][x];
    }
}

#undef ROWS
#undef NAME
#undef NAME1
#undef NAME2
#undef UNROLL
#undef EACH_ROW
#undef EACH_VECTOR
