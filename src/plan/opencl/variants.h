/* SPDX-License-Identifier: MIT */
/* plan/opencl/variants.h: the records of OpenCL's variants. */
#ifndef ATTN_PLAN_OPENCL_VARIANTS_H
#define ATTN_PLAN_OPENCL_VARIANTS_H

#include "plan/plan.h"

extern const attn_variant attn_opencl_linear_fwd_recurrent_variant;
extern const attn_variant attn_opencl_softmax_fwd_split_variant;
extern const attn_variant attn_opencl_softmax_fwd_tile_cpu_variant;
extern const attn_variant attn_opencl_softmax_fwd_tile_gpu_variant;
extern const attn_variant attn_opencl_softmax_fwd_math_variant;
extern const attn_variant attn_opencl_softmax_fwd_math_clblast_variant;
extern const attn_variant attn_opencl_softmax_fwd_naive_variant;
extern const attn_variant attn_opencl_softmax_fwd_naive_copy_variant;
extern const attn_variant attn_opencl_softmax_bwd_math_variant;
extern const attn_variant attn_opencl_softmax_bwd_math_clblast_variant;
extern const attn_variant attn_opencl_softmax_bwd_tile_cpu_variant;
extern const attn_variant attn_opencl_softmax_bwd_tile_gpu_variant;
extern const attn_variant attn_opencl_linear_bwd_chunk_variant;
extern const attn_variant attn_opencl_linear_bwd_recurrent_variant;
extern const attn_variant attn_opencl_linear_fwd_chunk_variant;
extern const attn_variant attn_opencl_linear_fwd_atomic_variant;
extern const attn_variant attn_opencl_linear_bwd_atomic_variant;
extern const attn_variant attn_opencl_linear_fwd_lmha_variant;
extern const attn_variant attn_opencl_linear_fwd_lmha_split_variant;
extern const attn_variant attn_opencl_linear_bwd_lmha_variant;
extern const attn_variant attn_opencl_linear_bwd_lmha_split_variant;

/* Adds a step of a kernel of linear attention, over the states of key/value heads, with the
 * defines for what the kernels are told of the problem. */
attn_step *attn_opencl_linear_step(const attn_problem *p, const char *kernel,
                                   attn_choice *out);

/* A scan of the backward, as its kernels count them; the gradients that each is for; their
 * order. */
typedef enum attn_linear_scan {
    ATTN_SCAN_Q,
    ATTN_SCAN_K,
    ATTN_SCAN_V,
    ATTN_SCANS
} attn_linear_scan;

extern const uint32_t attn_linear_scan_grads[ATTN_SCANS];
extern const attn_linear_scan attn_linear_scan_order[ATTN_SCANS];

/* The backward's first step: c of every query, at the beginning of the workspace. */
void attn_opencl_linear_begin(const attn_problem *p, const attn_caps *c, attn_choice *out);

/* Best first for such a device, ends with NULL. */
const attn_variant *const *attn_opencl_variants(const attn_caps *caps);

#endif
