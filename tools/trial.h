/* SPDX-License-Identifier: MIT */
/* tools/trial.h: one plan run on its device, from and into poisoned memory. */
#ifndef ATTN_TOOLS_TRIAL_H
#define ATTN_TOOLS_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/attn.h>

#include "gradients.h"
#include "inputs.h"
#include "views.h"

/* The blocks of device memory of one run. */
typedef enum trial_block {
    TRIAL_Q, TRIAL_K, TRIAL_V, TRIAL_BIAS, TRIAL_MASK, TRIAL_ALIBI, TRIAL_SINKS,
    TRIAL_LENS_Q, TRIAL_LENS, TRIAL_OFFSETS, TRIAL_CU_Q, TRIAL_CU_K, TRIAL_TABLE,
    TRIAL_O, TRIAL_LSE,                      /* outputs; backward inputs */
    TRIAL_STATUS,                            /* an output, or'ed         */
    TRIAL_GRAD_O, TRIAL_GRAD_LSE,            /* backward                 */
    TRIAL_GRAD_Q, TRIAL_GRAD_K, TRIAL_GRAD_V, TRIAL_GRAD_BIAS, TRIAL_GRAD_SINKS, /* outputs */
    TRIAL_STATE_IN, TRIAL_Z_IN, TRIAL_DECAY, TRIAL_BETA, /* linear attention, as all below */
    TRIAL_GRAD_STATE_OUT, TRIAL_GRAD_Z_OUT,
    TRIAL_DEN, TRIAL_STATE_OUT, TRIAL_Z_OUT, /* outputs; backward den is an input */
    TRIAL_GRAD_STATE_IN, TRIAL_GRAD_Z_IN,    /* outputs of the backward           */
    TRIAL_TENSORS,
    TRIAL_WORKSPACE = TRIAL_TENSORS,
    TRIAL_BLOCKS
} trial_block;

typedef struct trial {
    attn_ctx *ctx;                    /* borrowed, like the plan and the inputs      */
    const attn_plan *plan;
    const inputs *in;
    view_kind kind[TRIAL_TENSORS];
    uint64_t expanded;                /* bit 4 * tensor + dimension: a size of 1 is
                                       * told as the full size with stride 0         */
    int repeat;                       /* runs that must agree in every bit           */
    bool any_bits;                    /* ... or only run: bits may differ            */
    bool finite_v;                    /* V rows behind masks hold 10000, not NaN     */
    bool status;                      /* give a status word                          */
    attn_status (*execute)(struct trial *t, void *with); /* how to run t->args and wait;
                                       * NULL: on the context's own queue            */
    void *with;

    float *o, *lse;                   /* results [B, Hq, Lq, Dv] and [B, Hq, Lq], 0
                                       * where there is no query; lse is NULL if the
                                       * problem does not ask for it. Backward both
                                       * are NULL                                    */
    float *grad[GRADIENTS];           /* as gradient_size() has them; NULL: not asked for */
    float *linear[LINEAR_OUTPUTS];    /* linear attention: all of its results; the above
                                       * are NULL then, but o                        */
    char what[512];                   /* what went wrong; "": nothing                */
    bool no_memory;                   /* ... and it was only that memory is out      */

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
 * knowing the answer: the status and the status word, equal bits but of `any_bits`, no byte written
 * around or between the elements of an output or behind the workspace, none in rows
 * that belong to no query, no input changed. Fills o and lse. false: `what` tells why. */
bool trial_run(trial *t);

/* The checks alone, and o and lse, after something else has run t->args once. */
bool trial_collect(trial *t);

/* Runs once what t->args say, which the caller has cut to query i of each batch, into
 * poison; takes that row of each head into o and lse. The rest must stay poison. */
bool trial_run_row(trial *t, int64_t i);

/* Whether a block is an output that this problem has. */
bool trial_is_output(const trial *t, int block);

/* Runs once more with an output left out; the others must be the same bits, but of
 * `any_bits`. */
bool trial_run_without(trial *t, trial_block output);

/* Downloads the outputs: true if they hold nothing but the poison they began with. */
bool trial_untouched(trial *t);

/* Puts fresh poison into the outputs, and into the status word what it began with. */
bool trial_poison(trial *t);

/* Reads an output anew: true if it is the same bits as after trial_run(). */
bool trial_same(trial *t, trial_block output, const char *when);

/* Frees everything but the borrowed. */
void trial_free(trial *t);

/* Bytes that a descriptor promises of a tensor's addresses and strides; 0: nothing. */
int64_t trial_class_bytes(const attn_softmax_desc *d, trial_block tensor);

/* Where a tensor stands in the arguments. */
attn_tensor *trial_arg(attn_args *args, trial_block tensor);

/* The rest is trial.c's and trial_layout.c's own. trial_take: query i, or -1: all. */
const char *trial_name(trial_block block);
void trial_make_views(trial *t);
void trial_put_inputs(trial *t);
void trial_take(const trial *t, trial_block output, void *image, int64_t i, float *to);
int32_t trial_preset_status(void);

#endif
