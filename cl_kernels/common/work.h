/* SPDX-License-Identifier: MIT */
/* common/work.h: where the matrices of softmax_fwd_math lie in its workspace. The kernels
 * and src/backend/opencl read this one list; src/plan/opencl counts the same bytes.
 *
 * A round has n pairs (batch, key/value head). The queries of all heads that share a
 * pair's keys are columns, side by side: query i of head g of them is column g * pitch + i.
 * In floats, each matrix for all pairs, one matrix after the other:
 *
 *     Q [D][cols]  K [D][keys]  V [keys][dv]  S [keys][cols]  O [dv][cols]  F [cols]
 *
 * keys is len_kv padded to a multiple of MR (and never 0), dv is DV padded to one of MR,
 * cols to one of NR, pitch to one of PITCH. F: what a column of O is multiplied by. */
#ifndef ATTN_COMMON_WORK_H
#define ATTN_COMMON_WORK_H

#define WORK_PAD(n, unit) (((n) + (unit) - 1) / (unit) * (unit))

/* Where each begins; all arguments are 64 bits wide. Q begins at 0. */
#define WORK_K(n, d, dv, keys, cols) ((n) * (d) * (cols))
#define WORK_V(n, d, dv, keys, cols) ((n) * (d) * ((cols) + (keys)))
#define WORK_S(n, d, dv, keys, cols) (WORK_V(n, d, dv, keys, cols) + (n) * (keys) * (dv))
#define WORK_O(n, d, dv, keys, cols) (WORK_S(n, d, dv, keys, cols) + (n) * (keys) * (cols))
#define WORK_F(n, d, dv, keys, cols) (WORK_O(n, d, dv, keys, cols) + (n) * (dv) * (cols))

/* The matrices of softmax_bwd_math, for each pair of a round, behind delta and in the same
 * way: M(name, rows, columns). The gradients of keys and values, first, since they stay while
 * rounds of other queries go by, of which the last may have fewer columns; q, k, v and g, the
 * gradient of O, transposed (_t) and as rows (_r); weights w and gradients of scores s; dQ.
 * D and DV are also padded, as columns dn and dvn to a multiple of NB, and as rows dm to one
 * of MR.
 *
 * What is multiplied by single elements (k_t, v_t, k_r) lies in panels of MR columns, what
 * has `cols` columns in those of NR, the others in those of NB. */
#define WORK_GRADIENTS(M) \
    M(dk, keys, dn) M(dvs, keys, dvn) \
    M(q_t, d, cols) M(g_t, dv, cols) M(q_r, cols, dn) M(g_r, cols, dvn) \
    M(k_t, d, keys) M(v_t, dv, keys) M(k_r, keys, dm) \
    M(w, keys, cols) M(s, keys, cols) M(dq, dm, cols)

/* Floats that delta takes, [B, Hq, Lq], so that what is behind it begins at 64 bytes. */
#define WORK_DELTA(queries) WORK_PAD(queries, 16)

#endif
