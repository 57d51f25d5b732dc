/* SPDX-License-Identifier: MIT */
/* backend/cuda/linear.h: the parameters of the kernels of linear attention. */
#ifndef ATTN_CUDA_LINEAR_H
#define ATTN_CUDA_LINEAR_H

#include "backend/cuda/cuda.h"
#include "common/params.h"

/* Fills in those of a kernel that has k->linear. */
void attn_cu_linear_fill(attn_linear_kparams *a, const attn_kernel *k, const attn_step *step,
                         const attn_call *call);

#endif
