/* SPDX-License-Identifier: MIT */
/* tools/sweep.h: reading memory once and nothing else: what bounds few queries on many
 * keys. */
#ifndef ATTN_TOOLS_SWEEP_H
#define ATTN_TOOLS_SWEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sweep {
    uint64_t *data;   /* NULL: no memory for it   */
    size_t bytes;
} sweep;

/* Makes a buffer far larger than the caches. false: no memory. */
bool sweep_open(sweep *s);

/* Reads it once with all threads of OpenMP and returns the rate in GB/s. */
double sweep_rate(const sweep *s);

/* Accepts one that did not open. */
void sweep_close(sweep *s);

#endif
