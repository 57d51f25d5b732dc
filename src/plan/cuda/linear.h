/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear.h: what the variants of linear attention in chunks share. */
#ifndef ATTN_PLAN_CUDA_LINEAR_H
#define ATTN_PLAN_CUDA_LINEAR_H

#include "plan/cuda/variants.h"

/* As cuda_kernels/linear/chunk.cuh, chunk_rows.cuh and fwd_scan.cu have them. */
enum {
    ATTN_CUDA_CHUNK = 64,
    ATTN_CUDA_SCAN_COLUMNS = 64,
    ATTN_CUDA_THREADS = 128,
    ATTN_CUDA_WARPS = ATTN_CUDA_THREADS / 32,
    ATTN_CUDA_SCAN_THREADS = 256,
    ATTN_CUDA_BEGIN_ROWS = 16 /* bwd_chunk_begin.cu */
};

enum {
    ATTN_CUDA_LEAST_PIECE = 128, /* tokens of an only segment: a self-test has 67  */
    ATTN_CUDA_LEAST_CHUNKS = 4,  /* of a segment, since its state costs as much as
                                      some rows                                      */
    ATTN_CUDA_MOST_ADDED = 8     /* states of segments that a walk adds up itself  */
};

/* Tokens of a segment, so that all groups run at once, `units` groups of each segment and so
 * many `blocks` on a multiprocessor; 0: one segment. */
int64_t attn_cuda_linear_cut(const attn_caps *c, int64_t tokens, int64_t units,
                             int64_t blocks);

/* Tokens of the first of some segments, and of each of the others. */
typedef struct attn_cuda_cut {
    int64_t lead, piece;
} attn_cuda_cut;

/* `n` segments, two or more, whose groups hand on states in one launch: the first group walks over
 * what each of the others sums up and walks over in the same time. To sum up a chunk takes
 * `sum_time` hundredths of the time to walk over one (cuda_kernels/linear/wgmma_relay.cuh). */
attn_cuda_cut attn_cuda_linear_relay(int64_t chunks, int64_t n, int64_t sum_time);

/* Whether all rows are moved 16 bytes at a time, and 16 divides their bytes. */
bool attn_cuda_linear_aligned(const attn_problem *p);

/* The step that finds numbers of queries: what divides them, and what the normaliser adds to
 * their pairs; in f16 their lifts, too. */
void attn_cuda_linear_begin(const attn_problem *p, attn_choice *out);

#endif
