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
 * plan must still work. What lies in device memory is nobody's to check before the
 * launch: there, wrong numbers must be clamped and reported. `host` is a "host" context,
 * in whose memory mistakes are made for attn_softmax_forward_host_args(). */
void misuse_run(attn_ctx *ctx, attn_ctx *host, uint64_t seed, misuse_report *report,
                void *to);

/* What the parts share. The problems that mistakes start from: calls that are right. */
typedef enum misuse_base {
    MISUSE_PLAIN,     /* key lengths, LSE                                       */
    MISUSE_TERMS,     /* bias, mask, slopes, sinks, query lengths, positions    */
    MISUSE_PACKED,    /* both sides packed                                      */
    MISUSE_PAGES,     /* pages and key lengths                                  */
    MISUSE_BASES
} misuse_base;

attn_softmax_desc misuse_problem(misuse_base base);

/* NULL if status and text are as they must be; otherwise what is wrong, until the next
 * call. */
const char *misuse_judge(attn_status have, attn_status want, const char *word);

void misuse_calls(attn_ctx *ctx, uint64_t seed, misuse_report *report, void *to);
void misuse_host(attn_ctx *ctx, attn_ctx *host, uint64_t seed, misuse_report *report,
                 void *to);

#endif
