/* SPDX-License-Identifier: MIT */
/* host/softmax_fwd_reference.c: the oracle, one query at a time in double.
 *
 * Computes  O and LSE as written in include/attn/softmax.h
 * Method    two passes over the visible keys: m and l, then the weighted sum;
 *           scores are computed again rather than kept, so nothing is allocated. A
 *           hidden key's rows are not read into anything
 * Layout    any strides, 64-bit; any types, each read and written in the type of
 *           its own view (an f32 output of a 16-bit problem is not rounded to 16)
 * Numerics  everything in double; one rounding to f32, from there to 16 bits. Scores that
 *           f32 cannot hold are infinities, as they are to all other variants
 */
#include "host/softmax.h"

#include <math.h>

#include "host/address.h"
#include "host/dropout.h"
#include "host/element.h"
#include "host/score.h"

/* Values summed at once; more than so many take another round of scores. */
#define CHUNK 256

/* One query, and what holds for all of its keys. */
typedef struct row {
    const attn_host_softmax *s;
    const attn_sequence *x;
    int64_t b, h, kvh, i;
    int64_t q;       /* its first element      */
    attn_range keys; /* that it may see        */
    double slope, m, l;
    attn_dropout dropout;
} row;

/* s_ij; -Inf: hidden, whatever the key's row holds, or below all that f32 can hold. */
static double score(const row *r, int64_t j)
{
    const attn_host_softmax *s = r->s;
    const attn_tensor *k = &s->t.k, *bias = &s->t.bias, *mask = &s->t.mask;
    int64_t at = attn_host_key_at(s, k, r->x, r->b, r->kvh, j);
    double sum = 0, added = 0;

    if (mask->type != ATTN_TYPE_NONE &&
        !((const unsigned char *)mask->data)[attn_host_pair_at(mask, r->b, r->h, r->i, j)])
        return -INFINITY;
    if (bias->type != ATTN_TYPE_NONE)
        added = attn_host_bias(bias, attn_host_pair_at(bias, r->b, r->h, r->i, j));
    if (added == -INFINITY)
        return -INFINITY;
    added -= r->slope * fabs((double)(r->i + r->x->position - j));
    for (int64_t d = 0; d < s->dim_qk; d++)
        sum += attn_element_load(&s->t.q, r->q + d * s->t.q.stride[3]) *
               attn_element_load(k, at + d * k->stride[3]);
    sum *= s->scale;
    if (s->softcap > 0)
        sum = s->softcap * tanh(sum / s->softcap);
    return attn_host_score(sum + added);
}

/* A weight; 0 for a hidden key. */
static double weight(const row *r, double score)
{
    return score == -INFINITY ? 0 : exp(score - r->m);
}

/* O of columns e0 .. e0 + n - 1. */
static void sum_values(const row *r, int64_t e0, int64_t n)
{
    const attn_host_softmax *s = r->s;
    const attn_tensor *v = &s->t.v, *o = &s->t.o;
    int64_t to = attn_host_query_at(s, o, r->x, r->b, r->h, r->i);
    double sum[CHUNK] = { 0 };

    for (int64_t j = r->keys.first; j < r->keys.end; j++) {
        double w = weight(r, score(r, j)), p = w != 0 ? w / r->l : 0;
        if (s->dropout > 0)
            p *= attn_host_kept(&r->dropout, r->i, j);
        int64_t at = attn_host_key_at(s, v, r->x, r->b, r->kvh, j) + e0 * v->stride[3];
        for (int64_t e = 0; p != 0 && e < n; e++)
            sum[e] += p * attn_element_load(v, at + e * v->stride[3]);
    }
    for (int64_t e = 0; e < n; e++)
        attn_element_store(o, to + (e0 + e) * o->stride[3], sum[e]);
}

static void query(const attn_host_softmax *s, int64_t b, int64_t h, int64_t i)
{
    const attn_sequence x = attn_host_sequence(s, b);
    const double sink = attn_host_sink(s, h);
    row r = { .s = s,
              .x = &x,
              .b = b,
              .h = h,
              .kvh = h / (s->heads_q / s->heads_kv),
              .i = i,
              .q = attn_host_query_at(s, &s->t.q, &x, b, h, i),
              .keys = attn_host_range(s, &x, i, 1),
              .slope = attn_host_slope(s, b, h),
              .m = sink,
              .dropout = attn_host_dropout(s, b, h) };

    if (i >= x.queries)
        return;
    for (int64_t j = r.keys.first; j < r.keys.end; j++)
        r.m = fmax(r.m, score(&r, j));
    r.l = sink == r.m && sink > -INFINITY ? 1 : weight(&r, sink); /* +inf too */
    for (int64_t j = r.keys.first; j < r.keys.end; j++)
        r.l += weight(&r, score(&r, j));
    if (s->t.lse.type != ATTN_TYPE_NONE)
        attn_element_store(&s->t.lse, attn_host_query_at(s, &s->t.lse, &x, b, h, i),
                           r.l > 0 || isnan(r.l) ? r.m + log(r.l) : -INFINITY);
    for (int64_t e = 0; s->t.o.type != ATTN_TYPE_NONE && e < s->dim_v; e += CHUNK)
        sum_values(&r, e, attn_min(CHUNK, s->dim_v - e));
}

void attn_host_softmax_fwd_reference(const attn_host_softmax *s)
{
    int64_t rows = s->batch * s->heads_q * s->len_q;

#ifdef _OPENMP
#pragma omp parallel for num_threads(s->threads) schedule(dynamic, 16)
#endif
    for (int64_t n = 0; n < rows; n++) {
        int64_t i = n % s->len_q, bh = n / s->len_q;
        query(s, bh / s->heads_q, bh % s->heads_q, i);
    }
}
