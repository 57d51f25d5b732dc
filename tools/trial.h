/* SPDX-License-Identifier: MIT */
/* tools/trial.h: one plan run on its device, from and into poisoned memory. */
#ifndef ATTN_TOOLS_TRIAL_H
#define ATTN_TOOLS_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/attn.h>

#include "inputs.h"
#include "views.h"

/* The blocks of device memory of one run. */
typedef enum trial_block {
    TRIAL_Q, TRIAL_K, TRIAL_V, TRIAL_LENS,   /* inputs  */
    TRIAL_O, TRIAL_LSE,                      /* outputs */
    TRIAL_TENSORS,
    TRIAL_WORKSPACE = TRIAL_TENSORS,
    TRIAL_BLOCKS
} trial_block;

typedef struct trial {
    attn_ctx *ctx;                    /* borrowed, like the plan and the inputs      */
    const attn_plan *plan;
    const inputs *in;
    view_kind kind[TRIAL_TENSORS];
    int repeat;                       /* runs that must agree in every bit           */

    float *o, *lse;                   /* results [rows, Dv] and [rows]; lse is NULL
                                       * if the problem does not ask for it          */
    char what[512];                   /* what went wrong; "": nothing                */

    attn_args args;                   /* as the last run was called                  */
    view view[TRIAL_TENSORS];
    void *image[TRIAL_BLOCKS];        /* what the memory held before, or holds now   */
    void *memory[TRIAL_BLOCKS];
    size_t bytes[TRIAL_BLOCKS];       /* 0: the block is not there                   */
} trial;

/* Allocates and fills everything that the fields above `o` describe. false: `what`
 * tells why. Free it with trial_free() in either case. */
bool trial_open(trial *t);

/* Runs `repeat` times, each into fresh poison, and checks what can be checked without
 * knowing the answer: the status, equal bits, no byte written around or between the
 * elements of an output or behind the workspace, no input changed. Fills o and lse.
 * false: `what` tells why. */
bool trial_run(trial *t);

/* Runs once more with an output left out; the other must be the same bits. */
bool trial_run_without(trial *t, trial_block output);

/* Downloads the outputs: true if they hold nothing but the poison they began with. */
bool trial_untouched(trial *t);

/* Puts fresh poison into the outputs. */
bool trial_poison(trial *t);

/* Frees everything but the borrowed. */
void trial_free(trial *t);

/* Bytes that a descriptor promises of a tensor's addresses and strides; 0: nothing. */
int64_t trial_class_bytes(const attn_softmax_desc *d, trial_block tensor);

#endif
