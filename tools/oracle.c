/* SPDX-License-Identifier: MIT */
/* tools/oracle.c: one run over [V, |V|] side by side gives O and its terms. */
#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plain.h"
#include "visible.h"

/* With fewer pairs than this the products of all of them may have cancelled. */
enum { FEW = 16 };

/* How far two evaluations in double may be apart once they are f32: rounded once, and
 * sums of terms of any sign. */
static const double APART = 4e-7;

static float *floats(int64_t a, int64_t b)
{
    return calloc((size_t)(a * b) + 1, sizeof(float));
}

/* The problem that the oracle is asked: f32, LSE, values twice as wide, every batch
 * with tensors of its own. */
static attn_softmax_desc question(const inputs *in)
{
    attn_softmax_desc wide = in->desc;

    wide.use &= ~(ATTN_USE_PACKED_Q | ATTN_USE_PACKED_K | ATTN_USE_PAGES);
    if (in->cu_q)
        wide.use |= ATTN_USE_LENS_Q;
    if (in->cu_k)
        wide.use |= ATTN_USE_LENS_KV;
    wide.type = wide.type_bias = ATTN_F32;
    wide.dim_v = 2 * visible_dim_v(&in->desc);
    wide.use |= ATTN_USE_LSE | ATTN_USE_LAYOUT | ATTN_USE_SCALE;
    wide.scale = visible_scale(&in->desc);
    wide.layout_q = wide.layout_k = wide.layout_v = wide.layout_o = ATTN_LAYOUT_ELEMENT;
    return wide;
}

/* What one run needs beside the inputs. */
typedef struct scratch {
    float *v, *o, *bias;
    unsigned char *mask;
    int32_t *lens_q, *lens_k;
} scratch;

/* Every size that was 1 written out. */
static void expand(const attn_softmax_desc *d, const int64_t size[4], const void *from,
                   void *to, size_t bytes)
{
    const int64_t n = d->batch * d->heads_q * d->len_q * d->len_kv;

    for (int64_t at = 0; at < n; at++) {
        const int64_t j = at % d->len_kv, row = at / d->len_kv, bh = row / d->len_q;
        const int64_t source =
            visible_at(size, bh / d->heads_q, bh % d->heads_q, row % d->len_q, j);
        memcpy((char *)to + (size_t)at * bytes, (const char *)from + (size_t)source * bytes,
               bytes);
    }
}

static bool prepare(const inputs *in, scratch *s)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t dv = visible_dim_v(d), keys = d->batch * d->heads_kv * d->len_kv;
    const int64_t rows = d->batch * d->heads_q * d->len_q;

    s->v = floats(keys, 2 * dv);
    s->o = floats(rows, 2 * dv);
    s->bias = in->bias ? floats(rows, d->len_kv) : NULL;
    s->mask = in->mask ? calloc((size_t)(rows * d->len_kv) + 1, 1) : NULL;
    s->lens_q = calloc((size_t)d->batch + 1, sizeof *s->lens_q);
    s->lens_k = calloc((size_t)d->batch + 1, sizeof *s->lens_k);
    if (!s->v || !s->o || (in->bias && !s->bias) || (in->mask && !s->mask) || !s->lens_q ||
        !s->lens_k)
        return false;
    if (s->bias)
        expand(d, in->bias_size, in->bias, s->bias, sizeof *s->bias);
    if (s->mask)
        expand(d, in->mask_size, in->mask, s->mask, 1);
    for (int64_t n = 0; n < keys * dv; n++) {
        s->v[n / dv * 2 * dv + n % dv] = in->v[n];
        s->v[n / dv * 2 * dv + dv + n % dv] = fabsf(in->v[n]);
    }
    for (int64_t b = 0; b < d->batch; b++) {
        const visible_batch x = visible_batch_of(in, b);
        s->lens_q[b] = (int32_t)x.queries;
        s->lens_k[b] = (int32_t)x.keys;
    }
    return true;
}

static void discard(scratch *s)
{
    free(s->v);
    free(s->o);
    free(s->bias);
    free(s->mask);
    free(s->lens_q);
    free(s->lens_k);
}

static attn_args arguments(const inputs *in, const attn_softmax_desc *d, const scratch *s,
                           float *lse)
{
    const int64_t b = d->batch, hq = d->heads_q, hkv = d->heads_kv;
    attn_args a = {
        .size = sizeof a,
        .q = attn_tensor_bhld(in->q, ATTN_F32, b, hq, d->len_q, d->dim_qk),
        .k = attn_tensor_bhld(in->k, ATTN_F32, b, hkv, d->len_kv, d->dim_qk),
        .v = attn_tensor_bhld(s->v, ATTN_F32, b, hkv, d->len_kv, d->dim_v),
        .o = attn_tensor_bhld(s->o, ATTN_F32, b, hq, d->len_q, d->dim_v),
        .lse = attn_tensor_bhld(lse, ATTN_F32, b, hq, d->len_q, 1),
        .dropout_seed = in->dropout_seed,
        .dropout_offset = in->dropout_offset,
    };

    if (s->bias)
        a.bias = attn_tensor_bhld(s->bias, ATTN_F32, b, hq, d->len_q, d->len_kv);
    if (s->mask)
        a.mask = attn_tensor_bhld(s->mask, ATTN_BOOL, b, hq, d->len_q, d->len_kv);
    if (in->alibi)
        a.alibi = attn_tensor_bhld(in->alibi, ATTN_F32, in->alibi_size[0], hq, 1, 1);
    if (in->sinks)
        a.sinks = attn_tensor_bhld(in->sinks, ATTN_F32, 1, hq, 1, 1);
    if (d->use & ATTN_USE_LENS_Q)
        a.lens_q = attn_tensor_vector(s->lens_q, ATTN_I32, b);
    if (d->use & ATTN_USE_LENS_KV)
        a.lens_kv = attn_tensor_vector(s->lens_k, ATTN_I32, b);
    if (in->offsets)
        a.offsets = attn_tensor_vector(in->offsets, ATTN_I32, b);
    return a;
}

static attn_status execute(attn_ctx *host, const inputs *in, const scratch *s, float *lse)
{
    const attn_options options = { .size = sizeof options, .variant = ORACLE_VARIANT };
    const attn_softmax_desc d = question(in);
    attn_args args = arguments(in, &d, s, lse);
    attn_plan *plan = NULL;
    attn_status st = attn_plan_softmax_with(host, &d, &options, &plan);

    if (st != ATTN_OK)
        return st;
    args.workspace_bytes = attn_plan_workspace_bytes(plan);
    if (args.workspace_bytes)
        st = attn_memory_alloc(host, args.workspace_bytes, &args.workspace);
    if (st == ATTN_OK)
        st = attn_execute(plan, &args, NULL);
    if (st == ATTN_OK)
        st = attn_ctx_wait(host);
    attn_memory_free(host, &args.workspace);
    attn_plan_destroy(&plan);
    return st;
}

static bool differ(double a, double b, double size)
{
    return a != b && !(isnan(a) && isnan(b)) && !(fabs(a - b) <= APART * size + 1e-37);
}

/* Row n of the oracle against the plain evaluation; false: they are not the same. */
static bool same_row(const oracle *ref, const plain_row *row, int64_t n, int64_t dv,
                     char *what, size_t cap)
{
    if (differ((double)ref->lse[n], row->lse, fmax(1, fabs(row->lse)))) {
        snprintf(
            what, cap,
            "the oracle and the plain evaluation disagree: LSE of row %lld is %.9g, and "
            "%.9g",
            (long long)n, (double)ref->lse[n], row->lse);
        return false;
    }
    for (int64_t e = 0; e < dv; e++)
        if (differ((double)ref->o[n * dv + e], row->o[e], row->terms[e]) ||
            differ((double)ref->terms[n * dv + e], row->terms[e], row->terms[e])) {
            snprintf(what, cap,
                     "the oracle and the plain evaluation disagree: O[%lld,%lld] is %.9g, "
                     "and %.9g",
                     (long long)n, (long long)e, (double)ref->o[n * dv + e], row->o[e]);
            return false;
        }
    return true;
}

double oracle_score(double most, double most_terms, long long pairs)
{
    return pairs < FEW ? fmax(most, most_terms / 2) : most;
}

/* Evaluates every row once more; notes the largest |s| of each head. */
static attn_status confirm(const inputs *in, oracle *ref)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t dv = visible_dim_v(d);
    double *room = calloc((size_t)(d->len_kv + 2 * dv) + 1, sizeof *room);
    plain_row row = { .o = room, .terms = room + dv };
    bool same = true;

    if (!room)
        return ATTN_ERR_NO_MEMORY;
    for (int64_t bh = 0; bh < d->batch * d->heads_q && same; bh++) {
        const visible_batch x = visible_batch_of(in, bh / d->heads_q);
        double most = 0, most_terms = 0;
        long long pairs = 0;

        for (int64_t i = 0; i < x.queries && same; i++) {
            plain_evaluate(in, bh / d->heads_q, bh % d->heads_q, i, room + 2 * dv, &row);
            most = fmax(most, row.most);
            most_terms = fmax(most_terms, row.most_terms);
            pairs += row.pairs;
            same = same_row(ref, &row, bh * d->len_q + i, dv, ref->what, sizeof ref->what);
        }
        ref->score[bh] = oracle_score(most, most_terms, pairs);
    }
    free(room);
    return same ? ATTN_OK : ATTN_ERR_DEVICE;
}

attn_status oracle_run(attn_ctx *host, const inputs *in, oracle *out)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t dv = visible_dim_v(d), rows = d->batch * d->heads_q * d->len_q;
    attn_status st = ATTN_ERR_NO_MEMORY;
    scratch s = { 0 };
    char what[sizeof out->what] = "no memory for the oracle";

    *out = (oracle){ .o = floats(rows, dv),
                     .terms = floats(rows, dv),
                     .lse = floats(rows, 1),
                     .score = calloc((size_t)(d->batch * d->heads_q) + 1, sizeof(double)) };
    if (!out->o || !out->terms || !out->lse || !out->score || !prepare(in, &s))
        goto fail;
    if ((st = execute(host, in, &s, out->lse)) != ATTN_OK) {
        snprintf(what, sizeof what, "%.250s", attn_last_error());
        goto fail;
    }
    for (int64_t n = 0; n < rows * dv; n++) {
        out->o[n] = s.o[n / dv * 2 * dv + n % dv];
        out->terms[n] = s.o[n / dv * 2 * dv + dv + n % dv];
    }
    if ((st = confirm(in, out)) != ATTN_OK && out->what[0])
        memcpy(what, out->what, sizeof what);

fail:
    discard(&s);
    if (st != ATTN_OK) {
        oracle_free(out);
        memcpy(out->what, what, sizeof what);
    }
    return st;
}

void oracle_free(oracle *ref)
{
    free(ref->o);
    free(ref->terms);
    free(ref->lse);
    free(ref->score);
    *ref = (oracle){ 0 };
}
