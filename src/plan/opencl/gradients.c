/* SPDX-License-Identifier: MIT */
/* plan/opencl/gradients.c: the steps that OpenCL's families of the backward share. */
#include "plan/opencl/gradients.h"

#include "core/size.h"

enum {
    MOST_ITEMS = 64, /* of a group without a tile */
    MOST_LANES = 8   /* of them for one row       */
};

attn_step *attn_gradients_step(const attn_problem *p, const char *kernel, attn_over over,
                               uint32_t grad, unsigned reads, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->over = over;
    step->grad = grad;
    step->tile_q = step->tile_k = step->block = 1;
    attn_step_softmax(step, p, reads);
    return step;
}

/* A step without a tile: its groups are as large as the device lets them. */
static int64_t items_of(const attn_caps *c)
{
    int64_t items = MOST_ITEMS;

    while (items > c->max_group)
        items /= 2;
    return items;
}

void attn_gradients_delta(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const uint32_t grad = p->grad & ~(uint32_t)ATTN_GRAD_V;
    const int64_t items = items_of(c), lanes = attn_min(items, MOST_LANES);
    attn_step *step;

    if (!grad)
        return;
    step = attn_gradients_step(p, "softmax_bwd_delta", ATTN_OVER_QUERIES, grad,
                               ATTN_READS_TYPE | ATTN_READS_DV | ATTN_READS_QUERIES |
                                   ATTN_READS_KEYS | ATTN_READS_O | ATTN_READS_GRAD_O,
                               out);
    step->tile_q = items / lanes;
    step->block = items;
    attn_step_define(step, "ROWS", items / lanes);
    attn_step_define(step, "LANES_OF_ROW", lanes);
}

void attn_gradients_sinks(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step;

    if (!(p->grad & ATTN_GRAD_SINKS))
        return;
    step = attn_gradients_step(p, "softmax_bwd_sinks", ATTN_OVER_HEADS, ATTN_GRAD_SINKS,
                               ATTN_READS_QUERIES | ATTN_READS_SINKS, out);
    step->block = items_of(c);
    attn_step_define(step, "ITEMS", step->block);
}

int64_t attn_gradients_workspace(const attn_problem *p)
{
    return 4 * p->b * p->hq * p->lq;
}

const char *attn_gradients_refusal(const attn_problem *p, const attn_caps *c)
{
    return 4.0 * (double)p->b * (double)p->hq * (double)p->lq > (double)c->max_alloc_bytes
               ? "4 bytes of workspace for each query exceed the device's largest block"
               : NULL;
}
