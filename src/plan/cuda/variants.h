/* SPDX-License-Identifier: MIT */
/* plan/cuda/variants.h: CUDA's variants. */
#ifndef ATTN_PLAN_CUDA_VARIANTS_H
#define ATTN_PLAN_CUDA_VARIANTS_H

#include "plan/plan.h"

/* Head sizes that kernels are compiled for; D and Dv are padded up to one. */
enum { ATTN_CUDA_DIMS = 3 };
extern const int32_t attn_cuda_dim[ATTN_CUDA_DIMS]; /* ascending */

/* The place in that list; ATTN_CUDA_DIMS: D or Dv is over the largest. */
int attn_cuda_dim_class(const attn_problem *p);

/* Queries and keys whose tiles end within 31 bits, for kernels that count so. */
bool attn_cuda_counts(const attn_problem *p);

/* Why kernels of compute capability 9.0 alone do not run; NULL: they do. */
const char *attn_cuda_hopper_refusal(const attn_caps *c);

/* Adds what a kernel of linear attention reads of a problem, to a step over its states. */
void attn_cuda_linear_step(const attn_problem *p, attn_step *step);

extern const attn_variant attn_cuda_softmax_fwd_split_mma_variant;
extern const attn_variant attn_cuda_softmax_fwd_split_variant;
extern const attn_variant attn_cuda_softmax_fwd_wgmma_variant;
extern const attn_variant attn_cuda_softmax_fwd_mma_variant;
extern const attn_variant attn_cuda_softmax_fwd_tile_variant;
extern const attn_variant attn_cuda_softmax_fwd_naive_variant;
extern const attn_variant attn_cuda_softmax_fwd_naive_copy_variant;
extern const attn_variant attn_cuda_softmax_bwd_math_variant;
extern const attn_variant attn_cuda_softmax_fwd_math_variant;
extern const attn_variant attn_cuda_softmax_fwd_cudnn_variant;
extern const attn_variant attn_cuda_softmax_bwd_wgmma_variant;
extern const attn_variant attn_cuda_softmax_bwd_mma_variant;
extern const attn_variant attn_cuda_softmax_bwd_once_variant;
extern const attn_variant attn_cuda_softmax_bwd_tile_variant;
extern const attn_variant attn_cuda_linear_fwd_wgmma_variant;
extern const attn_variant attn_cuda_linear_fwd_chunk_variant;
extern const attn_variant attn_cuda_linear_fwd_recurrent_variant;
extern const attn_variant attn_cuda_linear_bwd_wgmma_variant;
extern const attn_variant attn_cuda_linear_bwd_chunk_variant;
extern const attn_variant attn_cuda_linear_bwd_recurrent_variant;
extern const attn_variant attn_cuda_linear_fwd_atomic_variant;
extern const attn_variant attn_cuda_linear_bwd_atomic_variant;
extern const attn_variant attn_cuda_linear_fwd_lmha_variant;
extern const attn_variant attn_cuda_linear_fwd_lmha_split_variant;
extern const attn_variant attn_cuda_linear_bwd_lmha_variant;
extern const attn_variant attn_cuda_linear_bwd_lmha_split_variant;

/* Best first, ends with NULL. */
const attn_variant *const *attn_cuda_variants(const attn_caps *caps);

#endif
