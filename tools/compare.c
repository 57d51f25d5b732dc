/* SPDX-License-Identifier: MIT */
/* tools/compare.c: the tolerances, and what is measured against them. */
#include "compare.h"

#include <math.h>
#include <stdio.h>

#include "visible.h"

static const struct {
    double norm, lse_part, lse_least;
    double unit;  /* what a number rounded to the type is off by, of itself */
    double least; /* ... or at least. In f32 a weight below 2^-126 may vanish: times
                   * all values this is less */
} tolerances[] = {
    [ATTN_F32] = { 2e-6, 1e-5, 1e-6, 0, 0x1p-96 },
    [ATTN_F16] = { 1e-3, 1e-6, 1e-3, 0x1p-11, 0x1p-24 },
    [ATTN_BF16] = { 8e-3, 1e-6, 1e-3, 0x1p-8, 0x1p-96 },
};

/* f32 where TF32 is allowed: both factors of a product are off by half a unit of 11 bits. */
#define TF32_NORM  1e-3
#define TF32_SCORE (2 * 0x1p-11)

enum {
    ROUNDINGS = 3, /* of a score in the type: the product, scaled, with its terms    */
    ELEMENT = 20,  /* times a single element may be off                          */
    FEW = 16,      /* so many elements or more do not all cancel by chance       */
};

/* One head under comparison. */
typedef struct head {
    const inputs *in;
    int64_t b, h;
    double allowed; /* relative, of the norm            */
    double score;   /* what a score may be off by       */
    bool moderate;  /* |s| <= COMPARE_SCORES            */
    comparison *out;
} head;

/* Notes an error and what was allowed; keeps the worst failure's text. Without a name
 * it is the norm of the head's error. */
static void note(const head *x, double error, double allowed, const char *name, int64_t i,
                 int64_t e, double have, double want)
{
    const double share = error <= allowed ? (allowed > 0 ? error / allowed : 0)
                         : allowed > 0 && error < INFINITY ? error / allowed
                                                           : 1e300;
    char at[24] = "";

    if (!(share > x->out->share))
        return;
    x->out->share = share;
    if (share <= 1)
        return;
    if (!name) {
        snprintf(x->out->what, sizeof x->out->what,
                 "head [%lld,%lld]: ||O - ref|| = %.3g, want at most %.3g", (long long)x->b,
                 (long long)x->h, error, allowed);
        return;
    }
    if (e >= 0)
        snprintf(at, sizeof at, ",%lld", (long long)e);
    snprintf(x->out->what, sizeof x->out->what,
             "%s[%lld,%lld,%lld%s] = %.9g, want %.9g within %.3g", name, (long long)x->b,
             (long long)x->h, (long long)i, at, have, want, allowed);
}

static void note_wrong(const head *x, const char *name, int64_t i, int64_t e, double have,
                       double want)
{
    note(x, INFINITY, 0, name, i, e, have, want);
}

/* The size that errors of n numbers are measured by: their norm; of a few numbers,
 * which may all have cancelled, half the norm of what was summed if that is more. */
static double size_of(double norm2, double terms2, int64_t n)
{
    return n < FEW ? fmax(sqrt(norm2), sqrt(terms2) / 2) : sqrt(norm2);
}

static void compare_row(const head *x, int64_t i, const float *o, const float *ref,
                        const float *terms, double sums[3])
{
    const int64_t dv = visible_dim_v(&x->in->desc);
    double norm2 = 0, terms2 = 0, allowed;

    for (int64_t e = 0; e < dv && !isnan(ref[e]); e++) {
        norm2 += (double)ref[e] * (double)ref[e];
        terms2 += (double)terms[e] * (double)terms[e];
    }
    allowed = ELEMENT * x->allowed * size_of(norm2, terms2, dv) / sqrt((double)dv) +
              tolerances[x->in->desc.type].least;
    for (int64_t e = 0; e < dv; e++) {
        const double error = isnan(ref[e]) ? 0 : fabs((double)o[e] - (double)ref[e]);
        sums[0] += error * error;
        if (isnan(ref[e]) && isnan(o[e])) /* a score that is an infinity */
            continue;
        if (isfinite(o[e]) && !isnan(ref[e]))
            note(x, error, allowed, "O", i, e, (double)o[e], (double)ref[e]);
        else
            note_wrong(x, "O", i, e, (double)o[e], (double)ref[e]);
    }
    sums[1] += norm2;
    sums[2] += terms2;
}

static void compare_lse(const head *x, int64_t i, double have, double want, bool empty)
{
    const attn_type type = x->in->desc.type;
    const double none = x->in->sinks ? (double)x->in->sinks[x->h] : -INFINITY;

    if (!empty && (isnan(want) ? isnan(have) : have == want)) /* infinities, too */
        return;
    if (empty ? have != none : !isfinite(have) || !isfinite(want))
        note_wrong(x, "LSE", i, -1, have, empty ? none : want);
    else if (!empty)
        note(x, fabs(have - want),
             tolerances[type].lse_part * fabs(want) + tolerances[type].lse_least + x->score,
             "LSE", i, -1, have, want);
}

static void compare_head(const head *x, const oracle *ref, const float *o, const float *lse)
{
    const attn_softmax_desc *d = &x->in->desc;
    const int64_t first = (x->b * d->heads_q + x->h) * d->len_q, dv = visible_dim_v(d);
    const visible_batch batch = visible_batch_of(x->in, x->b);
    double sums[3] = { 0 }, size, error; /* squares of errors, reference, terms */
    int64_t rows = 0;

    for (int64_t i = 0; i < batch.queries; i++) {
        const bool empty = !visible_any(x->in, &batch, x->b, x->h, i);
        const int64_t n = first + i;

        if (lse)
            compare_lse(x, i, (double)lse[n], (double)ref->lse[n], empty);
        for (int64_t e = 0; o && empty && e < dv; e++)
            if (o[n * dv + e] != 0)
                note_wrong(x, "O", i, e, (double)o[n * dv + e], 0);
        if (!o || empty)
            continue;
        compare_row(x, i, o + n * dv, ref->o + n * dv, ref->terms + n * dv, sums);
        rows++;
    }
    if (!rows)
        return;
    size = size_of(sums[1], sums[2], rows * dv);
    error = sqrt(sums[0]);
    if (!(error / size <= x->out->norm) && x->moderate &&
        size > tolerances[d->type].least * sqrt((double)(rows * dv)) / x->allowed)
        x->out->norm = error / size;
    note(x, isfinite(error) ? error : INFINITY,
         x->allowed * size + tolerances[d->type].least * sqrt((double)(rows * dv)), NULL, 0,
         0, 0, 0);
}

void compare(const inputs *in, const oracle *ref, const float *o, const float *lse,
             bool rounded, comparison *out)
{
    const attn_softmax_desc *d = &in->desc;

    *out = (comparison){ 0 };
    for (int64_t b = 0; b < d->batch; b++)
        for (int64_t h = 0; h < d->heads_q; h++) {
            const double most = ref->score[b * d->heads_q + h];
            const bool tf32 = d->type == ATTN_F32 && d->use & ATTN_USE_ALLOW_TF32;
            const double off = rounded ? ROUNDINGS * tolerances[d->type].unit * most : 0;
            const double score = (4 * 0x1p-24 + (tf32 ? TF32_SCORE : 0)) * most;
            const head x = { .in = in,
                             .b = b,
                             .h = h,
                             .allowed = (tf32 ? TF32_NORM : tolerances[d->type].norm) +
                                        score + 2 * off,
                             .score = score + off,
                             .moderate = most <= COMPARE_SCORES,
                             .out = out };
            compare_head(&x, ref, o, lse);
        }
}

double compare_results(const inputs *in, const oracle *ref, const float *a, const float *b)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t n = d->len_q * visible_dim_v(d);
    double worst = 0;

    for (int64_t h = 0; h < d->batch * d->heads_q; h++) {
        double error = 0, size = 0;

        for (int64_t i = h * n; i < (h + 1) * n; i++) {
            const double x = (double)a[i] - (double)b[i];
            error += x * x;
            size += (double)b[i] * (double)b[i];
        }
        if (error > 0 && ref->score[h] <= COMPARE_SCORES)
            worst = fmax(worst, size > 0 ? sqrt(error / size) : INFINITY);
    }
    return worst;
}
