/* SPDX-License-Identifier: MIT */
/* backend/opencl/linear.h: the parameters of the kernels of linear attention. */
#ifndef ATTN_OPENCL_LINEAR_H
#define ATTN_OPENCL_LINEAR_H

#include "backend/opencl/opencl.h"

/* Their values, and where each lies, in the order of the kernels of each pass. */
typedef struct attn_cl_linear {
    cl_long room[192];
} attn_cl_linear;

/* Whether a kernel is one of linear attention; its list. */
bool attn_cl_is_linear(const char *kernel);
const attn_cl_param *attn_cl_linear_params(const char *kernel, cl_uint *n);

void attn_cl_linear_fill(attn_cl_linear *a, const attn_step *step, const attn_call *call);

#endif
