/* SPDX-License-Identifier: MIT */
/* tools/plain.c: one query at a time, in double, with nothing clever. */
#include "plain.h"

#include <float.h>
#include <math.h>

#include "dropout.h"
#include "visible.h"

/* Larger numbers in a bias stand for "never": nothing of the score is left beside them,
 * and their weight is 0 or that of all. They are not counted as scores. */
static const double NEVER = 10000;

/* The header has infinities for scores that f32 cannot hold. */
static double held(double s)
{
    return s > (double)FLT_MAX ? INFINITY : s < -(double)FLT_MAX ? -INFINITY : s;
}

/* s_ij; its size, and the size of the products summed in it, go to the row. */
static double score(const inputs *in, const visible_batch *x, int64_t b, int64_t h,
                    int64_t i, int64_t j, plain_row *out)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t kvh = h / (d->heads_q / d->heads_kv);
    const float *q = in->q + ((b * d->heads_q + h) * d->len_q + i) * d->dim_qk;
    const float *k = in->k + ((b * d->heads_kv + kvh) * d->len_kv + j) * d->dim_qk;
    const double scale = (double)visible_scale(d), cap = (double)visible_softcap(d);
    double sum = 0, size = 0, added = 0, s;

    for (int64_t e = 0; e < d->dim_qk; e++) {
        sum += (double)q[e] * (double)k[e];
        size += fabs((double)q[e] * (double)k[e]);
    }
    s = scale * sum;
    if (cap > 0)
        s = cap * tanh(s / cap);
    if (in->alibi) {
        const double slope = (double)in->alibi[visible_at(in->alibi_size, b, h, 0, 0)];
        added = -slope * fabs((double)(i + x->position - j));
    }
    if (in->bias)
        added += (double)in->bias[visible_at(in->bias_size, b, h, i, j)];
    if (fabs(added) < NEVER) {
        out->most = fmax(out->most, fabs(scale * sum) + fabs(added));
        out->most_terms = fmax(out->most_terms, fabs(scale) * size + fabs(added));
    }
    return held(s + added);
}

void plain_evaluate(const inputs *in, int64_t b, int64_t h, int64_t i, double *weights,
                    plain_row *out)
{
    const attn_softmax_desc *d = &in->desc;
    const visible_batch x = visible_batch_of(in, b);
    const visible_keys range = visible_of(d, &x, i);
    const int64_t dv = visible_dim_v(d), kvh = h / (d->heads_q / d->heads_kv);
    const float *v = in->v + (b * d->heads_kv + kvh) * d->len_kv * dv;
    const double sink = in->sinks ? (double)in->sinks[h] : -INFINITY;
    double m = sink, sum = 0;

    out->most = out->most_terms = out->sum = 0;
    out->pairs = 0;
    for (int64_t e = 0; e < dv; e++)
        out->o[e] = out->terms[e] = 0;
    for (int64_t j = range.first; j < range.end; j++) {
        const bool sees = visible_pair(in, b, h, i, j);
        weights[j] = sees ? score(in, &x, b, h, i, j, out) : -INFINITY;
        out->pairs += sees;
        m = fmax(m, weights[j]);
    }
    if (m == -INFINITY) {
        out->lse = -INFINITY;
        return;
    }
    for (int64_t j = range.first; j < range.end; j++)
        sum += weights[j] = exp(weights[j] - m);
    sum += exp(sink - m);
    out->lse = m + log(sum);
    out->sum = sum;
    for (int64_t j = range.first; j < range.end; j++) {
        const double p = weights[j] / sum * dropout_factor(in, b, h, i, j);

        for (int64_t e = 0; e < dv && p != 0; e++) {
            out->o[e] += p * (double)v[j * dv + e];
            out->terms[e] += p * fabs((double)v[j * dv + e]);
        }
    }
}
