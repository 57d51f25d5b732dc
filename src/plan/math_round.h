/* SPDX-License-Identifier: MIT */
/* plan/math_round.h: how much of a problem softmax_fwd_math and softmax_bwd_math compute at
 * once, with any kernels: their matrices lie in the workspace, for some (batch, key/value
 * head) pairs and some queries in a round. */
#ifndef ATTN_PLAN_MATH_ROUND_H
#define ATTN_PLAN_MATH_ROUND_H

#include "plan/plan.h"

/* What is padded to a multiple of what. */
typedef struct attn_math_units {
    int64_t queries; /* of a head                                                   */
    int64_t columns; /* queries of all heads of a pair                              */
    int64_t rows;    /* keys, and elements of a value row                           */
    int64_t elements; /* backward: elements of any row where they are columns; 0: all
                         matrices lie row after row, and Q and dO once             */
} attn_math_units;

typedef struct attn_math_limits {
    int64_t wanted_bytes; /* of a round, unless one unit of queries has more        */
    int64_t most_bytes;
    int64_t most_pairs;   /* 0: any                                                 */
    int64_t library;      /* a library counts elements in 31 bits, when all is padded
                             to this; 0: none does                                  */
    int64_t before;       /* floats of the workspace before the matrices            */
} attn_math_limits;

typedef struct attn_math_round {
    int64_t heads, queries;
    double floats; /* of all its matrices                                           */
} attn_math_round;

/* Query heads of a pair. */
int64_t attn_math_group(const attn_problem *p);

/* All pairs if they fit, else as many as do with all their queries, else one pair and half
 * of the queries, a quarter, ... down to one unit of them. false: not even those fit. */
bool attn_math_find_round(const attn_problem *p, const attn_math_units *u,
                          const attn_math_limits *l, attn_math_round *out);

#endif
