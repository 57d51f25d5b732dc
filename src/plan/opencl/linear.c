/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear.c: what kernels of linear attention are told of a problem. */
#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    MOST_ITEMS = 64, /* of a group of the backward's first step */
    MOST_LANES = 8   /* of them for one query                   */
};

/* dV before dK: that one writes dS_in, which may lie where dS does. */
const attn_linear_scan attn_linear_scan_order[ATTN_SCANS] = { ATTN_SCAN_Q, ATTN_SCAN_V,
                                                              ATTN_SCAN_K };
const uint32_t attn_linear_scan_grads[ATTN_SCANS] = {
    ATTN_GRAD_Q,
    ATTN_GRAD_K | ATTN_GRAD_STATE,
    ATTN_GRAD_V,
};

static int64_t feature(const attn_problem *p, uint32_t bit)
{
    return (p->features & bit) != 0;
}

attn_step *attn_opencl_linear_step(const attn_problem *p, const char *kernel,
                                   attn_choice *out)
{
    const struct {
        const char *name;
        int64_t value;
    } all[] = {
        { "TYPE", p->type - ATTN_F32 },
        { "D", p->d },
        { "DV", p->dv },
        { "PHI", p->phi },
        { "FEAT_CAUSAL", feature(p, ATTN_FEAT_CAUSAL) },
        { "FEAT_NORMALIZE", feature(p, ATTN_FEAT_NORMALIZE) },
        { "FEAT_LENS_KV", feature(p, ATTN_FEAT_LENS_KV) },
        { "FEAT_STATE", feature(p, ATTN_FEAT_STATE_IN) },
        { "FEAT_DECAY", feature(p, ATTN_FEAT_DECAY) },
        { "FEAT_BETA", feature(p, ATTN_FEAT_BETA) },
        { "DECAY_TYPE", p->type_decay ? p->type_decay - ATTN_F32 : 0 },
        { "BETA_TYPE", p->type_beta ? p->type_beta - ATTN_F32 : 0 },
    };
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->over = ATTN_OVER_STATES;
    step->grouped = true;
    step->tile_q = step->tile_k = 1;
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        attn_step_define(step, all[i].name, all[i].value);
    return step;
}

void attn_opencl_linear_begin(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    int64_t items = MOST_ITEMS, lanes;
    attn_step *step = attn_opencl_linear_step(p, "linear_bwd_begin", out);

    while (items > c->max_group && items > 1)
        items /= 2;
    lanes = attn_min(items, MOST_LANES);
    step->over = ATTN_OVER_QUERIES;
    step->grouped = false;
    step->grad = p->grad & ~(uint32_t)ATTN_GRAD_V;
    step->tile_q = items / lanes;
    step->block = items;
    attn_step_define(step, "ROWS", items / lanes);
    attn_step_define(step, "LANES_OF_ROW", lanes);
}
