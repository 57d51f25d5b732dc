/* SPDX-License-Identifier: MIT */
/* attn/linear.h: linear attention, forward and backward: what it computes. */
#ifndef ATTN_LINEAR_H
#define ATTN_LINEAR_H

#include <stddef.h>
#include <stdint.h>

#include <attn/softmax.h> /* ATTN_GRAD_ bits, which both operations share */
#include <attn/status.h>
#include <attn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Linear attention, for every batch, query head h and query l, with E = D elements of a
 * query or key and M = Dv of a value:
 *
 *     q_l = scale * phi(Q_l)        k_j = phi(K_j)           phi elementwise, below
 *
 *     full      S = S_in + sum_j k_j V_j^T                   [E, M], j = 0 .. Lk - 1
 *               z = z_in + sum_j k_j                         [E]
 *     causal    S_l = S_(l-1) + k_l V_l^T,   S_(-1) = S_in   query l sees keys 0 .. l
 *               z_l = z_(l-1) + k_l,         z_(-1) = z_in
 *
 *     num_l = q_l^T S_l             den_l = <q_l, z_l> + eps (full: S and z)
 *     O_l   = num_l                                          [B, Hq, Lq, M]
 *     O_l   = num_l / den_l         with ATTN_LINEAR_NORMALIZE; 0 where den_l is 0
 *
 * Q is [B, Hq, Lq, E], K [B, Hkv, Lk, E], V [B, Hkv, Lk, M]. Query head h reads key/value
 * head, and state, h / (Hq / Hkv). There is one state of each batch and key/value head:
 * S [B, Hkv, E, M] and z [B, Hkv, E], always f32. Without ATTN_LINEAR_STATE_IN it begins
 * as zeros. What comes out (ATTN_LINEAR_STATE_OUT) is S and z after the last key, so a
 * sequence that runs in pieces, the state carried from call to call, equals the whole, and
 * a call with Lq = Lk = 1 is one step of decoding.
 *
 * The causal form counts queries and keys from the start of both: of more keys than
 * queries the last ones are ignored, and are not in the state that comes out; of fewer,
 * those that lack add nothing. Keys past the length of their batch
 * (ATTN_LINEAR_LENS_KV) lack, too, in both forms: their rows of K and V are not read.
 *
 * phi is the identity, ELU + 1 (x + 1 for x > 0, else exp(x)) or ReLU (max(x, 0)).
 * eps is added to den, never multiplied by scale; without it den_l = 0, where
 * num_l is 0 as well, gives O_l = 0.
 *
 * Rules. The causal form may change its state in other ways, with a decay
 * g_l <= 0 (as its logarithm; one number for each key/value head, or one for each feature,
 * a row of S) and a strength beta_l of each key:
 *
 *     LINEAR        S_l = S_(l-1) + k_l V_l^T
 *     GATED         S_l = exp(g_l) S_(l-1) + k_l V_l^T         z likewise
 *     DELTA         S_l = S_(l-1) + beta_l k_l (V_l - S_(l-1)^T k_l)^T
 *     GATED_DELTA   R = exp(g_l) S_(l-1);  S_l = R + beta_l k_l (V_l - R^T k_l)^T
 *
 * as of the operator LinearAttention of ONNX. DELTA and GATED_DELTA have no normaliser.
 * Steps without a key (more queries than keys, or past the length) leave the state alone.
 *
 * S, z and den are kept in f32 for every type, and of f32 in its full accuracy unless
 * ATTN_LINEAR_ALLOW_TF32 is given. They are sums in f32: where the terms of many keys
 * cancel, what is left has the error of those terms, more of it in variants that add key
 * by key (recurrent, lmha, atomic) than in those that add chunk by chunk. For f16 and
 * bf16, k and q may be rounded to that type after phi. A row of q whose numbers are huge
 * is scaled by a power of 2 meanwhile, so that num and den do not overflow before the
 * division; beside a number of 2^33 and more in a row what is below 2^-85 of its products
 * may be lost. The forward multiplies sums by scale, not q: where scale * phi(Q) or den
 * leaves f32, O is as good as ever, and den as a result an infinity; but phi(Q) S itself
 * must be within f32 where no number of a row is huge. The gradients have q and den in
 * f32, so both must be within it. Results are rounded to nearest even.
 * The same plan and inputs give the same bits on the same device, but of a variant that has
 * ATTN_TRAIT_NONDET (attn/device.h): such a one is taken by name, or where
 * ATTN_LINEAR_ALLOW_NONDET allows it.
 *
 * A NaN that some query of a head sees may spread to the head's other queries.
 *
 * Method: A. Katharopoulos et al., "Transformers are RNNs" (2020); in chunks: W. Hua et
 * al., "Transformer Quality in Linear Time" (2022); the delta rule: I. Schlag et al.,
 * "Linear Transformers Are Secretly Fast Weight Programmers" (2021). */

/* The same backward, with ATTN_LINEAR_GRAD: a problem, and a plan, of its own, for the
 * rule LINEAR. Given are Q, K, V, S_in and z_in, the gradients dO of O (may be left out and
 * then counts as 0) and, with ATTN_LINEAR_STATE_OUT, dS and dz of the state that came out
 * (likewise); with ATTN_LINEAR_NORMALIZE also the forward's results O and den:
 *
 *     G_l  = dO_l / den_l       c_l = - <dO_l, O_l> / den_l      0 where den_l is 0;
 *     G_l  = dO_l               c_l = 0                          without NORMALIZE
 *     R_j  = dS + sum_l q_l G_l^T     over the queries that see key j: l >= j, or all
 *     r_j  = dz + sum_l c_l q_l
 *     dQ_l = scale * phi'(Q_l) * (S_l G_l + c_l z_l)             [B, Hq, Lq, E]
 *     dK_j = phi'(K_j) * (R_j V_j + r_j)                         [B, Hkv, Lk, E]
 *     dV_j = R_j^T k_j                                           [B, Hkv, Lk, M]
 *     dS_in, dz_in = R and r over all queries                    f32, as S_in and z_in
 *
 * R and r are summed over the query heads that share a key/value head. phi' of ReLU is 0
 * at 0. A key that no query sees and that is not in the state that comes out has a dK and
 * dV of exactly 0; rows of both past a key length are not written. All sums are f32, or
 * better. den itself has no gradient: as a result it is for the backward. */

/* Which optional fields of attn_linear_desc hold a value. A field whose bit is not set is
 * not read. ABI: append only. */
#define ATTN_LINEAR_CAUSAL     (1u << 0)  /* no field: the causal form              */
#define ATTN_LINEAR_SCALE      (1u << 1)  /* scale; default 1                       */
#define ATTN_LINEAR_PHI        (1u << 2)  /* phi; default ATTN_PHI_IDENTITY         */
#define ATTN_LINEAR_NORMALIZE  (1u << 3)  /* no field: divide by den                */
#define ATTN_LINEAR_EPS        (1u << 4)  /* eps; default 1e-6; with NORMALIZE      */
#define ATTN_LINEAR_RULE       (1u << 5)  /* rule; default ATTN_RULE_LINEAR; and as the
                                             rule wants type_decay and type_beta: then
                                             attn_args.decay and beta are given     */
#define ATTN_LINEAR_LENS_KV    (1u << 6)  /* no field: attn_args.lens_kv is given   */
#define ATTN_LINEAR_STATE_IN   (1u << 7)  /* no field: attn_args.state_in is given, with
                                             NORMALIZE z_in too                     */
#define ATTN_LINEAR_STATE_OUT  (1u << 8)  /* no field: attn_args.state_out, with
                                             NORMALIZE also z_out, may be given; of a
                                             backward grad_state_out and grad_z_out */
#define ATTN_LINEAR_DEN        (1u << 9)  /* no field: attn_args.den may be given; with
                                             NORMALIZE                              */
#define ATTN_LINEAR_LAYOUT     (1u << 10) /* layout_q, _k, _v, _o; with GRAD also
                                             layout_grad_o, _q, _k, _v              */
#define ATTN_LINEAR_GRAD       (1u << 11) /* grad: the backward, not the forward; then
                                             attn_args.den is given with NORMALIZE,
                                             with or without ATTN_LINEAR_DEN        */
#define ATTN_LINEAR_ALLOW_TF32 (1u << 12) /* as ATTN_USE_ALLOW_TF32                 */
#define ATTN_LINEAR_ALLOW_NONDET (1u << 13) /* no field: the planner may take variants whose
                                               bits differ from run to run
                                               (ATTN_TRAIT_NONDET); without it they are
                                               taken by name alone. It takes others
                                               first, where they take the problem   */

/* phi. ABI: append only. */
typedef enum attn_phi {
    ATTN_PHI_IDENTITY = 0,
    ATTN_PHI_ELU1 = 1, /* x + 1 for x > 0, else exp(x) */
    ATTN_PHI_RELU = 2  /* max(x, 0)                    */
} attn_phi;

/* What a key does to the state. ABI: append only. */
typedef enum attn_rule {
    ATTN_RULE_LINEAR = 0,
    ATTN_RULE_GATED = 1,      /* decay           */
    ATTN_RULE_DELTA = 2,      /* beta            */
    ATTN_RULE_GATED_DELTA = 3 /* decay and beta  */
} attn_rule;

/* One problem. Lengths are the most that a call will pass. Fields are added at the end,
 * and 0 in a field that `use` does not name means nothing.
 *
 * B, Lq, Lk, or Hq and Hkv together, may be 0: such a call succeeds and writes what the
 * formula says: with Lk = 0 the state comes out as it went in. */
typedef struct attn_linear_desc {
    size_t size;          /* sizeof(attn_linear_desc), as the caller saw it   */
    uint32_t use;         /* ATTN_LINEAR_... bits                             */
    attn_type type;       /* of Q, K, V and O: ATTN_F32, ATTN_F16, ATTN_BF16  */
    int64_t batch;        /* B   >= 0                                         */
    int64_t heads_q;      /* Hq  >= 0, a multiple of heads_kv                 */
    int64_t heads_kv;     /* Hkv >= 1; 0 if heads_q is 0                      */
    int64_t len_q;        /* Lq  >= 0, in tokens                              */
    int64_t len_kv;       /* Lk  >= 0, in tokens                              */
    int64_t dim_qk;       /* E = D  >= 1, in elements                         */
    int64_t dim_v;        /* M = Dv >= 1, in elements; 0: dim_qk              */

    float scale;          /* any finite number, also 0 and negative           */
    attn_phi phi;
    float eps;            /* any finite number                                */
    attn_rule rule;       /* but LINEAR: wants CAUSAL; DELTA and GATED_DELTA want
                             no NORMALIZE. No variant has gradients of rules
                             but LINEAR (ATTN_ERR_UNSUPPORTED)                */
    attn_type type_decay; /* of the decay: ATTN_F32, ATTN_F16, ATTN_BF16; for GATED
                             and GATED_DELTA                                  */
    attn_type type_beta;  /* likewise, for DELTA and GATED_DELTA              */
    attn_layout layout_q;
    attn_layout layout_k;
    attn_layout layout_v;
    attn_layout layout_o;
    uint32_t grad;        /* ATTN_GRAD_Q, _K, _V and, with STATE_IN, _STATE;
                             at least one                                     */
    attn_layout layout_grad_o;
    attn_layout layout_grad_q;
    attn_layout layout_grad_k;
    attn_layout layout_grad_v;
} attn_linear_desc;

/* Checks every rule of the descriptor, as attn_softmax_check(). Besides, the elements of
 * the states, B * Hkv * E * M, are at most 2^62. Threads: safe. */
ATTN_API attn_status attn_linear_check(const attn_linear_desc *desc);

#ifdef __cplusplus
}
#endif

#endif
