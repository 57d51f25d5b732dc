/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_bwd_mma.c: gradients on tensor cores, from compute capability 8.0 on, of
 * f16 and bf16: one pass over tiles of keys, whose groups add to dQ one after the other. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/backward.h"

/* As cuda_kernels/softmax/bwd_mma.cu has them. */
enum {
    WARP_KEYS = 16,
    WORK_BYTES = 1024,  /* what a group writes down of its own work   */
    BLOCK_BYTES = 1024, /* what the device keeps of each group's memory */
    N_TYPES = 2         /* f16, bf16 */
};

/* A tile for a class of head sizes, up to which D and Dv are padded: warps, each with 16 keys
 * whose sums its registers hold; queries of a step; groups that are to fit a multiprocessor
 * together. K, V and two steps of Q and dO have to fit the shared memory. The first that
 * does is taken: two small groups hide each other's waits. Where single scores are looked at
 * there is one tile for each class, small. */
typedef struct tile {
    int32_t dim, warps, bn, groups;
    const char *both[N_TYPES];   /* dK, dV and dQ; NULL: two kernels, as the registers */
    const char *keys[N_TYPES];   /* of a thread do not hold sums of both: dK and dQ,   */
    const char *values[N_TYPES]; /* and dV                                             */
} tile;

#define NAMES(dim, part)                                                          \
    {                                                                             \
        "softmax_bwd_mma_f16_" dim "_" part, "softmax_bwd_mma_bf16_" dim "_" part \
    }
static const tile all_tiles[] = {
    { 64, 4, 32, 1, NAMES("d64", "both_all"), { NULL }, { NULL } },
    { 128, 4, 32, 1, NAMES("d128", "both_all"), { NULL }, { NULL } },
    { 256, 4, 32, 1, { NULL }, NAMES("d256", "keys_all"), NAMES("d256", "values_all") },
};
static const tile tiles[] = {
    { 64, 4, 64, 2, NAMES("d64", "both_small"), { NULL }, { NULL } },
    { 64, 8, 64, 1, NAMES("d64", "both"), { NULL }, { NULL } },
    { 128, 4, 64, 2, NAMES("d128", "both_small"), { NULL }, { NULL } },
    { 128, 8, 64, 1, NAMES("d128", "both"), { NULL }, { NULL } },
    { 256, 8, 32, 1, { NULL }, NAMES("d256", "keys"), NAMES("d256", "values") },
    { 256, 4, 32, 1, { NULL }, NAMES("d256", "keys_small"), NAMES("d256", "values_small") },
};
enum { N_TILES = sizeof tiles / sizeof tiles[0] };
enum { N_ALL_TILES = sizeof all_tiles / sizeof all_tiles[0] };

enum { EACH_SCORE = ATTN_FEATURES_TERMS | ATTN_FEAT_SOFTCAP | ATTN_FEAT_DROPOUT };

static int64_t keys_of(const tile *t)
{
    return WARP_KEYS * t->warps;
}

/* Shared memory, line by line, as the kernel's struct has it. */
typedef struct budget {
    int64_t own, visited, pairs, rows;
} budget;

static budget budget_of(const tile *t)
{
    return (budget){
        .own = 2 * 2 * keys_of(t) * t->dim,
        .visited = 2 * 2 * 2 * t->bn * t->dim,
        .pairs = 2 * keys_of(t) * t->bn,
        .rows = 4 * 6 * t->bn + WORK_BYTES,
    };
}

static int64_t sum(budget b)
{
    return b.own + b.visited + b.pairs + b.rows;
}

static const tile *find_tile(const attn_problem *p, const attn_caps *c)
{
    const int64_t dim = attn_max(p->d, p->dv);
    const bool looks = p->features & EACH_SCORE;

    for (int i = 0; i < (looks ? N_ALL_TILES : N_TILES); i++) {
        const tile *t = looks ? &all_tiles[i] : &tiles[i];

        if (dim <= t->dim && 32 * t->warps <= c->max_group &&
            t->groups * (sum(budget_of(t)) + BLOCK_BYTES) <= c->fast_bytes + BLOCK_BYTES)
            return t;
    }
    return NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const tile *const t = find_tile(p, c);

    if (c->capability < 80)
        return "wants compute capability 8.0 or more";
    if (p->type == ATTN_F32)
        return "takes f16 and bf16, not f32";
    if (attn_max(p->d, p->dv) > tiles[N_TILES - 1].dim)
        return "D or Dv is over 256";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (!t)
        return "no tile fits the shared memory and the limit of threads";
    return attn_cuda_cores_refusal(p, c, keys_of(t), false);
}

static void add_pass(const attn_problem *p, const tile *t, const char *kernel,
                     uint32_t grad, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->over = ATTN_OVER_KEYS;
    step->grad = grad;
    step->tile_q = t->bn;
    step->tile_k = keys_of(t);
    step->block = 32 * t->warps;
    step->fast_bytes = sum(budget_of(t));
    attn_step_softmax(step, p, ATTN_CUDA_READS_BACK | ATTN_READS_DROPOUT);
    attn_step_define(step, "WHOLE_Q", attn_cuda_aligned(p, ATTN_TENSOR_Q, p->d, 8));
    attn_step_define(step, "WHOLE_K", attn_cuda_aligned(p, ATTN_TENSOR_K, p->d, 8));
    attn_step_define(step, "WHOLE_V", attn_cuda_aligned(p, ATTN_TENSOR_V, p->dv, 8));
    attn_step_define(step, "WHOLE_GRADS", attn_cuda_back_aligned(p, 8));
}

static void add_passes(const attn_problem *p, const tile *t, int type, attn_choice *out)
{
    const uint32_t qk = ATTN_GRAD_Q | ATTN_GRAD_K;
    const budget b = budget_of(t);

    if (t->both[type] && p->grad & (qk | ATTN_GRAD_V))
        add_pass(p, t, t->both[type], qk | ATTN_GRAD_V, out);
    if (!t->both[type] && p->grad & ATTN_GRAD_V)
        add_pass(p, t, t->values[type], ATTN_GRAD_V, out);
    if (!t->both[type] && p->grad & qk)
        add_pass(p, t, t->keys[type], qk, out);
    if (out->n_steps == 1)
        return; /* a bias or sinks alone */
    out->step[out->n_steps - 1].fast_bytes = 0;
    attn_choice_budget(out, "k and v, the whole tile", b.own);
    attn_choice_budget(out, "q and the gradient of o, two in turn", b.visited);
    attn_choice_budget(out, "gradients of scores", b.pairs);
    attn_choice_budget(out, "LSE and delta, the group's work", b.rows);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const tile *const t = find_tile(p, c);
    const int type = p->type - ATTN_F16;

    attn_cuda_cores_begin(p, false, out);
    add_passes(p, t, type, out);
    attn_cuda_back_bias(p, out);
    attn_cuda_cores_finish(p, false, out);
    attn_choice_instance(out, "k%lldx%d,groups%d,dim%d,d%lld,dv%lld,%s",
                         (long long)keys_of(t), t->bn, t->groups, t->dim, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "keys by queries, 16 keys a warp, whose sums its registers hold; "
                       "two small groups on a "
                       "multiprocessor where they fit, since they hide each other's waits";
}

const attn_variant attn_cuda_softmax_bwd_mma_variant = {
    .name = "softmax_bwd_mma",
    .about = "gradients on tensor cores, in one pass over tiles of keys; dQ is added up in "
             "their order",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
