/* SPDX-License-Identifier: MIT */
/* common/work.h: where the matrices of softmax_fwd_math lie in its workspace. The kernels
 * and src/backend/cuda read this one list; src/plan counts the same bytes.
 *
 * A round has n pairs (batch, key/value head). The queries of all heads that share a
 * pair's keys are rows, head after head. In floats, row after row, each matrix for all
 * pairs, one matrix after the other:
 *
 *     Q [rows][d]  K [all][d]  V [all][dv]  S [rows][keys]  O [rows][dv]  F [rows]
 *
 * rows is round_heads * round_queries, keys is len_kv but never 0, all is keys of all
 * pairs. F: what a row of O is multiplied by. Behind them is the library's own room. */
#ifndef ATTN_COMMON_WORK_H
#define ATTN_COMMON_WORK_H

/* Where each begins; all arguments are 64 bits wide. Q begins at 0. */
#define WORK_K(rows, all, keys, d, dv) ((rows) * (d))
#define WORK_V(rows, all, keys, d, dv) (((rows) + (all)) * (d))
#define WORK_S(rows, all, keys, d, dv) (WORK_V(rows, all, keys, d, dv) + (all) * (dv))
#define WORK_O(rows, all, keys, d, dv) (WORK_S(rows, all, keys, d, dv) + (rows) * (keys))
#define WORK_F(rows, all, keys, d, dv) (WORK_O(rows, all, keys, d, dv) + (rows) * (dv))
#define WORK_END(rows, all, keys, d, dv) (WORK_F(rows, all, keys, d, dv) + (rows))

/* The matrices of softmax_bwd_math, for each pair of a round, behind delta and in the same
 * way: M(name, rows, columns); rows of all heads of a pair. The gradients of keys and values,
 * first, since they stay while rounds of other queries go by, of which the last may have
 * fewer rows; q, g (the gradient of O), k and v; q and k without what is not finite (_f);
 * weights w and gradients of scores s; dQ. Behind them is the library's own room. */
#define WORK_GRADIENTS(M) \
    M(dk, keys, d) M(dvs, keys, dv) \
    M(q, rows, d) M(q_f, rows, d) M(g, rows, dv) \
    M(k, keys, d) M(k_f, keys, d) M(v, keys, dv) \
    M(w, rows, keys) M(s, rows, keys) M(dq, rows, d)

/* Floats that delta takes, [B, Hq, Lq], so that what is behind it begins at 64 bytes. */
#define WORK_DELTA(queries) (((queries) + 15) / 16 * 16)

#endif
