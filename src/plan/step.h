/* SPDX-License-Identifier: MIT */
/* plan/step.h: what the planner hands to a back end: one kernel launch, with
 * every number that was chosen. Back ends carry it out and choose nothing. */
#ifndef ATTN_PLAN_STEP_H
#define ATTN_PLAN_STEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <attn/softmax.h>
#include <attn/tensor.h>

/* What a device can do; all the planner will ever know of it. */
typedef struct attn_caps {
    int32_t kind;            /* attn_device_kind                              */
    int64_t compute_units;   /* host: threads                                 */
    int64_t fast_bytes;      /* local memory of a group; host: cache a core   */
    int64_t max_group;       /* work-items of a group                         */
    int64_t subgroup;        /* preferred width; 0: not told; host: queries that a
                                kernel holds in registers                     */
    int64_t vector_width;    /* f32 lanes of a native vector                  */
    int64_t memory_bytes;
    int64_t max_alloc_bytes;
    int64_t clock_mhz;       /* 0: not told                                   */
    int64_t max_loops;       /* of a work-item's loops; 0: no limit           */
    int64_t capability;      /* CUDA: 10 * major + minor of the compute capability */
    int32_t generic_code;    /* CUDA: no kernels for this capability alone (sm_90a) are there */
    int32_t blas;            /* the device's BLAS is there                    */
    int64_t cudnn_version;   /* CUDA: 91900 is 9.19.0; 0: there is none       */
} attn_caps;

/* "No bound" for left and right: larger than any distance of positions. */
#define ATTN_STEP_UNBOUNDED ((int64_t)1 << 40)

enum { ATTN_MAX_DEFINES = 48, ATTN_MAX_STEPS = 13 };

/* A compile-time number of a kernel instance. */
typedef struct attn_define {
    const char *name;   /* static */
    int32_t value;
} attn_define;

/* What the groups of a step share among them. */
typedef enum attn_over {
    ATTN_OVER_QUERIES,           /* as attn_step has it                        */
    ATTN_OVER_KEYS,              /* ceil(keys / tile_k) * heads_kv * batch, or the
                                    round's                                    */
    ATTN_OVER_BIAS,              /* grad_bias, in tiles of tile_q * tile_k     */
    ATTN_OVER_HEADS,             /* heads_q, after the last round              */
    ATTN_OVER_KEY_STATES,
    ATTN_OVER_STATES             /* ceil(dv / columns) * heads_q * batch, `grouped`
                                    heads_kv; times ceil(queries / piece) if piece
                                    is not 0; OVER_KEY_STATES: ceil(keys / piece) */
} attn_over;

typedef struct attn_step {
    const char *kernel;          /* symbol without "attn_"; static             */
    attn_define define[ATTN_MAX_DEFINES];
    int32_t n_defines;

    attn_over over;
    uint32_t grad;               /* ATTN_GRAD_ bits: left out by a call that wants none
                                    of them; 0: never                         */

    /* Groups over queries: ceil(queries / tile_q) * heads_q * batch. With `grouped` the
     * queries of all heads that share a key/value head are one run: ceil(queries * Hq /
     * Hkv / tile_q) * heads_kv * batch. Times ceil(keys / piece) if piece is not 0, or
     * ceil(keys / share). */
    int64_t tile_q, tile_k;      /* in tokens                                  */
    int64_t piece;               /* keys of a group; 0: all                    */
    int64_t lead;                /* cuda, linear attention: tokens of the first segment;
                                    0: as many as of the others               */
    int64_t share;               /* keys of a group that has several pieces in turn, which
                                    it keeps apart; 0: it has one             */
    bool ends;                   /* cuda: the only piece, and no step merges  */
    int64_t merges;              /* keys of the pieces of an earlier step that this
                                    one brings together; 0: none              */
    bool merges_queries;         /* ... queries, of linear attention           */
    int64_t row_floats;          /* cuda, linear attention: of each query in the
                                    workspace, before the states of segments  */
    bool copied;                 /* cuda, linear attention: q, and where there is a phi k, are
                                    behind those numbers, where a step before has put
                                    them: rows one after another, of k as many as of q */
    int64_t columns;             /* of a value row, of a group; 0: all; times as many
                                    groups                                    */
    bool by_d;                   /* columns are of a query row, not a value row */
    int64_t scans;               /* of linear attention, side by side: times as many
                                    groups; 0: one                            */
    int64_t piece_q;             /* ... and one more, of dQ, in pieces of its own; 0: no */
    int64_t resident;            /* groups at most: each takes several tiles in turn;
                                    0: one a tile                             */
    bool counted;                /* cuda: by a counter at the beginning of the workspace,
                                    which is 0 when the step begins           */
    int64_t slots;               /* cuda: groups that run at a time, for whom the last
                                    tiles are cut (common/cut.h), with counters at the
                                    beginning of the workspace that are 0 when the
                                    step begins; 0: none is                   */
    int64_t box_q;               /* cuda: rows of Q that one copy brings, of K and V
                                    tile_k: the kernel takes tensor maps; 0: none */
    bool overlaps;               /* may begin before the step before it ends: it waits
                                    for that one's results itself             */
    bool grouped;
    bool linear;                 /* cuda: the kernel takes what linear attention has  */
    int64_t block;               /* work-items of a group                      */

    /* The steps of a choice run in rounds over so many (batch, head) pairs and so
     * many queries of each, all steps with the same numbers; 0: all in one. */
    int64_t round_heads, round_queries;
    int64_t fast_bytes;          /* local memory that a group uses             */
    int64_t threads;             /* host                                       */
    int64_t scratch_bytes;       /* host: workspace of one thread; cuda: of a
                                    library, at the end of the workspace       */
    int64_t round_blocks;        /* host: grouped tiles of rows in one round   */

    attn_type type;
    int64_t d, dv;
    int64_t b, hq, hkv, lq, lk;  /* cuda: the planned sizes, of a step whose library
                                    has plans of its own                       */
    bool align_br;               /* query 0 stands at keys - queries           */
} attn_step;

/* Adds a define; the planner's own code, so too many is a bug. */
void attn_step_define(attn_step *step, const char *name, int64_t value);

#endif
