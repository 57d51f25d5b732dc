/* SPDX-License-Identifier: MIT */
/* common/params.h: the parameters of every kernel: plain structs, C and C++, which
 * src/backend/cuda fills and the kernels take by value. Names and meaning are those of
 * cl_kernels/common/params.h.
 *
 * Offsets and strides are in elements. A tensor that was left out is NULL and its flag
 * or feature bit is 0. */
#ifndef ATTN_COMMON_PARAMS_H
#define ATTN_COMMON_PARAMS_H

#include <stdint.h>

#include "common/cut.h"

/* Bits of `features`: what this plan's problem asks for, and what its layouts promise.
 * X(name), the step's define of that name. */
#define KFEATURE_LIST(X)                                                                   \
    X(FEAT_RANGE_LEFT)  /* queries see no key left of a bound (window)              */     \
    X(FEAT_RANGE_RIGHT) /* ... right of a bound (causal, window)                    */     \
    X(FEAT_ALIGN_BR)    /* the last query stands at the last key                    */     \
    X(FEAT_OFFSETS)     /* offsets holds the position of each batch's query 0       */     \
    X(FEAT_LENS_Q)      /* lens_q, lens_kv hold the lengths of each batch           */     \
    X(FEAT_LENS_KV)                                                                        \
    X(FEAT_PACKED_Q) /* cu_q, cu_k say where each batch's tokens lie             */        \
    X(FEAT_PACKED_K)                                                                       \
    X(FEAT_PAGES) /* table says where each batch's pages lie                  */           \
    X(FEAT_SOFTCAP)                                                                        \
    X(FEAT_BIAS) X(FEAT_MASK) X(FEAT_ALIBI) X(FEAT_SINKS)                                  \
        X(FEAT_LSE)     /* the LSE can be written                                   */     \
        X(FEAT_DROPOUT) /* weights are dropped                                      */     \
        X(CONTIG_Q)     /* the last dimension has stride 1                          */     \
        X(CONTIG_K) X(CONTIG_V) X(CONTIG_O)                                                \
            X(WIDE_Q)       /* and rows can be moved four elements at a time: so many   */ \
        X(WIDE_K) X(WIDE_V) /*   bytes divide base and strides, 4 divides the row       */ \
        X(WIDE_O) X(WHOLE_Q)                                                               \
            X(WHOLE_K) /* ... sixteen bytes at a time                             */       \
        X(WHOLE_V) X(WHOLE_O)                                                              \
            X(WIDE_GRADS) /* of the backward, likewise: dO, dQ, dK and dV, all that   */   \
        X(WHOLE_GRADS)    /*   there are                                              */   \
        X(COPY)           /* softmax_fwd_naive_copy: the second scores are meant      */

enum {
#define X(name) KBIT_##name,
    KFEATURE_LIST(X)
#undef X
        KFEATURE_COUNT
};

enum {
#define X(name) name = 1 << KBIT_##name,
    KFEATURE_LIST(X)
#undef X
    /* what is added to a score depends on the pair */
    FEAT_TERMS = FEAT_BIAS | FEAT_MASK | FEAT_ALIBI,
    /* a key inside the range may be hidden from all queries of a tile: then its V row
     * must not be multiplied, not even by 0 */
    FEAT_HIDES = FEAT_BIAS | FEAT_MASK
};

/* Values of bias_type. */
enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_BF16 = 2 };

/* Bits of status: ATTN_CLAMPED_ in attn/plan.h. */
enum {
    CLAMPED_LENS_Q = 1,
    CLAMPED_LENS_KV = 2,
    CLAMPED_CU_Q = 4,
    CLAMPED_CU_K = 8,
    CLAMPED_BLOCK_TABLE = 16
};

/* Bits of has: what this call of a backward brings, and asks for. */
enum {
    HAS_GRAD_O = 1,
    HAS_GRAD_LSE = 2,
    HAS_GRAD_K = 4,
    HAS_GRAD_V = 8,
    HAS_GRAD_Q = 16,
    HAS_GRAD_BIAS = 32
};

/* strides of a [B, H, L, D] view and where it starts in its buffer */
#define VIEW_FIELDS(name)                                                     \
    int64_t name##_offset, name##_stride_b, name##_stride_h, name##_stride_l, \
        name##_stride_d

/* ... of a vector over the batch */
#define LIST_FIELDS(name) int64_t name##_offset, name##_stride_b

typedef struct attn_kparams {
    const void *q, *k, *v; /* the computing type                          */
    void *o;
    float *lse;
    const void *bias; /* bias_type                                   */
    const unsigned char *mask;
    const float *alibi, *sinks;
    const int32_t *lens_q, *lens_kv, *offsets, *cu_q, *cu_k, *table;
    int32_t *status;
    float *work; /* the caller's workspace                      */

    VIEW_FIELDS(q);
    VIEW_FIELDS(k);
    VIEW_FIELDS(v);
    VIEW_FIELDS(o);
    int64_t lse_offset, lse_stride_b, lse_stride_h, lse_stride_l;
    VIEW_FIELDS(bias); /* _l: from query to query, _d: from key to key */
    VIEW_FIELDS(mask); /* likewise                                    */
    LIST_FIELDS(alibi);
    int64_t alibi_stride_h;
    int64_t sinks_offset, sinks_stride_h;
    LIST_FIELDS(lens_q);
    LIST_FIELDS(lens_kv);
    LIST_FIELDS(offsets);
    LIST_FIELDS(cu_q);
    LIST_FIELDS(cu_k);
    LIST_FIELDS(table);
    int64_t table_stride_h; /* from block to block                         */
    int64_t status_offset;
    int64_t offset;      /* position of query 0; not read with ALIGN_BR,
                                       OFFSETS                                     */
    int64_t left, right; /* key j is visible to query i when
                                       i + offset - left <= j <= i + offset + right */

    uint32_t features; /* KFEATURE_LIST                               */
    int32_t bias_type;
    int32_t d, dv; /* elements of a query or key row, a value row */
    int32_t batch, heads_q, heads_kv;
    int32_t group;              /* query heads that share a key/value head     */
    int32_t len_q, len_kv;      /* the most of a batch                         */
    int32_t tokens_q, tokens_k; /* packed: rows of the tensors                 */
    int32_t pages, page_size;
    int32_t piece, pieces;              /* keys of a group, or of what it merges, and their
                                       number; 0, 1: all keys                       */
    int32_t share, shares;              /* softmax_fwd_split_mma, _split: keys of a group, of one
                                       piece or more, and groups of all keys           */
    int32_t ends;                       /* ... of the only piece: writes O itself       */
    int32_t round_head, round_heads;    /* this round computes heads              */
    int32_t round_query, round_queries; /*   b * heads_q + h and queries          */
    attn_cut cut;                       /* of softmax_fwd_tile: of its last tiles      */
    int32_t want_o;                     /* 0: o is not written                         */
    int32_t want_lse;                   /* 0: lse is not written                       */
    int32_t want_status;                /* 0: status is not written                    */
    float softcap, scale;
    uint32_t drop_key[2]; /* dropout: Philox's key                       */
    uint32_t drop_offset; /* ... the last word of its counter            */
    uint32_t drop_below;  /* ... words less than this are dropped        */
    float drop_factor;    /* ... of weights that are kept                */

    /* Of the backward alone, which reads o and lse. */
    const void *grad_o; /* the computing type                          */
    const float *grad_lse;
    void *grad_q, *grad_k, *grad_v;
    float *grad_bias, *grad_sinks;
    VIEW_FIELDS(grad_o);
    VIEW_FIELDS(grad_q);
    VIEW_FIELDS(grad_k);
    VIEW_FIELDS(grad_v);
    VIEW_FIELDS(grad_bias); /* as bias                                     */
    int64_t grad_lse_offset, grad_lse_stride_b, grad_lse_stride_h, grad_lse_stride_l;
    int64_t grad_sinks_offset, grad_sinks_stride_h;
    int32_t grad_bias_size_b, grad_bias_size_h; /* 1: summed over, unless there */
    int32_t grad_bias_size_l, grad_bias_size_d; /*    is no more                */
    int32_t has; /* HAS_                                        */
} attn_kparams;

/* Bits of `features` of linear attention. X(name), the step's define of that name. */
#define LFEATURE_LIST(X)                                                               \
    X(LINEAR_CAUSAL)    /* query l sees keys 0 .. l                                 */ \
    X(LINEAR_NORMALIZE) /* O is divided by den                                      */ \
    X(LINEAR_ELU1)      /* phi; neither: the identity                               */ \
    X(LINEAR_RELU)                                                                     \
    X(LINEAR_LENS_KV) /* lens_kv holds the keys of each batch                     */   \
    X(LINEAR_STATE)   /* state_in, and with LINEAR_NORMALIZE z_in, hold the state */   \
    X(LINEAR_DECAY)   /* the rule has a decay, a strength of each key             */   \
    X(LINEAR_BETA)                                                                     \
    X(LINEAR_SCANNED) /* a step before has brought the segments' states together  */   \
    X(LINEAR_SLOTS)   /* of a backward: work has states                           */ \
    X(LINEAR_BESIDE)  /* its scans run side by side: those of dK, dV behind dQ's  */

enum {
#define X(name) LBIT_##name,
    LFEATURE_LIST(X)
#undef X
        LFEATURE_COUNT
};

enum {
#define X(name) name = 1 << LBIT_##name,
    LFEATURE_LIST(X)
#undef X
};

/* Bits of has: what this call of a backward brings, and asks for. */
enum {
    LHAS_GRAD_O = 1,
    LHAS_GRAD_K = 2,
    LHAS_GRAD_STATE_OUT = 4,
    LHAS_GRAD_Z_OUT = 8,
    LHAS_GRAD_STATE_IN = 16,
    LHAS_GRAD_Z_IN = 32,
    LHAS_GRAD_V = 64
};

/* Every kernel of linear attention. */
typedef struct attn_linear_kparams {
    const void *q, *k, *v; /* the computing type                          */
    void *o;
    float *den;                   /* _d is not used                              */
    const float *state_in, *z_in; /* state: [.., e, column]; z: [.., e, 0]       */
    float *state_out, *z_out;
    const void *decay, *beta; /* decay_type, beta_type                       */
    const int32_t *lens_kv;
    int32_t *status;
    float *work; /* the caller's workspace                      */

    VIEW_FIELDS(q);
    VIEW_FIELDS(k);
    VIEW_FIELDS(v);
    VIEW_FIELDS(o);
    VIEW_FIELDS(den);
    VIEW_FIELDS(state_in);
    VIEW_FIELDS(z_in);
    VIEW_FIELDS(state_out);
    VIEW_FIELDS(z_out);
    VIEW_FIELDS(decay);
    VIEW_FIELDS(beta);
    LIST_FIELDS(lens_kv);
    int64_t status_offset;

    uint32_t features; /* LFEATURE_LIST                               */
    int32_t decay_type, beta_type;
    int32_t d, dv; /* E and M                                     */
    int32_t batch, heads_q, heads_kv;
    int32_t group; /* query heads that share a key/value head     */
    int32_t len_q, len_kv;
    int32_t piece, pieces; /* tokens of a segment, segments of this step  */
    int32_t lead;          /* tokens of the first one (wgmma_relay.cuh)   */
    int32_t piece_q, pieces_q; /* of the scan of dQ where it has its own  */
    int32_t slots;         /* states in work, of each batch and head      */
    int64_t slots_at;      /* floats of work before them                  */
    int32_t want_o, want_den, want_state, want_z, want_status;
    float sum_scale, sum_eps, sum_unit; /* attn_problem_sums(): of the     */
                                        /*    forward, whose q is phi(Q)    */

    /* Of the backward alone, which reads o and den. */
    float scale;           /* its q is scale phi(Q)                       */
    const void *of_q, *of_k; /* what q and k are phi of, or they          */
    const void *grad_o; /* the computing type                          */
    void *grad_q, *grad_k, *grad_v;
    const float *grad_state_out, *grad_z_out;
    float *grad_state_in, *grad_z_in;
    VIEW_FIELDS(of_q);
    VIEW_FIELDS(of_k);
    VIEW_FIELDS(grad_o);
    VIEW_FIELDS(grad_q);
    VIEW_FIELDS(grad_k);
    VIEW_FIELDS(grad_v);
    VIEW_FIELDS(grad_state_out);
    VIEW_FIELDS(grad_z_out);
    VIEW_FIELDS(grad_state_in);
    VIEW_FIELDS(grad_z_in);
    int32_t has; /* LHAS_                                       */
} attn_linear_kparams;

/* One part of a merge; softmax/merge.cu. */
typedef struct attn_merge_kparams {
    const void *part; /* the part's own type; NULL without o         */
    const float *part_lse;
    void *o; /* the merged O's type                         */
    float *lse;
    float *work; /* the caller's workspace; NULL for one part   */

    VIEW_FIELDS(part);
    int64_t part_lse_offset, part_lse_stride_b, part_lse_stride_h, part_lse_stride_l;
    VIEW_FIELDS(o);
    int64_t lse_offset, lse_stride_b, lse_stride_h, lse_stride_l;

    int32_t batch, heads, len, depth;
    int32_t first; /* 1: nothing has been merged before           */
    int32_t last;  /* 1: o and lse are written, else work         */
    int32_t odd;   /* which of two m and l in work is read        */
    int32_t want_o, want_lse;
} attn_merge_kparams;

#endif
