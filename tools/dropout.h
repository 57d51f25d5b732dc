/* SPDX-License-Identifier: MIT */
/* tools/dropout.h: what dropout keeps, worked out here and not by the library that is being
 * checked. */
#ifndef ATTN_TOOLS_DROPOUT_H
#define ATTN_TOOLS_DROPOUT_H

#include "inputs.h"

/* What the weight of a pair is multiplied by: 0, or 1 / (1 - p); without dropout 1. */
double dropout_factor(const inputs *in, int64_t b, int64_t h, int64_t i, int64_t j);

/* Words 0 .. 3 of Philox4x32-10: c has the counter, then the words. */
void dropout_philox(uint32_t c[4], uint32_t k0, uint32_t k1);

#endif
