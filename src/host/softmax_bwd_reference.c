/* SPDX-License-Identifier: MIT */
/* host/softmax_bwd_reference.c: gradients, one row at a time in double.
 *
 * Computes  dQ, dK, dV, dBias and dSinks as written in include/attn/softmax.h, those that
 *           are there
 * Method    delta of every query first; then each row of a gradient by itself: weights
 *           are computed again from the LSE wherever they are needed. A hidden key's
 *           rows, and those of a query that sees no key, are not read into anything
 * Workspace of each thread a row of D and one of Dv, then delta [B, Hq, Lq], in double
 * Layout    any strides, 64-bit; any types
 * Numerics  everything in double; one rounding to f32, from there to 16 bits. exp(s - LSE)
 *           is at most 1, whatever the LSE's rounding
 */
#include "host/softmax.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "host/address.h"
#include "host/dropout.h"
#include "host/element.h"
#include "host/score.h"

/* One query head of one batch. */
typedef struct head {
    const attn_host_softmax *s;
    attn_sequence x;
    int64_t b, h, kvh;
    double slope;
    attn_dropout dropout;
} head;

static head head_of(const attn_host_softmax *s, int64_t b, int64_t h)
{
    return (head){ .s = s,
                   .x = attn_host_sequence(s, b),
                   .b = b,
                   .h = h,
                   .kvh = h / (s->heads_q / s->heads_kv),
                   .slope = (double)attn_host_slope(s, b, h),
                   .dropout = attn_host_dropout(s, b, h) };
}

static bool is_there(const attn_tensor *t)
{
    return t->type != ATTN_TYPE_NONE;
}

static double *deltas(const attn_host_softmax *s)
{
    return (double *)(void *)((char *)s->workspace + (size_t)s->threads * s->scratch_bytes);
}

static double *row_of_thread(const attn_host_softmax *s)
{
#ifdef _OPENMP
    const size_t thread = (size_t)omp_get_thread_num();
#else
    const size_t thread = 0;
#endif
    return (double *)(void *)((char *)s->workspace + thread * s->scratch_bytes);
}

/* <row at `a`, row at `c`> of n elements. */
static double dot(const attn_tensor *x, int64_t a, const attn_tensor *y, int64_t c,
                  int64_t n)
{
    double sum = 0;

    for (int64_t d = 0; d < n; d++)
        sum += attn_element_load(x, a + d * x->stride[3]) *
               attn_element_load(y, c + d * y->stride[3]);
    return sum;
}

static void add_row(double *sum, double w, const attn_tensor *t, int64_t at, int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        sum[d] += w * attn_element_load(t, at + d * t->stride[3]);
}

static void store_row(const attn_tensor *t, int64_t at, double factor, const double *sum,
                      int64_t n)
{
    for (int64_t d = 0; d < n; d++)
        attn_element_store(t, at + d * t->stride[3], factor * sum[d]);
}

/* A pair: its weight, that weight after dropout, and the gradients of the score with its
 * terms, and under the cap. */
typedef struct pair {
    double p, kept, ds, ds_inner;
} pair;

/* s_ij, or -Inf: hidden, whatever the rows hold. *slope_of_cap: the cap's derivative. */
static double score(const head *x, int64_t i, int64_t j, double *slope_of_cap)
{
    const attn_host_softmax *s = x->s;
    const attn_tensor *bias = &s->t.bias, *mask = &s->t.mask;
    double added = 0, sum;

    *slope_of_cap = 1;
    if (is_there(mask) &&
        !((const unsigned char *)mask->data)[attn_host_pair_at(mask, x->b, x->h, i, j)])
        return -INFINITY;
    if (is_there(bias))
        added = (double)attn_host_bias(bias, attn_host_pair_at(bias, x->b, x->h, i, j));
    if (added == -INFINITY)
        return -INFINITY;
    added -= x->slope * fabs((double)(i + x->x.position - j));
    sum = (double)s->scale *
          dot(&s->t.q, attn_host_query_at(s, &s->t.q, &x->x, x->b, x->h, i), &s->t.k,
              attn_host_key_at(s, &s->t.k, &x->x, x->b, x->kvh, j), s->dim_qk);
    if (s->softcap > 0) {
        const double at = sum / (double)s->softcap, c = 1 / cosh(at);

        sum = (double)s->softcap * tanh(at);
        *slope_of_cap = c * c; /* 1 - tanh^2, exact where that is almost 0 */
    }
    return attn_host_score(sum + added);
}

static pair pair_of(const head *x, int64_t i, int64_t j)
{
    const attn_host_softmax *s = x->s;
    const double lse = attn_element_load(
        &s->t.lse, attn_host_query_at(s, &s->t.lse, &x->x, x->b, x->h, i));
    double cap, value, factor = 1, dp = 0;
    pair out = { 0 };

    if (lse == -INFINITY || (value = score(x, i, j, &cap)) == -INFINITY)
        return out;
    out.p = value > lse ? 1 : exp(value - lse);
    if (out.p == 0)
        return out;
    if (s->dropout > 0)
        factor = attn_host_kept(&x->dropout, i, j);
    out.kept = out.p * factor;
    if (factor != 0 && is_there(&s->t.grad_o))
        dp = factor *
             dot(&s->t.grad_o, attn_host_query_at(s, &s->t.grad_o, &x->x, x->b, x->h, i),
                 &s->t.v, attn_host_key_at(s, &s->t.v, &x->x, x->b, x->kvh, j), s->dim_v);
    out.ds = out.p * (dp - deltas(s)[(x->b * s->heads_q + x->h) * s->len_q + i]);
    out.ds_inner = out.ds * cap;
    return out;
}

/* delta of query i. Where O is 0, as it is in rows that see no key, dO counts for nothing,
 * whatever it is. */
static double delta_of(const head *x, int64_t i)
{
    const attn_host_softmax *s = x->s;
    const attn_tensor *o = &s->t.o, *grad = &s->t.grad_o;
    double sum = 0;

    if (is_there(grad)) {
        const int64_t o_at = attn_host_query_at(s, o, &x->x, x->b, x->h, i);
        const int64_t grad_at = attn_host_query_at(s, grad, &x->x, x->b, x->h, i);

        for (int64_t d = 0; d < s->dim_v; d++) {
            const double value = attn_element_load(o, o_at + d * o->stride[3]);

            if (value != 0)
                sum += value * attn_element_load(grad, grad_at + d * grad->stride[3]);
        }
    }
    if (is_there(&s->t.grad_lse))
        sum -= attn_element_load(
            &s->t.grad_lse, attn_host_query_at(s, &s->t.grad_lse, &x->x, x->b, x->h, i));
    return sum;
}

static void grad_q(const head *x, int64_t i)
{
    const attn_host_softmax *s = x->s;
    const attn_range keys = attn_host_range(s, &x->x, i, 1);
    double *sum = row_of_thread(s);

    for (int64_t d = 0; d < s->dim_qk; d++)
        sum[d] = 0;
    for (int64_t j = keys.first; j < keys.end; j++) {
        const pair ij = pair_of(x, i, j);

        if (ij.p != 0)
            add_row(sum, ij.ds_inner, &s->t.k,
                    attn_host_key_at(s, &s->t.k, &x->x, x->b, x->kvh, j), s->dim_qk);
    }
    store_row(&s->t.grad_q, attn_host_query_at(s, &s->t.grad_q, &x->x, x->b, x->h, i),
              (double)s->scale, sum, s->dim_qk);
}

/* dK and dV of a key: over the heads that read it, and their queries. */
static void grad_kv(const attn_host_softmax *s, int64_t b, int64_t kvh, int64_t j)
{
    const int64_t group = s->heads_q / s->heads_kv;
    const attn_sequence x = attn_host_sequence(s, b);
    const attn_range queries = attn_host_queries(s, &x, j, 1);
    double *dk = row_of_thread(s), *dv = dk + s->dim_qk;

    if (j >= x.keys)
        return;
    for (int64_t d = 0; d < s->dim_qk + s->dim_v; d++)
        dk[d] = 0;
    for (int64_t h = kvh * group; h < (kvh + 1) * group; h++) {
        const head one = head_of(s, b, h);

        for (int64_t i = queries.first; i < queries.end; i++) {
            const pair ij = pair_of(&one, i, j);

            if (ij.p == 0)
                continue;
            add_row(dk, ij.ds_inner, &s->t.q, attn_host_query_at(s, &s->t.q, &x, b, h, i),
                    s->dim_qk);
            if (ij.kept != 0 && is_there(&s->t.grad_o))
                add_row(dv, ij.kept, &s->t.grad_o,
                        attn_host_query_at(s, &s->t.grad_o, &x, b, h, i), s->dim_v);
        }
    }
    if (is_there(&s->t.grad_k))
        store_row(&s->t.grad_k, attn_host_key_at(s, &s->t.grad_k, &x, b, kvh, j),
                  (double)s->scale, dk, s->dim_qk);
    if (is_there(&s->t.grad_v))
        store_row(&s->t.grad_v, attn_host_key_at(s, &s->t.grad_v, &x, b, kvh, j), 1, dv,
                  s->dim_v);
}

/* The gradient of one score; 0 for what is no pair. */
static double grad_score(const attn_host_softmax *s, int64_t b, int64_t h, int64_t i,
                         int64_t j)
{
    const head x = head_of(s, b, h);
    const attn_range keys = attn_host_range(s, &x.x, i, 1);

    if (i >= x.x.queries || j < keys.first || j >= keys.end)
        return 0;
    return pair_of(&x, i, j).ds;
}

/* Element n of dBias: where that has a size of 1, sums over the dimension. */
static void grad_bias(const attn_host_softmax *s, int64_t n)
{
    const int64_t full[4] = { s->batch, s->heads_q, s->len_q, s->len_kv };
    const attn_tensor *t = &s->t.grad_bias;
    int64_t first[4], end[4];
    double sum = 0;

    for (int k = 3; k >= 0; k--) {
        first[k] = t->size[k] == full[k] ? n % full[k] : 0;
        end[k] = t->size[k] == full[k] ? first[k] + 1 : full[k];
        n /= t->size[k];
    }
    for (int64_t b = first[0]; b < end[0]; b++)
        for (int64_t h = first[1]; h < end[1]; h++)
            for (int64_t i = first[2]; i < end[2]; i++)
                for (int64_t j = first[3]; j < end[3]; j++)
                    sum += grad_score(s, b, h, i, j);
    attn_element_store(t, attn_host_pair_at(t, first[0], first[1], first[2], first[3]),
                       sum);
}

static void grad_sink(const attn_host_softmax *s, int64_t h)
{
    const double sink = (double)attn_host_sink(s, h);
    double sum = 0;

    for (int64_t b = 0; b < s->batch; b++) {
        const head x = head_of(s, b, h);

        for (int64_t i = 0; i < x.x.queries; i++) {
            const double lse = attn_element_load(
                &s->t.lse, attn_host_query_at(s, &s->t.lse, &x.x, b, h, i));
            const double p = sink == -INFINITY || lse == -INFINITY ? 0
                             : sink >= lse                         ? 1
                                                                   : exp(sink - lse);
            if (p != 0)
                sum -= p * deltas(s)[(b * s->heads_q + h) * s->len_q + i];
        }
    }
    attn_element_store(&s->t.grad_sinks,
                       s->t.grad_sinks.offset + h * s->t.grad_sinks.stride[1], sum);
}

#ifdef _OPENMP
#define IN_PARALLEL \
    _Pragma("omp parallel for num_threads(s->threads) schedule(dynamic, 16)")
#else
#define IN_PARALLEL
#endif

void attn_host_softmax_bwd_reference(const attn_host_softmax *s)
{
    const int64_t rows = s->batch * s->heads_q * s->len_q;
    const int64_t keys = s->batch * s->heads_kv * s->len_kv;

    IN_PARALLEL
    for (int64_t n = 0; n < rows; n++) {
        const int64_t i = n % s->len_q, bh = n / s->len_q;
        const head x = head_of(s, bh / s->heads_q, bh % s->heads_q);

        if (i < x.x.queries)
            deltas(s)[n] = delta_of(&x, i);
    }
    if (is_there(&s->t.grad_q)) {
        IN_PARALLEL
        for (int64_t n = 0; n < rows; n++) {
            const int64_t i = n % s->len_q, bh = n / s->len_q;
            const head x = head_of(s, bh / s->heads_q, bh % s->heads_q);

            if (i < x.x.queries)
                grad_q(&x, i);
        }
    }
    if (is_there(&s->t.grad_k) || is_there(&s->t.grad_v)) {
        IN_PARALLEL
        for (int64_t n = 0; n < keys; n++) {
            const int64_t j = n % s->len_kv, bh = n / s->len_kv;

            grad_kv(s, bh / s->heads_kv, bh % s->heads_kv, j);
        }
    }
    if (is_there(&s->t.grad_bias)) {
        const int64_t *size = s->t.grad_bias.size;
        const int64_t elements = size[0] * size[1] * size[2] * size[3];

        IN_PARALLEL
        for (int64_t n = 0; n < elements; n++)
            grad_bias(s, n);
    }
    if (is_there(&s->t.grad_sinks)) {
        IN_PARALLEL
        for (int64_t h = 0; h < s->heads_q; h++)
            grad_sink(s, h);
    }
}
