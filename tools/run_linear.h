/* SPDX-License-Identifier: MIT */
/* tools/run_linear.h: the parts of attn-run linear. */
#ifndef ATTN_TOOLS_RUN_LINEAR_H
#define ATTN_TOOLS_RUN_LINEAR_H

#include "linear_plain.h"
#include "run.h"

/* Input files beside q, k and v; run_linear_files[] says what each is. */
enum {
    LINEAR_STATE_IN, LINEAR_Z_IN, LINEAR_DECAY, LINEAR_BETA, LINEAR_KV_LENS,
    LINEAR_GRAD_OUT, LINEAR_GRAD_STATE_OUT, LINEAR_GRAD_Z_OUT, LINEAR_FILES
};

typedef struct run_linear_file {
    const char *option;       /* "--state-in"                               */
    size_t tensor;            /* its place in attn_args                     */
} run_linear_file;

extern const run_linear_file run_linear_files[LINEAR_FILES];

/* Outputs, in the order of linear_output. */
extern const run_linear_file run_linear_outputs[LINEAR_OUTPUTS];

/* The command line. Files are NULL where they were not given. */
typedef struct linear_request {
    cli_common common;
    const char *in[RUN_INPUTS];
    const char *file[LINEAR_FILES];
    const char *out[LINEAR_OUTPUTS];
    const char *variant;
    attn_type type;           /* ATTN_TYPE_NONE: that of the file of q      */
    bool blhd;                /* files are [B, L, H, D]                     */
    bool explain;
    int64_t repeat;           /* 0: not given                               */
    attn_linear_desc desc;    /* what single options say                    */
} linear_request;

/* The arrays of one operation; of a backward problem `forward` comes first. */
typedef struct linear_arrays {
    run_input in[RUN_INPUTS];
    run_input file[LINEAR_FILES];
    npy_array out[LINEAR_OUTPUTS];
    attn_linear_desc forward, back;
    attn_args forward_args, back_args;
} linear_arrays;

/* Whether gradients are asked for. */
bool run_linear_backward(const linear_request *r);

/* Loads, checks and rounds the inputs, makes room for the outputs. CLI_GO or an exit
 * status; run_linear_free() in any case. */
int run_linear_load(const linear_request *r, linear_arrays *a);

void run_linear_free(linear_arrays *a);

#endif
