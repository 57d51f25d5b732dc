/* SPDX-License-Identifier: MIT */
/* tools/sweep.c: a plain read of a large buffer by all threads. */
#include "sweep.h"

#include <stdlib.h>
#include <string.h>

#include "timing.h"

enum { MEGABYTES = 256, LINE = 8 /* words of a cache line */ };

bool sweep_open(sweep *s)
{
    s->bytes = (size_t)MEGABYTES << 20;
    s->data = malloc(s->bytes);
    if (!s->data)
        return false;
    memset(s->data, 1, s->bytes);
    return true;
}

double sweep_rate(const sweep *s)
{
    const size_t lines = s->bytes / sizeof *s->data / LINE;
    const double start = timing_now();
    volatile uint64_t sink;
    uint64_t sum = 0;

#ifdef _OPENMP
#pragma omp parallel for reduction(+ : sum) schedule(static)
#endif
    for (size_t i = 0; i < lines; i++)
        for (int k = 0; k < LINE; k++)
            sum += s->data[i * LINE + (size_t)k];
    sink = sum;
    (void)sink;
    return (double)s->bytes / (timing_now() - start) / 1e9;
}

void sweep_close(sweep *s)
{
    free(s->data);
    s->data = NULL;
}
