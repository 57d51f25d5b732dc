/* SPDX-License-Identifier: MIT */
/* tools/plain.h: the formula of attn/softmax.h, written down once more, by itself. */
#ifndef ATTN_TOOLS_PLAIN_H
#define ATTN_TOOLS_PLAIN_H

#include "inputs.h"

/* One query. */
typedef struct plain_row {
    double *o, *terms;    /* [Dv]: the result, and the same with |V|         */
    double lse;
    double sum;           /* of the weights, and the sink's                  */
    double most;          /* largest |s|, and sum of |terms|, of its pairs   */
    double most_terms;
    long long pairs;      /* that it sees                                    */
} plain_row;

/* `weights` has room for Lk numbers; those of the keys in range are filled in, with those
 * of hidden keys 0, if the query sees anything. */
void plain_evaluate(const inputs *in, int64_t b, int64_t h, int64_t i, double *weights,
                    plain_row *out);

#endif
