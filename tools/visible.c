/* SPDX-License-Identifier: MIT */
/* tools/visible.c: the rules of attn/softmax.h on positions, one query at a time. */
#include "visible.h"

#include <math.h>

#include <attn/plan.h>

int64_t visible_dim_v(const attn_softmax_desc *d)
{
    return d->dim_v ? d->dim_v : d->dim_qk;
}

float visible_scale(const attn_softmax_desc *d)
{
    return d->use & ATTN_USE_SCALE ? d->scale : (float)(1.0 / sqrt((double)d->dim_qk));
}

float visible_softcap(const attn_softmax_desc *d)
{
    return d->use & ATTN_USE_SOFTCAP ? d->softcap : 0;
}

float visible_dropout(const attn_softmax_desc *d)
{
    return d->use & ATTN_USE_DROPOUT ? d->dropout : 0;
}

static int64_t between(int64_t x, int64_t least, int64_t most)
{
    return x < least ? least : x > most ? most : x;
}

/* Tokens from cu[0] to cu[1], at most `most` of all `tokens`. */
static int64_t sequence(const int32_t *cu, int64_t tokens, int64_t most, int64_t *first)
{
    *first = between(cu[0], 0, tokens);
    return between(between(cu[1], *first, tokens) - *first, 0, most);
}

visible_batch visible_batch_of(const inputs *in, int64_t b)
{
    const attn_softmax_desc *d = &in->desc;
    visible_batch x = { .tokens_q = d->len_q, .tokens_k = d->len_kv };

    if (in->cu_q)
        x.tokens_q = sequence(in->cu_q + b, in->tokens_q, d->len_q, &x.q_first);
    if (in->cu_k)
        x.tokens_k = sequence(in->cu_k + b, in->tokens_k, d->len_kv, &x.k_first);
    x.queries = in->lens_q ? between(in->lens_q[b], 0, x.tokens_q) : x.tokens_q;
    x.keys = in->lens ? between(in->lens[b], 0, x.tokens_k) : x.tokens_k;
    if (in->offsets)
        x.position = in->offsets[b];
    else if (d->use & ATTN_USE_ALIGN && d->align == ATTN_ALIGN_BOTTOM_RIGHT)
        x.position = x.keys - x.queries;
    else if (d->use & ATTN_USE_OFFSET)
        x.position = d->offset;
    return x;
}

int64_t visible_page(const inputs *in, int64_t b, int64_t n)
{
    return between(in->table[b * in->blocks + n], 0, in->pages - 1);
}

visible_keys visible_of(const attn_softmax_desc *d, const visible_batch *x, int64_t i)
{
    const int64_t position = i + x->position;
    visible_keys seen = { 0, x->keys };

    if (d->use & ATTN_USE_CAUSAL && position + 1 < seen.end)
        seen.end = position + 1;
    if (d->use & ATTN_USE_WINDOW) {
        if (d->window_left >= 0 && position - d->window_left > seen.first)
            seen.first = position - d->window_left;
        if (d->window_right >= 0 && position + d->window_right + 1 < seen.end)
            seen.end = position + d->window_right + 1;
    }
    if (seen.first >= seen.end || i >= x->queries)
        seen.first = seen.end = 0;
    return seen;
}

int64_t visible_at(const int64_t size[4], int64_t b, int64_t h, int64_t i, int64_t j)
{
    const int64_t at[4] = { b, h, i, j };
    int64_t n = 0;

    for (int k = 0; k < 4; k++)
        n = n * size[k] + (size[k] == 1 ? 0 : at[k]);
    return n;
}

bool visible_pair(const inputs *in, int64_t b, int64_t h, int64_t i, int64_t j)
{
    if (in->mask && !in->mask[visible_at(in->mask_size, b, h, i, j)])
        return false;
    return !in->bias || in->bias[visible_at(in->bias_size, b, h, i, j)] != -INFINITY;
}

bool visible_any(const inputs *in, const visible_batch *x, int64_t b, int64_t h, int64_t i)
{
    const visible_keys range = visible_of(&in->desc, x, i);

    for (int64_t j = range.first; j < range.end; j++)
        if (visible_pair(in, b, h, i, j))
            return true;
    return false;
}

/* Entries of the block table that name no page and whose keys count. */
static void clamped_pages(const inputs *in, int64_t b, const visible_batch *x,
                          int32_t *must, int32_t *may)
{
    const int64_t size = in->desc.page_size;
    const unsigned char *seen = in->seen + b * in->desc.heads_kv * in->desc.len_kv;

    for (int64_t j = 0; j < x->keys; j++) {
        if (in->table[b * in->blocks + j / size] == visible_page(in, b, j / size))
            continue;
        for (int64_t h = 0; h < in->desc.heads_kv; h++)
            *(seen[h * in->desc.len_kv + j] == SEEN ? must : may) |=
                ATTN_CLAMPED_BLOCK_TABLE;
    }
}

static void clamped_boundaries(const int32_t *cu, int64_t first, int64_t n, int32_t bit,
                               int32_t *must)
{
    if (cu && (cu[0] != first || cu[1] != first + n))
        *must |= bit;
}

void visible_clamped(const inputs *in, int32_t *must, int32_t *may)
{
    const attn_softmax_desc *d = &in->desc;

    *must = *may = 0;
    const bool none = !d->len_q || (in->cu_q && !in->tokens_q);
    const bool back = d->use & ATTN_USE_GRAD;

    if (!d->heads_q || (none && !back && !in->is_linear))
        return; /* nothing is computed, so nothing is read */
    if (none)
        must = may; /* there may be a state or gradients of keys to write, or not */
    if (!d->len_kv && back && d->grad == ATTN_GRAD_V)
        must = may; /* and here nothing */
    for (int64_t b = 0; b < d->batch; b++) {
        const visible_batch x = visible_batch_of(in, b);

        clamped_boundaries(in->cu_q ? in->cu_q + b : NULL, x.q_first, x.tokens_q,
                           ATTN_CLAMPED_CU_Q, must);
        clamped_boundaries(in->cu_k ? in->cu_k + b : NULL, x.k_first, x.tokens_k,
                           ATTN_CLAMPED_CU_K, must);
        if (in->lens_q && in->lens_q[b] != x.queries)
            *must |= ATTN_CLAMPED_LENS_Q;
        if (in->lens && in->lens[b] != x.keys)
            *must |= ATTN_CLAMPED_LENS_KV;
        if (in->table)
            clamped_pages(in, b, &x, must, may);
    }
}

double visible_pairs(const attn_softmax_desc *d)
{
    const inputs full = { .desc = *d };
    const visible_batch x = visible_batch_of(&full, 0);
    double pairs = 0;

    if (!(d->use & (ATTN_USE_CAUSAL | ATTN_USE_WINDOW)))
        return (double)d->batch * (double)d->len_q * (double)d->len_kv;
    for (int64_t i = 0; i < d->len_q; i++) {
        const visible_keys seen = visible_of(d, &x, i);
        pairs += (double)(seen.end - seen.first);
    }
    return pairs * (double)d->batch;
}

double visible_flop(const attn_softmax_desc *d)
{
    const double dim = (double)d->dim_qk, dv = (double)visible_dim_v(d);

    return 2.0 * visible_pairs(d) * (double)d->heads_q *
           (d->use & ATTN_USE_GRAD ? 3 * dim + 2 * dv : dim + dv);
}
