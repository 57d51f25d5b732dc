/* SPDX-License-Identifier: MIT */
/* tools/visible.c: the rules of attn/softmax.h on positions, one query at a time. */
#include "visible.h"

#include <math.h>

int64_t visible_dim_v(const attn_softmax_desc *d)
{
    return d->dim_v ? d->dim_v : d->dim_qk;
}

float visible_scale(const attn_softmax_desc *d)
{
    return d->use & ATTN_USE_SCALE ? d->scale : (float)(1.0 / sqrt((double)d->dim_qk));
}

int64_t visible_len(const attn_softmax_desc *d, const int32_t *lens, int64_t b)
{
    if (!lens)
        return d->len_kv;
    if (lens[b] < 0)
        return 0;
    return lens[b] > d->len_kv ? d->len_kv : lens[b];
}

visible_keys visible_of(const attn_softmax_desc *d, int64_t len, int64_t i)
{
    visible_keys seen = { 0, len };
    int64_t position = i;

    if (d->use & ATTN_USE_ALIGN && d->align == ATTN_ALIGN_BOTTOM_RIGHT)
        position += len - d->len_q;
    else if (d->use & ATTN_USE_OFFSET)
        position += d->offset;

    if (d->use & ATTN_USE_CAUSAL && position + 1 < seen.end)
        seen.end = position + 1;
    if (d->use & ATTN_USE_WINDOW) {
        if (d->window_left >= 0 && position - d->window_left > seen.first)
            seen.first = position - d->window_left;
        if (d->window_right >= 0 && position + d->window_right + 1 < seen.end)
            seen.end = position + d->window_right + 1;
    }
    if (seen.first >= seen.end)
        seen.first = seen.end = 0;
    return seen;
}

double visible_pairs(const attn_softmax_desc *d, const int32_t *lens)
{
    const uint32_t bounded = ATTN_USE_CAUSAL | ATTN_USE_WINDOW;
    double pairs = 0;

    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t len = visible_len(d, lens, b);
        double own = 0;

        if (b > 0 && !lens)
            return pairs * (double)d->batch;
        if (!(d->use & bounded)) {
            pairs += (double)len * (double)d->len_q;
            continue;
        }
        for (int64_t i = 0; i < d->len_q; i++) {
            const visible_keys seen = visible_of(d, len, i);
            own += (double)(seen.end - seen.first);
        }
        pairs += own;
    }
    return pairs;
}

double visible_flop(const attn_softmax_desc *d, const int32_t *lens)
{
    return 2.0 * visible_pairs(d, lens) * (double)d->heads_q *
           (double)(d->dim_qk + visible_dim_v(d));
}
