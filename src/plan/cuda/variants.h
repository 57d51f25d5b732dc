/* SPDX-License-Identifier: MIT */
/* plan/cuda/variants.h: CUDA's variants. */
#ifndef ATTN_PLAN_CUDA_VARIANTS_H
#define ATTN_PLAN_CUDA_VARIANTS_H

#include "plan/plan.h"

extern const attn_variant attn_cuda_softmax_fwd_tile_variant;

/* Best first, ends with NULL. */
const attn_variant *const *attn_cuda_variants(const attn_caps *caps);

#endif
