/* SPDX-License-Identifier: MIT */
/* tools/report.h: what attn-validate found, and the forms it is told in. */
#ifndef ATTN_TOOLS_REPORT_H
#define ATTN_TOOLS_REPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <attn/attn.h>

#include "table.h"

typedef enum outcome {
    OUTCOME_PASSED,
    OUTCOME_FAILED,
    OUTCOME_SKIPPED,      /* too much work for this run          */
    OUTCOME_NO,           /* the variant does not take it; one that was found to be
                           * wrong by the library itself has failed */
    OUTCOMES
} outcome;

/* The "variants" under which wrong calls, and checks of threads, queues and contexts are
 * recorded. */
#define REPORT_CALLS "(wrong calls)"
#define REPORT_API   "(API checks)"

/* One variant at one problem, or one call or check. */
typedef struct record {
    int device;           /* place in report.device                               */
    const char *variant;  /* static, or REPORT_CALLS, REPORT_API                  */
    uint32_t traits;      /* ATTN_TRAIT_ bits of the variant                      */
    char *text;           /* the problem, or the call's name                      */
    attn_type type;
    outcome outcome;
    double norm;          /* worst ||O - ref|| / ||ref||, as compare.h counts it  */
    double share;         /* worst error as a share of what is allowed            */
    double seconds;
    char *what;           /* the failure, or the reason; NULL: none               */
} record;

enum { REPORT_TYPES = 3 };   /* f32, f16, bf16: attn_type - 1 */

/* How far apart the answers of two devices are, for each type. */
typedef struct difference {
    size_t problems[REPORT_TYPES];
    double norm[REPORT_TYPES];
    const char *text[REPORT_TYPES];
} difference;

typedef struct report_device {
    attn_device_info info;
    attn_ctx *ctx;        /* NULL: it could not be opened */
} report_device;

typedef struct report {
    report_device *device;
    int n_devices;
    record *record;
    size_t n, room;
    bool lost;                    /* memory ran out: records are missing            */
    difference *between;          /* [n_devices][n_devices], upper half used        */
    size_t n_cases;
    uint64_t seed;
    int rounds, repeat;
    double max_work;
} report;

/* All records of one variant on one device. */
typedef struct tally {
    int device;
    const char *variant;
    size_t count[OUTCOMES];
    uint32_t traits;
    size_t ran[REPORT_TYPES];     /* problems of each type that ran; 0 for calls, checks */
    double norm[REPORT_TYPES];
    const record *worst;  /* largest share of what is allowed; NULL: none  */
    double seconds;
} tally;

/* Adds a record; `text` and `what` are copied. */
void report_add(report *r, const record *one);

/* The tallies, in order of first appearance; *n of them, to be freed. NULL: no memory. */
tally *report_tally(const report *r, size_t *n);

size_t report_count(const report *r, outcome which);

/* Whether a record is of a variant at a problem. */
bool report_is_problem(const record *one);

/* What to know of a variant ("by name, rounded"), or "". */
const char *report_traits(uint32_t traits, char text[64]);

/* Whether any variant ran any problem. */
bool report_any(const report *r);

/* For people or as Markdown, on stdout. */
void report_print(const report *r, table_style style);

/* One JSON document on stdout; a JUnit file, which it closes. CLI_GO, or an exit status. */
int report_json(const report *r);
int report_junit(const report *r, FILE *to, const char *path);

void report_free(report *r);

#endif
