/* SPDX-License-Identifier: MIT */
/* tools/validate.h: one problem through every variant of every device. */
#ifndef ATTN_TOOLS_VALIDATE_H
#define ATTN_TOOLS_VALIDATE_H

#include <stdint.h>

#include "cases.h"
#include "report.h"

typedef struct validation {
    report *report;           /* devices are open; records are added          */
    attn_ctx *oracle;         /* a "host" context                             */
    const char *const *only;  /* names of variants to check; NULL: all        */
    int n_only;
} validation;

/* Round r of a problem, r = 0, 1, ...: inputs of another kind each time, and
 *
 *   0   plain layouts; and the last head alone must give the same bits
 *   1   other layouts; and each output left out must leave the others as they were
 *   2   K and V with one head for all (stride 0), other layouts
 *   3   other layouts, through a plan made for longer sequences; no boundary or page
 *       that must be clamped, since a plan for longer ones would clamp it elsewhere
 *
 * and so on; even rounds give a status word. Variants that round their scores to f16 get
 * tame inputs instead of those that overflow there. What a round takes is decided by the
 * problem's text and the seed, so that these two reproduce it. Adds one record a device
 * and variant. */
void validate_case(const validation *v, const case_item *item);

#endif
