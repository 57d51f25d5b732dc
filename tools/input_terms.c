/* SPDX-License-Identifier: MIT */
/* tools/input_terms.c: bias, mask, slopes and sinks, and what is in sight with them.
 *
 * A bias may be a number that leaves nothing of the score beside it in f32 (-1e9,
 * -3.4e38). Two such keys in one row would weigh as f32 rounds them and not as the
 * oracle does; so a row has one at most, or is full of them and its query is zero. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "visible.h"

enum { STREAM_BIAS = 20, STREAM_MASK, STREAM_SLOPE, STREAM_SINK, STREAM_WILD, STREAM_SIZE };

/* Kinds of rows of a bias. */
enum { ROW_HIDDEN, ROW_LOW, ROW_LOWEST, ROW_ONE, ROW_KINDS = 8 };

static int64_t count(const int64_t size[4])
{
    return size[0] * size[1] * size[2] * size[3];
}

/* [B, Hq, Lq, Lk], or 1 in dimensions that chance takes: in batch and heads more often. */
static void choose_size(const inputs *in, const input_how *how, int64_t size[4],
                        uint64_t seed, int which)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t full[4] = { d->batch, d->heads_q, d->len_q, d->len_kv };
    const uint64_t bits = random_bits(seed, STREAM_SIZE, (uint64_t)which);
    const bool whole = how->full || bits >> 32 & 1;

    for (int i = 0; i < 4; i++)
        size[i] =
            whole || (bits >> 8 * i & 0xff) < (i < 2 ? 128 : 192) ? full[i] : full[i] != 0;
}

static float low(attn_type type, bool lowest)
{
    return round_to_type(type, type == ATTN_F16 ? (lowest ? -65504.f : -60000.f)
                                                : (lowest ? -3.38e38f : -1e9f));
}

static int row_kind(const inputs *in, uint64_t seed, int64_t i)
{
    const int kind = (int)(random_bits(seed, STREAM_WILD, (uint64_t)i) % ROW_KINDS);

    if (in->kind == INPUT_NORMAL || in->bias_size[2] < 2)
        return ROW_KINDS;
    return in->desc.use & ATTN_USE_ALIBI && kind != ROW_HIDDEN ? ROW_KINDS : kind;
}

/* Element n of a bias. */
static float bias_of(const inputs *in, uint64_t seed, int64_t n)
{
    const int64_t *size = in->bias_size, j = n % size[3], i = n / size[3] % size[2];
    const int64_t lk = in->desc.len_kv, wild_key = lk ? (i * 7 + 3) % lk : 0;
    const attn_type type = in->desc.type_bias;
    const uint64_t bits = random_bits(seed, STREAM_WILD, ~(uint64_t)n);
    const float x =
        round_to_type(type, (float)(2 * random_normal(seed, STREAM_BIAS, (uint64_t)n)));

    switch (row_kind(in, seed, i)) {
    case ROW_HIDDEN: return -INFINITY;
    case ROW_LOW: return low(type, false);
    case ROW_LOWEST: return low(type, true);
    case ROW_ONE: return size[3] > 1 && j == lk / 3 ? 0 : low(type, true);
    default: break;
    }
    if (size[3] > 1 && (j % 8 == 5 || bits % 10 == 0)) /* whole columns, and some */
        return -INFINITY;
    if (size[3] > 1 && in->kind != INPUT_NORMAL && j == wild_key)
        return low(type, bits >> 8 & 1);
    return x;
}

/* Queries of rows that are full of one low number. */
static void clear_queries(inputs *in, uint64_t seed)
{
    const attn_softmax_desc *d = &in->desc;

    for (int64_t n = 0; n < d->batch * d->heads_q * d->len_q; n++) {
        const int kind = row_kind(in, seed, n % d->len_q);
        if (kind == ROW_LOW || kind == ROW_LOWEST || kind == ROW_ONE)
            memset(in->q + n * d->dim_qk, 0, (size_t)d->dim_qk * sizeof *in->q);
    }
}

static bool make_bias(inputs *in, const input_how *how, uint64_t seed)
{
    choose_size(in, how, in->bias_size, seed, 0);
    in->bias = calloc((size_t)count(in->bias_size) + 1, sizeof *in->bias);
    in->bias_used = calloc((size_t)count(in->bias_size) + 1, 1);
    if (!in->bias || !in->bias_used)
        return false;
    for (int64_t n = 0; n < count(in->bias_size); n++)
        in->bias[n] =
            how->full ? round_to_type(in->desc.type_bias,
                                      (float)random_normal(seed, STREAM_BIAS, (uint64_t)n))
                      : bias_of(in, seed, n);
    if (!how->full)
        clear_queries(in, seed);
    return true;
}

/* Whole heads, rows and columns are hidden, and single pairs; true is any byte but 0. */
static bool make_mask(inputs *in, const input_how *how, uint64_t seed)
{
    static const unsigned char yes[4] = { 1, 1, 255, 2 };
    const int64_t *size = in->mask_size;
    const uint64_t all = random_bits(seed, STREAM_MASK, ~(uint64_t)0);

    choose_size(in, how, in->mask_size, seed, 1);
    if (!(in->mask = calloc((size_t)count(size) + 1, 1)))
        return false;
    for (int64_t n = 0; n < count(size); n++) {
        const uint64_t bits = random_bits(seed, STREAM_MASK, (uint64_t)n);
        const int64_t j = n % size[3], i = n / size[3] % size[2];
        const int64_t h = n / size[3] / size[2] % size[1];
        const bool hidden = (size[1] > 1 && h == (int64_t)(all % 8)) ||
                            (size[2] > 1 && i % 8 == (int64_t)(all >> 8) % 8) ||
                            (size[3] > 1 && j % 5 == 2) || bits % 5 == 0;

        in->mask[n] = hidden && !how->full ? 0 : yes[bits >> 8 & 3];
    }
    return true;
}

static bool make_slopes(inputs *in, uint64_t seed)
{
    const attn_softmax_desc *d = &in->desc;
    static const float slope[6] = { 0.5f, 0.25f, 0.0625f, -0.03125f, 0, 0.3f };

    in->alibi_size[0] = random_bits(seed, STREAM_SIZE, 2) & 1 ? d->batch : d->batch > 0;
    in->alibi_size[1] = d->heads_q;
    in->alibi_size[2] = in->alibi_size[3] = 1;
    if (!(in->alibi = calloc((size_t)count(in->alibi_size) + 1, sizeof *in->alibi)))
        return false;
    for (int64_t n = 0; n < count(in->alibi_size); n++)
        in->alibi[n] = slope[(random_bits(seed, STREAM_SLOPE, 0) + (uint64_t)n) % 6];
    return true;
}

static bool make_sinks(inputs *in, uint64_t seed)
{
    static const float sink[6] = { 0.5f, 8, -100000, -INFINITY, 2, -3 };

    if (!(in->sinks = calloc((size_t)in->desc.heads_q + 1, sizeof *in->sinks)))
        return false;
    for (int64_t h = 0; h < in->desc.heads_q; h++)
        in->sinks[h] = sink[(random_bits(seed, STREAM_SINK, 0) + (uint64_t)h) % 6];
    return true;
}

bool inputs_make_terms(inputs *in, const input_how *how, uint64_t seed)
{
    const uint32_t use = in->desc.use;

    return (!(use & ATTN_USE_BIAS) || make_bias(in, how, seed)) &&
           (!(use & ATTN_USE_MASK) || make_mask(in, how, seed)) &&
           (!(use & ATTN_USE_ALIBI) || make_slopes(in, seed)) &&
           (!(use & ATTN_USE_SINKS) || make_sinks(in, seed));
}

/* Marks what query i of head h sees, and the elements of the bias that it reads. */
static void mark_row(inputs *in, const visible_batch *x, int64_t b, int64_t h, int64_t i)
{
    const attn_softmax_desc *d = &in->desc;
    const visible_keys range = visible_of(d, x, i);
    const int64_t kvh = h / (d->heads_q / d->heads_kv);
    unsigned char *seen = in->seen + (b * d->heads_kv + kvh) * d->len_kv;

    for (int64_t j = range.first; j < range.end; j++) {
        if (in->mask && !in->mask[visible_at(in->mask_size, b, h, i, j)]) {
            seen[j] = seen[j] == SEEN ? SEEN : SEEN_BUT_HIDDEN;
            continue;
        }
        if (in->bias)
            in->bias_used[visible_at(in->bias_size, b, h, i, j)] = 1;
        if (!in->bias || in->bias[visible_at(in->bias_size, b, h, i, j)] != -INFINITY)
            seen[j] = SEEN;
        else if (seen[j] != SEEN)
            seen[j] = SEEN_BUT_HIDDEN;
    }
}

/* Without bias and mask all heads see the same, and ranges only move upwards with i. */
static void mark_ranges(inputs *in, const visible_batch *x, int64_t b)
{
    const attn_softmax_desc *d = &in->desc;
    unsigned char *seen = in->seen + b * d->heads_kv * d->len_kv;
    int64_t marked = 0;

    for (int64_t i = 0; i < x->queries; i++) {
        const visible_keys range = visible_of(d, x, i);
        for (int64_t j = range.first > marked ? range.first : marked; j < range.end; j++)
            seen[j] = SEEN;
        marked = range.end > marked ? range.end : marked;
    }
    for (int64_t h = 1; h < d->heads_kv; h++)
        memcpy(seen + h * d->len_kv, seen, (size_t)d->len_kv);
}

/* Heads that share memory: what one of them sees is there for all. */
static void join_heads(inputs *in, int64_t b)
{
    const int64_t heads = in->desc.heads_kv, lk = in->desc.len_kv;
    unsigned char *seen = in->seen + b * heads * lk;

    for (int64_t n = 0; n < heads * lk; n++)
        if (seen[n] > seen[n % lk])
            seen[n % lk] = seen[n];
    for (int64_t n = lk; n < heads * lk; n++)
        seen[n] = seen[n % lk];
}

void inputs_mark(inputs *in, const input_how *how)
{
    const attn_softmax_desc *d = &in->desc;

    for (int64_t b = 0; b < d->batch && d->heads_q; b++) {
        const visible_batch x = visible_batch_of(in, b);

        if (!in->bias && !in->mask)
            mark_ranges(in, &x, b);
        for (int64_t n = 0; n < d->heads_q * x.queries && (in->bias || in->mask); n++)
            mark_row(in, &x, b, n / x.queries, n % x.queries);
        if (how->same_heads)
            join_heads(in, b);
    }
}
