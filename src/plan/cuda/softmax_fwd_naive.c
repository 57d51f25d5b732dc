/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_naive.c: CUDA's names for the kernels of plan/naive.h. */
#include "plan/cuda/variants.h"
#include "plan/naive.h"

#define STEPS(type)                                                  \
    {                                                                \
        [ATTN_NAIVE_PRODUCT] = "softmax_fwd_naive_" type "_product", \
        [ATTN_NAIVE_COPY] = "softmax_fwd_naive_" type "_copy",       \
        [ATTN_NAIVE_SCALE] = "softmax_fwd_naive_" type "_scale",     \
        [ATTN_NAIVE_MASK] = "softmax_fwd_naive_" type "_mask",       \
        [ATTN_NAIVE_SOFTMAX] = "softmax_fwd_naive_" type "_softmax", \
        [ATTN_NAIVE_OUTPUT] = "softmax_fwd_naive_" type "_output",   \
    }
static const char *const kernels[3][ATTN_NAIVE_STEPS] = { STEPS("f32"), STEPS("f16"),
                                                          STEPS("bf16") };

/* The kernels are compiled for groups of one size. */
static const char *refusal(const attn_problem *p, const attn_caps *c, bool copy)
{
    if (c->max_group < ATTN_NAIVE_BLOCK)
        return "the device takes no groups of 64 threads";
    if (p->b * p->hq > INT32_MAX)
        return "more heads of all batches than 2^31 - 1";
    return attn_naive_refusal(p, c, copy);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    return refusal(p, c, false);
}

static const char *applicable_copy(const attn_problem *p, const attn_caps *c)
{
    return refusal(p, c, true);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_naive_lower(p, c, kernels[p->type - ATTN_F32], false, out);
}

static void lower_copy(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_naive_lower(p, c, kernels[p->type - ATTN_F32], true, out);
}

const attn_variant attn_cuda_softmax_fwd_naive_variant = {
    .name = "softmax_fwd_naive",
    .about = "five plain kernels over scores in memory, in place",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_ROUNDED,
    .applicable = applicable,
    .lower = lower,
};

const attn_variant attn_cuda_softmax_fwd_naive_copy_variant = {
    .name = "softmax_fwd_naive_copy",
    .about = "the same out of place, six kernels: what a copy of the scores costs",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_ROUNDED,
    .applicable = applicable_copy,
    .lower = lower_copy,
};
