/* SPDX-License-Identifier: MIT */
/* plan/naive.h: softmax_fwd_naive and softmax_fwd_naive_copy, as the GPU back ends share
 * them: they differ in the names of their kernels. */
#ifndef ATTN_PLAN_NAIVE_H
#define ATTN_PLAN_NAIVE_H

#include "plan/plan.h"

enum { ATTN_NAIVE_BLOCK = 64 }; /* work-items of a group, where the device has so many */

enum {
    ATTN_NAIVE_PRODUCT,
    ATTN_NAIVE_COPY,
    ATTN_NAIVE_SCALE,
    ATTN_NAIVE_MASK,
    ATTN_NAIVE_SOFTMAX,
    ATTN_NAIVE_OUTPUT,
    ATTN_NAIVE_STEPS
};

/* As applicable() and lower() of a variant; `copy`: of softmax_fwd_naive_copy. */
const char *attn_naive_refusal(const attn_problem *p, const attn_caps *c, bool copy);
void attn_naive_lower(const attn_problem *p, const attn_caps *c,
                      const char *const kernel[ATTN_NAIVE_STEPS], bool copy,
                      attn_choice *out);

#endif
