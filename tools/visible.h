/* SPDX-License-Identifier: MIT */
/* tools/visible.h: which keys a query sees, worked out here and not by the library
 * that is being checked. */
#ifndef ATTN_TOOLS_VISIBLE_H
#define ATTN_TOOLS_VISIBLE_H

#include <stdint.h>

#include <attn/softmax.h>

/* Keys first .. end - 1; first == end: none. */
typedef struct visible_keys {
    int64_t first, end;
} visible_keys;

/* D or Dv as the problem means it: 0 in dim_v stands for D. */
int64_t visible_dim_v(const attn_softmax_desc *d);

/* The scale in force. */
float visible_scale(const attn_softmax_desc *d);

/* The number of keys of batch b: lens[b] clamped to 0 .. Lk; Lk if lens is NULL. */
int64_t visible_len(const attn_softmax_desc *d, const int32_t *lens, int64_t b);

/* What query i sees of a batch with `len` keys. */
visible_keys visible_of(const attn_softmax_desc *d, int64_t len, int64_t i);

/* Visible pairs (query, key) of one head, summed over all batches. */
double visible_pairs(const attn_softmax_desc *d, const int32_t *lens);

/* Floating-point operations, 2 for a multiply and an add: 2 * (D + Dv) a visible
 * pair and query head. */
double visible_flop(const attn_softmax_desc *d, const int32_t *lens);

#endif
