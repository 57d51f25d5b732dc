/* SPDX-License-Identifier: MIT */
/* backend/host/host.h: the host back end's own types. */
#ifndef ATTN_BACKEND_HOST_H
#define ATTN_BACKEND_HOST_H

#include "backend/backend.h"
#include "host/linear.h"
#include "host/softmax.h"

struct attn_kernel {
    const char *name;           /* a step's kernel */
    attn_host_softmax_fn *softmax;
    attn_host_linear_fn *linear; /* one of the two */
};

enum { ATTN_HOST_KERNELS = 10 };

struct attn_device {
    struct attn_kernel kernel[ATTN_HOST_KERNELS];
};

/* Binds the functions of an instruction level to their names. */
void attn_host_kernels(attn_device *dev, const attn_host_level *level);

/* Verbs of the table (backend/backend.h). */
attn_status attn_host_kernel(attn_device *dev, const attn_step *step, const attn_kernel **out,
                             int64_t *max_group);
attn_status attn_host_launch(attn_device *dev, int n, const attn_kernel *const kernels[],
                             const attn_step steps[], const attn_call *call,
                             const attn_stream *stream);

#endif
