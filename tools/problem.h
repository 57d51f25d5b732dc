/* SPDX-License-Identifier: MIT */
/* tools/problem.h: a problem of either operation. */
#ifndef ATTN_TOOLS_PROBLEM_H
#define ATTN_TOOLS_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>

#include <attn/attn.h>

typedef struct problem {
    bool is_linear;            /* which of the two it is */
    attn_softmax_desc softmax;
    attn_linear_desc linear;
} problem;

problem problem_of_softmax(const attn_softmax_desc *desc);
problem problem_of_linear(const attn_linear_desc *desc);

/* As the library's functions of each operation. */
attn_status problem_parse(const char *text, problem *out);
attn_status problem_text(const problem *p, char *text, size_t cap, size_t *len);
attn_status problem_plan(attn_ctx *ctx, const problem *p, const attn_options *options,
                         attn_plan **out);
attn_status problem_variants(attn_ctx *ctx, const problem *p, attn_variant_info *out,
                             size_t cap, size_t *n);
attn_status problem_explain(attn_ctx *ctx, const problem *p, const attn_options *options,
                            char *text, size_t cap, size_t *len);

attn_type problem_type(const problem *p);

/* Floating-point operations, 2 for a multiply and an add: visible_flop(), or of linear
 * attention in chunks of 64 tokens 4 D Dv + 2 * 64 (D + Dv) a query (half of them a key's),
 * in the full form without the second part; backward 2.5 times as many. */
double problem_flop(const problem *p);

/* "gradients", "linear attention", "gradients of linear attention": what a back end without
 * variants for it lacks. */
const char *problem_kind(const problem *p);

#endif
