/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_mma.c: f16 and bf16 on tensor cores, from compute capability 8.0
 * on. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/variants.h"

enum {
    WORK_BYTES = 512, /* what a group writes down of its own work */
    N_CLASSES = 6,
    N_TYPES = 2
};

/* As cuda_kernels/softmax/fwd_mma.cu has them: warps, 16-row operands of a warp, keys of a
 * step, slots of the ring. */
typedef struct tile {
    int32_t warps, mt, bn, slots;
} tile;

/* Classes of head sizes: D and Dv are padded up to one. Large: 128 queries, so that K and V
 * come from the second cache at no more than it can give. 32 rows a warp halve what is loaded
 * from shared memory, and fit the registers up to 128 columns of O. Special: the instances
 * that look at single scores, with 32 KiB of terms; and for less shared memory than the
 * large tile wants, within the 99 KiB of compute capability 8.6. */
static const struct class
{
    int32_t d, dv;
    tile large, special;
} classes[N_CLASSES] = {
    { 64, 64, { 4, 2, 64, 3 }, { 4, 2, 64, 2 } },
    { 96, 96, { 4, 2, 64, 3 }, { 4, 2, 64, 2 } },
    { 128, 128, { 4, 2, 64, 3 }, { 4, 2, 64, 2 } },
    { 192, 128, { 8, 1, 64, 2 }, { 4, 1, 32, 2 } },
    { 192, 192, { 8, 1, 64, 2 }, { 4, 1, 32, 2 } },
    { 256, 256, { 8, 1, 64, 2 }, { 4, 1, 32, 2 } },
};

/* Features are data to the kernels; plain knows no ranges of keys at all, ranges those, all
 * the features of single scores, pages, and rows that don't come 16 bytes at a time. */
enum { PLAIN, RANGES, ALL, N_KINDS };

#define KINDS(type, dims)                                                              \
    {                                                                                  \
        "softmax_fwd_mma_" type dims "_plain", "softmax_fwd_mma_" type dims "_ranges", \
            "softmax_fwd_mma_" type dims "_all"                                        \
    }
#define CLASSES(type)                                                               \
    {                                                                               \
        KINDS(type, "_d64"), KINDS(type, "_d96"), KINDS(type, "_d128"),             \
            KINDS(type, "_d192_dv128"), KINDS(type, "_d192"), KINDS(type, "_d256"), \
    }
static const char *const kernels[N_TYPES][N_CLASSES][N_KINDS] = { CLASSES("f16"),
                                                                  CLASSES("bf16") };

/* Shared memory, line by line, as the kernel's struct has it. */
typedef struct budget {
    int64_t q, ring, terms;
} budget;

static int64_t queries_of(const tile *t)
{
    return 16 * t->warps * t->mt;
}

static budget budget_of(const struct class *k, const tile *t)
{
    return (budget){
        .q = 2 * queries_of(t) * k->d,
        .ring = 2 * t->slots * t->bn * attn_max(k->d, k->dv),
        .terms = t == &k->special ? 4 * (queries_of(t) + 2) * t->bn : 0,
    };
}

static bool fits(const struct class *k, const tile *t, const attn_caps *c)
{
    const budget b = budget_of(k, t);

    return 32 * t->warps <= c->max_group &&
           b.q + b.ring + b.terms + WORK_BYTES <= c->fast_bytes;
}

/* NULL: D or Dv is over the largest. */
static const struct class *find_class(const attn_problem *p)
{
    for (int i = 0; i < N_CLASSES; i++)
        if (p->d <= classes[i].d && p->dv <= classes[i].dv)
            return &classes[i];
    return NULL;
}

/* Rows of `dim` elements can be moved 16 bytes at a time. */
static bool whole(const attn_problem *p, int tensor, int64_t dim)
{
    return p->layout[tensor] == ATTN_LAYOUT_16 && dim % 8 == 0;
}

static bool all_whole(const attn_problem *p)
{
    return whole(p, ATTN_TENSOR_Q, p->d) && whole(p, ATTN_TENSOR_K, p->d) &&
           whole(p, ATTN_TENSOR_V, p->dv) && whole(p, ATTN_TENSOR_O, p->dv);
}

static const tile *find_tile(const attn_problem *p, const attn_caps *c)
{
    enum { EACH_SCORE = ATTN_FEATURES_TERMS | ATTN_FEAT_SOFTCAP | ATTN_FEAT_PAGES };
    const struct class *const k = find_class(p);
    const bool special = p->features & EACH_SCORE || !all_whole(p);

    if (!special && fits(k, &k->large, c))
        return &k->large;
    return fits(k, &k->special, c) ? &k->special : NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const tile *t;
    int64_t groups;

    if (p->type == ATTN_F32)
        return "takes f16 and bf16, not f32";
    if (c->capability < 80)
        return "wants compute capability 8.0 or more";
    if (!find_class(p))
        return "D or Dv is over 256";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (!(t = find_tile(p, c)))
        return "no tile fits the shared memory and the limit of threads";
    if (!attn_mul(attn_ceil_div(p->lq, queries_of(t)), p->b * p->hq, &groups) ||
        groups > INT32_MAX)
        return "more groups than a grid can have, 2^31 - 1";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const struct class *const k = find_class(p);
    const tile *const t = find_tile(p, c);
    const budget b = budget_of(k, t);
    const bool ranged = p->features & ~(uint32_t)ATTN_FEAT_LSE ||
                        attn_problem_bounded_left(p) || attn_problem_bounded_right(p);
    const int kind = t == &k->special ? ALL : ranged ? RANGES : PLAIN;
    static const char *const kind_name[] = { "plain", "ranges", "all" };

    step->kernel = kernels[p->type - ATTN_F16][k - classes][kind];
    step->tile_q = queries_of(t);
    step->tile_k = t->bn;
    step->block = 32 * t->warps;
    attn_step_softmax(step, p);
    attn_step_define(step, "WHOLE_Q", whole(p, ATTN_TENSOR_Q, p->d));
    attn_step_define(step, "WHOLE_K", whole(p, ATTN_TENSOR_K, p->d));
    attn_step_define(step, "WHOLE_V", whole(p, ATTN_TENSOR_V, p->dv));
    attn_step_define(step, "WHOLE_O", whole(p, ATTN_TENSOR_O, p->dv));
    attn_choice_instance(out, "bm%lld,bn%d,warps%d,slots%d,dims%d:%d,d%lld,dv%lld,%s,%s",
                         (long long)queries_of(t), t->bn, t->warps, t->slots, k->d, k->dv,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type),
                         kind_name[kind]);
    out->tile_reason = kind != ALL ? "large: it fits, and rows come 16 bytes at a time"
                       : all_whole(p)
                           ? "special: for single scores or pages, or the large tile does "
                             "not fit this device"
                           : "special: some rows do not come 16 bytes at a time";
    attn_choice_budget(out, "q, the whole tile", b.q);
    attn_choice_budget(out, "k and v, a ring of slots", b.ring);
    attn_choice_budget(out, "terms of a step, keys seen", b.terms);
    attn_choice_budget(out, "the group's work", WORK_BYTES);
}

const attn_variant attn_cuda_softmax_fwd_mma_variant = {
    .name = "softmax_fwd_mma",
    .about = "fused, online softmax on tensor cores; f16 and bf16, every feature",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_BY_NAME,
    .applicable = applicable,
    .lower = lower,
};
