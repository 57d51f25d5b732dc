/* SPDX-License-Identifier: MIT */
/* tools/compare.h: results against the oracle: norms, single elements, exact cases.
 *
 * For every batch and query head
 *
 *     ||O - ref|| <= (tolerance + 4 * 2^-24 * max|s|) * ||ref||
 *
 * with tolerance 2e-6 for f32, 1e-3 for f16, 8e-3 for bf16; a single element may be
 * off by 20 times its row's share of that, and by 2^-24 for f16, 2^-96
 * otherwise: what underflows. LSE is within 1e-5 |LSE| + 1e-6 for f32
 * and 1e-6 |LSE| + 1e-3 otherwise, and the same 4 * 2^-24 * max|s|. Variants that round
 * their scores to the type (ATTN_TRAIT_ROUNDED) are a class of their own: a score may be
 * off by 3 * u * max|s| (product, scale and terms are rounded), u = 2^-11 for f16 and 2^-8
 * for bf16, so that a weight may be off by that part of itself and their sum too: 6 * u *
 * max|s| is added to the tolerance, and 3 * u * max|s| to that of the LSE. Rows that see no
 * key are exactly 0, and -inf or the sink; all others are finite. */
#ifndef ATTN_TOOLS_COMPARE_H
#define ATTN_TOOLS_COMPARE_H

#include "inputs.h"
#include "oracle.h"

/* Heads with larger |s| are left out of figures that are compared with others: there
 * the score's own rounding is most of the error. */
#define COMPARE_SCORES 16

typedef struct comparison {
    double norm;        /* worst ||O - ref|| / ||ref|| of a head, |s| <= COMPARE_SCORES */
    double share;       /* worst error of all, as a share of what is allowed; more
                         * than 1: failed                                            */
    char what[256];     /* the worst failure, with indices and values; "": none      */
} comparison;

/* `o` [rows, Dv] and `lse` [rows] are the results, either NULL if not there; `rounded`:
 * of a variant that rounds its scores. */
void compare(const inputs *in, const oracle *ref, const float *o, const float *lse,
             bool rounded, comparison *out);

/* Worst ||a - b|| / ||b|| of a head with |s| <= COMPARE_SCORES, both results for `in`. */
double compare_results(const inputs *in, const oracle *ref, const float *a, const float *b);

#endif
