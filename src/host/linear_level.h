/* SPDX-License-Identifier: MIT */
/* host/linear_level.h: the fast kernels of linear attention, of every instruction level. */
#ifndef ATTN_HOST_LINEAR_LEVEL_H
#define ATTN_HOST_LINEAR_LEVEL_H

#include "host/linear.h"

#define ATTN_LINEAR_NAME_(kernel, level) attn_host_linear_##kernel##_##level
#define ATTN_LINEAR_NAME(kernel, level)  ATTN_LINEAR_NAME_(kernel, level)
#define ATTN_LINEAR_LEVEL(kernel)        ATTN_LINEAR_NAME(kernel, ATTN_LEVEL)

#define KERNELS(level)                                  \
    attn_host_linear_fn attn_host_linear_fwd_chunk_##level; \
    attn_host_linear_fn attn_host_linear_fwd_recurrent_##level; \
    attn_host_linear_fn attn_host_linear_bwd_chunk_##level;
KERNELS(generic)
KERNELS(sse2)
KERNELS(neon)
KERNELS(avx2)
KERNELS(avx512)
#undef KERNELS

#endif
