/* SPDX-License-Identifier: MIT */
/* backend/cuda/maps.h: tensor maps of a launch. */
#ifndef ATTN_CUDA_MAPS_H
#define ATTN_CUDA_MAPS_H

#include "backend/cuda/cuda.h"
#include "common/maps.h"

/* Of a step with box_q. Strides of 0 or below, which no map can have, and drivers without
 * maps leave out->there 0: the kernel then goes without. */
void attn_cu_make_maps(const attn_device *dev, const attn_step *step, const attn_call *call,
                       attn_maps *out);

#endif
