/* SPDX-License-Identifier: MIT */
/* tools/run.h: the parts of attn-run: what was asked for, arrays, features, repeats. */
#ifndef ATTN_TOOLS_RUN_H
#define ATTN_TOOLS_RUN_H

#include "cli.h"
#include "npy.h"

/* The input files of single features; run_files[] says what each is. */
enum {
    RUN_BIAS, RUN_MASK, RUN_ALIBI, RUN_SINKS, RUN_Q_LENS, RUN_KV_LENS, RUN_OFFSETS,
    RUN_CU_Q, RUN_CU_K, RUN_BLOCK_TABLE, RUN_FILES
};

typedef struct run_file {
    const char *option;       /* "--bias"                                   */
    const char *name;         /* "bias", in JSON                            */
    uint32_t use;             /* the ATTN_USE_ bit that it sets             */
    size_t tensor;            /* its place in attn_args                     */
} run_file;

extern const run_file run_files[RUN_FILES];

/* Gradients: those that are given, and those to write. */
enum { RUN_GRAD_OUT, RUN_GRAD_LSE, RUN_GIVEN };
enum { RUN_GRAD_Q, RUN_GRAD_K, RUN_GRAD_V, RUN_GRAD_BIAS, RUN_GRAD_SINKS, RUN_GRADS };

typedef struct run_grad {
    const char *option;       /* "--grad-q"                                 */
    const char *name;         /* "grad_q", in JSON                          */
    size_t tensor;            /* its place in attn_args                     */
    uint32_t bit;             /* ATTN_GRAD_                                 */
} run_grad;

extern const run_grad run_given[RUN_GIVEN], run_grads[RUN_GRADS];

/* The command line. Files are NULL where they were not given. */
typedef struct run_request {
    cli_common common;
    const char *operation;
    const char *q, *k, *v, *out, *lse;
    const char *file[RUN_FILES];
    const char *given[RUN_GIVEN], *grad[RUN_GRADS];
    const char *variant;
    attn_type type;           /* ATTN_TYPE_NONE: that of the file of q      */
    bool blhd;                /* files are [B, L, H, D]                     */
    bool explain;
    int64_t repeat;           /* 0: not given                               */
    int64_t splits;           /* 0: not given                               */
    int causal, align;        /* an attn_align; -1: not given               */
    attn_softmax_desc desc;   /* offset, window, scale, softcap, page size,
                               * dropout                                    */
    int64_t seed, dropout_offset; /* -1: not given                          */
} run_request;

/* One of q, k, v: its file, and its sizes in the order B, H, L, D. */
typedef struct run_input {
    const char *file;
    npy_array array;
    int64_t size[4];
} run_input;

enum { RUN_Q, RUN_K, RUN_V, RUN_INPUTS };

/* The arrays of one operation. 16-bit data are kept as NPY_F2, bf16 too. */
typedef struct run_arrays {
    run_input in[RUN_INPUTS];
    npy_array extra[RUN_FILES];
    npy_array out, lse;       /* shapes as the files will have them; a backward
                               * problem has both, wanted or not            */
    run_input given[RUN_GIVEN];
    npy_array grad[RUN_GRADS];
    attn_softmax_desc desc;   /* the whole problem, layouts included        */
    attn_args args;           /* views of the arrays in host memory         */
    attn_softmax_desc back;   /* the backward problem, if gradients are asked for */
    attn_args back_args;
} run_arrays;

/* Loads, checks and rounds the inputs, makes room for the outputs. The message
 * of what is wrong names the file. CLI_GO or an exit status; run_free() in any
 * case. */
int run_load(const run_request *request, run_arrays *arrays);

/* Whether the outputs can be written where they are wanted. */
int run_check_outputs(const run_request *request);

/* Writes the outputs: all, or none. */
int run_save(const run_request *request, run_arrays *arrays);

void run_free(run_arrays *arrays);

/* Steps of run_load() for the files of features (run_features.c). All return CLI_GO
 * or an exit status.
 *
 *   run_load_file    reads one .npy file
 *   run_load_extras  reads them all, in the types that the library takes; integers
 *                    still have 64 bits
 *   run_sizes        fills desc's batch and lengths from q, k and v's sizes, boundaries
 *                    and pages
 *   run_check_extras holds their shapes and numbers against desc; integers become i32
 *   run_view_extras  makes their tensors */
int run_load_file(const char *file, npy_array *array);
int run_load_extras(const run_request *request, run_arrays *arrays);
int run_sizes(const run_request *request, run_arrays *arrays);
int run_check_extras(const run_request *request, run_arrays *arrays);
void run_view_extras(const run_request *request, run_arrays *arrays);

/* Whether gradients are asked for; what their options ask of each other (run_gradients.c);
 * a step of run_load(), when O and LSE have their shapes; how to plan a pass: a variant is
 * one of the pass in its name, the other pass takes the planner's. */
bool run_backward(const run_request *request);
int run_check_gradients(const run_request *request);
int run_load_gradients(const run_request *request, run_arrays *arrays);
attn_options run_options(const run_request *request, bool backward);

/* Steps for one file, or for all outputs, of either operation: reads q, k or v, whose sizes
 * get the order B, H, L, D; holds those of the three against each other; the type to compute
 * in; rounds what a file holds to a type; whether outputs can be written, each to a file of
 * its own; writes them, all or none, arrays of bf16 widened. */
int run_load_input(run_input *in, bool blhd);
int run_check_shapes(const run_input in[RUN_INPUTS], bool blhd, bool same_batch);
int run_choose_type(attn_type asked, const run_input *q, attn_type *type);
int run_round(run_input *in, attn_type type);
int run_check_files(const char *const option[], const char *const path[], int n);
int run_save_files(const char *const option[], const char *const path[],
                   npy_array *const array[], int n, attn_type type);
attn_tensor run_view(const npy_array *a, attn_type type, const int64_t size[4], bool blhd);
attn_layout run_layout_of(const attn_tensor *t);

/* attn-run linear: all of it. An exit status. */
int run_linear(int argc, char **argv);

/* Repeated runs: times by the device's clock, and where bits differed. */
typedef struct run_times {
    char *plan;               /* the plan's text                            */
    uint64_t *ns;             /* of each run                                */
    int64_t runs;             /* done                                       */
    uint64_t median_ns, least_ns, most_ns;
    char differs[192];        /* "": all runs gave the same bits            */
} run_times;

/* What is run: a problem, and its tensors in host memory. */
typedef struct run_tensor {
    const attn_tensor *host;
    size_t place;             /* in attn_args                               */
    const npy_array *output;  /* NULL: an input                             */
    const char *option;
} run_tensor;

enum { RUN_TENSORS = RUN_INPUTS + 2 + RUN_GIVEN + RUN_GRADS + RUN_FILES };

typedef struct run_job {
    problem problem;
    attn_options options;
    uint64_t dropout_seed, dropout_offset;
    bool partial;             /* rows of the outputs may belong to nothing  */
    run_tensor tensor[RUN_TENSORS];
    int n;
} run_job;

/* The job of softmax attention: forward, or with gradients the backward. */
void run_make_job(const run_request *request, run_arrays *arrays, run_job *job);

/* Plans once, uploads once, runs `runs` times on the device and leaves the first
 * result in the arrays. CLI_GO also if runs differ; run_times_free() in any case. */
int run_repeat(attn_ctx *ctx, const run_job *job, int64_t runs, run_times *times);

/* Says them, for people or machines. */
void run_print_times(const attn_device_info *device, const run_times *times);
void run_times_json(cJSON *document, const run_times *times);

void run_times_free(run_times *times);

#endif
