/* SPDX-License-Identifier: MIT */
/* tools/measure.h: the ways to time a subject. */
#ifndef ATTN_TOOLS_MEASURE_H
#define ATTN_TOOLS_MEASURE_H

#include <stddef.h>

#include "ceiling.h"
#include "gemm.h"
#include "lane_cuda.h"
#include "subject.h"
#include "sweep.h"

/* REPEATED: runs one after the other, each timed, and the yardsticks in turn with them, in
 * the order A B B A. SINGLE: each run after some idle milliseconds, which leaves a GPU the
 * clock that its power allows a single launch. BLOCKS: back to back, which is what a long
 * load sees; two subjects take turns. */
typedef enum timing_way { TIMING_REPEATED, TIMING_SINGLE, TIMING_BLOCKS } timing_way;

/* What a measurement is held against; NULL: not. The first two are run in turn with it. */
typedef struct yardsticks {
    const gemm *gemm;
    const sweep *sweep;
    const ceiling *ceiling;
    const lane_cuda *lane;      /* of its device; NULL: the host does not run ahead       */
} yardsticks;

/* Measures alone: repeated, for about `seconds`, or in single launches. */
void measure(subject *s, timing_way how, double seconds, const yardsticks *against);

/* The blocks of one subject, each as ms of a run. */
typedef struct block_readings {
    double ms[256];
    size_t n, runs;
} block_readings;

/* Measures in blocks of `seconds`: A B B A, or without b: A A. A subject that takes turns
 * with several others is `a` of each call, and its readings are added up. */
void measure_blocks(subject *a, subject *b, double seconds, block_readings *of_a,
                    const yardsticks *against_a, const yardsticks *against_b);

#endif
