/* SPDX-License-Identifier: MIT */
/* softmax/fwd_split.cl: softmax attention forward for few queries and many keys,
 * step 1: a work-group folds one piece of the keys into partial states.
 *
 * Computes  for each row (query and head) and each piece of PIECE keys
 *             m = max s_j    l = sum exp(s_j - m)    o = sum exp(s_j - m) v_j
 *           which fwd_split_merge.cl turns into O and the LSE
 * Method    T. Dao et al., "Flash-Decoding" (2023). The queries of all heads that
 *           share a key/value head are rows of one block, so that K and V are read
 *           once for all of them. In chunks of BC keys: scores, with lanes along D
 *           and TD items along a row of K; weights, with lanes along the keys; sums,
 *           with lanes along DV and KG items along the keys
 * Grid      1-D, ceil(round_queries * Hq / Hkv / R) blocks * pieces * round_heads *
 *           Hkv / Hq groups, the block fastest
 * Group     ITEMS work-items, 1-D
 * Local     in f32 and bytes, DP and DVP rounded up to VW, CI and KG as below:
 *             4 * ( R * DP + (TD * R * BC + (TD - 1) * 4) + KG * R * DVP   Q, S, O
 *                 + (ITEMS > 1 ? R * BC : 1)                             weights
 *                 + (LONG ? KG * R * DVP : 1)                            O's rest
 *                 + 2 * R * BC / SEG + 5 * R )                           row states
 * Barriers  3 a chunk, 3 more a group; all where every item passes
 * Layout    any strides, in elements; CONTIG_ macros promise stride 1.
 *           work: m and l of [row][piece][2], then o of [row][piece][DV]; rows of a
 *           round are [batch and key/value head][query][head of the group]
 * Numerics  f32 throughout. The bits of a row depend on its keys and on the tunables,
 *           not on the other rows of its block, nor on B or H: chunks lie on a grid
 *           that begins with the piece. The sums run over RUN keys, then over the
 *           runs; of many, in f32, they are compensated (Kahan 1965)
 * Features  all but dropout, through common/. A weight of 0 multiplies no V with
 *           FEAT_HIDES. Sinks are the merge's
 * Requires  ALIGNED = 1: D and DV multiples of VW; base and strides of K and V multiples
 *           of VW elements, where CONTIG_ is 1
 * Tunables  PIECE ITEMS TD VW R RT KT CT BC SEG ALIGNED, below
 * Oracle    src/host/softmax_fwd_reference.c
 */
#ifndef PIECE
#define PIECE 512  /* keys of a group: a multiple of BC, or it has one chunk */
#endif
#ifndef ITEMS
#define ITEMS 1    /* work-items of a group */
#endif
#ifndef TD
#define TD 1       /* ... that share a row of K: divides ITEMS */
#endif
#ifndef VW
#define VW 8       /* f32 lanes of a vector: 4, 8 or 16 */
#endif
#ifndef R
#define R 4        /* rows of a block: a multiple of RT */
#endif
#ifndef RT
#define RT 4       /* rows of a register tile */
#endif
#ifndef KT
#define KT 4       /* keys of a register tile */
#endif
#ifndef CT
#define CT 2       /* vectors of a value row in a register tile */
#endif
#ifndef BC
#define BC 64      /* keys of a chunk: a multiple of KT * ITEMS / TD and of SEG */
#endif
#ifndef SEG
#define SEG BC     /* keys of a row that one item weighs: a multiple of VW */
#endif
#ifndef ALIGNED
#define ALIGNED 0  /* 1: see Requires */
#endif
#include "common/params.h"
#include "common/types.clh"
#include "common/range.clh"
#include "common/address.clh"
#include "common/score.clh"
#include "common/state.clh"

#include "softmax/split.clh"

/* Q to f32, padded with 0. */
static inline void load_queries(const attn_block *t, const attn_kparams *p,
                                const attn_sequence *s)
{
    for (int r = 0; r < R; r++) {
        const int there = min(r, t->rows - 1);
        const attn_rows rows = ADDRESS_QUERIES(p, q, s, t->b, head_of(t, there));
        const long row = address_row(&rows, query_of(t, there));

        for (int d = get_local_id(0); d < DP; d += ITEMS)
            t->q[r * DP + d] = r < t->rows && d < D
                ? elem_load(p->q, address_elem(&rows, row, d, CONTIG_Q)) : 0.0f;
    }
}

/* Partial scores of the chunk's keys lo .. n - 1; key 0 of it is key j0. */
static inline void chunk_scores(const attn_block *t, const attn_kparams *p,
                                const attn_rows *rows, int j0, int lo, int n)
{
    const int td = get_local_id(0) % TD, tk = get_local_id(0) / TD;

    for (int j = lo / (KT * NK) * (KT * NK) + tk; j < n; j += KT * NK) {
        long row[KT];

        /* outside the range its nearest key is taken again; nobody reads the result */
        #pragma unroll
        for (int c = 0; c < KT; c++)
            row[c] = address_row(rows, j0 + clamp(j + c * NK, lo, n - 1));
        for (int r0 = 0; r0 < t->rows; r0 += RT) {
            floatv acc[RT][KT];

            #pragma unroll
            for (int r = 0; r < RT; r++) {
                #pragma unroll
                for (int c = 0; c < KT; c++)
                    acc[r][c] = 0.0f;
            }
            #pragma unroll 8
            for (int d = td * VW; d < D; d += TD * VW) {
                floatv x[KT];

                #pragma unroll
                for (int c = 0; c < KT; c++)
                    x[c] = load_row(p->k, rows, row[c], d, D, CONTIG_K);
                #pragma unroll
                for (int r = 0; r < RT; r++) {
                    const floatv q = LOADV(0, t->q + (r0 + r) * DP + d);

                    #pragma unroll
                    for (int c = 0; c < KT; c++)
                        acc[r][c] += q * x[c];
                }
            }
            #pragma unroll
            for (int r = 0; r < RT; r++) {
                #pragma unroll
                for (int c = 0; c < KT; c++)
                    t->s[td * SP + (r0 + r) * BC + j + c * NK] = lanes_sum(acc[r][c]);
            }
        }
    }
}

/* o += the sum of a run, at an element of it. */
static inline void add_run(const attn_block *t, int at, floatv run)
{
    const floatv sum = LOADV(0, t->o + at);

    if (LONG) {
        floatv extra = LOADV(0, t->rest + at);

        STOREV(add_rest(sum, run, &extra), 0, t->o + at);
        STOREV(extra, 0, t->rest + at);
    } else {
        STOREV(sum + run, 0, t->o + at);
    }
}

/* o += weights times values, for the chunk's keys lo .. n - 1, rows from r0 on and the
 * columns from c on; each item takes every KG-th key. */
static inline void add_values(const attn_block *t, const attn_kparams *p,
                              const attn_rows *rows, int j0, int lo, int n, int kg, int r0,
                              int c)
{
    floatv acc[RT][CT];

    #pragma unroll
    for (int r = 0; r < RT; r++) {
        #pragma unroll
        for (int v = 0; v < CT; v++)
            acc[r][v] = 0.0f;
    }
    for (int j = lo + (kg + KG - lo % KG) % KG; j < n; j += KG) {
        const long row = address_row(rows, j0 + j);
        floatv x[CT];

        /* past the last column that one is taken again; nobody keeps it */
        #pragma unroll
        for (int v = 0; v < CT; v++)
            x[v] = load_row(p->v, rows, row, min(c + v * VW, DVP - VW), DV, CONTIG_V);
        #pragma unroll
        for (int r = 0; r < RT; r++) {
            const float w = t->w[(r0 + r) * BC + j];

            if (FEAT_HIDES && w == 0.0f)
                continue;
            #pragma unroll
            for (int v = 0; v < CT; v++)
                acc[r][v] += w * x[v];
        }
    }
    #pragma unroll
    for (int r = 0; r < RT; r++) {
        const int at = (kg * R + r0 + r) * DVP + c;

        #pragma unroll
        for (int v = 0; v < CT; v++)
            if (c + v * VW < DVP)
                add_run(t, at + v * VW, acc[r][v]);
    }
}

static inline void chunk_values(const attn_block *t, const attn_kparams *p,
                                const attn_rows *rows, int j0, int lo, int n)
{
    const int kg = get_local_id(0) / CI;

    if (kg >= KG)
        return;
    for (int c = get_local_id(0) % CI * CT * VW; c < DVP; c += CI * CT * VW) {
        for (int r = 0; r < t->rows; r++)
            for (int v = c; v < min(c + CT * VW, DVP); v += VW) {
                const int at = (kg * R + r) * DVP + v;

                STOREV(sum_scaled(LOADV(0, t->o + at), t->factor[r]), 0, t->o + at);
                if (LONG)
                    STOREV(sum_scaled(LOADV(0, t->rest + at), t->factor[r]), 0,
                           t->rest + at);
            }
        for (int j = lo / RUN * RUN; j < n; j += RUN)
            for (int r = 0; r < t->rows; r += RT)
                add_values(t, p, rows, j0, max(j, lo), min(j + RUN, n), kg, r, c);
    }
}

/* Adds what the items along the keys have, and writes the states of the piece. */
static inline void store(const attn_block *t, const attn_kparams *p, long row0,
                         long all_rows, int piece, int pieces, int odd, int empty)
{
    for (int r = get_local_id(0); r < t->rows; r += ITEMS) {
        __global float *to = p->work + ((row0 + r) * pieces + piece) * 2;

        to[0] = empty ? -INFINITY : t->m[odd * R + r];
        to[1] = empty ? 0.0f : t->l[r];
    }
    if (empty || !p->want_o)
        return;
    for (int r = 0; r < t->rows; r++) {
        __global float *to = p->work + all_rows * pieces * 2 +
                             ((row0 + r) * pieces + piece) * DV;

        for (int d = get_local_id(0); d < DV; d += ITEMS) {
            float sum = t->o[r * DVP + d];

            #pragma unroll
            for (int g = 1; g < KG; g++)
                sum += t->o[(g * R + r) * DVP + d];
            to[d] = sum;
        }
    }
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_softmax_fwd_split(SIGNATURE(SOFTMAX_FWD_PARAMS))
{
    __local float q_tile[R * DP], s_tile[TD * SP - 4], w_tile[ITEMS > 1 ? R * BC : 1];
    __local float o_tile[KG * R * DVP], o_rest[LONG ? KG * R * DVP : 1];
    __local float seg_top[R * SEGS], seg_sum[R * SEGS];
    __local float row_m[2 * R], row_l[R], row_rest[R], row_factor[R];
    const attn_kparams p = KPARAMS(SOFTMAX_FWD_PARAMS);
    const int group = p.heads_q / p.heads_kv, rows = p.round_queries * group;
    const int blocks = CEIL_DIV(rows, R), pieces = max(CEIL_DIV(p.len_kv, PIECE), 1);
    const int block = (int)(get_group_id(0) % blocks);
    const int piece = (int)(get_group_id(0) / blocks % pieces);
    const long pair = get_group_id(0) / blocks / pieces;    /* of the round */
    const long head = p.round_head + pair * group;          /* b * Hq + h */
    attn_block t = { q_tile, s_tile, ITEMS > 1 ? w_tile : s_tile, o_tile, o_rest, seg_top,
                     seg_sum, row_m, row_l, row_rest, row_factor, head / p.heads_q,
                     block * R, 0, (int)(head % p.heads_q), group, p.round_query };
    const attn_sequence s = range_sequence(&p, t.b);
    const int queries = clamp(s.queries - p.round_query, 0, p.round_queries);
    attn_range any, all;
    attn_rows k_rows, v_rows;
    int odd = 0, i, n_i;

    t.rows = clamp(queries * group - t.row, 0, R);
    i = query_of(&t, 0);
    n_i = t.rows > 0 ? query_of(&t, t.rows - 1) - i + 1 : 0;
    any = range_any(&p, &s, i, n_i);
    all = range_all(&p, &s, i, n_i);
    any.first = max(any.first, piece * PIECE);
    any.end = (int)min((long)any.end, (piece + 1L) * PIECE);
    if (any.first < any.end) {
        k_rows = ADDRESS_KEYS(&p, k, &s, t.b, address_head_kv(&p, t.head));
        v_rows = ADDRESS_KEYS(&p, v, &s, t.b, address_head_kv(&p, t.head));
        load_queries(&t, &p, &s);
        for (int e = get_local_id(0); e < KG * R * DVP; e += ITEMS) {
            o_tile[e] = 0.0f;
            if (LONG)
                o_rest[e] = 0.0f;
        }
        for (int r = get_local_id(0); r < R; r += ITEMS) {
            row_m[r] = -INFINITY;
            row_l[r] = row_rest[r] = 0.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int j0 = any.first / BC * BC, n; j0 < any.end; j0 += n) {
            const int lo = max(any.first - j0, 0);
            const int edge = lo > 0 || j0 < all.first || all.end - j0 < BC;

            n = min(BC, any.end - j0);
            chunk_scores(&t, &p, &k_rows, j0, lo, n);
            barrier(CLK_LOCAL_MEM_FENCE);
            chunk_tops(&t, &p, &s, j0, lo, n, edge);
            barrier(CLK_LOCAL_MEM_FENCE);
            chunk_weights(&t, odd);
            barrier(CLK_LOCAL_MEM_FENCE);
            chunk_sums(&t);
            if (p.want_o)
                chunk_values(&t, &p, &v_rows, j0, lo, n);
            odd = !odd;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    store(&t, &p, pair * rows + t.row, (long)p.round_heads / group * rows, piece, pieces,
          odd, any.first >= any.end);
}
