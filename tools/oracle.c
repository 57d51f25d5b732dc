/* SPDX-License-Identifier: MIT */
/* tools/oracle.c: one run over [V, |V|] side by side gives O and its terms. */
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "visible.h"

/* With fewer numbers than this all of them may cancel at once. */
enum { FEW = 16 };

static float *floats(int64_t a, int64_t b)
{
    return calloc((size_t)(a * b) + 1, sizeof(float));
}

static double score_of(const float *q, const float *k, int64_t dim, double *terms)
{
    double sum = 0, size = 0;

    for (int64_t e = 0; e < dim; e++) {
        const double x = (double)q[e] * (double)k[e];
        sum += x;
        size += fabs(x);
    }
    *terms = size;
    return fabs(sum);
}

/* The largest |s| of one head. An f32 score is as exact as the terms it sums, so a
 * head of a few pairs, where all may have cancelled, counts half of their size. */
static double largest_score(const inputs *in, int64_t b, int64_t h)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t kvh = h / (d->heads_q / d->heads_kv), len = visible_len(d, in->lens, b);
    const float *q = in->q + (b * d->heads_q + h) * d->len_q * d->dim_qk;
    const float *k = in->k + (b * d->heads_kv + kvh) * d->len_kv * d->dim_qk;
    double most = 0, most_terms = 0;
    int64_t pairs = 0;

    for (int64_t i = 0; i < d->len_q; i++) {
        const visible_keys seen = visible_of(d, len, i);
        pairs += seen.end - seen.first;
        for (int64_t j = seen.first; j < seen.end; j++) {
            double terms;
            most = fmax(most,
                        score_of(q + i * d->dim_qk, k + j * d->dim_qk, d->dim_qk, &terms));
            most_terms = fmax(most_terms, terms);
        }
    }
    if (pairs < FEW)
        most = fmax(most, most_terms / 2);
    return most * fabs((double)visible_scale(d));
}

/* The problem that the oracle is asked: f32, LSE, values twice as wide. */
static attn_softmax_desc question(const attn_softmax_desc *d)
{
    attn_softmax_desc wide = *d;

    wide.type = ATTN_F32;
    wide.dim_v = 2 * visible_dim_v(d);
    wide.use |= ATTN_USE_LSE | ATTN_USE_LAYOUT | ATTN_USE_SCALE;
    wide.scale = visible_scale(d);
    wide.layout_q = wide.layout_k = wide.layout_v = wide.layout_o = ATTN_LAYOUT_ELEMENT;
    return wide;
}

static attn_status execute(attn_ctx *host, const inputs *in, float *v, float *o, float *lse,
                           int32_t *lens)
{
    const attn_options options = { .size = sizeof options, .variant = ORACLE_VARIANT };
    const attn_softmax_desc d = question(&in->desc);
    attn_args args = {
        .size = sizeof args,
        .q = attn_tensor_bhld(in->q, ATTN_F32, d.batch, d.heads_q, d.len_q, d.dim_qk),
        .k = attn_tensor_bhld(in->k, ATTN_F32, d.batch, d.heads_kv, d.len_kv, d.dim_qk),
        .v = attn_tensor_bhld(v, ATTN_F32, d.batch, d.heads_kv, d.len_kv, d.dim_v),
        .o = attn_tensor_bhld(o, ATTN_F32, d.batch, d.heads_q, d.len_q, d.dim_v),
        .lse = attn_tensor_bhld(lse, ATTN_F32, d.batch, d.heads_q, d.len_q, 1),
    };
    attn_plan *plan = NULL;
    attn_status st = attn_plan_softmax_with(host, &d, &options, &plan);

    if (st != ATTN_OK)
        return st;
    if (lens)
        args.lens_kv = attn_tensor_vector(lens, ATTN_I32, d.batch);
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

/* Rows of dv numbers from a to [a, |a|], or back into two arrays. */
static void widen(float *wide, const float *v, int64_t rows, int64_t dv)
{
    for (int64_t n = 0; n < rows * dv; n++) {
        wide[n / dv * 2 * dv + n % dv] = v[n];
        wide[n / dv * 2 * dv + dv + n % dv] = fabsf(v[n]);
    }
}

static void split(const float *wide, float *o, float *terms, int64_t rows, int64_t dv)
{
    for (int64_t n = 0; n < rows * dv; n++) {
        o[n] = wide[n / dv * 2 * dv + n % dv];
        terms[n] = wide[n / dv * 2 * dv + dv + n % dv];
    }
}

attn_status oracle_run(attn_ctx *host, const inputs *in, oracle *out)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t dv = visible_dim_v(d), rows = d->batch * d->heads_q * d->len_q;
    const int64_t keys = d->batch * d->heads_kv * d->len_kv, heads = d->batch * d->heads_q;
    float *v = floats(keys, 2 * dv), *o = floats(rows, 2 * dv);
    int32_t *lens = in->lens ? calloc((size_t)d->batch + 1, sizeof *lens) : NULL;
    attn_status st = ATTN_ERR_NO_MEMORY;

    *out = (oracle){ .o = floats(rows, dv),
                     .terms = floats(rows, dv),
                     .lse = floats(rows, 1),
                     .score = calloc((size_t)heads + 1, sizeof(double)) };
    if (!v || !o || !out->o || !out->terms || !out->lse || !out->score ||
        (in->lens && !lens))
        goto fail;
    for (int64_t b = 0; lens && b < d->batch; b++)
        lens[b] = (int32_t)visible_len(d, in->lens, b);
    widen(v, in->v, keys, dv);
    if ((st = execute(host, in, v, o, out->lse, lens)) != ATTN_OK)
        goto fail;
    split(o, out->o, out->terms, rows, dv);
    for (int64_t n = 0; n < heads; n++)
        out->score[n] = largest_score(in, n / d->heads_q, n % d->heads_q);

fail:
    free(v);
    free(o);
    free(lens);
    if (st != ATTN_OK)
        oracle_free(out);
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
