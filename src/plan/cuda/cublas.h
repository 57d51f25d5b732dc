/* SPDX-License-Identifier: MIT */
/* plan/cuda/cublas.h: what the unfused variants share, forward and backward: rounds of f32
 * matrices, kernels that move them, products by cuBLAS. */
#ifndef ATTN_PLAN_CUDA_CUBLAS_H
#define ATTN_PLAN_CUDA_CUBLAS_H

#include "plan/cuda/variants.h"
#include "plan/math_round.h"

/* As cuda_kernels/softmax/math.cuh has them. */
enum {
    ATTN_CUBLAS_THREADS = 128,
    ATTN_CUBLAS_CHUNK = 16 /* rows of a tensor that a group moves */
};

/* Why the device runs none of them; NULL: it does. */
const char *attn_cublas_refusal(const attn_problem *p, const attn_caps *c);

/* With so many floats of the workspace before the matrices. false: attn_cublas_too_long. */
bool attn_cublas_round(const attn_problem *p, const attn_caps *c, int64_t before,
                       attn_math_round *out);
extern const char attn_cublas_too_long[];

/* Adds a step by a kernel of ours, whose groups take so many queries; or by cuBLAS. */
attn_step *attn_cublas_kernel(const attn_problem *p, const attn_math_round *round,
                              const char *kernel, int64_t queries, attn_choice *out);
attn_step *attn_cublas_product(const attn_problem *p, const attn_math_round *round,
                               const char *kernel, attn_choice *out);

/* All steps are there: has them run in rounds, names the instance, counts the workspace. */
void attn_cublas_describe(const attn_problem *p, const attn_math_round *round,
                          int64_t before, attn_choice *out);

#endif
