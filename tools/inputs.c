/* SPDX-License-Identifier: MIT */
/* tools/inputs.c: numbers strong enough to see mistakes, the same on every machine. */
#include "inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "npy.h"
#include "visible.h"

/* Streams of the generator, one for each purpose. */
enum { STREAM_Q, STREAM_K, STREAM_V, STREAM_ROW, STREAM_LEN };

const char *input_kind_name(input_kind kind)
{
    static const char *const names[INPUT_KINDS] = { "normal", "clear", "huge", "constant" };
    return names[kind];
}

/* The finaliser of splitmix64 (G. Steele, D. Lea, C. Flood, 2014). */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    return mix(mix(seed + golden * (stream + 1)) + golden * (index + 1));
}

double random_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    const uint64_t bits = random_bits(seed, stream, index);
    const double u = ((double)(bits >> 32) + 1) / 4294967296.0; /* (0, 1] */
    const double angle = 6.283185307179586 * (double)(bits & 0xffffffff) / 4294967296.0;

    return sqrt(-2 * log(u)) * cos(angle);
}

uint64_t random_seed_of(const char *text, uint64_t seed)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325) ^ mix(seed);

    for (; *text; text++) /* FNV-1a */
        hash = (hash ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return mix(hash);
}

float round_to_type(attn_type type, float x)
{
    switch (type) {
    case ATTN_F16: return npy_half_to_float(npy_float_to_half(x));
    case ATTN_BF16: return npy_bf16_to_float(npy_float_to_bf16(x));
    default: return x;
    }
}

static void *array(int64_t a, int64_t b, int64_t c, size_t bytes)
{
    const int64_t n = a * b * c;
    return calloc(n ? (size_t)n : 1, bytes);
}

/* What one row of a tensor is multiplied by. */
static double row_factor(const inputs *in, int stream, uint64_t seed, uint64_t row)
{
    static const double huge[] = { [STREAM_Q] = 100, [STREAM_K] = 30, [STREAM_V] = 1000 };

    if (in->kind == INPUT_HUGE)
        return huge[stream];
    if (in->kind == INPUT_CLEAR && stream == STREAM_Q)
        return 3 + 5 * (double)(random_bits(seed, STREAM_ROW, row) >> 40) / 16777216.0;
    return 1;
}

/* Rows of dim numbers each: row i of head h and batch b takes the numbers of row
 * `source(i)` of head `same_heads ? 0 : h`. */
static void fill(const inputs *in, float *to, int stream, int64_t heads, int64_t len,
                 int64_t dim, bool same_heads, uint64_t seed)
{
    const bool constant = in->kind == INPUT_CONSTANT && stream == STREAM_V;

    for (int64_t row = 0; row < in->desc.batch * heads * len; row++) {
        const int64_t bh = row / len, h = bh % heads;
        const int64_t from = (same_heads ? bh - h : bh) * len + (constant ? 0 : row % len);
        const double factor = row_factor(in, stream, seed, (uint64_t)from);

        for (int64_t e = 0; e < dim; e++) {
            const double x =
                random_normal(seed, (uint64_t)stream, (uint64_t)(from * dim + e));
            to[row * dim + e] = round_to_type(in->desc.type, (float)(factor * x));
        }
    }
}

/* Lengths: all of the ordinary ones, those at the ends, one past a tile, and some
 * that a kernel must clamp. */
static void fill_lens(inputs *in, uint64_t seed)
{
    const int64_t first = (int64_t)(random_bits(seed, STREAM_LEN, 0) % 8);
    const int64_t lk = in->desc.len_kv;

    for (int64_t b = 0; b < in->desc.batch; b++) {
        const uint64_t bits = random_bits(seed, STREAM_LEN, (uint64_t)b + 1);
        const int64_t tile = (int64_t)8 << (bits >> 32) % 4;
        const int64_t n[8] = {
            lk,
            0,
            (int64_t)(bits % (uint64_t)(lk + 1)),
            1,
            tile + 1 < lk ? tile + 1 : lk / 2,
            bits & 1u << 31 ? lk + 3 : INT32_MAX,
            lk / 2,
            bits & 1u << 31 ? -5 : INT32_MIN,
        };
        const int64_t len = n[(first + b) % 8];
        in->lens[b] = (int32_t)(len > INT32_MAX ? INT32_MAX : len);
    }
}

/* Sets `seen` to what the union over all queries of a batch is. */
static void mark_seen(inputs *in)
{
    for (int64_t b = 0; b < in->desc.batch; b++) {
        const int64_t len = visible_len(&in->desc, in->lens, b);
        int64_t marked = 0; /* ranges only move upwards with i */

        for (int64_t i = 0; i < in->desc.len_q; i++) {
            const visible_keys keys = visible_of(&in->desc, len, i);
            for (int64_t j = keys.first > marked ? keys.first : marked; j < keys.end; j++)
                in->seen[b * in->desc.len_kv + j] = 1;
            marked = keys.end > marked ? keys.end : marked;
        }
    }
}

static bool allocate(inputs *in)
{
    const attn_softmax_desc *d = &in->desc;

    in->q = array(d->batch * d->heads_q, d->len_q, d->dim_qk, sizeof(float));
    in->k = array(d->batch * d->heads_kv, d->len_kv, d->dim_qk, sizeof(float));
    in->v = array(d->batch * d->heads_kv, d->len_kv, visible_dim_v(d), sizeof(float));
    in->seen = array(d->batch, d->len_kv, 1, 1);
    if (d->use & ATTN_USE_LENS_KV)
        in->lens = array(d->batch, 1, 1, sizeof(int32_t));
    if (in->q && in->k && in->v && in->seen && (in->lens || !(d->use & ATTN_USE_LENS_KV)))
        return true;
    inputs_free(in);
    return false;
}

bool inputs_make(inputs *in, const attn_softmax_desc *desc, input_kind kind,
                 bool same_heads, uint64_t seed)
{
    *in = (inputs){ .desc = *desc, .kind = kind };
    if (!allocate(in))
        return false;
    fill(in, in->q, STREAM_Q, desc->heads_q, desc->len_q, desc->dim_qk, false, seed);
    fill(in, in->k, STREAM_K, desc->heads_kv, desc->len_kv, desc->dim_qk, same_heads, seed);
    fill(in, in->v, STREAM_V, desc->heads_kv, desc->len_kv, visible_dim_v(desc), same_heads,
         seed);
    if (in->lens)
        fill_lens(in, seed);
    mark_seen(in);
    return true;
}

bool inputs_cut(inputs *out, const inputs *in, int64_t b, int64_t kvh)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t group = d->heads_q / d->heads_kv, kv = b * d->heads_kv + kvh;
    const int64_t q_head = d->len_q * d->dim_qk, k_head = d->len_kv * d->dim_qk;
    const int64_t v_head = d->len_kv * visible_dim_v(d);

    *out = (inputs){ .desc = *d, .kind = in->kind };
    out->desc.batch = out->desc.heads_kv = 1;
    out->desc.heads_q = group;
    if (!allocate(out))
        return false;
    memcpy(out->q, in->q + (b * d->heads_q + kvh * group) * q_head,
           (size_t)(group * q_head) * sizeof(float));
    memcpy(out->k, in->k + kv * k_head, (size_t)k_head * sizeof(float));
    memcpy(out->v, in->v + kv * v_head, (size_t)v_head * sizeof(float));
    memcpy(out->seen, in->seen + b * d->len_kv, (size_t)d->len_kv);
    if (in->lens)
        out->lens[0] = in->lens[b];
    return true;
}

void inputs_free(inputs *in)
{
    free(in->q);
    free(in->k);
    free(in->v);
    free(in->lens);
    free(in->seen);
    in->q = in->k = in->v = NULL;
    in->lens = NULL;
    in->seen = NULL;
}
