/* SPDX-License-Identifier: MIT */
/* tools/visible.h: which keys a query sees, worked out here and not by the library
 * that is being checked. */
#ifndef ATTN_TOOLS_VISIBLE_H
#define ATTN_TOOLS_VISIBLE_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/softmax.h>

#include "inputs.h"

/* D or Dv as the problem means it: 0 in dim_v stands for D. */
int64_t visible_dim_v(const attn_softmax_desc *d);

/* The scale in force; the softcap and the dropout, 0: none. */
float visible_scale(const attn_softmax_desc *d);
float visible_softcap(const attn_softmax_desc *d);
float visible_dropout(const attn_softmax_desc *d);

/* One batch, after clamping. */
typedef struct visible_batch {
    int64_t queries, keys;        /* that count                                     */
    int64_t q_first, k_first;     /* packed: where they begin                       */
    int64_t tokens_q, tokens_k;   /* that its boundaries hold; lengths may be less  */
    int64_t position;             /* of query 0                                     */
} visible_batch;

visible_batch visible_batch_of(const inputs *in, int64_t b);

/* The page that holds keys n * page size and on of batch b. */
int64_t visible_page(const inputs *in, int64_t b, int64_t n);

/* Keys first .. end - 1 that query i has in its range; first == end: none. */
typedef struct visible_keys {
    int64_t first, end;
} visible_keys;

visible_keys visible_of(const attn_softmax_desc *d, const visible_batch *x, int64_t i);

/* Element (b, h, i, j) of an array whose sizes may be 1. */
int64_t visible_at(const int64_t size[4], int64_t b, int64_t h, int64_t i, int64_t j);

/* Whether mask and bias let query i of head h see key j, which is in its range. */
bool visible_pair(const inputs *in, int64_t b, int64_t h, int64_t i, int64_t j);

/* Whether a query sees any key. */
bool visible_any(const inputs *in, const visible_batch *x, int64_t b, int64_t h, int64_t i);

/* ATTN_CLAMPED_ bits of these lists: those that must be reported, and those that may
 * be besides, because no query needs the page. */
void visible_clamped(const inputs *in, int32_t *must, int32_t *may);

/* Pairs (query, key) in range of one head, summed over all batches, were all lengths
 * those of the problem. */
double visible_pairs(const attn_softmax_desc *d);

/* Floating-point operations, 2 for a multiply and an add: 2 * (D + Dv) a pair in range
 * and query head; backward, where the scores are computed again, 2 * (3 * D + 2 * Dv), which
 * is 2.5 times as many if D is Dv. */
double visible_flop(const attn_softmax_desc *d);

#endif
