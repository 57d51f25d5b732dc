/* SPDX-License-Identifier: MIT */
/* plan/cuda/backward.c: the steps that variants of the backward have in common. */
#include "plan/cuda/backward.h"

#include "core/size.h"

/* As the kernel files have them. */
enum {
    DELTA_ROWS = 64, /* of a group, a warp for eight */
    DELTA_THREADS = 256,
    SINKS_THREADS = 256
};

static const char *const delta[] = { "softmax_bwd_delta_f32", "softmax_bwd_delta_f16",
                                     "softmax_bwd_delta_bf16" };

bool attn_cuda_aligned(const attn_problem *p, int tensor, int64_t dim, int64_t elements)
{
    return dim % elements == 0 && attn_layout_bytes(p->layout[tensor], p->type) >=
                                      elements * (int64_t)attn_type_bytes(p->type);
}

bool attn_cuda_back_aligned(const attn_problem *p, int64_t elements)
{
    return attn_cuda_aligned(p, ATTN_TENSOR_GRAD_O, p->dv, elements) &&
           (!(p->grad & ATTN_GRAD_Q) ||
            attn_cuda_aligned(p, ATTN_TENSOR_GRAD_Q, p->d, elements)) &&
           (!(p->grad & ATTN_GRAD_K) ||
            attn_cuda_aligned(p, ATTN_TENSOR_GRAD_K, p->d, elements)) &&
           (!(p->grad & ATTN_GRAD_V) ||
            attn_cuda_aligned(p, ATTN_TENSOR_GRAD_V, p->dv, elements));
}

int64_t attn_cuda_back_workspace(const attn_problem *p)
{
    return 4 * p->b * p->hq * p->lq;
}

static bool in_a_grid(int64_t tiles, int64_t heads)
{
    int64_t groups;

    return attn_mul(tiles, heads, &groups) && groups <= INT32_MAX;
}

const char *attn_cuda_back_refusal(const attn_problem *p, const attn_caps *c, int64_t bm_q,
                                   int64_t bm_k)
{
    const int64_t heads_q = p->b * p->hq, heads_kv = p->b * p->hkv;

    if (!in_a_grid(attn_ceil_div(p->lq, attn_min(bm_q, DELTA_ROWS)), heads_q) ||
        !in_a_grid(attn_ceil_div(p->lk, bm_k), heads_kv))
        return "more groups than a grid can have, 2^31 - 1";
    if (4.0 * (double)p->b * (double)p->hq * (double)p->lq > (double)c->max_alloc_bytes)
        return "4 bytes of workspace for each query exceed the device's memory";
    return NULL;
}

void attn_cuda_back_delta(const attn_problem *p, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = delta[p->type - ATTN_F32];
    step->over = ATTN_OVER_QUERIES;
    step->grad = p->grad & ~(uint32_t)ATTN_GRAD_V;
    step->tile_q = DELTA_ROWS;
    step->tile_k = 1;
    step->block = DELTA_THREADS;
    attn_step_softmax(step, p,
                      ATTN_READS_TYPE | ATTN_READS_DV | ATTN_READS_QUERIES |
                          ATTN_READS_KEYS | ATTN_READS_O | ATTN_READS_GRAD_O);
    attn_step_define(step, "WIDE_O", attn_cuda_aligned(p, ATTN_TENSOR_O, p->dv, 4));
    attn_step_define(step, "WIDE_GRADS",
                     attn_cuda_aligned(p, ATTN_TENSOR_GRAD_O, p->dv, 4));
}

void attn_cuda_back_sinks(const attn_problem *p, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps];

    if (!(p->grad & ATTN_GRAD_SINKS))
        return;
    out->n_steps++;
    step->kernel = "softmax_bwd_sinks";
    step->over = ATTN_OVER_HEADS;
    step->grad = ATTN_GRAD_SINKS;
    step->tile_q = step->tile_k = 1;
    step->block = SINKS_THREADS;
    step->fast_bytes = 4 * SINKS_THREADS;
    attn_step_softmax(step, p, ATTN_READS_QUERIES | ATTN_READS_SINKS);
}
