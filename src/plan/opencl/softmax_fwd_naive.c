/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_fwd_naive.c: OpenCL's names for the kernels of plan/naive.h. */
#include "plan/naive.h"
#include "plan/opencl/variants.h"

static const char *const kernels[ATTN_NAIVE_STEPS] = {
    [ATTN_NAIVE_PRODUCT] = "softmax_fwd_naive_product",
    [ATTN_NAIVE_COPY] = "softmax_fwd_naive_copy",
    [ATTN_NAIVE_SCALE] = "softmax_fwd_naive_scale",
    [ATTN_NAIVE_MASK] = "softmax_fwd_naive_mask",
    [ATTN_NAIVE_SOFTMAX] = "softmax_fwd_naive_softmax",
    [ATTN_NAIVE_OUTPUT] = "softmax_fwd_naive_output",
};

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    return attn_naive_refusal(p, c, false);
}

static const char *applicable_copy(const attn_problem *p, const attn_caps *c)
{
    return attn_naive_refusal(p, c, true);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_naive_lower(p, c, kernels, false, out);
}

static void lower_copy(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_naive_lower(p, c, kernels, true, out);
}

const attn_variant attn_opencl_softmax_fwd_naive_variant = {
    .name = "softmax_fwd_naive",
    .about = "five plain kernels over scores in memory, in place",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_ROUNDED,
    .applicable = applicable,
    .lower = lower,
};

const attn_variant attn_opencl_softmax_fwd_naive_copy_variant = {
    .name = "softmax_fwd_naive_copy",
    .about = "the same out of place, six kernels: what a copy of the scores costs",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_ROUNDED,
    .applicable = applicable_copy,
    .lower = lower_copy,
};
