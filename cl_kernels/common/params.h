/* SPDX-License-Identifier: MIT */
/* common/params.h: the parameters of every kernel, once, in order. The kernels
 * make their signatures from these lists and src/backend/opencl sets the
 * arguments from them, so the two cannot disagree.
 *
 * P(KIND, name) is a parameter of one of these kinds:
 *
 *   IN, OUT       a tensor of the computing type         (__global ELEM *)
 *   BIAS          the bias, in its own type              (__global BIAS_ELEM *)
 *   U8 I32 F32    read only                              (__global const uchar *, ...)
 *   WORD, FLOATS  written                                (__global int *, float *)
 *   LONG INT FLOAT   scalars; LAST is the FLOAT and END the INT that ends a list
 *
 * Offsets and strides are in elements. A tensor that was left out is bound to
 * some other buffer (never NULL, which old drivers and checkers refuse) and its
 * flag or feature macro is 0. */
#ifndef ATTN_COMMON_PARAMS_H
#define ATTN_COMMON_PARAMS_H

/* strides of a [B, H, L, D] view and where it starts in its buffer */
#define VIEW_PARAMS(P, name) \
    P(LONG, name##_offset) P(LONG, name##_stride_b) P(LONG, name##_stride_h) \
    P(LONG, name##_stride_l) P(LONG, name##_stride_d)

/* ... of a vector over the batch */
#define LIST_PARAMS(P, name) P(LONG, name##_offset) P(LONG, name##_stride_b)

/* of both passes; o and lse are read by the backward */
#define SOFTMAX_PARAMS(P) \
    P(IN, q) P(IN, k) P(IN, v) P(OUT, o) P(FLOATS, lse) \
    P(BIAS, bias) P(U8, mask) P(F32, alibi) P(F32, sinks) \
    P(I32, lens_q) P(I32, lens_kv) P(I32, offsets) P(I32, cu_q) P(I32, cu_k) P(I32, table) \
    P(WORD, status) P(FLOATS, work) \
    VIEW_PARAMS(P, q) VIEW_PARAMS(P, k) VIEW_PARAMS(P, v) VIEW_PARAMS(P, o) \
    P(LONG, lse_offset) P(LONG, lse_stride_b) P(LONG, lse_stride_h) P(LONG, lse_stride_l) \
    VIEW_PARAMS(P, bias)    /* _l: from query to query, _d: from key to key  */ \
    VIEW_PARAMS(P, mask)    /* likewise                                      */ \
    LIST_PARAMS(P, alibi) P(LONG, alibi_stride_h) \
    P(LONG, sinks_offset) P(LONG, sinks_stride_h) \
    LIST_PARAMS(P, lens_q) LIST_PARAMS(P, lens_kv) LIST_PARAMS(P, offsets) \
    LIST_PARAMS(P, cu_q) LIST_PARAMS(P, cu_k) \
    LIST_PARAMS(P, table) P(LONG, table_stride_h)   /* _h: from block to block */ \
    P(LONG, status_offset) \
    P(LONG, offset)    /* position of query 0; not read with ALIGN_BR, OFFSETS */ \
    P(LONG, left)      /* key j is visible to query i when                   */ \
    P(LONG, right)     /*   i + offset - left <= j <= i + offset + right     */ \
    P(INT, batch) P(INT, heads_q) P(INT, heads_kv) \
    P(INT, len_q) P(INT, len_kv)       /* the most of a batch                */ \
    P(INT, tokens_q) P(INT, tokens_k)  /* packed: rows of the tensors        */ \
    P(INT, pages) P(INT, page_size) \
    P(INT, round_head) P(INT, round_heads)     /* this round computes heads  */ \
    P(INT, round_query) P(INT, round_queries)  /*   b * heads_q + h and queries */ \
    P(INT, want_o)     /* 0: o is not written                                */ \
    P(INT, want_lse)   /* 0: lse is not written                              */ \
    P(INT, want_status)/* 0: status is not written                           */ \
    P(INT, drop_key0) P(INT, drop_key1)  /* dropout: Philox's key            */ \
    P(INT, drop_offset)  /* ... the last word of its counter                 */ \
    P(INT, drop_below)   /* ... unsigned: words less than this are dropped   */ \
    P(FLOAT, drop_factor)/* ... of weights that are kept                     */ \
    P(FLOAT, softcap)

#define SOFTMAX_FWD_PARAMS(P) SOFTMAX_PARAMS(P) P(LAST, scale)

/* Devices promise room for 1024 bytes of arguments, and these are almost that. */
#define SOFTMAX_BWD_PARAMS(P) \
    SOFTMAX_PARAMS(P) \
    P(IN, grad_o) P(F32, grad_lse) P(OUT, grad_q) P(OUT, grad_k) P(OUT, grad_v) \
    P(FLOATS, grad_bias) P(FLOATS, grad_sinks) \
    VIEW_PARAMS(P, grad_o) VIEW_PARAMS(P, grad_q) VIEW_PARAMS(P, grad_k) \
    VIEW_PARAMS(P, grad_v) VIEW_PARAMS(P, grad_bias)   /* as bias               */ \
    P(LONG, grad_lse_offset) P(LONG, grad_lse_stride_b) P(LONG, grad_lse_stride_h) \
    P(LONG, grad_lse_stride_l) \
    P(LONG, grad_sinks_offset) P(LONG, grad_sinks_stride_h) \
    P(INT, grad_bias_size_b) P(INT, grad_bias_size_h)  /* 1: summed over, unless   */ \
    P(INT, grad_bias_size_l) P(INT, grad_bias_size_d)  /*    there is no more      */ \
    P(INT, has)        /* HAS_ bits of the gradients that are there          */ \
    P(LAST, scale)

#define HAS_GRAD_O 1
#define HAS_GRAD_LSE 2
#define HAS_GRAD_K 4
#define HAS_GRAD_V 8
#define HAS_GRAD_Q 16
#define HAS_GRAD_BIAS 32

/* Linear attention, of both passes; o and den are read by the backward. Of z and den _d is
 * not used, of states _l goes from row to row. */
#define LINEAR_PARAMS(P) \
    P(IN, q) P(IN, k) P(IN, v) P(OUT, o) P(FLOATS, den) \
    P(F32, state_in) P(F32, z_in) P(I32, lens_kv) P(WORD, status) P(FLOATS, work) \
    VIEW_PARAMS(P, q) VIEW_PARAMS(P, k) VIEW_PARAMS(P, v) VIEW_PARAMS(P, o) \
    VIEW_PARAMS(P, den) VIEW_PARAMS(P, state_in) VIEW_PARAMS(P, z_in) \
    LIST_PARAMS(P, lens_kv) P(LONG, status_offset) \
    P(INT, batch) P(INT, heads_q) P(INT, heads_kv) P(INT, len_q) P(INT, len_kv) \
    P(INT, piece)      /* tokens of a segment; 0: all                        */ \
    P(INT, merges)     /* full form: of one of an earlier step               */ \
    P(INT, has)        /* LHAS_ bits of the tensors that are there           */

/* decay and beta are in types of their own. */
#define LINEAR_FWD_OWN(P) \
    P(FLOATS, state_out) P(FLOATS, z_out) P(U8, decay) P(U8, beta) \
    VIEW_PARAMS(P, state_out) VIEW_PARAMS(P, z_out) \
    VIEW_PARAMS(P, decay) VIEW_PARAMS(P, beta) \
    P(FLOAT, sum_scale) P(FLOAT, sum_eps)    /* attn_problem_sums() */

#define LINEAR_BWD_OWN(P) \
    P(IN, grad_o) P(F32, grad_state_out) P(F32, grad_z_out) \
    P(OUT, grad_q) P(OUT, grad_k) P(OUT, grad_v) \
    P(FLOATS, grad_state_in) P(FLOATS, grad_z_in) \
    VIEW_PARAMS(P, grad_o) VIEW_PARAMS(P, grad_state_out) VIEW_PARAMS(P, grad_z_out) \
    VIEW_PARAMS(P, grad_q) VIEW_PARAMS(P, grad_k) VIEW_PARAMS(P, grad_v) \
    VIEW_PARAMS(P, grad_state_in) VIEW_PARAMS(P, grad_z_in)

#define LINEAR_FWD_PARAMS(P) LINEAR_PARAMS(P) LINEAR_FWD_OWN(P) P(LAST, sum_unit)
#define LINEAR_BWD_PARAMS(P) LINEAR_PARAMS(P) LINEAR_BWD_OWN(P) P(LAST, scale)

#define LHAS_STATUS 1
#define LHAS_O 2
#define LHAS_DEN 4
#define LHAS_STATE_OUT 8
#define LHAS_Z_OUT 16
#define LHAS_GRAD_O 32
#define LHAS_GRAD_K 64
#define LHAS_GRAD_STATE_OUT 128
#define LHAS_GRAD_Z_OUT 256
#define LHAS_GRAD_STATE_IN 512
#define LHAS_GRAD_Z_IN 1024
#define LHAS_GRAD_V 2048

/* One part of a merge; softmax/merge.cl. PART is IN, but in the part's own type. */
#define MERGE_PARAMS(P) \
    P(PART, part) P(F32, part_lse) P(OUT, o) P(FLOATS, lse) P(FLOATS, work) \
    VIEW_PARAMS(P, part) \
    P(LONG, part_lse_offset) P(LONG, part_lse_stride_b) P(LONG, part_lse_stride_h) \
    P(LONG, part_lse_stride_l) \
    VIEW_PARAMS(P, o) \
    P(LONG, lse_offset) P(LONG, lse_stride_b) P(LONG, lse_stride_h) P(LONG, lse_stride_l) \
    P(INT, batch) P(INT, heads) P(INT, len) P(INT, depth) \
    P(INT, first)      /* 1: nothing has been merged before                  */ \
    P(INT, last)       /* 1: o and lse are written, else work                */ \
    P(INT, odd)        /* which of two m and l in work is read               */ \
    P(INT, want_o) P(END, want_lse)

/* Bits of status: ATTN_CLAMPED_ in attn/plan.h. */
#define CLAMPED_LENS_Q 1
#define CLAMPED_LENS_KV 2
#define CLAMPED_CU_Q 4
#define CLAMPED_CU_K 8
#define CLAMPED_BLOCK_TABLE 16

#endif
