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

#endif
