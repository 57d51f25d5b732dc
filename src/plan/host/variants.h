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
extern const attn_variant attn_host_linear_fwd_chunk_variant;
extern const attn_variant attn_host_linear_fwd_recurrent_variant;
extern const attn_variant attn_host_linear_bwd_chunk_variant;
extern const attn_variant attn_host_linear_bwd_reference_variant;

/* Columns, or rows, of the state that the oracles of linear attention walk with. */
enum { ATTN_LINEAR_BLOCK = 32 };

/* Scratch of one thread of a chunked kernel, in floats, as src/host/linear_scan.h lays it
 * out. */
typedef struct attn_linear_scratch {
    int64_t rows, columns, state, pairs, rest;
} attn_linear_scratch;

/* Fills the step but for its kernel: rows of up to `wide` numbers, units of some of up to
 * `narrow` columns, `all` columns of a state together. And says so. */
attn_linear_scratch attn_linear_tile(const attn_problem *p, const attn_caps *c,
                                     int64_t wide, int64_t narrow, int64_t all,
                                     attn_step *step);
void attn_linear_explain_tile(const attn_problem *p, const attn_caps *c,
                              attn_linear_scratch s, attn_choice *out);

/* Best first, ends with NULL. */
const attn_variant *const *attn_host_variants(const attn_caps *caps);

#endif
