/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear.c: what kernels of linear attention are told of a problem, and how its
 * sequence is cut. */
#include "plan/cuda/linear.h"

#include "core/size.h"

int64_t attn_cuda_linear_cut(const attn_caps *c, int64_t tokens, int64_t units,
                             int64_t blocks)
{
    const int64_t chunks = attn_ceil_div(tokens, ATTN_CUDA_CHUNK);
    const int64_t room = attn_max(c->compute_units, 1) * blocks;
    const int64_t n = attn_min(room / attn_max(units, 1), chunks / ATTN_CUDA_LEAST_CHUNKS);

    return n < 2 ? 0 : attn_ceil_div(chunks, n) * ATTN_CUDA_CHUNK;
}

attn_cuda_cut attn_cuda_linear_relay(int64_t chunks, int64_t n, int64_t sum_time)
{
    /* so that first * 100 = each * (100 + sum_time); of whole chunks the less or the more */
    int64_t each = attn_max(chunks * 100 / (n * 100 + sum_time), 1), first;

    if (each < attn_ceil_div(chunks, n) &&
        (each + 1) * (100 + sum_time) <= 100 * (chunks - (n - 1) * each))
        each++;
    first = chunks - (n - 1) * each;
    return (attn_cuda_cut){ first * ATTN_CUDA_CHUNK, each * ATTN_CUDA_CHUNK };
}

bool attn_cuda_linear_aligned(const attn_problem *p)
{
    const int64_t each = 16 / (int64_t)attn_type_bytes(p->type);

    for (int i = 0; i < attn_problem_layouts(p); i++)
        if (p->layout[i] != ATTN_LAYOUT_16)
            return false;
    return p->d % each == 0 && p->dv % each == 0;
}

void attn_cuda_linear_step(const attn_problem *p, attn_step *step)
{
    const struct {
        const char *name;
        bool there;
    } all[] = {
        { "LINEAR_CAUSAL", p->features & ATTN_FEAT_CAUSAL },
        { "LINEAR_NORMALIZE", p->features & ATTN_FEAT_NORMALIZE },
        { "LINEAR_ELU1", p->phi == ATTN_PHI_ELU1 },
        { "LINEAR_RELU", p->phi == ATTN_PHI_RELU },
        { "LINEAR_LENS_KV", p->features & ATTN_FEAT_LENS_KV },
        { "LINEAR_STATE", p->features & ATTN_FEAT_STATE_IN },
        { "LINEAR_DECAY", p->features & ATTN_FEAT_DECAY },
        { "LINEAR_BETA", p->features & ATTN_FEAT_BETA },
    };

    step->linear = true;
    step->over = ATTN_OVER_STATES;
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        attn_step_define(step, all[i].name, all[i].there);
}
