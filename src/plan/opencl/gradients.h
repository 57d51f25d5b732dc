/* SPDX-License-Identifier: MIT */
/* plan/opencl/gradients.h: the steps that OpenCL's families of the backward share: delta
 * before the passes over pairs, the sinks after them. */
#ifndef ATTN_PLAN_OPENCL_GRADIENTS_H
#define ATTN_PLAN_OPENCL_GRADIENTS_H

#include "plan/plan.h"

/* What passes over pairs read beside the forward's tensors; of O only delta is made. */
enum {
    ATTN_GRADIENTS_READ =
        (ATTN_READS_ALL & ~(unsigned)ATTN_READS_O) | ATTN_READS_GRAD_O | ATTN_READS_DROPOUT
};

/* Adds a step without a tile or a group yet, that reads that of the problem. */
attn_step *attn_gradients_step(const attn_problem *p, const char *kernel, attn_over over,
                               uint32_t grad, unsigned reads, attn_choice *out);

/* delta, unless V's gradient alone is asked for; groups as large as the device lets them. */
void attn_gradients_delta(const attn_problem *p, const attn_caps *c, attn_choice *out);

/* The sinks' gradient, if it is asked for. */
void attn_gradients_sinks(const attn_problem *p, const attn_caps *c, attn_choice *out);

/* Bytes of delta; NULL or why the device has no room for them. */
int64_t attn_gradients_workspace(const attn_problem *p);
const char *attn_gradients_refusal(const attn_problem *p, const attn_caps *c);

#endif
