/* SPDX-License-Identifier: MIT */
/* plan/cuda/backward.h: the steps that variants of the backward have in common. */
#ifndef ATTN_PLAN_CUDA_BACKWARD_H
#define ATTN_PLAN_CUDA_BACKWARD_H

#include "plan/cuda/variants.h"

/* What a pass over pairs reads. */
enum {
    ATTN_CUDA_READS_BACK = (ATTN_READS_ALL & ~(unsigned)ATTN_READS_O) | ATTN_READS_GRAD_O
};

/* delta of every query, into the workspace; left out by calls that want dV alone. */
void attn_cuda_back_delta(const attn_problem *p, attn_choice *out);

/* dBias, if it is asked for, behind the step that leaves delta. */
void attn_cuda_back_bias(const attn_problem *p, attn_choice *out);

/* dSinks, if they are asked for: the last step. */
void attn_cuda_back_sinks(const attn_problem *p, attn_choice *out);

/* 4 bytes for each query. */
int64_t attn_cuda_back_workspace(const attn_problem *p);

/* NULL: such grids can be launched, with tiles of bm_q queries and bm_k keys, and the
 * device has that workspace. Otherwise why not. */
const char *attn_cuda_back_refusal(const attn_problem *p, const attn_caps *c, int64_t bm_q,
                                   int64_t bm_k);

/* Whether all rows of dO, dQ, dK and dV that there are can be moved `elements` at a time. */
bool attn_cuda_back_aligned(const attn_problem *p, int64_t elements);

/* Whether rows of `dim` elements of a tensor can. */
bool attn_cuda_aligned(const attn_problem *p, int tensor, int64_t dim, int64_t elements);

/* Of passes over tiles of keys alone, on tensor cores or in f32: the step before them, which
 * leaves what they read in the workspace; that behind them, which makes dQ of sums there, and
 * dSinks. The last says how large the workspace is. by_copy: the copy engine adds to the sums,
 * of f16 or bf16. */
void attn_cuda_cores_begin(const attn_problem *p, bool by_copy, attn_choice *out);
void attn_cuda_cores_finish(const attn_problem *p, bool by_copy, attn_choice *out);

/* As attn_cuda_back_refusal(), for groups of bm_k keys. */
const char *attn_cuda_cores_refusal(const attn_problem *p, const attn_caps *c, int64_t bm_k,
                                    bool by_copy);

#endif
