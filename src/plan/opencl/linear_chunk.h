/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_chunk.h: tiles, segments and local memory of the kernels that take linear
 * attention in chunks, forward and backward (cl_kernels/linear/chunk.clh). */
#ifndef ATTN_PLAN_OPENCL_LINEAR_CHUNK_H
#define ATTN_PLAN_OPENCL_LINEAR_CHUNK_H

#include "plan/plan.h"

enum { ATTN_CHUNK_RESERVE = 256 }; /* bytes that drivers keep of the local memory */

/* A scan: rows and columns of its state; `adds_heads`: its outputs are sums over query heads,
 * which a group of one item keeps in local memory. */
typedef struct attn_chunk_scan {
    int64_t features, width;
    bool causal, adds_heads;
} attn_chunk_scan;

/* The numbers of an instance, as chunk.clh names them. */
typedef struct attn_chunk_shape {
    int64_t chunk, columns, items, vw, rn, rows_p, rows_o, rows_s;
} attn_chunk_shape;

/* Local memory of the step that walks, line by line. */
typedef struct attn_chunk_budget {
    int64_t queries, keys, values, pairs, state, rows;
} attn_chunk_budget;

/* false: none keeps the device's limits. */
bool attn_chunk_find_shape(const attn_chunk_scan *x, const attn_caps *c,
                           attn_chunk_shape *out);

attn_chunk_budget attn_chunk_budget_of(const attn_chunk_scan *x, const attn_chunk_shape *s);
int64_t attn_chunk_walk_bytes(const attn_chunk_scan *x, const attn_chunk_shape *s);
int64_t attn_chunk_sums_bytes(const attn_chunk_scan *x, const attn_chunk_shape *s);

/* How `units` states, or heads, with so many columns each are cut: tokens of a segment of
 * the first steps and of the last one (0: one segment), slots of each state. The causal form
 * has one segment where the heads fill the device well enough, since more want the operands a
 * second time, and a product. */
typedef struct attn_chunk_cuts {
    int64_t sums, output, slots;
} attn_chunk_cuts;

attn_chunk_cuts attn_chunk_cut_causal(const attn_chunk_scan *x, const attn_chunk_shape *s,
                                      const attn_caps *c, int64_t units, int64_t tokens);
attn_chunk_cuts attn_chunk_cut_full(const attn_chunk_scan *x, const attn_chunk_shape *s,
                                    const attn_caps *c, int64_t states, int64_t summed,
                                    int64_t units, int64_t tokens);

/* Iterations of a work-item's loops in a segment of so many tokens, of `heads` each. */
double attn_chunk_loops(const attn_chunk_scan *x, const attn_chunk_shape *s, int64_t tokens,
                        int64_t heads, int64_t slots);

/* Whether vectors of a tensor's rows lie together, on GPUs aligned as such. */
bool attn_chunk_wide(const attn_problem *p, const attn_chunk_shape *s, int tensor);

/* A step of such a kernel; `summed`: one of the first steps. */
attn_step *attn_chunk_step(const attn_problem *p, const attn_chunk_shape *s,
                           attn_chunk_cuts x, const char *kernel, bool summed,
                           attn_choice *out);

/* Whether slots are so many that a step of its own adds them up. */
bool attn_chunk_scanned(const attn_chunk_scan *x, attn_chunk_cuts cuts);

#endif
