/* SPDX-License-Identifier: MIT */
/* backend/opencl/linear.h: the parameters of the kernels of linear attention. */
#ifndef ATTN_OPENCL_LINEAR_H
#define ATTN_OPENCL_LINEAR_H

#include "backend/opencl/opencl.h"

/* Their values, and where each lies. */
typedef struct attn_cl_linear {
    cl_long room[128]; /* no device must take more */
} attn_cl_linear;

extern const attn_cl_param attn_cl_linear_params[];
extern const cl_uint attn_cl_n_linear_params;

void attn_cl_linear_fill(attn_cl_linear *a, const attn_call *call);

#endif
