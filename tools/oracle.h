/* SPDX-License-Identifier: MIT */
/* tools/oracle.h: the right answer, by the double-precision variant of the host. */
#ifndef ATTN_TOOLS_ORACLE_H
#define ATTN_TOOLS_ORACLE_H

#include <attn/attn.h>

#include "inputs.h"

#define ORACLE_VARIANT "softmax_fwd_reference"

/* Rows are numbered in the order [B, Hq, Lq]; those of no query are 0. */
typedef struct oracle {
    float *o;         /* [rows, Dv], never rounded to 16 bits                        */
    float *terms;     /* [rows, Dv]: the same with |V|: the size of what was summed  */
    float *lse;       /* [rows]                                                      */
    double *score;    /* [B, Hq]: largest |s| of the visible pairs                   */
    char what[256];   /* why there is no answer                                      */
} oracle;

/* Runs it on clean inputs (hidden rows hold ordinary numbers) as an f32 problem of
 * contiguous tensors, neither packed nor paged, on a "host" context; and holds every
 * number against an evaluation of the formula in this program (plain.c). On failure
 * `out` is empty but for `what`: ATTN_ERR_NO_MEMORY if that is all that was wrong. */
attn_status oracle_run(attn_ctx *host, const inputs *in, oracle *out);

/* The |s| that stands for a head of so many pairs, with the largest |s| of one and the largest sum
 * of |terms|: an f32 score is as exact as the terms it sums, so a head of a few pairs, where all
 * may have cancelled, counts half of their size. */
double oracle_score(double most, double most_terms, long long pairs);

/* Accepts an empty one. */
void oracle_free(oracle *ref);

#endif
