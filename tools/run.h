/* SPDX-License-Identifier: MIT */
/* tools/run.h: the parts of attn-run: what was asked for, arrays, repeated runs. */
#ifndef ATTN_TOOLS_RUN_H
#define ATTN_TOOLS_RUN_H

#include "cli.h"
#include "npy.h"

/* The command line. Files are NULL where they were not given. */
typedef struct run_request {
    cli_common common;
    const char *operation;
    const char *q, *k, *v, *out, *lse, *kv_lens;
    const char *variant;
    attn_type type;           /* ATTN_TYPE_NONE: that of the file of q      */
    bool blhd;                /* files are [B, L, H, D]                     */
    bool explain;
    int64_t repeat;           /* 0: not given                               */
    int causal, align;        /* an attn_align; -1: not given               */
    attn_softmax_desc desc;   /* offset, window, scale and softcap          */
} run_request;

/* The arrays of one operation. 16-bit data are kept as NPY_F2, bf16 too. */
typedef struct run_arrays {
    npy_array q, k, v, lens;
    npy_array out, lse;       /* shapes as the files will have them         */
    attn_softmax_desc desc;   /* the whole problem, layouts included        */
    attn_args args;           /* views of the arrays in host memory         */
} run_arrays;

/* Loads, checks and rounds the inputs, makes room for the outputs. The message
 * of what is wrong names the file. CLI_GO or an exit status; run_free() in any
 * case. */
int run_load(const run_request *request, run_arrays *arrays);

/* Whether the outputs can be written where they are wanted. */
int run_check_outputs(const run_request *request);

/* Writes the outputs. */
int run_save(const run_request *request, run_arrays *arrays);

void run_free(run_arrays *arrays);

/* Repeated runs: times by the device's clock, and where bits differed. */
typedef struct run_times {
    char *plan;               /* the plan's text                            */
    uint64_t *ns;             /* of each run                                */
    int64_t runs;             /* done                                       */
    uint64_t median_ns, least_ns, most_ns;
    char differs[192];        /* "": all runs gave the same bits            */
} run_times;

/* Plans once, uploads once, runs `runs` times on the device and leaves the first
 * result in the arrays. CLI_GO also if runs differ; run_times_free() in any
 * case. */
int run_repeat(attn_ctx *ctx, const run_request *request, run_arrays *arrays, int64_t runs,
               run_times *times);

void run_times_free(run_times *times);

#endif
