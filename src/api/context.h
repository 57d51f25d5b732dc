/* SPDX-License-Identifier: MIT */
/* api/context.h: the context and the plan, as the api folder shares them. */
#ifndef ATTN_API_CONTEXT_H
#define ATTN_API_CONTEXT_H

#include <pthread.h>

#include <attn/merge.h>

#include "backend/backend.h"
#include "plan/plan.h"

struct attn_ctx {
    const attn_backend *backend;
    attn_device *device;
    attn_device_info info;
    bool borrowed;                /* made from the caller's driver objects     */

    pthread_mutex_t lock;         /* guards all below                          */
    attn_target target;
    const attn_kernel **proven;   /* kernels whose self-test passed            */
    size_t n_proven;
};

struct attn_plan {
    attn_ctx *ctx;
    attn_problem problem;
    attn_choice choice;
    const attn_kernel *kernel[ATTN_MAX_STEPS];
};

/* Reads the ATTN_ variables; the texts live in `storage`. */
typedef struct attn_env_storage {
    attn_env env;
    char cache_dir[1024];
} attn_env_storage;

void attn_env_read(attn_env_storage *storage);

/* The back end of that name, or NULL. */
const attn_backend *attn_backend_find(const char *name);

/* What the planner sees of a device. */
attn_caps attn_caps_from_info(const attn_device_info *info);

/* Wraps an opened device; takes it over, also on failure. */
attn_status attn_ctx_wrap(const attn_backend *backend, attn_device *device,
                          const attn_device_info *info, bool borrowed, attn_ctx **out);

/* Plans a canonical problem with options that have been read. */
attn_status attn_plan_problem(attn_ctx *ctx, const attn_problem *problem,
                              const attn_options *options, attn_plan **out);

/* Runs the kernels of a choice on a tiny problem of the same instance and holds
 * them against the oracle. Context lock held. A wrong result is reported in
 * `denial` (else ""); the status tells of everything else. */
attn_status attn_selftest(attn_ctx *ctx, const attn_problem *problem,
                          const attn_choice *choice, const attn_kernel *const kernel[],
                          char *denial, size_t cap);

/* attn_execute() with everything that a back end's own call adds. */
attn_status attn_execute_on(const attn_plan *plan, const attn_args *args,
                            const attn_stream *stream);

/* The lengths of one call: the most of a batch, and the tokens of packed tensors. */
typedef struct attn_extent {
    int64_t len_q, len_kv, tokens_q, tokens_k, pages;
} attn_extent;

/* The numbers of a run. Broadcasts the tensors of `args` that may be. */
attn_call attn_call_of(const attn_problem *problem, attn_args *args,
                       const attn_extent *extent);

/* Reads a caller's attn_args of any known size. */
attn_status attn_args_read(attn_args *args, const attn_args *from);

/* Reads the lengths of a call off its tensors' sizes; checks them against the plan. */
attn_status attn_args_extent(const attn_problem *p, const attn_args *args,
                             attn_extent *extent);

/* The elements that a view touches, counted from the start of its buffer:
 * first .. last; false if that overflows. A view without elements has none. */
bool attn_tensor_extent(const attn_tensor *t, int64_t *first, int64_t *last);
bool attn_tensor_empty(const attn_tensor *t);

/* A type's name, or its number (in `text`) if it is none of the types. */
enum { ATTN_TYPE_BYTES = 16 };
const char *attn_type_shown(attn_type type, char text[ATTN_TYPE_BYTES]);

/* One tensor of a call, and what is known of it. */
/* Where a tensor's buffer begins: byte `at` of a block, or, where memory has addresses (block
 * NULL), that address. */
typedef struct attn_place {
    const void *block;
    uintptr_t at;
} attn_place;

/* `buffers` as in attn_args_check(). */
attn_status attn_place_of(const attn_ctx *ctx, const void *data, bool buffers,
                          attn_place *out);

typedef struct attn_operand {
    const char *name;
    const attn_tensor *t;
    attn_type type;
    int64_t size[4];              /* what it must have                         */
    uint32_t broadcast;           /* bit i: size[i] may be 1 as well           */
    int32_t layout;               /* place in problem->layout; -1: none promised */
    bool output;
    const char *over;             /* output: the input that it may be in place of */
    int64_t first, last;          /* elements touched; found by the check      */
    attn_place place;             /* likewise                                  */
} attn_operand;

/* Checks tensors, none with a layout, each for itself and outputs against all others.
 * `buffers` as in attn_args_check(). */
attn_status attn_operands_check(const attn_ctx *ctx, attn_operand *list, int n,
                                bool buffers);

/* Checks that a workspace, not 0 bytes, has the size and the alignment. WORKSPACE: it has
 * not; INVALID: it is no memory of the device. */
attn_status attn_workspace_check(const attn_ctx *ctx, const void *workspace, size_t bytes,
                                 size_t want);

/* Whether a tensor lies in it, or, where memory has no addresses, is the same buffer. */
bool attn_workspace_overlaps(const attn_ctx *ctx, const void *workspace, size_t bytes,
                             const attn_tensor *t);

/* A host tensor and its contiguous copy on the device. */
typedef struct attn_mirror {
    attn_tensor host;             /* broadcast dimensions (stride 0) count 1   */
    attn_tensor *device;
    size_t bytes;                 /* of the copy                               */
    bool output;
    attn_layout *layout;          /* of the problem; NULL: it has none there   */
} attn_mirror;

/* Makes the copy from m's host, output, device and layout; `fill`: and uploads it. */
attn_status attn_mirror_open(attn_ctx *ctx, attn_mirror *m, bool fill);

/* Downloads an output if `st` is ATTN_OK, and frees the copy, if there is one. */
attn_status attn_mirror_close(attn_ctx *ctx, attn_mirror *m, attn_status st);

/* Checks the arguments of a one-call form, all in host memory, plans and runs. */
attn_status attn_run_host(attn_ctx *ctx, attn_problem *p, const attn_options *options,
                          attn_args *args);

/* The ATTN_GRAD_ bits of the gradients that are given to be written. */
uint32_t attn_args_grads(const attn_args *args);

/* attn_merge() with everything that a back end's own call adds. */
attn_status attn_merge_on(attn_ctx *ctx, const attn_merge_args *args,
                          const attn_stream *stream);

/* Every tensor of attn_args, in one list: what each is for. */
typedef struct attn_arg {
    const char *name;
    size_t at;                    /* of the attn_tensor in attn_args           */
    uint32_t ops;                 /* bit attn_op: of that operation            */
    uint32_t feature;             /* it belongs to, to all of them; 0: to every problem */
    int32_t layout;               /* place in problem->layout; -1: none there  */
    bool optional, output;        /* forward; attn_arg_is_output() knows both  */
    bool index;                   /* integers that the kernels read            */
    bool forward;                 /* only there                                */
    uint32_t grad;                /* ATTN_GRAD_ bit of a gradient that is computed, or
                                     ATTN_ARG_GIVEN of one that is given; 0: neither */
} attn_arg;

#define ATTN_ARG_GIVEN (1u << 31)

enum { ATTN_ARGS = 34 };
extern const attn_arg attn_arg_list[ATTN_ARGS];

/* Whether tensor k is of the problem's operation, pass and features; must be given then;
 * and is written there: O, the LSE, denominators and the state that comes out forward,
 * gradients backward. Every launch asks this of the whole list, so that it is inline. */
static inline bool attn_arg_belongs(const attn_problem *p, int k)
{
    const attn_arg *arg = &attn_arg_list[k];

    if (!(arg->ops >> p->op & 1) || (p->features & arg->feature) != arg->feature ||
        (arg->forward && p->pass != ATTN_PASS_FWD))
        return false;
    if (arg->grad & ATTN_ARG_GIVEN)
        return p->pass == ATTN_PASS_BWD;
    return !arg->grad || p->grad & arg->grad;
}

static inline bool attn_arg_is_needed(const attn_problem *p, int k)
{
    const size_t at = attn_arg_list[k].at;

    if (attn_arg_list[k].optional &&
        !(p->pass == ATTN_PASS_BWD &&
          (at == offsetof(attn_args, lse) || at == offsetof(attn_args, den))))
        return false;
    return attn_arg_belongs(p, k);
}

static inline bool attn_arg_is_output(const attn_problem *p, int k)
{
    const size_t at = attn_arg_list[k].at;

    return attn_arg_list[k].output &&
           !(p->pass == ATTN_PASS_BWD &&
             (at == offsetof(attn_args, o) || at == offsetof(attn_args, lse) ||
              at == offsetof(attn_args, den))); /* what it computes from */
}

/* What makes tensor k belong to a problem, for messages: "ATTN_USE_BIAS". */
const char *attn_arg_reason(const attn_problem *p, int k);

/* Whether a call that is right writes anything. */
bool attn_args_ask(const attn_problem *p, const attn_args *args);

/* Tensor k of the list. */
static inline attn_tensor *attn_arg_tensor(attn_args *args, int k)
{
    return (attn_tensor *)(void *)((char *)args + attn_arg_list[k].at);
}

static inline const attn_tensor *attn_arg_given(const attn_args *args, int k)
{
    return (const attn_tensor *)(const void *)((const char *)args + attn_arg_list[k].at);
}

/* What tensor k must be: type and sizes. `broadcast`: a size of 1 will do too, bit i
 * for dimension i. */
void attn_arg_want(const attn_problem *p, const attn_args *args, const attn_extent *extent,
                   int k, attn_type *type, int64_t size[4], uint32_t *broadcast);

/* Checks the tensors of one call against the plan's problem; fills *extent. `buffers`
 * false: memory is the host's whatever the device (the one-call form), and layout classes
 * are not asked for. */
attn_status attn_args_check(const attn_ctx *ctx, const attn_problem *p, const attn_args *args,
                            bool buffers, attn_extent *extent);

/* Checks what the integer tensors hold, all in host memory: lengths, boundaries, pages. */
attn_status attn_args_check_indices(const attn_problem *p, const attn_args *args,
                                    const attn_extent *extent);

#endif
