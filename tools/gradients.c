/* SPDX-License-Identifier: MIT */
/* tools/gradients.c: gradients by the formula, one query at a time, in double. */
#include "gradients.h"

#include <math.h>
#include <stdlib.h>

#include "dropout.h"
#include "oracle.h"
#include "plain.h"
#include "visible.h"

static const char *const names[GRADIENTS] = { "grad_q", "grad_k", "grad_v", "grad_bias",
                                              "grad_sinks" };

const char *gradient_name(gradient g)
{
    return names[g];
}

bool gradient_wanted(const attn_softmax_desc *d, gradient g)
{
    return d->use & ATTN_USE_GRAD && d->grad >> g & 1;
}

void gradient_size(const inputs *in, gradient g, int64_t size[4])
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t all[GRADIENTS][4] = {
        [GRADIENT_Q] = { d->batch, d->heads_q, d->len_q, d->dim_qk },
        [GRADIENT_K] = { d->batch, d->heads_kv, d->len_kv, d->dim_qk },
        [GRADIENT_V] = { d->batch, d->heads_kv, d->len_kv, visible_dim_v(d) },
        [GRADIENT_BIAS] = { in->bias_size[0], in->bias_size[1], in->bias_size[2],
                            in->bias_size[3] },
        [GRADIENT_SINKS] = { 1, 1, 1, d->heads_q },
    };

    for (int i = 0; i < 4; i++)
        size[i] = all[g][i];
}

int64_t gradient_count(const inputs *in, gradient g)
{
    int64_t size[4];

    gradient_size(in, g, size);
    return size[0] * size[1] * size[2] * size[3];
}

/* What is being evaluated: sums, and sums of squares. */
typedef struct evaluation {
    const inputs *in;
    gradients *out;
    double *weights;
    plain_row row;
    double most, most_terms; /* of the head */
    long long pairs;
} evaluation;

static void add(const evaluation *x, gradient g, int64_t at, double term, double size)
{
    if (!x->out->value[g])
        return;
    x->out->value[g][at] += term;
    x->out->terms[g][at] += size * size;
}

/* Of query (b, h, i): delta, and the size of its terms. */
static double delta_of(const evaluation *x, int64_t n, double *size)
{
    const inputs *in = x->in;
    const int64_t dv = visible_dim_v(&in->desc);
    double sum = 0;

    *size = 0;
    for (int64_t e = 0; in->grad_o && e < dv; e++) {
        sum += (double)in->grad_o[n * dv + e] * x->row.o[e];
        *size += fabs((double)in->grad_o[n * dv + e] * x->row.o[e]);
    }
    if (in->grad_lse) {
        sum -= (double)in->grad_lse[n];
        *size += fabs((double)in->grad_lse[n]);
    }
    return sum;
}

/* The derivative of the cap at a pair, 1 - tanh^2 without the difference. */
static double cap_of(const inputs *in, const float *q, const float *k)
{
    const double cap = (double)visible_softcap(&in->desc);
    double sum = 0, c;

    if (cap <= 0)
        return 1;
    for (int64_t e = 0; e < in->desc.dim_qk; e++)
        sum += (double)q[e] * (double)k[e];
    c = 1 / cosh((double)visible_scale(&in->desc) * sum / cap);
    return c * c;
}

static void pair(const evaluation *x, int64_t b, int64_t h, int64_t i, int64_t j, double p,
                 double delta, double delta_size)
{
    const inputs *in = x->in;
    const attn_softmax_desc *d = &in->desc;
    const int64_t dim = d->dim_qk, dv = visible_dim_v(d);
    const int64_t n = (b * d->heads_q + h) * d->len_q + i;
    const int64_t kv = (b * d->heads_kv + h / (d->heads_q / d->heads_kv)) * d->len_kv + j;
    const float *q = in->q + n * dim, *k = in->k + kv * dim, *v = in->v + kv * dv;
    const double scale = (double)visible_scale(d), cap = cap_of(in, q, k);
    const double kept = dropout_factor(in, b, h, i, j);
    double dp = 0, dp_size = 0, ds, ds_size;

    for (int64_t e = 0; in->grad_o && e < dv; e++) {
        const double g = (double)in->grad_o[n * dv + e];

        dp += kept * g * (double)v[e];
        dp_size += fabs(kept * g * (double)v[e]);
        add(x, GRADIENT_V, kv * dv + e, p * kept * g, p * kept * g);
    }
    ds = p * (dp - delta);
    ds_size = p * (dp_size + delta_size);
    if (in->bias)
        add(x, GRADIENT_BIAS, visible_at(in->bias_size, b, h, i, j), ds, ds_size);
    for (int64_t e = 0; e < dim; e++) {
        add(x, GRADIENT_Q, n * dim + e, scale * ds * cap * (double)k[e],
            scale * ds_size * cap * (double)k[e]);
        add(x, GRADIENT_K, kv * dim + e, scale * ds * cap * (double)q[e],
            scale * ds_size * cap * (double)q[e]);
    }
}

static void query(evaluation *x, int64_t b, int64_t h, int64_t i)
{
    const inputs *in = x->in;
    const visible_batch batch = visible_batch_of(in, b);
    const visible_keys range = visible_of(&in->desc, &batch, i);
    const int64_t bh = b * in->desc.heads_q + h;
    plain_row row = x->row;
    double delta, size, p;

    plain_evaluate(in, b, h, i, x->weights, &row);
    x->most = fmax(x->most, row.most);
    x->most_terms = fmax(x->most_terms, row.most_terms);
    x->pairs += row.pairs;
    delta = delta_of(x, bh * in->desc.len_q + i, &size);
    if (row.lse == -INFINITY)
        return;
    if (in->sinks) {
        p = exp((double)in->sinks[h] - row.lse);
        add(x, GRADIENT_SINKS, h, -p * delta, p * size);
    }
    for (int64_t j = range.first; j < range.end; j++)
        if (x->weights[j] != 0)
            pair(x, b, h, i, j, x->weights[j] / row.sum, delta, size);
}

static bool allocate(const inputs *in, gradients *out)
{
    const attn_softmax_desc *d = &in->desc;
    bool there = true;

    *out = (gradients){ .score = calloc((size_t)(d->batch * d->heads_q) + 1,
                                        sizeof *out->score) };
    for (gradient g = GRADIENT_Q; g < GRADIENTS; g++) {
        const size_t n = gradient_wanted(d, g) ? (size_t)gradient_count(in, g) + 1 : 0;

        if (!n)
            continue;
        out->value[g] = calloc(n, sizeof *out->value[g]);
        out->terms[g] = calloc(n, sizeof *out->terms[g]);
        there = there && out->value[g] && out->terms[g];
    }
    return there && out->score;
}

bool gradients_evaluate(const inputs *in, gradients *out)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t dv = visible_dim_v(d);
    double *room = calloc((size_t)(d->len_kv + 2 * dv) + 1, sizeof *room);
    evaluation x = { .in = in, .out = out, .weights = room };

    if (!allocate(in, out) || !room) {
        gradients_free(out);
        free(room);
        return false;
    }
    x.row = (plain_row){ .o = room + d->len_kv, .terms = room + d->len_kv + dv };
    for (int64_t b = 0; b < d->batch; b++) {
        const visible_batch batch = visible_batch_of(in, b);

        for (int64_t h = 0; h < d->heads_q; h++) {
            x.most = x.most_terms = 0;
            x.pairs = 0;
            for (int64_t i = 0; i < batch.queries; i++)
                query(&x, b, h, i);
            out->score[b * d->heads_q + h] = oracle_score(x.most, x.most_terms, x.pairs);
        }
    }
    for (gradient g = GRADIENT_Q; g < GRADIENTS; g++)
        for (int64_t n = 0; out->terms[g] && n < gradient_count(in, g); n++)
            out->terms[g][n] = sqrt(out->terms[g][n]);
    free(room);
    return true;
}

void gradients_free(gradients *out)
{
    for (gradient g = GRADIENT_Q; g < GRADIENTS; g++) {
        free(out->value[g]);
        free(out->terms[g]);
    }
    free(out->score);
    *out = (gradients){ .score = NULL };
}
