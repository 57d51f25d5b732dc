/* SPDX-License-Identifier: MIT */
/* tools/linear_compare.h: results of linear attention against the formula.
 *
 * For every output, batch and head
 *
 *     ||X - ref|| <= tolerance * max(||ref||, ||terms|| / 2)
 *
 * with tolerance 2e-6 for f32, 1e-3 for f16, 8e-3 for bf16, also of S, z and den, for
 * which phi may be rounded to the type; of gradients 1e-5, 3e-3 and 2e-2; of TF32 1e-3 and
 * 3e-3. The second size counts where sums cancel. A single element may be off by 20 times
 * its row's share, and by 2^-24 for f16, 2^-80 otherwise: what underflows, and what small
 * denominators make of it. What nothing was added to is exactly 0. */
#ifndef ATTN_TOOLS_LINEAR_COMPARE_H
#define ATTN_TOOLS_LINEAR_COMPARE_H

#include <stddef.h>

#include "linear_plain.h"

typedef struct linear_comparison {
    double norm;        /* worst ||X - ref|| / size of a head                       */
    double share;       /* worst error of all, as a share of what is allowed; more
                         * than 1: failed                                           */
    char what[256];     /* the worst failure, with indices and values; "": none     */
} linear_comparison;

/* Adds one output's worst to *out. Rows past the key length of a gradient are left out. */
void linear_compare(const linear_plain *want, linear_output which, const float *have,
                    linear_comparison *out);

#endif
