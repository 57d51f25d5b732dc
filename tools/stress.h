/* SPDX-License-Identifier: MIT */
/* tools/stress.h: many runs, many threads, many contexts: the checks of one device that
 * no single problem shows. */
#ifndef ATTN_TOOLS_STRESS_H
#define ATTN_TOOLS_STRESS_H

#include <stdint.h>

#include "inputs.h"
#include "report.h"
#include "trial.h"

typedef struct stress {
    report *report;            /* records are added under REPORT_API             */
    int device;                /* place in report->device; it is open            */
    int runs;                  /* of what is repeated                            */
    const char *const *only;   /* names of variants to check; NULL: all          */
    int n_only;
} stress;

/* For each variant: `runs` runs are the same bits; a head, and a row, of a batch of 64
 * are the same bits alone. For the device: 4 threads with a plan each on one context;
 * 4 threads with one plan and a workspace each; contexts made, used and destroyed. On
 * OpenCL, from a caller's objects: a queue out of order with a wait list and an event;
 * 4 threads with one plan and a queue each. */
void stress_run(const stress *s);

/* The parts that need the OpenCL headers (opencl_queues.c; without them it reports one
 * check as skipped). `want` has run and holds the right bits; `in` are its inputs. */
void stress_queues(const stress *s, const inputs *in, const trial *want);

/* Adds a record; `what` is why it failed, or why it was skipped. */
void stress_note(const stress *s, outcome how, double start, const char *what,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));

/* THREADS times `body`, each with a trial of its own that is set up like `like` but for
 * its plan (NULL in `like`: one each) and `with`; all must give the bits of `want`. NULL,
 * or what was wrong, until the next call. */
enum { STRESS_THREADS = 4 };
const char *stress_threads(const trial *like, void *const with[STRESS_THREADS],
                           const trial *want);

#endif
