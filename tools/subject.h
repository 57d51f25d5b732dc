/* SPDX-License-Identifier: MIT */
/* tools/subject.h: what is timed: one variant with a problem's inputs on a device. */
#ifndef ATTN_TOOLS_SUBJECT_H
#define ATTN_TOOLS_SUBJECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <attn/attn.h>

#include "inputs.h"
#include "trial.h"

/* Times in the units of their names; what was not measured is NAN. */
typedef struct measurement {
    char device[32];            /* its selector                                           */
    char problem[256];
    char variant[64];
    char plan[512];             /* variant and instance, as attn_plan_text() writes it    */
    bool vendor;                /* a vendor's library computes it: it is none of ours     */
    attn_status status;         /* not ATTN_OK: `why` tells, and nothing was measured     */
    char why[512];

    double ms, ms_least, ms_most;   /* median of `readings`, and their range              */
    size_t readings;
    size_t runs;                /* that were timed; a reading may be of many              */
    double gflop_s;             /* problem_flop() over the median                         */
    double gb_s;                /* every tensor once, over the median                     */
    double kv_gb_s;             /* K and V once; only with few queries                    */
    double of_first;            /* how many times as fast as what it took turns with      */
    double of_peer;             /* ... as the peer                                        */
    double first_plan_ms;       /* with the compiler, unless a cache had the kernels      */
    double plan_ms;             /* the same plan again                                    */
    double enqueue_us;          /* host time of attn_execute(); NAN on "host", which is
                                 * synchronous                                            */
    double product_gflop_s;     /* the device's ceilings in this run (ceiling.h)          */
    double product_ratio;       /* gflop_s / product_gflop_s                              */
    double memory_gb_s;
    double memory_ratio;        /* gb_s / memory_gb_s                                     */
} measurement;

/* At most so many queries are bound by reading K and V. */
enum { FEW_QUERIES = 16 };

typedef struct subject {
    attn_ctx *ctx;              /* borrowed, like the inputs and the measurement          */
    const inputs *in;
    measurement *m;
    attn_plan *plan;
    trial t;
    void *copies[2];            /* of K and of V, one behind the other; NULL: not cold    */
    int64_t stride[2];          /* between them, in elements                              */
    int64_t n_copies, turn;
} subject;

/* Fills *m with NANs and the names, plans (timing it), and puts the inputs on the device:
 * `cold`, with so many copies of K and V that runs in turn read them from memory. `s` has
 * ctx, in and m. false: m->status and why tell. Close it in either case. */
bool subject_open(subject *s, const char *selector, const char *variant, bool cold);

/* The arguments of the next run. */
attn_args subject_args(subject *s);

/* Rates of m->ms. */
void subject_rates(const subject *s);

/* Notes the status of a call that failed, and why; returns it. */
attn_status subject_failed(const subject *s, attn_status st, const char *why);

void subject_close(subject *s);

#endif
