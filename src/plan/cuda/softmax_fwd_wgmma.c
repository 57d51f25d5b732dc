/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_wgmma.c: Hopper's tensor cores, compute capability 9.0 alone: f16 and
 * bf16. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/variants.h"

enum {
    WARPGROUP = 128,
    ROWS = 64,  /* queries of a warpgroup */
    PANEL = 64, /* columns that lie together */
    WORK_BYTES = 3072,
    COUNTER_BYTES = 4
};

/* Its instances: all pairs count, in two shapes; ranges; those and softcap. */
enum { PLAIN, TALL, RANGES, CAPPED, N_KINDS };
static const char *const kind_name[] = { "plain", "tall", "ranges", "capped" };

/* As cuda_kernels/softmax/fwd_wgmma.cu has them. Warpgroups with queries, keys of a step,
 * steps of K and of V, and tiles of Q, that are on their way or in use; in how many parts O
 * passes through shared memory. plain: for the first kind alone. */
typedef struct class
{
    int32_t dim;
    bool plain;
    int32_t groups, keys, stages_k, stages_v, queries, o_parts;
    const char *kernel[2][N_KINDS]; /* f16, bf16 */
} class;

#define KINDS(name)                                                  \
    {                                                                \
        name "_plain", name "_tall", name "_ranges", name "_capped", \
    }
#define KERNELS(name)                                                                \
    {                                                                                \
        KINDS("softmax_fwd_wgmma_f16_" name), KINDS("softmax_fwd_wgmma_bf16_" name), \
    }

/* D 64: the exponentials take as long as the products, and three warpgroups overlap them
 * better than two (550 against 449 TFLOP/s at L 4096), in 160 registers each; a third and a
 * fourth step on its way are worth 1 to 2 % each. D 128 and 256: two, since O alone takes 64
 * and 128 registers of 232. D 128 where keys are hidden: three with 64 keys a step, which skip
 * more of what is hidden and are 1 to 2 % faster from L 2048 on, with causal; without it depends
 * (is_tall). They begin tiles one behind another, so that three slots in a ring are worth 4 % at
 * L 1024 and 2 % at L 16384, and O passes in halves to make room for them. D 256: 64 keys,
 * for Q and two steps take 192 of the 227 KiB, and what is left has room for half of O. */
static const class classes[] = {
    { 64, false, 3, 128, 4, 4, 2, 1, KERNELS("d64") },
    { 128, true, 2, 128, 2, 2, 2, 1, KERNELS("d128") },
    { 128, false, 3, 64, 3, 3, 2, 2, KERNELS("d128") },
    { 256, false, 2, 64, 2, 2, 1, 2, KERNELS("d256") },
};
enum { N_CLASSES = sizeof classes / sizeof classes[0] };

/* Shared memory, line by line, as the kernel's struct has it. */
typedef struct budget {
    int64_t q, steps, o;
} budget;

static budget budget_of(const class *k)
{
    const int64_t bytes = 2, panels = k->dim / PANEL * PANEL;

    return (budget){
        .q = bytes * k->queries * k->groups * ROWS * panels,
        .steps = bytes * (k->stages_k + k->stages_v) * k->keys * panels,
        .o = bytes * k->groups * ROWS * panels / k->o_parts,
    };
}

static const class *class_of(const attn_problem *p, bool plain)
{
    for (int i = 0; i < N_CLASSES; i++)
        if (attn_max(p->d, p->dv) <= classes[i].dim && (plain || !classes[i].plain))
            return &classes[i];
    return NULL;
}

/* At D 128 the larger tiles and smaller steps take 3 to 4 % fewer clocks a query where keys are
 * many, but cost more power, each tile more time, and 192 often divides worse than 128: L 1024
 * 568 for 624 TFLOP/s, L 8192 and 16384 760 for 748 and 768 for 759, 64 heads of 8192 781 for
 * 748. Never by batch or heads, though those decide how well a device is filled: a row's bits
 * must not depend on them, and steps of 64 keys give others than steps of 128. */
static bool is_tall(const attn_problem *p)
{
    return class_of(p, true) != class_of(p, false) && p->lq >= 8192 && p->lk >= 8192;
}

static int find_kind(const attn_problem *p)
{
    if (p->features & ATTN_FEAT_SOFTCAP)
        return CAPPED;
    if (p->features & ~(uint32_t)ATTN_FEAT_LSE || attn_problem_bounded_left(p) ||
        attn_problem_bounded_right(p))
        return RANGES;
    return is_tall(p) ? TALL : PLAIN;
}

static const class *find_class(const attn_problem *p)
{
    return class_of(p, find_kind(p) == PLAIN);
}

/* Rows of `dim` elements can be moved 16 bytes at a time. */
static bool whole(const attn_problem *p, int tensor, int64_t dim)
{
    return p->layout[tensor] == ATTN_LAYOUT_16 &&
           dim * (int64_t)attn_type_bytes(p->type) % 16 == 0;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const char *const why = attn_cuda_hopper_refusal(c);
    const class *const k = find_class(p);
    int64_t groups;

    if (why)
        return why;
    if (p->type == ATTN_F32)
        return "takes f16 and bf16";
    if (!k)
        return "D or Dv is over 256";
    if (p->d % 8 || p->dv % 8)
        return "D or Dv is no multiple of 8";
    if (p->layout[ATTN_TENSOR_Q] != ATTN_LAYOUT_16 ||
        p->layout[ATTN_TENSOR_K] != ATTN_LAYOUT_16 ||
        p->layout[ATTN_TENSOR_V] != ATTN_LAYOUT_16)
        return "wants q, k and v at addresses and strides that are multiples of 16 bytes";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (c->max_group < WARPGROUP * (1 + k->groups))
        return "the device takes no groups of so many threads";
    if (!attn_mul(attn_ceil_div(p->lq, ROWS), p->b * p->hq, &groups) ||
        groups > INT32_MAX - c->compute_units) /* each asks for one after the last */
        return "more tiles than 2^31 - 1 less one for each group";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const class *const k = find_class(p);
    const int kind = find_kind(p);
    const bool counted = kind >= RANGES; /* tiles have different numbers of keys */
    const int32_t tile = ROWS * k->groups;
    const budget b = budget_of(k);

    step->kernel = k->kernel[p->type == ATTN_BF16][kind];
    step->tile_q = counted ? tile : ROWS; /* others may come in parts */
    step->tile_k = k->keys;
    step->box_q = ROWS;
    step->resident = c->compute_units;
    step->counted = counted;
    out->workspace_bytes = counted ? COUNTER_BYTES : 0;
    step->block = WARPGROUP * (1 + k->groups);
    attn_step_softmax(step, p, ATTN_READS_ALL);
    attn_step_define(step, "WHOLE_Q", true);
    attn_step_define(step, "WHOLE_K", true);
    attn_step_define(step, "WHOLE_V", true);
    attn_step_define(step, "WHOLE_O", whole(p, ATTN_TENSOR_O, p->dv));
    attn_choice_instance(out, "bm%d,bn%d,warpgroups%d,stages%d:%d,dim%d,d%lld,dv%lld,%s,%s",
                         tile, k->keys, k->groups, k->stages_k, k->stages_v, k->dim,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type),
                         kind_name[kind]);
    out->tile_reason = "the one of the class of head sizes, and of whether keys are hidden";
    attn_choice_budget(out, "q, the tiles on their way", b.q);
    attn_choice_budget(out, "k and v, the steps on their way", b.steps);
    attn_choice_budget(out, "o on its way", b.o);
    attn_choice_budget(out, "barriers, the group's work", WORK_BYTES);
}

const attn_variant attn_cuda_softmax_fwd_wgmma_variant = {
    .name = "softmax_fwd_wgmma",
    .about =
        "fused, online softmax on Hopper's tensor cores (wgmma), loads by TMA; f16, bf16",
    .features = ATTN_FEATURES_ALL & ~(uint32_t)(ATTN_FEATURES_TERMS | ATTN_FEAT_PAGES),
    .applicable = applicable,
    .lower = lower,
};
