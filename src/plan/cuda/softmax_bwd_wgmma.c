/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_bwd_wgmma.c: gradients on Hopper's tensor cores, compute capability 9.0
 * alone, of f16 and bf16: one pass over tiles of keys, as softmax_bwd_mma has it. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/backward.h"

/* As cuda_kernels/softmax/bwd_wgmma.cu has them. */
enum {
    BLOCK = 384, /* a warpgroup that loads and two with products */
    BN = 64,     /* queries of a step */
    WORK_BYTES = 4096,
    N_TYPES = 2, /* f16, bf16 */
    N_CLASSES = 3
};

/* A class of head sizes, up to which D and Dv are padded. Keys of a group: 128 where two
 * warpgroups have the sums of 64 each in their registers, 64 where one has those of dV, the
 * other those of dK. Steps of Q and of dO that are on their way or in use, slots of dS, of
 * dQ that waits to be added, and its columns: what the shared memory has room for. */
static const struct class
{
    int32_t dim, keys, stages_q, stages_o, pairs, sums, width;
    const char *all[N_TYPES], *own[N_TYPES]; /* of all three; of dK and dV */
    const char *queries[N_TYPES];            /* of dQ alone                */
} classes[N_CLASSES] = {
    { 64,
      128,
      4,
      4,
      2,
      2,
      64,
      { "softmax_bwd_wgmma_f16_d64_all", "softmax_bwd_wgmma_bf16_d64_all" },
      { "softmax_bwd_wgmma_f16_d64_keys", "softmax_bwd_wgmma_bf16_d64_keys" },
      { "softmax_bwd_wgmma_f16_d64_queries", "softmax_bwd_wgmma_bf16_d64_queries" } },
    { 128,
      128,
      2,
      2,
      2,
      1,
      128,
      { "softmax_bwd_wgmma_f16_d128_all", "softmax_bwd_wgmma_bf16_d128_all" },
      { "softmax_bwd_wgmma_f16_d128_keys", "softmax_bwd_wgmma_bf16_d128_keys" },
      { "softmax_bwd_wgmma_f16_d128_queries", "softmax_bwd_wgmma_bf16_d128_queries" } },
    { 256,
      64,
      2,
      1,
      1,
      1,
      128,
      { "softmax_bwd_wgmma_f16_d256_all", "softmax_bwd_wgmma_bf16_d256_all" },
      { "softmax_bwd_wgmma_f16_d256_keys", "softmax_bwd_wgmma_bf16_d256_keys" },
      { "softmax_bwd_wgmma_f16_d256_queries", "softmax_bwd_wgmma_bf16_d256_queries" } },
};

static int find_class(const attn_problem *p)
{
    int i = 0;

    while (i < N_CLASSES && attn_max(p->d, p->dv) > classes[i].dim)
        i++;
    return i;
}

/* Shared memory, line by line, as the kernel's struct has it. */
typedef struct budget {
    int64_t own, visited, pairs, sums, rows;
} budget;

static budget budget_of(const struct class *k)
{
    const int64_t dim = k->dim, pairs = k->keys * BN;

    return (budget){
        .own = 2 * 2 * k->keys * dim,
        .visited = (k->stages_q + k->stages_o) * 2 * BN * dim,
        .pairs = k->pairs * 2 * pairs + (k->keys == 64 ? 4 * pairs : 0), /* weights */
        .sums = k->sums * 4 * BN * k->width,
        .rows = k->stages_q * 3 * 4 * BN + WORK_BYTES,
    };
}

static int64_t sum(budget b)
{
    return b.own + b.visited + b.pairs + b.sums + b.rows;
}

static bool whole(const attn_problem *p, int tensor)
{
    return p->layout[tensor] == ATTN_LAYOUT_16;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const char *const why = attn_cuda_hopper_refusal(c);
    const int i = find_class(p);

    if (why)
        return why;
    if (p->type == ATTN_F32)
        return "takes f16 and bf16, not f32";
    if (i == N_CLASSES)
        return "D or Dv is over 256";
    if (p->d % 8 || p->dv % 8)
        return "D or Dv is no multiple of 8";
    if (!whole(p, ATTN_TENSOR_Q) || !whole(p, ATTN_TENSOR_K) || !whole(p, ATTN_TENSOR_V) ||
        !whole(p, ATTN_TENSOR_GRAD_O))
        return "wants q, k, v and the gradient of o at addresses and strides that are "
               "multiples of 16 bytes";
    if (!attn_cuda_counts(p))
        return "the tiles of so many queries or keys end beyond 2^31 - 1";
    if (c->max_group < BLOCK || sum(budget_of(&classes[i])) > c->fast_bytes)
        return "its tile does not fit the shared memory and the limit of threads";
    return attn_cuda_cores_refusal(p, c, classes[i].keys, true);
}

static void add_pass(const attn_problem *p, int i, attn_choice *out)
{
    const uint32_t own = ATTN_GRAD_K | ATTN_GRAD_V, all = ATTN_GRAD_Q | own;
    const int type = p->type - ATTN_F16;
    const budget b = budget_of(&classes[i]);
    attn_step *step = &out->step[out->n_steps];

    if (!(p->grad & all))
        return; /* sinks alone */
    out->n_steps++;
    step->kernel = !(p->grad & ATTN_GRAD_Q) ? classes[i].own[type]
                   : p->grad & own          ? classes[i].all[type]
                                            : classes[i].queries[type];
    step->over = ATTN_OVER_KEYS;
    step->grad = all;
    step->tile_q = BN;
    step->tile_k = classes[i].keys;
    step->box_q = BN;
    step->block = BLOCK;
    attn_step_softmax(step, p, ATTN_CUDA_READS_BACK);
    attn_step_define(step, "WHOLE_Q", true);
    attn_step_define(step, "WHOLE_K", true);
    attn_step_define(step, "WHOLE_V", true);
    attn_step_define(step, "WHOLE_GRADS", attn_cuda_back_aligned(p, 8));
    attn_choice_budget(out, "k and v, the whole tile", b.own);
    attn_choice_budget(out, "q and the gradient of o, some steps", b.visited);
    attn_choice_budget(out, "gradients of scores, weights", b.pairs);
    attn_choice_budget(out, "dq on its way", b.sums);
    attn_choice_budget(out, "LSE and delta, the group's work", b.rows);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const int i = find_class(p);

    (void)c;
    attn_cuda_cores_begin(p, true, out);
    add_pass(p, i, out);
    attn_cuda_cores_finish(p, true, out);
    attn_choice_instance(out, "k%dx%d,stages%d,dim%d,d%lld,dv%lld,%s", classes[i].keys, BN,
                         classes[i].stages_q, classes[i].dim, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        classes[i].keys == 64
            ? "keys by queries: one warpgroup holds the sums of dV, another those of dK"
            : "keys by queries: 64 keys a warpgroup, whose sums its registers hold";
}

const attn_variant attn_cuda_softmax_bwd_wgmma_variant = {
    .name = "softmax_bwd_wgmma",
    .about =
        "gradients on Hopper's tensor cores (wgmma), loads by TMA; dQ is added up in the "
        "order of the keys; f16, bf16",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD & ~(uint32_t)(ATTN_FEATURES_TERMS | ATTN_FEAT_SOFTCAP),
    .applicable = applicable,
    .lower = lower,
};
