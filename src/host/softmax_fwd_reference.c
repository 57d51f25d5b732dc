/* SPDX-License-Identifier: MIT */
/* host/softmax_fwd_reference.c: the oracle, one query at a time in double.
 *
 * Computes  O and LSE as written in include/attn/softmax.h
 * Method    two passes over the visible keys: m and l, then the weighted sum;
 *           scores are computed again rather than kept, so nothing is allocated
 * Layout    any strides, 64-bit; any types, each read and written in the type of
 *           its own view (an f32 output of a 16-bit problem is not rounded to 16)
 * Numerics  everything in double; one rounding to f32, from there to 16 bits
 */
#include "host/softmax.h"

#include <math.h>

#include "core/float16.h"
#include "host/range.h"

/* Values summed at once; more than so many take another round of scores. */
#define CHUNK 256

static int64_t at(const attn_tensor *t, int64_t b, int64_t h, int64_t i)
{
    return t->offset + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

static double load(const attn_tensor *t, int64_t index)
{
    switch (t->type) {
    case ATTN_F16: return attn_f32_from_f16(((const uint16_t *)t->data)[index]);
    case ATTN_BF16: return attn_f32_from_bf16(((const uint16_t *)t->data)[index]);
    default: return ((const float *)t->data)[index];
    }
}

static void store(const attn_tensor *t, int64_t index, double x)
{
    switch (t->type) {
    case ATTN_F16: ((uint16_t *)t->data)[index] = attn_f16_from_f32((float)x); break;
    case ATTN_BF16: ((uint16_t *)t->data)[index] = attn_bf16_from_f32((float)x); break;
    default: ((float *)t->data)[index] = (float)x;
    }
}

/* s_ij of the query row at q and the key row at k. */
static double score(const attn_host_softmax *s, int64_t q, int64_t k)
{
    double sum = 0;

    for (int64_t d = 0; d < s->dim_qk; d++)
        sum += load(&s->q, q + d * s->q.stride[3]) * load(&s->k, k + d * s->k.stride[3]);
    return s->scale * sum;
}

static void query(const attn_host_softmax *s, int64_t b, int64_t h, int64_t i)
{
    int64_t kvh = h / (s->heads_q / s->heads_kv), q = at(&s->q, b, h, i);
    attn_range r = attn_host_range(s, attn_host_keys(s, b), i, 1);
    double m = -INFINITY, l = 0;

    for (int64_t j = r.first; j < r.end; j++)
        m = fmax(m, score(s, q, at(&s->k, b, kvh, j)));
    for (int64_t j = r.first; j < r.end; j++)
        l += exp(score(s, q, at(&s->k, b, kvh, j)) - m);
    if (s->lse.type != ATTN_TYPE_NONE)
        store(&s->lse, at(&s->lse, b, h, i), r.first < r.end ? m + log(l) : -INFINITY);

    for (int64_t e0 = 0; s->o.type != ATTN_TYPE_NONE && e0 < s->dim_v; e0 += CHUNK) {
        int64_t n = attn_min(CHUNK, s->dim_v - e0);
        double o[CHUNK] = { 0 };

        for (int64_t j = r.first; j < r.end; j++) {
            double p = exp(score(s, q, at(&s->k, b, kvh, j)) - m) / l;
            int64_t v = at(&s->v, b, kvh, j) + e0 * s->v.stride[3];
            for (int64_t e = 0; e < n; e++)
                o[e] += p * load(&s->v, v + e * s->v.stride[3]);
        }
        for (int64_t e = 0; e < n; e++)
            store(&s->o, at(&s->o, b, h, i) + (e0 + e) * s->o.stride[3], o[e]);
    }
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
