/* SPDX-License-Identifier: MIT */
/* tools/timing.h: a monotonic clock, and what is made of many readings. */
#ifndef ATTN_TOOLS_TIMING_H
#define ATTN_TOOLS_TIMING_H

#include <stddef.h>

/* Seconds since some moment. */
double timing_now(void);

/* Does nothing for a while. */
void timing_idle(double seconds);

/* The median of n >= 1 numbers; sorts them. */
double timing_median(double *x, size_t n);

#endif
