/* SPDX-License-Identifier: MIT */
/* tools/linear_plain.h: linear attention as its formula says, over all pairs of queries and
 * keys, in double: what results of the library are held against. */
#ifndef ATTN_TOOLS_LINEAR_PLAIN_H
#define ATTN_TOOLS_LINEAR_PLAIN_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/linear.h>

/* Results of one problem. Of each array `terms` is as large: the root of the sum of the
 * squares of what was summed, which is what rounding can hurt where the sum cancels. */
typedef struct linear_result {
    double *value, *terms;
} linear_result;

/* In the order of attn_args. */
typedef enum linear_output {
    LINEAR_O,              /* [B, Hq, Lq, Dv]                                        */
    LINEAR_STATE_OUT,      /* [B, Hkv, D, Dv]                                        */
    LINEAR_Z_OUT,          /* [B, Hkv, D]                                            */
    LINEAR_DEN,            /* [B, Hq, Lq]                                            */
    LINEAR_GRAD_Q,         /* [B, Hq, Lq, D]                                         */
    LINEAR_GRAD_K,         /* [B, Hkv, Lk, D]                                        */
    LINEAR_GRAD_V,         /* [B, Hkv, Lk, Dv]                                       */
    LINEAR_GRAD_STATE_IN,  /* [B, Hkv, D, Dv]                                        */
    LINEAR_GRAD_Z_IN,      /* [B, Hkv, D]                                            */
    LINEAR_OUTPUTS
} linear_output;

/* "grad_state_in" */
const char *linear_output_name(linear_output which);

/* Contiguous arrays; those that the problem has not are NULL. */
typedef struct linear_plain {
    attn_linear_desc desc;           /* the sizes of the call                        */
    const double *q, *k, *v;
    const int32_t *lens;             /* [B], clamped here                            */
    const double *state_in, *z_in;
    const double *decay, *beta;      /* [B, Hkv, Lk, D] and [B, Hkv, Lk]             */
    const double *grad_o, *grad_state_out, *grad_z_out;
    linear_result out[LINEAR_OUTPUTS];
} linear_plain;

/* Sizes of an output: batch, heads, rows, elements of a row; and how many in all. */
void linear_output_size(const attn_linear_desc *d, linear_output which, int64_t size[4]);
int64_t linear_output_count(const attn_linear_desc *d, linear_output which);

/* Whether a problem has it; a gradient: whether it asks for it. */
bool linear_output_wanted(const attn_linear_desc *d, linear_output which);

/* Keys of batch b that are there; those that reach its state. */
int64_t linear_plain_length(const linear_plain *p, int64_t b);
int64_t linear_plain_keys(const linear_plain *p, int64_t b);

/* Fills `out` with what the problem has, forward and, with ATTN_LINEAR_GRAD, backward.
 * false: no memory, and `out` is empty. */
bool linear_plain_run(linear_plain *p);

/* Frees `out`. */
void linear_plain_free(linear_plain *p);

#endif
