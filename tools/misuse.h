/* SPDX-License-Identifier: MIT */
/* tools/misuse.h: calls that must fail on a device, and how. */
#ifndef ATTN_TOOLS_MISUSE_H
#define ATTN_TOOLS_MISUSE_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/attn.h>

/* One mistake: its name, and what was wrong with the answer to it; NULL: nothing. */
typedef void misuse_report(void *to, const char *name, const char *wrong);

/* Makes every mistake once on a small problem: the status must be the documented
 * one, its text must name the argument, and no output may be written. Then the same
 * plan must still work. */
void misuse_run(attn_ctx *ctx, uint64_t seed, misuse_report *report, void *to);

#endif
