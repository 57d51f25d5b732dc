/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_mma.c: tensor cores, from compute capability 8.0 on: f16, bf16, and
 * f32 in full accuracy or, where that is allowed, in TF32. */
#include <attn/device.h>

#include <math.h>

#include "core/size.h"
#include "plan/cuda/variants.h"

enum {
    WORK_BYTES = 512, /* what a group writes down of its own work */
    SHORT_KEYS = 2048 /* of f32, summed without compensation: 64 sums of 32 products, which
                         are off by 1e-6 where all round one way */
};

/* Of f32. Scores of ordinary size then want a factor that is as tiny. */
static const float LARGEST_SCALE = 0x1p32f;

/* As cuda_kernels/softmax/fwd_mma.cu has them: warps, 16-row operands for each (of a pair the
 * kernel has twice as many), keys of a step. */
typedef struct tile {
    int32_t warps, mt, bn;
} tile;

/* The instances. Features are data to the kernels; plain knows no ranges of keys at all,
 * ranges those, all also single scores and pages. Of f32 long is ranges with compensated
 * sums. */
enum { PLAIN, RANGES, LONG, ALL, TF32, TF32_ALL, N_KINDS };

static const char *const kind_name[N_KINDS] = { "plain", "ranges", "long",
                                                "all",   "tf32",   "tf32_all" };

/* A class of head sizes: D and Dv are padded up to it. Large: 128 queries of 16-bit types, so
 * that K and V come from the second cache at no more than it can give; 32 rows a warp halve
 * what is loaded from shared memory, and fit the registers up to 128 columns of O. f32 has
 * twice the bytes and a quarter of the speed, and 64 queries; of D 256 it has 128, since only
 * one group fits. Special: with the terms of a step; and for less shared memory than the
 * large tile wants, within the 99 KiB of compute capability 8.6. Hopper's own code has others
 * where its 227 KiB have room for them: more keys a step, and at D 256 two warps that share 32
 * rows, half the columns of O each, for whom weights pass through shared memory
 * (docs/performance_h200.md). */
typedef struct shapes {
    tile large, special;
} shapes;

typedef struct class
{
    int32_t d, dv;
    shapes any;
    const shapes *hopper;         /* NULL: as any */
    const char *kernels[N_KINDS]; /* NULL: there is none */
} class;

#define KERNELS_16(name)                              \
    {                                                 \
        [PLAIN] = "softmax_fwd_mma_" name "_plain",   \
        [RANGES] = "softmax_fwd_mma_" name "_ranges", \
        [ALL] = "softmax_fwd_mma_" name "_all"        \
    }
static const shapes hopper_d256 = { { 8, 1, 128 }, { 8, 1, 64 } };

/* a row for each */
/* clang-format off */
#define CLASSES_16(type)                                                                      \
    {                                                                                         \
        { 64, 64, { { 4, 2, 128 }, { 4, 2, 64 } }, NULL, KERNELS_16(type "_d64") },           \
        { 96, 96, { { 4, 2, 64 }, { 4, 2, 64 } }, NULL, KERNELS_16(type "_d96") },            \
        { 128, 128, { { 4, 2, 64 }, { 4, 2, 64 } }, NULL, KERNELS_16(type "_d128") },         \
        { 192, 128, { { 8, 1, 64 }, { 4, 1, 32 } }, NULL, KERNELS_16(type "_d192_dv128") },   \
        { 192, 192, { { 8, 1, 64 }, { 4, 1, 32 } }, NULL, KERNELS_16(type "_d192") },         \
        { 256, 256, { { 8, 1, 64 }, { 4, 1, 32 } }, &hopper_d256, KERNELS_16(type "_d256") }, \
    }
/* clang-format on */
#define KERNELS_32(name)                                                                  \
    {                                                                                     \
        [RANGES] = "softmax_fwd_mma_" name "_ranges",                                     \
        [LONG] = "softmax_fwd_mma_" name "_long", [ALL] = "softmax_fwd_mma_" name "_all", \
        [TF32] = "softmax_fwd_mma_" name "_tf32",                                         \
        [TF32_ALL] = "softmax_fwd_mma_" name "_tf32_all"                                  \
    }

enum { N_TYPES = 3, N_CLASSES = 6 };
static const class classes[N_TYPES][N_CLASSES] = {
    /* 256 columns leave no registers for compensation */
    {
        { 64, 64, { { 4, 1, 64 }, { 4, 1, 32 } }, NULL, KERNELS_32("f32_d64") },
        { 128, 128, { { 4, 1, 64 }, { 4, 1, 32 } }, NULL, KERNELS_32("f32_d128") },
        { 256, 256, { { 8, 1, 32 }, { 4, 1, 32 } }, NULL, KERNELS_32("f32_d256") },
    },
    CLASSES_16("f16"),
    CLASSES_16("bf16"),
};

/* Shared memory, line by line, as the kernel's struct has it. */
typedef struct budget {
    int64_t q, step, weights, terms;
} budget;

static int64_t queries_of(const tile *t)
{
    return 16 * t->warps * t->mt;
}

static bool is_special(const class *k, const tile *t)
{
    return t == &k->any.special || (k->hopper && t == &k->hopper->special);
}

/* Two warps share their rows. */
static bool is_paired(const tile *t)
{
    return t == &hopper_d256.large;
}

static budget budget_of(const attn_problem *p, const class *k, const tile *t)
{
    const int64_t bytes = (int64_t)attn_type_bytes(p->type);

    return (budget){
        .q = bytes * queries_of(t) * k->d,
        .step = bytes * t->bn * (k->d + k->dv),
        .weights = p->type == ATTN_F32 || is_paired(t) ? bytes * queries_of(t) * t->bn : 0,
        .terms = is_special(k, t) ? 4 * (queries_of(t) + 3) * t->bn : 0,
    };
}

static bool fits(const attn_problem *p, const class *k, const tile *t, const attn_caps *c)
{
    const budget b = budget_of(p, k, t);

    return 32 * t->warps <= c->max_group &&
           b.q + b.step + b.weights + b.terms + WORK_BYTES <= c->fast_bytes;
}

/* NULL: D or Dv is over the largest. */
static const class *find_class(const attn_problem *p)
{
    for (int i = 0; i < N_CLASSES; i++) {
        const class *const k = &classes[p->type - ATTN_F32][i];

        if (p->d <= k->d && p->dv <= k->dv)
            return k;
    }
    return NULL;
}

static const shapes *shapes_of(const class *k, const attn_caps *c)
{
    return k->hopper && !attn_cuda_hopper_refusal(c) ? k->hopper : &k->any;
}

static const tile *find_tile(const attn_problem *p, const attn_caps *c)
{
    enum {
        EACH_SCORE =
            ATTN_FEATURES_TERMS | ATTN_FEAT_SOFTCAP | ATTN_FEAT_PAGES | ATTN_FEAT_DROPOUT
    };
    const class *const k = find_class(p);
    const shapes *const each = shapes_of(k, c);

    if (!(p->features & EACH_SCORE) && fits(p, k, &each->large, c))
        return &each->large;
    return fits(p, k, &each->special, c) ? &each->special : NULL;
}

static int find_kind(const attn_problem *p, const class *k, const tile *t)
{
    const bool ranged = p->features & ~(uint32_t)ATTN_FEAT_LSE ||
                        attn_problem_bounded_left(p) || attn_problem_bounded_right(p);

    if (is_special(k, t))
        return p->allow_tf32 ? TF32_ALL : ALL;
    if (p->type != ATTN_F32)
        return ranged ? RANGES : PLAIN;
    return p->allow_tf32 ? TF32 : p->lk > SHORT_KEYS ? LONG : RANGES;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const class *const k = find_class(p);
    const tile *t;
    int64_t groups;

    if (c->capability < 80)
        return "wants compute capability 8.0 or more";
    if (!k)
        return "D or Dv is over 256";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (p->type == ATTN_F32 && k->d == 256 && p->lk > SHORT_KEYS && !p->allow_tf32)
        return "D or Dv over 128 leave no registers for the sums of so many keys in f32";
    if (p->type == ATTN_F32 && !p->allow_tf32 && fabsf(p->scale) > LARGEST_SCALE)
        return "so large a scale shows that TF32 keeps few bits of numbers below 2^-100";
    if (!(t = find_tile(p, c)))
        return "no tile fits the shared memory and the limit of threads";
    if (!attn_mul(attn_ceil_div(p->lq, queries_of(t)), p->b * p->hq, &groups) ||
        groups > INT32_MAX)
        return "more groups than a grid can have, 2^31 - 1";
    return NULL;
}

/* f32 in three products: 7 to 10 % faster at D 64, slower at D 128 (docs/performance_h200.md),
 * and no infinities. */
static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    return p->type == ATTN_F32 && !p->allow_tf32
               ? "takes it, but the plain cores take f32 numbers of every size"
               : NULL;
}

/* Rows of `dim` elements can be moved 16 bytes at a time. */
static bool whole(const attn_problem *p, int tensor, int64_t dim)
{
    return p->layout[tensor] == ATTN_LAYOUT_16 &&
           dim * (int64_t)attn_type_bytes(p->type) % 16 == 0;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const class *const k = find_class(p);
    const tile *const t = find_tile(p, c);
    const int kind = find_kind(p, k, t);
    const budget b = budget_of(p, k, t);

    step->kernel = k->kernels[kind];
    step->tile_q = queries_of(t);
    step->tile_k = t->bn;
    step->block = 32 * t->warps;
    attn_step_softmax(step, p, ATTN_READS_ALL | ATTN_READS_DROPOUT);
    attn_step_define(step, "WHOLE_Q", whole(p, ATTN_TENSOR_Q, p->d));
    attn_step_define(step, "WHOLE_K", whole(p, ATTN_TENSOR_K, p->d));
    attn_step_define(step, "WHOLE_V", whole(p, ATTN_TENSOR_V, p->dv));
    attn_step_define(step, "WHOLE_O", whole(p, ATTN_TENSOR_O, p->dv));
    attn_choice_instance(out, "bm%lld,bn%d,warps%d,dims%d:%d,d%lld,dv%lld,%s,%s",
                         (long long)queries_of(t), t->bn, t->warps, k->d, k->dv,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type),
                         kind_name[kind]);
    out->tile_reason = !is_special(k, t)
                           ? "large: it fits, and no single score is looked at"
                       : fits(p, k, &shapes_of(k, c)->large, c)
                           ? "special: for single scores or pages"
                           : "special: the large tile does not fit this device";
    attn_choice_budget(out, "q, the whole tile", b.q);
    attn_choice_budget(out, "k and v of a step", b.step);
    attn_choice_budget(out, "weights on their way", b.weights);
    attn_choice_budget(out, "terms of a step, keys seen", b.terms);
    attn_choice_budget(out, "the group's work", WORK_BYTES);
}

const attn_variant attn_cuda_softmax_fwd_mma_variant = {
    .name = "softmax_fwd_mma",
    .about = "fused, online softmax on tensor cores; every feature, f32 in three products",
    .features = ATTN_FEATURES_ALL | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
