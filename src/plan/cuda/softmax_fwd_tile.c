/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_tile.c: plain CUDA cores, exact in f32, every feature: the
 * general path. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/variants.h"

enum {
    N_SLOTS = 4,        /* chunks of K and V at a time */
    WORK_BYTES = 512,   /* what a group writes down of its own work */
    BLOCK_BYTES = 1024, /* what the device keeps of each group's memory */
    N_DIMS = ATTN_CUDA_DIMS,
    N_TYPES = 3
};

/* As cuda_kernels/softmax/fwd_tile.cu has them: queries of a group, keys of a step,
 * threads, columns of a chunk of K, keys of a chunk of V; groups on a multiprocessor. */
typedef struct tile {
    int32_t bm, bn, threads, dc, jc, groups;
} tile;

/* Large: 8 x 8 scores and sums a thread, which loads 4 times from shared memory for 64
 * multiply-adds, in at most 255 registers. D 64: two groups of 128 threads fit a
 * multiprocessor of 227 KiB; D 128: one of 256; D 256: 4 x 4 scores, since 8 x 8 would
 * want 16 columns of O for 8 rows, more than the registers. */
static const tile large[N_DIMS] = { { 128, 64, 128, 32, 32, 2 },
                                    { 128, 128, 256, 32, 32, 1 },
                                    { 64, 64, 256, 64, 16, 1 } };

/* Small: under the 64 KiB of compute capability 7.5, the least there is; and for few
 * queries, of which a large tile would leave most of its rows empty. */
static const tile small[N_DIMS] = { { 32, 64, 128, 16, 16, 1 },
                                    { 32, 64, 128, 16, 8, 1 },
                                    { 32, 64, 128, 16, 4, 1 } };

/* Features are data to the kernels; those that have to look at single scores, or at
 * pages, are not in the instances "ranges". In f32 there is one more of these: "long"
 * compensates its sums over more keys than a plain sum of tiles keeps exact. */
enum { RANGES, LONG, ALL, SMALL, N_KINDS };
enum { SHORT_KEYS = 8192 }; /* at most 128 sums of 64 products, or 64 of 128 */

#define KINDS(type, dim)                                                                \
    {                                                                                   \
        "softmax_fwd_tile_" type dim "_ranges", "softmax_fwd_tile_" type dim "_long",   \
            "softmax_fwd_tile_" type dim "_all", "softmax_fwd_tile_" type dim "_small", \
    }
#define DIMS(type)                                                       \
    {                                                                    \
        KINDS(type, "_d64"), KINDS(type, "_d128"), KINDS(type, "_d256"), \
    }
static const char *const kernels[N_TYPES][N_DIMS][N_KINDS] = { DIMS("f32"), DIMS("f16"),
                                                               DIMS("bf16") };

/* Shared memory, line by line, as the kernel's struct has it. */
typedef struct budget {
    int64_t q, slots, weights, rows;
} budget;

static budget budget_of(const tile *t, int64_t dim)
{
    return (budget){
        .q = 4 * dim * t->bm,
        .slots = N_SLOTS * 4 * attn_max(t->dc * (t->bn + 4), t->jc * dim),
        .weights = 4 * t->bn * (t->bm + 8),
        .rows = 4 * (4 * t->bm + t->bn) + WORK_BYTES,
    };
}

static int64_t sum(budget b)
{
    return b.q + b.slots + b.weights + b.rows;
}

static bool fits(const tile *t, int i, const attn_caps *c)
{
    return t->threads <= c->max_group &&
           sum(budget_of(t, attn_cuda_dim[i])) <= c->fast_bytes;
}

static const tile *find_tile(const attn_problem *p, const attn_caps *c)
{
    const int i = attn_cuda_dim_class(p);
    const bool few = 2 * p->lq <= large[i].bm;

    if (!few && fits(&large[i], i, c))
        return &large[i];
    return fits(&small[i], i, c) ? &small[i] : NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const tile *t;
    int64_t groups;

    if (attn_cuda_dim_class(p) == N_DIMS)
        return "D or Dv is over 256";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (!(t = find_tile(p, c)))
        return "no tile fits the shared memory and the limit of threads";
    if (!attn_mul(attn_ceil_div(p->lq, t->bm), p->b * p->hq, &groups) || groups > INT32_MAX)
        return "more groups than a grid can have, 2^31 - 1";
    return NULL;
}

/* Groups that run at a time, if there are more tiles and all have the same keys: then the last
 * are cut, lest groups stand idle. 0: no tile is. */
static int64_t slots_of(const attn_problem *p, const attn_caps *c, int kind)
{
    enum {
        RAGGED =
            ATTN_FEAT_LENS_Q | ATTN_FEAT_LENS_KV | ATTN_FEAT_PACKED_Q | ATTN_FEAT_PACKED_K
    };
    const tile *const t = find_tile(p, c);
    const int64_t bytes = sum(budget_of(t, attn_cuda_dim[attn_cuda_dim_class(p)]));
    const int64_t fit = (c->fast_bytes + BLOCK_BYTES) / (bytes + BLOCK_BYTES);
    const int64_t slots = c->compute_units * attn_min(t->groups, fit);
    const int64_t tiles = attn_ceil_div(p->lq, t->bm) * p->b * p->hq;
    const bool large_alone = kind == RANGES || kind == LONG;
    const bool even = !(p->features & RAGGED) && !attn_problem_bounded_left(p) &&
                      !attn_problem_bounded_right(p);

    return large_alone && even && tiles > slots ? slots : 0;
}

/* The counters of common/cut.h, and states: O, its rests in LONG, two numbers in 4 bytes,
 * and three of each row. */
static int64_t cut_bytes(const tile *t, int64_t dim, int64_t slots, int kind)
{
    const int64_t sums = t->bm * dim;
    const int64_t state = sums + (kind == LONG ? sums / 2 : 0) + 3 * t->bm;

    return slots ? 4 * ((slots + 4) / 4 * 4 + slots * state) : 0;
}

/* Rows of `dim` elements can be moved four at a time. */
static bool wide(const attn_problem *p, int tensor, int64_t dim)
{
    return dim % 4 == 0 && attn_layout_bytes(p->layout[tensor], p->type) >=
                               4 * (int64_t)attn_type_bytes(p->type);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    enum {
        EACH_SCORE =
            ATTN_FEATURES_TERMS | ATTN_FEAT_SOFTCAP | ATTN_FEAT_PAGES | ATTN_FEAT_DROPOUT
    };
    attn_step *step = &out->step[out->n_steps++];
    const int i = attn_cuda_dim_class(p);
    const tile *t = find_tile(p, c);
    const budget b = budget_of(t, attn_cuda_dim[i]);
    const bool is_long = p->type == ATTN_F32 && p->lk > SHORT_KEYS;
    const int kind = t == &small[i]             ? SMALL
                     : p->features & EACH_SCORE ? ALL
                     : is_long                  ? LONG
                                                : RANGES;
    static const char *const kind_name[] = { "ranges", "long", "all", "small" };

    step->kernel = kernels[p->type - ATTN_F32][i][kind];
    step->tile_q = t->bm;
    step->tile_k = t->bn;
    step->block = t->threads;
    step->slots = slots_of(p, c, kind);
    out->workspace_bytes = cut_bytes(t, attn_cuda_dim[i], step->slots, kind);
    attn_step_softmax(step, p, ATTN_READS_ALL | ATTN_READS_DROPOUT);
    attn_step_define(step, "WIDE_Q", wide(p, ATTN_TENSOR_Q, p->d));
    attn_step_define(step, "WIDE_K", wide(p, ATTN_TENSOR_K, p->d));
    attn_step_define(step, "WIDE_V", wide(p, ATTN_TENSOR_V, p->dv));
    attn_step_define(step, "WIDE_O", wide(p, ATTN_TENSOR_O, p->dv));
    attn_choice_instance(out, "bm%d,bn%d,dc%d,jc%d,dim%d,d%lld,dv%lld,%s,%s", t->bm, t->bn,
                         t->dc, t->jc, attn_cuda_dim[i], (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type), kind_name[kind]);
    out->tile_reason = kind != SMALL
                           ? "large: it fits, and at least half of its queries can exist"
                       : 2 * p->lq <= large[i].bm
                           ? "small: at most half of a large tile's queries would exist"
                           : "small: the large tile does not fit this device";
    attn_choice_budget(out, "q, the whole tile", b.q);
    attn_choice_budget(out, "chunks of k and v, four in turn", b.slots);
    attn_choice_budget(out, "weights", b.weights);
    attn_choice_budget(out, "row maxima and sums, keys seen", b.rows);
}

const attn_variant attn_cuda_softmax_fwd_tile_variant = {
    .name = "softmax_fwd_tile",
    .about = "fused, online softmax on plain CUDA cores; exact in f32, every feature",
    .features = ATTN_FEATURES_ALL | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
