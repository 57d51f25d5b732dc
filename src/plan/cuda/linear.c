/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear.c: what kernels of linear attention are told of a problem. */
#include "plan/cuda/variants.h"

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
