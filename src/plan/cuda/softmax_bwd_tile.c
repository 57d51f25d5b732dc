/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_bwd_tile.c: gradients on plain CUDA cores, exact in f32, every feature:
 * delta, then a pass over tiles of queries, one over tiles of keys and one for a bias, that
 * share no output. And softmax_bwd_once: in f32, without features that look at single scores,
 * one pass over tiles of keys, whose groups add to dQ one after the other: five products
 * instead of seven. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/backward.h"

enum {
    WORK_BYTES = 768, /* what a group writes down of its own work */
    N_DIMS = ATTN_CUDA_DIMS,
    N_TYPES = 3
};

/* As cuda_kernels/softmax/bwd_tile.cu has them: rows that a group owns, and visits in a
 * step; threads; columns and rows of a chunk. */
typedef struct tile {
    int32_t bm, bn, threads, dc, jc;
} tile;

/* Large: 8 x 8 pairs a thread where it has the sums of one gradient, 8 x 4 where it has
 * those of two; D 256: 4 x 8 and 4 x 4. D 64: two groups fit a multiprocessor. */
static const tile queries_large[N_DIMS] = { { 128, 64, 128, 32, 64 },
                                            { 128, 128, 256, 32, 64 },
                                            { 64, 128, 256, 32, 32 } };
static const tile keys_large[N_DIMS] = { { 128, 32, 128, 64, 32 },
                                         { 128, 64, 256, 64, 64 },
                                         { 64, 64, 256, 64, 32 } };

/* Small: under the 64 KiB of compute capability 7.5; where few rows are owned; and where
 * single scores are looked at. */
static const tile small[N_DIMS] = { { 32, 64, 128, 32, 32 },
                                    { 32, 64, 128, 32, 16 },
                                    { 32, 64, 128, 32, 8 } };

/* As cuda_kernels/softmax/bwd_tile_once.cu has it, for a class of head sizes: keys whose rows
 * stay in the shared memory, and as many queries of a step as it has room for beside them. */
enum {
    ONCE_CAPABILITY = 80, /* groups wait for each other, and copies are asynchronous */
    ONCE_KEYS = 128,
    ONCE_THREADS = 256,
    ONCE_WORK_BYTES = 1024,
    N_ONCE = 2
};
static const struct once {
    int32_t dim, bn;
    const char *kernel;
} once[N_ONCE] = { { 64, 128, "softmax_bwd_tile_once_f32_d64_ranges" },
                   { 128, 64, "softmax_bwd_tile_once_f32_d128_ranges" } };

enum { EACH_SCORE = ATTN_FEATURES_TERMS | ATTN_FEAT_SOFTCAP | ATTN_FEAT_DROPOUT };

enum { QUERIES_RANGES, QUERIES_ALL, KEYS_RANGES, KEYS_ALL, BIAS, N_KINDS };

#define KINDS(type, dim)                                                                 \
    {                                                                                    \
        "softmax_bwd_tile_" type dim "_queries_ranges",                                  \
            "softmax_bwd_tile_" type dim "_queries_all",                                 \
            "softmax_bwd_tile_" type dim "_keys_ranges",                                 \
            "softmax_bwd_tile_" type dim "_keys_all", "softmax_bwd_tile_bias_" type dim, \
    }
#define DIMS(type)                                                       \
    {                                                                    \
        KINDS(type, "_d64"), KINDS(type, "_d128"), KINDS(type, "_d256"), \
    }
static const char *const kernels[N_TYPES][N_DIMS][N_KINDS] = { DIMS("f32"), DIMS("f16"),
                                                               DIMS("bf16") };

/* Shared memory, line by line, as the kernels' struct has it. */
typedef struct budget {
    int64_t slots, weights, rows;
} budget;

static budget budget_of(const tile *t, int64_t dim)
{
    return (budget){
        .slots = 2 * 4 * attn_max((t->bm + t->bn) * (t->dc + 4), t->jc * dim),
        .weights = 4 * t->bm * (t->bn + 8),
        .rows = 4 * (2 * attn_max(t->bm, t->bn) + t->bn) + WORK_BYTES,
    };
}

static int64_t sum(budget b)
{
    return b.slots + b.weights + b.rows;
}

static bool fits(const tile *t, int i, const attn_caps *c)
{
    return t->threads <= c->max_group &&
           sum(budget_of(t, attn_cuda_dim[i])) <= c->fast_bytes;
}

/* For a pass that owns `rows` of queries or keys. What else is asked for has no say, since
 * the bits of a gradient depend on the tile. */
static const tile *find_tile(const attn_problem *p, const tile *large, int64_t rows,
                             const attn_caps *c)
{
    const int i = attn_cuda_dim_class(p);
    const bool few = 2 * rows <= large[i].bm;

    if (!few && !(p->features & EACH_SCORE) && fits(&large[i], i, c))
        return &large[i];
    return fits(&small[i], i, c) ? &small[i] : NULL;
}

/* Shared memory of the one pass, line by line. */
typedef struct once_budget {
    int64_t own, visited, pairs, rows;
} once_budget;

static once_budget once_budget_of(const struct once *t)
{
    return (once_budget){
        .own = 2 * 4 * ONCE_KEYS * t->dim,
        .visited = 2 * 4 * t->bn * t->dim,
        .pairs = 4 * ONCE_KEYS * t->bn,
        .rows = 2 * 4 * t->bn + ONCE_WORK_BYTES,
    };
}

static int64_t once_sum(once_budget b)
{
    return b.own + b.visited + b.pairs + b.rows;
}

static const char *applicable_once(const attn_problem *p, const attn_caps *c)
{
    const int i = attn_cuda_dim_class(p);

    if (p->type != ATTN_F32)
        return "takes f32 alone";
    if (i >= N_ONCE)
        return "D or Dv is over 128";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (c->capability < ONCE_CAPABILITY)
        return "wants compute capability 8.0 or more";
    if (c->max_group < ONCE_THREADS || once_sum(once_budget_of(&once[i])) > c->fast_bytes)
        return "its tile does not fit the shared memory and the limit of threads";
    return attn_cuda_cores_refusal(p, c, ONCE_KEYS, false);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const tile *q, *k;

    if (attn_cuda_dim_class(p) == N_DIMS)
        return "D or Dv is over 256";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    q = find_tile(p, queries_large, p->lq, c);
    k = find_tile(p, keys_large, p->lk, c);
    if (!q || !k)
        return "no tile fits the shared memory and the limit of threads";
    return attn_cuda_back_refusal(p, c, q->bm, k->bm);
}

static void describe_pass(const attn_problem *p, unsigned reads, attn_step *step)
{
    attn_step_softmax(step, p, ATTN_CUDA_READS_BACK | reads);
    attn_step_define(step, "WIDE_Q", attn_cuda_aligned(p, ATTN_TENSOR_Q, p->d, 4));
    attn_step_define(step, "WIDE_K", attn_cuda_aligned(p, ATTN_TENSOR_K, p->d, 4));
    attn_step_define(step, "WIDE_V", attn_cuda_aligned(p, ATTN_TENSOR_V, p->dv, 4));
    attn_step_define(step, "WIDE_GRADS", attn_cuda_back_aligned(p, 4));
}

/* A pass over pairs, whose groups own rows of what `over` says. */
static void add_pass(const attn_problem *p, int kind, attn_over over, uint32_t grad,
                     const tile *t, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const int i = attn_cuda_dim_class(p);
    const bool keys = over == ATTN_OVER_KEYS;

    step->kernel = kernels[p->type - ATTN_F32][i][kind];
    step->over = over;
    step->grad = grad;
    step->tile_q = keys ? t->bn : t->bm;
    step->tile_k = keys ? t->bm : t->bn;
    step->block = t->threads;
    step->fast_bytes = sum(budget_of(t, attn_cuda_dim[i]));
    describe_pass(p, ATTN_READS_DROPOUT, step);
}

void attn_cuda_back_bias(const attn_problem *p, attn_choice *out)
{
    if (p->grad & ATTN_GRAD_BIAS)
        add_pass(p, BIAS, ATTN_OVER_BIAS, ATTN_GRAD_BIAS, &small[attn_cuda_dim_class(p)],
                 out);
}

/* Of the last step. */
static void add_budget(const budget *b, attn_choice *out)
{
    out->step[out->n_steps - 1].fast_bytes = 0;
    attn_choice_budget(out, "chunks of owned and visited rows, two in turn", b->slots);
    attn_choice_budget(out, "weights, or gradients of scores", b->weights);
    attn_choice_budget(out, "LSE and delta, marks, the group's work", b->rows);
}

static void lower_once(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const uint32_t all = ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V;
    const struct once *const t = &once[attn_cuda_dim_class(p)];
    const once_budget b = once_budget_of(t);
    attn_step *step;

    (void)c;
    attn_cuda_cores_begin(p, false, out);
    if (p->grad & all) {
        step = &out->step[out->n_steps++];
        step->kernel = t->kernel;
        step->over = ATTN_OVER_KEYS;
        step->grad = all;
        step->tile_q = t->bn;
        step->tile_k = ONCE_KEYS;
        step->block = ONCE_THREADS;
        describe_pass(p, 0, step);
        attn_choice_budget(out, "k and v, the whole tile", b.own);
        attn_choice_budget(out, "q and the gradient of o", b.visited);
        attn_choice_budget(out, "weights, then gradients of scores", b.pairs);
        attn_choice_budget(out, "LSE and delta, the group's work", b.rows);
    }
    attn_cuda_cores_finish(p, false, out);
    attn_choice_instance(out, "k%dx%d,dim%d,d%lld,dv%lld,%s", ONCE_KEYS, t->bn, t->dim,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "keys by queries of one pass: as many queries as the shared memory "
                       "has room for beside 128 keys and their values";
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const uint32_t kv = ATTN_GRAD_K | ATTN_GRAD_V;
    const int i = attn_cuda_dim_class(p);
    const tile *const q = find_tile(p, queries_large, p->lq, c);
    const tile *const k = find_tile(p, keys_large, p->lk, c);
    const tile *last = NULL;
    budget b;

    if (p->grad & ~(uint32_t)ATTN_GRAD_V)
        attn_cuda_back_delta(p, out);
    if (p->grad & ATTN_GRAD_Q)
        add_pass(p, q == &small[i] ? QUERIES_ALL : QUERIES_RANGES, ATTN_OVER_QUERIES,
                 ATTN_GRAD_Q, last = q, out);
    if (p->grad & kv)
        add_pass(p, k == &small[i] ? KEYS_ALL : KEYS_RANGES, ATTN_OVER_KEYS, kv, last = k,
                 out);
    attn_cuda_back_bias(p, out);
    if (p->grad & ATTN_GRAD_BIAS)
        last = &small[i];
    if (last) {
        b = budget_of(last, attn_cuda_dim[i]);
        add_budget(&b, out);
    }
    attn_cuda_back_sinks(p, out);
    out->workspace_bytes = attn_cuda_back_workspace(p);
    attn_choice_instance(out, "q%dx%d,k%dx%d,dim%d,d%lld,dv%lld,%s", q->bm, q->bn, k->bm,
                         k->bn, attn_cuda_dim[i], (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason = "queries by keys of a pass for dQ, keys by queries of one for dK "
                       "and dV; large where "
                       "it fits, at least half of the owned rows can exist and no single "
                       "score is looked at";
}

const attn_variant attn_cuda_softmax_bwd_tile_variant = {
    .name = "softmax_bwd_tile",
    .about =
        "gradients over tiles of queries and of keys, or in f32 of keys alone, on plain "
        "CUDA cores; exact in f32, every feature",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};

const attn_variant attn_cuda_softmax_bwd_once_variant = {
    .name = "softmax_bwd_once",
    .about =
        "gradients in one pass over tiles of keys, on plain CUDA cores; dQ is added up in "
        "the order of the keys; exact f32",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD & ~(uint32_t)(ATTN_FEATURES_TERMS | ATTN_FEAT_SOFTCAP),
    .applicable = applicable_once,
    .lower = lower_once,
};
