/* SPDX-License-Identifier: MIT */
/* plan/cuda/variants.c: CUDA's variants, best first. */
#include "plan/cuda/variants.h"

#include <stddef.h>

#include "core/size.h"

const int32_t attn_cuda_dim[ATTN_CUDA_DIMS] = { 64, 128, 256 };

int attn_cuda_dim_class(const attn_problem *p)
{
    int i = 0;

    while (i < ATTN_CUDA_DIMS && attn_cuda_dim[i] < attn_max(p->d, p->dv))
        i++;
    return i;
}

bool attn_cuda_counts(const attn_problem *p)
{
    enum { LARGEST_STEP = 1024 }; /* keys of all warps of a group, or queries of a tile */

    return attn_max(p->lq, p->lk) <= INT32_MAX - LARGEST_STEP;
}

const char *attn_cuda_hopper_refusal(const attn_caps *c)
{
    enum { HOPPER = 90 };

    if (c->capability != HOPPER)
        return "wants compute capability 9.0: other devices do not have its instructions";
    if (c->generic_code)
        return "the library was built without kernels for sm_90a (nvcc_archs)";
    return NULL;
}

const attn_variant *const *attn_cuda_variants(const attn_caps *caps)
{
    /* a row for each, best first */
    /* clang-format off */
    static const attn_variant *const list[] = {
        &attn_cuda_softmax_fwd_split_mma_variant, &attn_cuda_softmax_fwd_split_variant,
        &attn_cuda_softmax_fwd_wgmma_variant,     &attn_cuda_softmax_fwd_mma_variant,
        &attn_cuda_softmax_fwd_tile_variant,      &attn_cuda_softmax_fwd_math_variant,
        &attn_cuda_softmax_fwd_cudnn_variant, /* by name, as all that follow */
        &attn_cuda_softmax_fwd_naive_variant,     &attn_cuda_softmax_fwd_naive_copy_variant,
        &attn_cuda_softmax_bwd_wgmma_variant, /* gradients */
        &attn_cuda_softmax_bwd_mma_variant,       &attn_cuda_softmax_bwd_once_variant,
        &attn_cuda_softmax_bwd_tile_variant,
        &attn_cuda_softmax_bwd_math_variant,      &attn_cuda_linear_fwd_wgmma_variant,
        &attn_cuda_linear_fwd_chunk_variant,
        &attn_cuda_linear_fwd_recurrent_variant,  &attn_cuda_linear_bwd_wgmma_variant,
        &attn_cuda_linear_bwd_chunk_variant,      &attn_cuda_linear_bwd_recurrent_variant,
        &attn_cuda_linear_fwd_atomic_variant, /* where allow=nondet permits them */
        &attn_cuda_linear_bwd_atomic_variant,
        &attn_cuda_linear_fwd_lmha_variant, /* by name, as all that follow */
        &attn_cuda_linear_fwd_lmha_split_variant, &attn_cuda_linear_bwd_lmha_variant,
        &attn_cuda_linear_bwd_lmha_split_variant, NULL,
    };
    /* clang-format on */

    (void)caps;
    return list;
}
