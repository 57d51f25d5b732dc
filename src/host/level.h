/* SPDX-License-Identifier: MIT */
/* host/level.h: the fast kernels of all instruction levels; the build decides which
 * of them exist (ATTN_HAVE_...). */
#ifndef ATTN_HOST_LEVEL_H
#define ATTN_HOST_LEVEL_H

#include "host/softmax.h"

attn_host_softmax_fn attn_host_softmax_fwd_tile_generic;
attn_host_softmax_fn attn_host_softmax_fwd_tile_sse2;
attn_host_softmax_fn attn_host_softmax_fwd_tile_neon;
attn_host_softmax_fn attn_host_softmax_fwd_tile_avx2;
attn_host_softmax_fn attn_host_softmax_fwd_tile_avx512;

attn_host_softmax_fn attn_host_softmax_fwd_split_generic;
attn_host_softmax_fn attn_host_softmax_fwd_split_sse2;
attn_host_softmax_fn attn_host_softmax_fwd_split_neon;
attn_host_softmax_fn attn_host_softmax_fwd_split_avx2;
attn_host_softmax_fn attn_host_softmax_fwd_split_avx512;

attn_host_softmax_fn attn_host_softmax_bwd_tile_generic;
attn_host_softmax_fn attn_host_softmax_bwd_tile_sse2;
attn_host_softmax_fn attn_host_softmax_bwd_tile_neon;
attn_host_softmax_fn attn_host_softmax_bwd_tile_avx2;
attn_host_softmax_fn attn_host_softmax_bwd_tile_avx512;

/* Its pass for biases: how many units there are, and one of them. */
#define BIAS(level)                                                                  \
    int64_t attn_host_softmax_bwd_bias_units_##level(const attn_host_softmax *s);     \
    void attn_host_softmax_bwd_bias_##level(const attn_host_softmax *s, int64_t n,    \
                                            float *scratch);
BIAS(generic)
BIAS(sse2)
BIAS(neon)
BIAS(avx2)
BIAS(avx512)
#undef BIAS

#endif
