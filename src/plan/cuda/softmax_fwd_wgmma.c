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

/* Its instances: all pairs count; ranges; those and softcap. */
enum { PLAIN, RANGES, CAPPED, N_KINDS };
static const char *const kind_name[] = { "plain", "ranges", "capped" };

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

#define KINDS(name)                                    \
    {                                                  \
        name "_plain", name "_ranges", name "_capped", \
    }
#define KERNELS(name)                                                                \
    {                                                                                \
        KINDS("softmax_fwd_wgmma_f16_" name), KINDS("softmax_fwd_wgmma_bf16_" name), \
    }

/* D 64: the exponentials take as long as the products, and three warpgroups overlap them
 * better than two (550 against 449 TFLOP/s at L 4096), in 160 registers each; a third and a
 * fourth step on its way are worth 1 to 2 % each. D 128 and 256: two, since O alone takes 64
 * and 128 registers of 232. D 128 where keys are hidden: three with 64 keys a step, which skip
 * more of what is hidden and are 1 to 2 % faster from L 2048 on, with causal; without they are
 * slower where 192 queries do not divide a short L (L 1024: 567 for 616). D 256: 64 keys, for Q
 * and two steps take 192 of the 227 KiB, and what is left has room for half of O. */
static const class classes[] = {
    { 64, false, 3, 128, 4, 4, 2, 1, KERNELS("d64") },
    { 128, true, 2, 128, 2, 2, 2, 1, KERNELS("d128") },
    { 128, false, 3, 64, 2, 2, 2, 1, KERNELS("d128") },
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

/* At D 64 two of three warpgroups have no queries in the last tile of a head, of which there are
 * few: they skip its steps in the instance with ranges, which is 2 to 3 % faster then (467 for
 * 454 TFLOP/s at L 1024, 583 for 573 at 4096). */
static bool leaves_idle(const attn_problem *p)
{
    const int64_t tile = ROWS * classes[0].groups, rest = p->lq % tile;

    return attn_max(p->d, p->dv) <= classes[0].dim && p->lq > tile && p->lq <= 22 * tile &&
           rest > 0 && rest <= ROWS;
}

static int find_kind(const attn_problem *p)
{
    const bool ranged = p->features & ~(uint32_t)ATTN_FEAT_LSE ||
                        attn_problem_bounded_left(p) || attn_problem_bounded_right(p) ||
                        leaves_idle(p);

    return p->features & ATTN_FEAT_SOFTCAP ? CAPPED : ranged ? RANGES : PLAIN;
}

static const class *find_class(const attn_problem *p)
{
    const int kind = find_kind(p);

    for (int i = 0; i < N_CLASSES; i++)
        if (attn_max(p->d, p->dv) <= classes[i].dim && (kind == PLAIN || !classes[i].plain))
            return &classes[i];
    return NULL;
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
    if (!attn_mul(attn_ceil_div(p->lq, ROWS * k->groups), p->b * p->hq, &groups) ||
        groups > INT32_MAX - c->compute_units) /* each asks for one after the last */
        return "more tiles than 2^31 - 1 less one for each group";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const class *const k = find_class(p);
    const int kind = find_kind(p);
    const bool counted = kind != PLAIN; /* tiles have different numbers of keys */
    const budget b = budget_of(k);

    step->kernel = k->kernel[p->type == ATTN_BF16][kind];
    step->tile_q = (int64_t)ROWS * k->groups;
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
    attn_choice_instance(
        out, "bm%lld,bn%d,warpgroups%d,stages%d:%d,dim%d,d%lld,dv%lld,%s,%s",
        (long long)step->tile_q, k->keys, k->groups, k->stages_k, k->stages_v, k->dim,
        (long long)p->d, (long long)p->dv, attn_type_name(p->type), kind_name[kind]);
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
