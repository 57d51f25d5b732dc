/* SPDX-License-Identifier: MIT */
/* tools/compare_gradients.c: gradients against the right answer, group by group. */
#include <math.h>
#include <stdio.h>

#include "gradients.h"
#include "visible.h"

static const struct {
    double norm, least; /* least: as in compare.c */
} tolerances[] = {
    [ATTN_F32] = { 1e-5, 0x1p-96 },
    [ATTN_F16] = { 3e-3, 0x1p-24 },
    [ATTN_BF16] = { 2e-2, 0x1p-96 },
};

enum { ELEMENT = 20 }; /* times a single element may be off */

/* Rows of one batch and head. */
typedef struct group {
    const char *name;
    int64_t b, h, rows, columns;
    const float *have;
    const double *value, *terms;
    double allowed; /* relative */
    double least;
    bool moderate; /* |s| <= COMPARE_SCORES */
    bool f16;      /* the gradient's own type */
    bool spoilt;   /* some are NaN            */
    comparison *out;
} group;

/* Row -1: the norm of the whole group. */
static void note(const group *x, double error, double allowed, int64_t row, int64_t column)
{
    const double share = error <= allowed ? (allowed > 0 ? error / allowed : 0)
                         : allowed > 0 && error < INFINITY ? error / allowed
                                                           : 1e300;
    const int64_t n = row * x->columns + column;

    if (!(share > x->out->share))
        return;
    x->out->share = share;
    if (share <= 1)
        return;
    if (row < 0)
        snprintf(x->out->what, sizeof x->out->what,
                 "%s, head [%lld,%lld]: ||G - ref|| = %.3g, want at most %.3g", x->name,
                 (long long)x->b, (long long)x->h, error, allowed);
    else
        snprintf(x->out->what, sizeof x->out->what,
                 "%s[%lld,%lld,%lld,%lld] = %.9g, want %.9g within %.3g", x->name,
                 (long long)x->b, (long long)x->h, (long long)row, (long long)column,
                 (double)x->have[n], x->value[n], allowed);
}

static double larger(double value2, double terms2)
{
    return fmax(sqrt(value2), sqrt(terms2) / 2);
}

/* An infinity is the right rounding of what f16 cannot hold; and NaN, which scores that are
 * infinities give, may spread in its head. */
static bool overflows(const group *x, double have, double want, double allowed)
{
    if (isnan(have))
        return x->spoilt;
    return x->f16 && isinf(have) && (have > 0 ? want : -want) + allowed >= 65520;
}

/* Adds the squares of a row: errors, reference, terms. */
static void compare_row(const group *x, int64_t row, double sums[3])
{
    double value2 = 0, terms2 = 0, allowed;

    for (int64_t c = 0; c < x->columns; c++) {
        const int64_t n = row * x->columns + c;
        if (isnan(x->value[n]))
            continue;
        value2 += x->value[n] * x->value[n];
        terms2 += x->terms[n] * x->terms[n];
    }
    allowed =
        ELEMENT * x->allowed * larger(value2, terms2) / sqrt((double)x->columns) + x->least;
    for (int64_t c = 0; c < x->columns; c++) {
        const int64_t n = row * x->columns + c;
        const double error = fabs((double)x->have[n] - x->value[n]);

        if (overflows(x, (double)x->have[n], x->value[n], allowed))
            continue;
        sums[0] += isnan(x->value[n]) ? 0 : error * error;
        if (!isfinite(x->have[n]) || isnan(x->value[n]))
            note(x, INFINITY, 0, row, c);
        else if (x->terms[n] == 0 && x->value[n] == 0)
            note(x, error, 0, row, c);
        else
            note(x, error, allowed, row, c);
    }
    sums[1] += value2;
    sums[2] += terms2;
}

static void compare_group(const group *x)
{
    const double floor = x->least * sqrt((double)(x->rows * x->columns));
    double sums[3] = { 0 }, size, error;

    for (int64_t row = 0; row < x->rows; row++)
        compare_row(x, row, sums);
    size = larger(sums[1], sums[2]);
    error = sqrt(sums[0]);
    if (!(error / size <= x->out->norm) && x->moderate && size > floor / x->allowed)
        x->out->norm = error / size;
    note(x, isfinite(error) ? error : INFINITY, x->allowed * size + floor, -1, 0);
}

/* The largest |s| that a group of a gradient sums over. */
static double score_of(const inputs *in, const gradients *ref, gradient g, int64_t b,
                       int64_t h)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t heads = d->batch * d->heads_q;
    const int64_t n = d->heads_kv ? d->heads_q / d->heads_kv : 0;
    int64_t first = 0, end = heads;
    double most = 0;

    if (g == GRADIENT_Q) {
        first = b * d->heads_q + h;
        end = first + 1;
    } else if (g == GRADIENT_K || g == GRADIENT_V) {
        first = b * d->heads_q + h * n;
        end = first + n;
    }
    for (int64_t bh = first; bh < end; bh++)
        most = fmax(most, ref->score[bh]);
    return most;
}

/* Units of 2^-24 of s that a gradient may be off by, of itself. What D sums round goes one way and
 * the other. 1 - tanh^2(s / softcap) is off by as many times more as s / softcap is of s. */
static double units_of_score(const attn_softmax_desc *d, gradient g)
{
    const double cap = (double)visible_softcap(d), units = fmax(8, sqrt((double)d->dim_qk));

    return cap > 0 && g <= GRADIENT_K ? units * fmax(1, 1 / cap) : units;
}

void gradients_compare(const inputs *in, const gradients *ref, float *const have[GRADIENTS],
                       comparison *out)
{
    const attn_type type = in->desc.type;

    *out = (comparison){ 0 };
    for (gradient g = GRADIENT_Q; g < GRADIENTS; g++) {
        int64_t size[4];

        if (!ref->value[g] || !have[g])
            continue;
        gradient_size(in, g, size);
        for (int64_t n = 0; n < size[0] * size[1]; n++) {
            const int64_t b = n / size[1], h = n % size[1], at = n * size[2] * size[3];
            const double most = score_of(in, ref, g, b, h);
            group x = { .name = gradient_name(g),
                        .b = b,
                        .h = h,
                        .rows = size[2],
                        .columns = size[3],
                        .have = have[g] + at,
                        .value = ref->value[g] + at,
                        .terms = ref->terms[g] + at,
                        .allowed = tolerances[type].norm +
                                   units_of_score(&in->desc, g) * 0x1p-24 * most,
                        .least = tolerances[type].least,
                        .moderate = most <= COMPARE_SCORES,
                        .f16 = type == ATTN_F16 && g <= GRADIENT_V,
                        .out = out };
            for (int64_t i = 0; i < size[2] * size[3]; i++)
                x.spoilt = x.spoilt || isnan(x.value[i]);
            if (size[2] > 0 && size[3] > 0)
                compare_group(&x);
        }
    }
}
