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

#endif
