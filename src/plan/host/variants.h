/* SPDX-License-Identifier: MIT */
/* plan/host/variants.h: the records of the host's variants. */
#ifndef ATTN_PLAN_HOST_VARIANTS_H
#define ATTN_PLAN_HOST_VARIANTS_H

#include "plan/plan.h"

extern const attn_variant attn_host_softmax_fwd_split_variant;
extern const attn_variant attn_host_softmax_fwd_tile_variant;
extern const attn_variant attn_host_softmax_fwd_reference_variant;
extern const attn_variant attn_host_softmax_bwd_tile_variant;
extern const attn_variant attn_host_softmax_bwd_reference_variant;

extern const attn_variant attn_host_linear_fwd_reference_variant;
extern const attn_variant attn_host_linear_bwd_reference_variant;

/* Columns, or rows, of the state that the oracles of linear attention walk with. */
enum { ATTN_LINEAR_BLOCK = 32 };

/* Best first, ends with NULL. */
const attn_variant *const *attn_host_variants(const attn_caps *caps);

#endif
