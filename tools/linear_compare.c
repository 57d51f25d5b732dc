/* SPDX-License-Identifier: MIT */
/* tools/linear_compare.c: norms of heads, single elements, exact zeros. */
#include "linear_compare.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

enum { ELEMENT = 20 };

static double tolerance_of(const attn_linear_desc *d)
{
    static const double forward[] = {
        [ATTN_F32] = 2e-6, [ATTN_F16] = 1e-3, [ATTN_BF16] = 8e-3
    };
    static const double backward[] = {
        [ATTN_F32] = 1e-5, [ATTN_F16] = 3e-3, [ATTN_BF16] = 2e-2
    };
    const bool tf32 = d->type == ATTN_F32 && d->use & ATTN_LINEAR_ALLOW_TF32;
    const attn_type type = tf32 ? ATTN_F16 : d->type;

    return d->use & ATTN_LINEAR_GRAD ? backward[type] : forward[type];
}

static double tiny_of(attn_type type)
{
    return type == ATTN_F16 ? 0x1p-24 : 0x1p-80;
}

/* A head: `rows` rows of `n` elements from `first` on. */
typedef struct part {
    int64_t first, rows, n;
} part;

static double size_of(const linear_result *r, int64_t first, int64_t n)
{
    double value = 0, terms = 0;

    for (int64_t i = first; i < first + n; i++) {
        value += r->value[i] * r->value[i];
        terms += r->terms[i] * r->terms[i];
    }
    return fmax(sqrt(value), sqrt(terms) / 2);
}

static void note(linear_comparison *out, const char *name, double share, int64_t at,
                 double have, double want)
{
    if (share <= out->share && !isnan(share))
        return;
    out->share = isnan(share) ? INFINITY : share;
    if (out->share > 1)
        snprintf(out->what, sizeof out->what,
                 "%s[%lld] is %.9g, want %.9g; %.3g times "
                 "what is allowed",
                 name, (long long)at, have, want, out->share);
}

/* An infinity is the right rounding of what the type cannot hold. */
static bool overflows(attn_type type, double have, double want, double tolerance)
{
    const double most = type == ATTN_F16 ? 65520 : (double)FLT_MAX;

    return isinf(have) && (have > 0) == (want > 0) &&
           fabs(want) * (1 + ELEMENT * tolerance) >= most;
}

static void compare_row(const linear_result *r, const char *name, const float *have,
                        int64_t first, int64_t n, attn_type type, double tolerance,
                        double tiny, linear_comparison *out)
{
    const double size = size_of(r, first, n);

    for (int64_t i = first; i < first + n; i++) {
        const double x = (double)have[i], error = fabs(x - r->value[i]);

        if (r->terms[i] == 0) {
            if (x != 0)
                note(out, name, INFINITY, i, x, 0);
            continue;
        }
        if (overflows(type, x, r->value[i], tolerance))
            continue;
        note(out, name, error / (ELEMENT * tolerance * size / sqrt((double)n) + tiny), i, x,
             r->value[i]);
    }
}

static void compare_head(const linear_result *r, const char *name, const float *have,
                         part p, attn_type type, double tolerance, double tiny,
                         linear_comparison *out)
{
    const double size = size_of(r, p.first, p.rows * p.n);
    double sum = 0, norm;
    int64_t worst = p.first;

    for (int64_t i = p.first; i < p.first + p.rows * p.n; i++) {
        const double error = (double)have[i] - r->value[i];

        if (overflows(type, (double)have[i], r->value[i], tolerance))
            continue;
        sum += error * error;
        if (fabs(error) > fabs((double)have[worst] - r->value[worst]))
            worst = i;
    }
    for (int64_t l = 0; l < p.rows; l++)
        compare_row(r, name, have, p.first + l * p.n, p.n, type, tolerance, tiny, out);
    if (size == 0)
        return;
    norm = sqrt(sum) / (size + tiny * sqrt((double)(p.rows * p.n)) / tolerance);
    if (norm > out->norm)
        out->norm = norm;
    note(out, name, norm / tolerance, worst, (double)have[worst], r->value[worst]);
}

void linear_compare(const linear_plain *want, linear_output which, const float *have,
                    linear_comparison *out)
{
    const attn_linear_desc *d = &want->desc;
    const bool by_key = which == LINEAR_GRAD_K || which == LINEAR_GRAD_V;
    const bool in_type = which == LINEAR_O || which == LINEAR_GRAD_Q || by_key;
    int64_t size[4];

    linear_output_size(d, which, size);
    for (int64_t bh = 0; bh < size[0] * size[1]; bh++) {
        const part p = { bh * size[2] * size[3],
                         by_key ? linear_plain_length(want, bh / size[1]) : size[2],
                         size[3] };

        const attn_type type = in_type ? d->type : ATTN_F32;

        compare_head(&want->out[which], linear_output_name(which), have, p, type,
                     tolerance_of(d), tiny_of(type), out);
    }
}
