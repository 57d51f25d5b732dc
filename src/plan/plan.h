/* SPDX-License-Identifier: MIT */
/* plan/plan.h: the planner. Pure: same problem, same target, same answer. It
 * reads no device, no clock, no environment and no heap, so its tests run
 * without a GPU and for devices that nobody here owns. */
#ifndef ATTN_PLAN_PLAN_H
#define ATTN_PLAN_PLAN_H

#include <stdbool.h>

#include <attn/plan.h>

#include "core/text.h"
#include "plan/step.h"
#include "problem/problem.h"

/* One line of a fast-memory budget, for attn-info --explain. */
typedef struct attn_budget {
    const char *what;   /* static */
    int64_t bytes;
} attn_budget;

enum { ATTN_MAX_BUDGET = 8, ATTN_MAX_VARIANTS = 32 };

typedef struct attn_variant attn_variant;

/* What was decided for one problem. */
typedef struct attn_choice {
    const attn_variant *variant;
    int32_t index;               /* its place in the target's list            */
    attn_step step[ATTN_MAX_STEPS];
    int32_t n_steps;
    bool ungrouped;              /* its steps take no heads that share keys  */
    int64_t workspace_bytes;
    int64_t splits;              /* in lower(): what the caller fixed, 0: nothing;
                                    afterwards the pieces at the planned lengths, or 0 */
    char instance[96];           /* "br48,bc64,vw8,d64,f32"                   */
    const char *tile_reason;     /* why this tile; static                     */
    attn_budget budget[ATTN_MAX_BUDGET];
    int32_t n_budget;
} attn_choice;

/* One way to compute a problem: may I, and how. */
struct attn_variant {
    const char *name;            /* softmax_fwd_tile                          */
    const char *about;           /* one line for people                       */
    attn_op op;                  /* of which, and of which pass, it computes       */
    attn_pass pass;              /* problems, and no others                        */
    uint32_t features;           /* ATTN_FEAT_ bits that it takes             */
    uint32_t traits;             /* ATTN_TRAIT_ bits                          */
    bool splits;                 /* it splits the keys, in as many as asked for */

    /* NULL: applicable; otherwise the reason as --explain prints it, static.
     * Pass and features have been checked before. */
    const char *(*applicable)(const attn_problem *p, const attn_caps *c);

    /* NULL (member or result): nothing; otherwise why the planner passes a variant
     * over that would take the problem, as --explain prints it, static. Not asked of
     * a variant that was named, and not heard where no other takes the problem. */
    const char *(*worse)(const attn_problem *p, const attn_caps *c);

    /* Called only after applicable() said yes. */
    void (*lower)(const attn_problem *p, const attn_caps *c, attn_choice *out);
};

/* What only the device knows, learned when a kernel was made ready. */
typedef struct attn_verdict {
    int64_t max_group;           /* work-group limit of its kernels; 0: caps' */
    int64_t fast_bytes;          /* tiles of more did not fit; 0: caps'       */
    char denial[120];            /* not "": it must not run here, and why     */
    bool failed;                 /* ... since it is wrong, not since it is too large */
} attn_verdict;

/* A device as the planner sees it. */
typedef struct attn_target {
    const char *backend;                     /* "opencl"                      */
    attn_caps caps;
    const attn_variant *const *variants;     /* best first, ends with NULL    */
    attn_verdict verdict[ATTN_MAX_VARIANTS]; /* by place in `variants`        */
} attn_target;

/* The variants of a back end, best first for such a device; NULL if there is
 * no such back end. */
const attn_variant *const *attn_variants_for(const char *backend, const attn_caps *caps);

/* Whether variant `index` is one for the problem's operation and pass. Those for others are
 * passed over in silence: they are no answer to it. */
bool attn_variant_computes(const attn_problem *p, const attn_target *target, int index);

/* NULL if variant `index` takes the problem, otherwise why not; its verdict's denial only
 * if nothing else speaks against it. The one answer behind "supported?", the workspace and
 * the launch. */
const char *attn_refusal(const attn_problem *p, const attn_target *target, int index);

/* Why the planner passes variant `index` over although it takes the problem; NULL: it
 * does not. */
const char *attn_drawback(const attn_problem *p, const attn_target *target, int index);

/* Picks the first variant that takes the problem and has no drawback, else the first
 * that takes it and may be chosen; or the one that `options` name (NULL: none; read by
 * attn_options_read()). INVALID: no variant of that name. UNSUPPORTED: with every
 * reason. */
attn_status attn_choose(const attn_problem *p, const attn_target *target,
                        const attn_options *options, attn_choice *out);

/* Reads a caller's options of any known size; NULL: none. */
attn_status attn_options_read(attn_options *options, const attn_options *from);

/* Appends "opencl:softmax_fwd_tile_cpu[instance]". */
void attn_choice_text(const attn_choice *choice, const attn_target *target, attn_text *text);

/* Appends the explanation that attn/text.h promises. INVALID: no variant of that
 * name. */
attn_status attn_explain(const attn_problem *p, const attn_target *target,
                         const attn_options *options, attn_text *text);

/* The published starting tile for `elements` of fast memory, floored so that it
 * keeps its own budget:
 *
 *     bc*(d + dv) + br*(d + dv) + br*bc <= elements
 *
 * false if not even one query and one key fit.
 * T. Dao et al., "FlashAttention" (2022), algorithm 1. */
bool attn_tile_rule(int64_t elements, int64_t d, int64_t dv, int64_t *br, int64_t *bc);

/* Adds a line to the budget, and its bytes to the last step's fast_bytes. */
void attn_choice_budget(attn_choice *choice, const char *what, int64_t bytes);

/* Writes the text of the instance. */
__attribute__((format(printf, 2, 3)))
void attn_choice_instance(attn_choice *choice, const char *format, ...);

/* What a softmax kernel reads of a problem. Nothing else is defined for it, so that one
 * instance of a step serves all problems that differ elsewhere. */
enum {
    ATTN_READS_TYPE = 1 << 0,
    ATTN_READS_D = 1 << 1,
    ATTN_READS_DV = 1 << 2,
    ATTN_READS_QUERIES = 1 << 3, /* how many a batch has, and where they lie         */
    ATTN_READS_KEYS = 1 << 4,    /* likewise                                         */
    ATTN_READS_RANGE = 1 << 5,   /* which keys a query sees; wants QUERIES and KEYS  */
    ATTN_READS_SOFTCAP = 1 << 6,
    ATTN_READS_TERMS = 1 << 7,   /* bias, mask, ALiBi; wants RANGE                   */
    ATTN_READS_SINKS = 1 << 8,
    ATTN_READS_LSE = 1 << 9,
    ATTN_READS_Q = 1 << 10,      /* the tensor's last stride                         */
    ATTN_READS_K = 1 << 11,
    ATTN_READS_V = 1 << 12,
    ATTN_READS_O = 1 << 13,
    ATTN_READS_ALL = (1 << 14) - 1,  /* of the forward                            */
    ATTN_READS_GRAD_O = 1 << 14,
    ATTN_READS_GRAD_Q = 1 << 15,
    ATTN_READS_GRAD_K = 1 << 16,
    ATTN_READS_GRAD_V = 1 << 17,
    ATTN_READS_DROPOUT = 1 << 18     /* of variants that know it                   */
};

/* Adds the defines for what it reads: sizes, type, features, layouts. */
void attn_step_softmax(attn_step *step, const attn_problem *p, unsigned reads);

/* The kernel that takes a part of such a type into a merge to type `o`. */
void attn_merge_step(const char *backend, const attn_caps *c, attn_type part, attn_type o,
                     attn_step *step);

/* Whether keys are bounded on a side, by causal or window. */
bool attn_problem_bounded_left(const attn_problem *p);
bool attn_problem_bounded_right(const attn_problem *p);

#endif
