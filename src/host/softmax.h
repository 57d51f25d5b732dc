/* SPDX-License-Identifier: MIT */
/* host/softmax.h: softmax attention on the processor, as plain C functions. */
#ifndef ATTN_HOST_SOFTMAX_H
#define ATTN_HOST_SOFTMAX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <attn/plan.h>
#include <attn/softmax.h>
#include <attn/tensor.h>

#include "host/linear.h"

/* "No bound" for left and right below: larger than any distance of positions. */
#define ATTN_UNBOUNDED ((int64_t)1 << 40)

/* One execution, all checked. Tensors are views in host memory, any strides, as
 * attn/plan.h says; those of features that are not there are ATTN_TYPE_NONE, biases,
 * masks and slopes are broadcast by strides of 0. grad_bias keeps its sizes of 1, with
 * strides of 0. */
typedef struct attn_host_softmax {
    attn_args t;
    attn_type type;          /* of q, k, v, o                                 */
    int64_t batch, heads_q, heads_kv, dim_qk, dim_v;
    int64_t len_q, len_kv;   /* the most of a batch                           */
    int64_t tokens_q, tokens_k; /* packed: rows of the tensors                */
    int64_t pages, page_size;
    bool align_br;           /* query 0 stands at keys - queries of its batch */
    int64_t offset;          /* position of query 0 otherwise                 */
    int64_t left, right;     /* key j visible: i+offset-left <= j <= i+offset+right */
    float scale, softcap;    /* softcap 0: off                                */
    float dropout;           /* 0: off; seed and offset are in t              */
    int64_t tile_q, tile_k;  /* queries and keys of a tile                    */
    int64_t piece;           /* keys of a piece of the split; 0: not split    */
    int64_t round;           /* split: blocks of tile_q rows at once          */
    int threads;
    void *workspace;         /* threads * scratch bytes first, aligned to 64  */
    size_t scratch_bytes;    /* of one thread, a multiple of 64               */
} attn_host_softmax;

typedef void attn_host_softmax_fn(const attn_host_softmax *s);

/* The oracle: plain loops in double, one query at a time. */
void attn_host_softmax_fwd_reference(const attn_host_softmax *s);

/* The gradients, likewise: a row of dQ, dK or dV at a time. */
void attn_host_softmax_bwd_reference(const attn_host_softmax *s);

/* Instruction levels of the fast kernels, worst first. */
typedef struct attn_host_level {
    const char *name;        /* "sse2", "avx2", "avx512", "neon", "generic"   */
    int lanes;               /* f32 lanes of a vector                         */
    int panel;               /* queries of one register panel                 */
    attn_host_softmax_fn *softmax_fwd_tile, *softmax_fwd_split, *softmax_bwd_tile;
    attn_host_linear_fn *linear_fwd_chunk, *linear_fwd_recurrent, *linear_bwd_chunk;
} attn_host_level;

/* The best level that this processor runs (limited by name; NULL: no limit).
 * NULL if `limit` is no level of this build or the processor lacks it. */
const attn_host_level *attn_host_level_find(const char *limit);

#endif
