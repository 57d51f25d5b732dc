/* SPDX-License-Identifier: MIT */
/* tools/inputs.c: numbers strong enough to see mistakes, the same on every machine. */
#include "inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "npy.h"
#include "visible.h"

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

enum { STREAM_DROPOUT = 90 };

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

/* So many are made sooner than threads begin. */
enum { FEW_NUMBERS = 1 << 20 };

/* Rows of dim numbers each: row i of head h and batch b takes the numbers of row
 * `source(i)` of head `same_heads ? 0 : h`. */
void inputs_fill(const inputs *in, float *to, int stream, int64_t heads, int64_t len,
                 int64_t dim, bool same_heads, uint64_t seed)
{
    const bool constant = in->kind == INPUT_CONSTANT && stream == STREAM_V;
    const int64_t rows = in->desc.batch * heads * len;

#ifdef _OPENMP
#pragma omp parallel for if (rows * dim > FEW_NUMBERS)
#endif
    for (int64_t row = 0; row < rows; row++) {
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

bool inputs_allocate(inputs *in)
{
    const attn_softmax_desc *d = &in->desc;

    in->q = array(d->batch * d->heads_q, d->len_q, d->dim_qk, sizeof(float));
    in->k = array(d->batch * d->heads_kv, d->len_kv, d->dim_qk, sizeof(float));
    in->v = array(d->batch * d->heads_kv, d->len_kv, visible_dim_v(d), sizeof(float));
    in->seen = array(d->batch, d->heads_kv, d->len_kv, 1);
    return in->q && in->k && in->v && in->seen;
}

bool inputs_make(inputs *in, const attn_softmax_desc *desc, input_how how, uint64_t seed)
{
    const attn_softmax_desc *d = desc;

    *in = (inputs){ .desc = *desc,
                    .kind = how.kind,
                    .dropout_seed = random_bits(seed, STREAM_DROPOUT, 0),
                    .dropout_offset = random_bits(seed, STREAM_DROPOUT, 1) };
    if (!inputs_allocate(in) || !inputs_make_lists(in, &how, seed)) {
        inputs_free(in);
        return false;
    }
    inputs_fill(in, in->q, STREAM_Q, d->heads_q, d->len_q, d->dim_qk, false, seed);
    inputs_fill(in, in->k, STREAM_K, d->heads_kv, d->len_kv, d->dim_qk, how.same_heads,
                seed);
    inputs_fill(in, in->v, STREAM_V, d->heads_kv, d->len_kv, visible_dim_v(d),
                how.same_heads, seed);
    if (!inputs_make_terms(in, &how, seed) ||
        (d->use & ATTN_USE_GRAD && !inputs_make_gradients(in, &how, seed))) {
        inputs_free(in);
        return false;
    }
    inputs_mark(in, &how);
    return true;
}

/* The part of a broadcast array that belongs to batch b and heads h .. h + n - 1. */
static void *cut_pairs(const void *from, const int64_t size[4], int64_t out[4], int64_t b,
                       int64_t h, int64_t n, size_t bytes)
{
    const int64_t plane = size[2] * size[3], heads = size[1] == 1 ? 1 : n;
    const int64_t first = (size[0] == 1 ? 0 : b) * size[1] + (size[1] == 1 ? 0 : h);
    void *to = array(heads, plane, 1, bytes);

    out[0] = 1;
    out[1] = heads;
    out[2] = size[2];
    out[3] = size[3];
    if (to && heads * plane > 0)
        memcpy(to, (const char *)from + (size_t)(first * plane) * bytes,
               (size_t)(heads * plane) * bytes);
    return to;
}

static bool cut_terms(inputs *out, const inputs *in, int64_t b, int64_t h, int64_t n)
{
    if (in->bias) {
        out->bias = cut_pairs(in->bias, in->bias_size, out->bias_size, b, h, n, 4);
        out->bias_used =
            cut_pairs(in->bias_used, in->bias_size, out->bias_size, b, h, n, 1);
    }
    if (in->mask)
        out->mask = cut_pairs(in->mask, in->mask_size, out->mask_size, b, h, n, 1);
    if (in->alibi)
        out->alibi = cut_pairs(in->alibi, in->alibi_size, out->alibi_size, b, h, n, 4);
    if (in->sinks)
        out->sinks = array(n, 1, 1, sizeof(float));
    if (in->sinks && out->sinks)
        memcpy(out->sinks, in->sinks + h, (size_t)n * sizeof(float));
    return (!in->bias || (out->bias && out->bias_used)) && (!in->mask || out->mask) &&
           (!in->alibi || out->alibi) && (!in->sinks || out->sinks);
}

/* One sequence of that many tokens, after the first one of the buffer. */
static int32_t *cut_boundaries(int64_t tokens)
{
    int32_t *cu = calloc(2, sizeof *cu);

    if (cu) {
        cu[0] = 1;
        cu[1] = (int32_t)(1 + tokens);
    }
    return cu;
}

/* Its pages in descending order. */
static int32_t *cut_table(int64_t blocks)
{
    int32_t *table = calloc((size_t)blocks + 1, sizeof *table);

    for (int64_t i = 0; table && i < blocks; i++)
        table[i] = (int32_t)(blocks - 1 - i);
    return table;
}

static int32_t *cut_vector(const int32_t *from, int64_t b)
{
    int32_t *to = calloc(1, sizeof *to);

    if (to)
        *to = from[b];
    return to;
}

static bool cut_lists(inputs *out, const inputs *in, int64_t b)
{
    const visible_batch x = visible_batch_of(in, b);

    if (in->cu_q)
        out->cu_q = cut_boundaries(x.tokens_q);
    if (in->cu_k)
        out->cu_k = cut_boundaries(x.tokens_k);
    if (in->table)
        out->table = cut_table(in->blocks);
    if (in->lens)
        out->lens = cut_vector(in->lens, b);
    if (in->lens_q)
        out->lens_q = cut_vector(in->lens_q, b);
    if (in->offsets)
        out->offsets = cut_vector(in->offsets, b);
    out->tokens_q = in->cu_q ? x.tokens_q + 2 : 0;
    out->tokens_k = in->cu_k ? x.tokens_k + 2 : 0;
    out->pages = out->blocks = in->blocks;
    return (!in->cu_q || out->cu_q) && (!in->cu_k || out->cu_k) &&
           (!in->table || out->table) && (!in->lens || out->lens) &&
           (!in->lens_q || out->lens_q) && (!in->offsets || out->offsets);
}

/* Rows of `dim` numbers, of the queries of n heads from head bh on. */
static float *cut_rows(const inputs *in, const float *from, int64_t bh, int64_t n,
                       int64_t dim)
{
    const int64_t head = in->desc.len_q * dim;
    float *to = from ? array(n, head, 1, sizeof(float)) : NULL;

    if (to)
        memcpy(to, from + bh * head, (size_t)(n * head) * sizeof(float));
    return to;
}

static bool cut_gradients(inputs *out, const inputs *in, int64_t bh, int64_t n)
{
    const int64_t dv = visible_dim_v(&in->desc);

    out->o = cut_rows(in, in->o, bh, n, dv);
    out->lse = cut_rows(in, in->lse, bh, n, 1);
    out->grad_o = cut_rows(in, in->grad_o, bh, n, dv);
    out->grad_lse = cut_rows(in, in->grad_lse, bh, n, 1);
    return (!in->o || out->o) && (!in->lse || out->lse) && (!in->grad_o || out->grad_o) &&
           (!in->grad_lse || out->grad_lse);
}

bool inputs_cut(inputs *out, const inputs *in, int64_t b, int64_t kvh)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t group = d->heads_q / d->heads_kv, kv = b * d->heads_kv + kvh;
    const int64_t q_head = d->len_q * d->dim_qk, k_head = d->len_kv * d->dim_qk;
    const int64_t v_head = d->len_kv * visible_dim_v(d);

    *out = (inputs){ .desc = *d, .kind = in->kind };
    out->dropout_seed = in->dropout_seed;
    out->dropout_offset = in->dropout_offset;
    out->desc.batch = out->desc.heads_kv = 1;
    out->desc.heads_q = group;
    if (!inputs_allocate(out) || !cut_lists(out, in, b) ||
        !cut_terms(out, in, b, kvh * group, group) ||
        !cut_gradients(out, in, b * d->heads_q + kvh * group, group)) {
        inputs_free(out);
        return false;
    }
    memcpy(out->q, in->q + (b * d->heads_q + kvh * group) * q_head,
           (size_t)(group * q_head) * sizeof(float));
    memcpy(out->k, in->k + kv * k_head, (size_t)k_head * sizeof(float));
    memcpy(out->v, in->v + kv * v_head, (size_t)v_head * sizeof(float));
    memcpy(out->seen, in->seen + kv * d->len_kv, (size_t)d->len_kv);
    return true;
}

void inputs_free(inputs *in)
{
    void *const all[] = { in->q,     in->k,     in->v,      in->lens,     in->lens_q,
                          in->cu_q,  in->cu_k,  in->table,  in->bias,     in->offsets,
                          in->mask,  in->alibi, in->sinks,  in->seen,     in->bias_used,
                          in->o,     in->lse,   in->grad_o, in->grad_lse, in->state,
                          in->z,     in->decay, in->beta,   in->den,      in->grad_state,
                          in->grad_z };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    *in = (inputs){ .desc = in->desc };
}
