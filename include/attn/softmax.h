/* SPDX-License-Identifier: MIT */
/* attn/softmax.h: exact softmax attention, forward and backward: what it computes. */
#ifndef ATTN_SOFTMAX_H
#define ATTN_SOFTMAX_H

#include <stddef.h>
#include <stdint.h>

#include <attn/status.h>
#include <attn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Softmax attention, for every batch, query head h and query i, in this order:
 *
 *     s_ij  = scale * <q_i, k_j>                     scores, j = 0 .. Lk - 1
 *     s_ij  = softcap * tanh(s_ij / softcap)         if softcap > 0
 *     s_ij  = s_ij + bias_ij - slope_h * |p_i - j|   bias; ALiBi slopes
 *     s_ij  = -inf where key j is hidden from query i
 *     m_i   = max_j s_ij                             and sink_h, if any
 *     l_i   = sum_j exp(s_ij - m_i)                  + exp(sink_h - m_i)
 *     O_i   = sum_j exp(s_ij - m_i) v_j / l_i        [B, Hq, Lq, Dv]
 *     LSE_i = m_i + ln(l_i)                          [B, Hq, Lq], natural log
 *
 * With dropout p a weight exp(s_ij - m_i) / l_i of O is dropped, or divided by 1 - p
 * where it is kept; LSE and l_i are those without it (below).
 *
 * Q is [B, Hq, Lq, D], K [B, Hkv, Lk, D], V [B, Hkv, Lk, Dv]. Query head h
 * reads key/value head h / (Hq / Hkv).
 *
 * Position. Query i stands at p_i = i + offset. The offset is 0 with
 * ATTN_ALIGN_TOP_LEFT, (keys of that batch) - (queries of that batch) with
 * ATTN_ALIGN_BOTTOM_RIGHT (it may be negative), or the caller's own number, one
 * for all or one a batch. Causal, window and ALiBi read this one position:
 *
 *     causal                 key j is visible when j <= p_i
 *     window (left, right)   ... when p_i - left <= j <= p_i + right; both ends
 *                            count, -1 is unbounded: (-1, -1) is no window,
 *                            (-1, 0) is causal
 *     lengths                ... when j < length of that batch
 *     mask                   ... where it is true
 *     bias                   ... where it is not -inf
 *
 * A key is visible when all that were asked for agree. Causal, for Lq = 2 and
 * Lk = 5, and for Lq = 5 and Lk = 2 (1: visible):
 *
 *     TOP_LEFT     1 0 0 0 0        BOTTOM_RIGHT   1 1 1 1 0
 *                  1 1 0 0 0                       1 1 1 1 1
 *
 *     TOP_LEFT     1 0              BOTTOM_RIGHT   0 0
 *                  1 1                             0 0
 *                  1 1                             0 0
 *                  1 1                             1 0
 *                  1 1                             1 1
 *
 * A query that sees no key (Lk = 0, a length of 0, all masked, or none in range)
 * gives O = 0 and LSE = -inf, with a sink O = 0 and LSE = the sink. A sink of +inf
 * takes all weight: O = 0 and LSE = +inf, with keys in sight or without, and dSink is the
 * sum of dLSE. A key that no query of its head sees by length, page, causal or window
 * contributes nothing: its K and V rows may hold anything, NaN and Inf included. Of a key
 * hidden by the mask or the bias alone K may hold anything, V too unless the variant says
 * that it wants finite numbers there (ATTN_TRAIT_FINITE_V). A key that dropout drops is in
 * sight: its V has to be finite.
 *
 * Lengths and packed sequences. Each batch may have fewer queries (lens_q) and keys
 * (lens_kv) than the tensors have rows. Packed, the batches lie one behind the other
 * in one [1, H, tokens, D] tensor, and batch b has the tokens cu[b] .. cu[b + 1] - 1
 * of it; i and j count from its first. Rows of O and LSE that belong to no query
 * are not written. Both rules together: the shorter one holds.
 *
 * Pages. K and V are [pages, Hkv, page size, D]; key j of batch b is row j % page
 * size of page block_table[b, j / page size].
 *
 * Dropout. Philox4x32-10 gives the four words of keys 4n .. 4n + 3 of query i of head h
 * and batch b from a counter and a key:
 *
 *     counter  n, i, b * Hq + h, lower half of dropout_offset       32 bits each
 *     key      lower half of dropout_seed, its upper half xor that of dropout_offset
 *
 * and key j is kept where its word >= floor(p * 2^32). Seed and offset come with each call
 * (attn_args): the backward gets those of its forward. i and j count from the first of
 * their batch, so that neither strides, packing nor the variant change what is kept, but a
 * head by itself is head 0 of batch 0. p = 0 is no dropout, p = 1 gives O = 0.
 *
 * Scores, maxima, sums and products with V are kept in f32 for every type, and of f32
 * in its full accuracy unless ATTN_USE_ALLOW_TF32 is given; the
 * running maximum starts at -inf, so any finite number is an ordinary number; a score
 * that f32 cannot hold is an infinity, and positions are compared exactly but enter
 * ALiBi as f32. So is a sum of weights times values before it is divided by that of the
 * weights, which are 1 at most, of bf16 2^8: values whose |V| sum up to less than 2^120 are
 * safe everywhere.
 * Results are rounded to nearest even. The same plan and inputs give the same
 * bits on the same device, and a row gives the same bits alone or in a batch.
 *
 * Method: M. Milakov and N. Gimelshein, "Online normalizer calculation for
 * softmax" (2018); T. Dao, "FlashAttention-2" (2023); J. Salmon, M. Moraes, R. Dror and
 * D. Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011). */

/* The same backward, with ATTN_USE_GRAD: a problem, and a plan, of its own. Given are
 * Q, K, V and all that the forward had beside them, its results O and LSE, and the
 * gradients dO of O and dLSE of the LSE, either of which may be left out and then counts
 * as 0:
 *
 *     P_ij    = exp(s_ij - LSE_i)                        0 where key j is hidden
 *     delta_i = sum_d dO_id O_id - dLSE_i
 *     dP_ij   = <dO_i, v_j>
 *     dS_ij   = P_ij (dP_ij - delta_i)
 *     dV_j    = sum_i P_ij dO_i                          [B, Hkv, Lk, Dv]
 *               with dropout 0 where it dropped; elsewhere dP_ij, and P_ij in
 *               dV_j, are divided by 1 - p
 *     dBias   = dS, summed over its broadcast dimensions as the bias was given
 *     dS_ij   = dS_ij * (1 - tanh^2(scale <q_i, k_j> / softcap))     if softcap > 0
 *     dQ_i    = scale * sum_j dS_ij k_j                  [B, Hq, Lq, D]
 *     dK_j    = scale * sum_i dS_ij q_i                  [B, Hkv, Lk, D]
 *     dSink_h = - sum over batches and i of exp(sink_h - LSE_i) delta_i
 *
 * dK and dV are summed over the query heads that share a key/value head. P is computed
 * again from the LSE and not kept, so gradients are exact to about |LSE| * 6e-8 of
 * themselves; P never exceeds 1, so that they stay of the right size beyond that too.
 *
 * A query that sees no key has gradients of 0, but dSink, which gets its dLSE; its rows of
 * Q and dO may hold anything (where there are sinks too, softmax_bwd_math needs a finite
 * dO). sum_j dS_ij k_j and sum_i dS_ij q_i must be within f32 before they are multiplied by
 * scale. In f16 on tensor cores 64 neighbouring queries share a unit for dS: what of it is
 * below about 2^-25 of their largest bound loses bits, and what is not finite in dO or dLSE
 * of one spoils dQ of the others. A key that no query sees has a dK and dV of exactly 0 as
 * long as rows of Q and dO of queries that see others are finite; else it may get their NaN,
 * as may every key of the head.
 * Rows of dQ past a query length, of dK and dV past a key length, and tokens outside the
 * packed sequences are not written; dBias and dSinks are written whole.
 *
 * dQ, dK and dV have the problem's type, dBias and dSinks are f32; all sums are f32, or
 * better. The bits of a row of dQ, dK or dV do not depend on the batch, the number of
 * heads, or which gradients were asked for besides; nor any bit on the number of threads.
 * Pages have no gradients yet. */

/* Which optional fields of attn_softmax_desc hold a value. A field whose bit is
 * not set is not read. ABI: append only. */
#define ATTN_USE_CAUSAL  (1u << 0)  /* no field: the causal rule above        */
#define ATTN_USE_ALIGN   (1u << 1)  /* align;  default ATTN_ALIGN_TOP_LEFT    */
#define ATTN_USE_OFFSET  (1u << 2)  /* offset; not with BOTTOM_RIGHT          */
#define ATTN_USE_WINDOW  (1u << 3)  /* window_left, window_right              */
#define ATTN_USE_SCALE   (1u << 4)  /* scale;  default 1 / sqrt(D)            */
#define ATTN_USE_LENS_KV (1u << 5)  /* no field: attn_args.lens_kv is given   */
#define ATTN_USE_LSE     (1u << 6)  /* no field: attn_args.lse may be given   */
#define ATTN_USE_LAYOUT  (1u << 7)  /* layout_q, _k, _v, _o; with GRAD also
                                       layout_grad_o, _q, _k, _v              */
#define ATTN_USE_SOFTCAP (1u << 8)  /* softcap                                */
#define ATTN_USE_BIAS    (1u << 9)  /* type_bias; attn_args.bias is given     */
#define ATTN_USE_MASK    (1u << 10) /* no field: attn_args.mask is given      */
#define ATTN_USE_ALIBI   (1u << 11) /* no field: attn_args.alibi is given     */
#define ATTN_USE_SINKS   (1u << 12) /* no field: attn_args.sinks is given     */
#define ATTN_USE_LENS_Q  (1u << 13) /* no field: attn_args.lens_q is given    */
#define ATTN_USE_OFFSETS (1u << 14) /* no field: attn_args.offsets is given;
                                       not with OFFSET or BOTTOM_RIGHT        */
#define ATTN_USE_PACKED_Q (1u << 15) /* no field: Q, O, LSE packed by cu_q    */
#define ATTN_USE_PACKED_K (1u << 16) /* no field: K and V packed by cu_k      */
#define ATTN_USE_PAGES   (1u << 17) /* page_size; attn_args.block_table is
                                       given; not with PACKED_K               */
#define ATTN_USE_GRAD    (1u << 18) /* grad: the backward, not the forward; then
                                       attn_args.lse is given with or without
                                       ATTN_USE_LSE                           */
#define ATTN_USE_ALLOW_TF32 (1u << 19) /* no field: products of f32 may be rounded
                                       to TF32, 11 significant bits, for speed:
                                       a relative error of about 1e-3. A
                                       permission, not a wish; 16-bit types have
                                       nothing of it                          */
#define ATTN_USE_DROPOUT (1u << 20) /* dropout; attn_args.dropout_seed and
                                       dropout_offset are read                */

/* Which gradients a backward problem may be asked for. ABI: append only. */
#define ATTN_GRAD_Q     (1u << 0)
#define ATTN_GRAD_K     (1u << 1)
#define ATTN_GRAD_V     (1u << 2)
#define ATTN_GRAD_BIAS  (1u << 3) /* with ATTN_USE_BIAS  */
#define ATTN_GRAD_SINKS (1u << 4) /* with ATTN_USE_SINKS */
#define ATTN_GRAD_STATE (1u << 5) /* of linear attention (linear.h): S_in and z_in */

typedef enum attn_align {
    ATTN_ALIGN_TOP_LEFT = 0,    /* the first query sees the first key */
    ATTN_ALIGN_BOTTOM_RIGHT = 1 /* the last query sees the last key   */
} attn_align;

/* One problem. Lengths are the most that a call will pass: a plan made for
 * them serves every shorter call too. Packed, they are those of the longest
 * sequence, and the number of tokens is the call's own. Fields are added at the end, and 0 in a
 * field that `use` does not name means nothing, so a designated initialiser
 * written today keeps its meaning.
 *
 * B, Lq, Lk, or Hq and Hkv together, may be 0: such a call succeeds and writes
 * what the formula says. */
typedef struct attn_softmax_desc {
    size_t size;          /* sizeof(attn_softmax_desc), as the caller saw it  */
    uint32_t use;         /* ATTN_USE_... bits                                */
    attn_type type;       /* of Q, K, V and O: ATTN_F32, ATTN_F16, ATTN_BF16  */
    int64_t batch;        /* B   >= 0                                         */
    int64_t heads_q;      /* Hq  >= 0, a multiple of heads_kv                 */
    int64_t heads_kv;     /* Hkv >= 1; 0 if heads_q is 0                      */
    int64_t len_q;        /* Lq  >= 0, in tokens                              */
    int64_t len_kv;       /* Lk  >= 0, in tokens                              */
    int64_t dim_qk;       /* D   >= 1, in elements                            */
    int64_t dim_v;        /* Dv  >= 1, in elements; 0: dim_qk                 */

    attn_align align;
    int64_t offset;       /* position of query 0, in tokens, -2^31 .. 2^31 - 1 */
    int64_t window_left;  /* in tokens, >= 0; -1: unbounded                   */
    int64_t window_right; /* in tokens, >= 0; -1: unbounded                   */
    float scale;          /* any finite number, also 0 and negative           */
    attn_layout layout_q;
    attn_layout layout_k;
    attn_layout layout_v;
    attn_layout layout_o;
    float softcap;        /* >= 0, finite; 0: off                             */
    attn_type type_bias;  /* of the bias: ATTN_F32, ATTN_F16, ATTN_BF16       */
    int64_t page_size;    /* keys of a page, >= 1                             */
    uint32_t grad;        /* ATTN_GRAD_... bits, at least one                 */
    attn_layout layout_grad_o;
    attn_layout layout_grad_q;
    attn_layout layout_grad_k;
    attn_layout layout_grad_v;
    float dropout;        /* 0 .. 1: of the weights, that are dropped; 0: off  */
} attn_softmax_desc;

/* Checks every rule of the descriptor. ATTN_OK, or ATTN_ERR_INVALID with a
 * sentence that names the field, its value and the rule. It asks no device:
 * whether a kernel takes the problem is attn_plan_softmax()'s answer.
 *
 *   desc  read during this call only
 *
 * All numbers of tokens, heads and elements are at most 2^31 - 1, and so is
 * B * Hq * Lq * max(D, Dv) at most 2^62, and likewise for K and V.
 * Threads: safe. */
ATTN_API attn_status attn_softmax_check(const attn_softmax_desc *desc);

#ifdef __cplusplus
}
#endif

#endif
