/* SPDX-License-Identifier: MIT */
/* softmax/merge.cl: takes one more partial result of the same rows into a merge.
 *
 * Computes  after the parts p = 0 .. n - 1, of which each call takes one:
 *             LSE = ln sum_p exp(LSE_p)    O = sum_p exp(LSE_p - LSE) O_p
 * Method    the online softmax (Milakov and Gimelshein 2018) over parts instead of keys:
 *           m is the largest LSE so far, l and acc are held against it
 * Grid      1-D, ceil(batch * heads * len / BR) groups
 * Group     ITEMS work-items, 1-D
 * Local     none
 * Barriers  none: all items of a row read m and l of one parity and write the other's
 * Layout    any strides, in elements. work: m and l of [2][rows][2], then acc of
 *           [rows][depth padded to VW]; not touched where one part is all there is
 * Numerics  f32. A part of no weight (LSE_p = -inf, or far below) is left out: its O is
 *           not multiplied, and may hold anything. No part of weight: O = 0, LSE = -inf
 * Tunables  TYPE (of O) PART_TYPE VW ITEMS BR, below
 * Oracle    src/host/merge.c
 */
#ifndef PART_TYPE
#define PART_TYPE TYPE_F32    /* of the part's O; TYPE is the merged O's */
#endif
#ifndef VW
#define VW 4       /* f32 lanes of a vector: 4, 8 or 16 columns of O */
#endif
#ifndef ITEMS
#define ITEMS 1    /* work-items of a group */
#endif
#ifndef BR
#define BR 16      /* rows of a group */
#endif
#include "common/params.h"
#include "common/types.clh"
#include "common/state.clh"

#if PART_TYPE == TYPE_F32
typedef float PART_ELEM;
#elif PART_TYPE == TYPE_F16
typedef half PART_ELEM;
#else
typedef ushort PART_ELEM;
#endif

#define SIGN_PART(name) const __global PART_ELEM *name,
#define FIELD_PART(name) const __global PART_ELEM *name;
#define SIGN_END(name) const int name
#define FIELD_END(name) int name;

typedef struct attn_merge {
    MERGE_PARAMS(FIELD)
} attn_merge;

#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)

static inline float part_load(const __global PART_ELEM *x, long i)
{
    if (PART_TYPE == TYPE_F16)
        return vload_half(0, (const __global half *)x + i);
    if (PART_TYPE == TYPE_BF16)
        return as_float((uint)((const __global ushort *)x)[i] << 16);
    return ((const __global float *)x)[i];
}

/* Columns d .. d + VW - 1 of the part; past the depth they are 0. */
static inline floatv part_columns(const attn_merge *p, long row, int d)
{
    float lane[VW];

    for (int l = 0; l < VW; l++)
        lane[l] = d + l < p->depth ? part_load(p->part, row + (d + l) * p->part_stride_d)
                                   : 0.0f;
    return PASTE(vload, VW)(0, lane);
}

static inline void store_columns(const attn_merge *p, long row, int d, floatv x)
{
    float lane[VW];

    PASTE(vstore, VW)(x, 0, lane);
    for (int l = 0; l < VW && d + l < p->depth; l++)
        elem_store(p->o, row + (d + l) * p->o_stride_d, lane[l]);
}

/* What a factor of 0 leaves, even of Inf and NaN, is nothing. */
static inline floatv weighed(floatv x, floatv factor)
{
    return select(x, (floatv)(0.0f), factor == 0.0f) * factor;
}

/* exp(LSE - reference); the largest weighs 1, of +inf too. */
static inline floatv weight(floatv lse, floatv reference)
{
    return select(state_weight(lse, reference), (floatv)(1.0f), lse == reference);
}

static inline float lane0(floatv x)
{
    float lane[VW];

    PASTE(vstore, VW)(x, 0, lane);
    return lane[0];
}

__kernel __attribute__((reqd_work_group_size(ITEMS, 1, 1)))
void attn_softmax_merge(SIGNATURE(MERGE_PARAMS))
{
    const attn_merge p = { MERGE_PARAMS(VALUE) };
    const long rows = (long)p.batch * p.heads * p.len, row0 = get_group_id(0) * (long)BR;
    const int vectors = max(CEIL_DIV(p.depth, VW), 1);
    __global float *acc = p.work + rows * 4;

    for (int e = get_local_id(0); e < BR * vectors; e += ITEMS) {
        const long row = row0 + e / vectors, b = row / p.len / p.heads;
        const long h = row / p.len % p.heads, i = row % p.len;
        const int d = e % vectors * VW;
        attn_row state = { (floatv)(-INFINITY), (floatv)(0.0f) };
        floatv sum = 0.0f, before, kept, w, over;
        float lse;

        if (row >= rows)
            break;
        if (!p.first) {
            const __global float *ml = p.work + (p.odd * rows + row) * 2;

            state.m = ml[0];
            state.l = ml[1];
            if (p.want_o)
                sum = PASTE(vload, VW)(0, acc + row * vectors * VW + d);
        }
        lse = p.part_lse[p.part_lse_offset + b * p.part_lse_stride_b +
                         h * p.part_lse_stride_h + i * p.part_lse_stride_l];
        /* weights are divided first: a mean never leaves the range of its parts */
        before = state.m;
        state.m = state_max((floatv)(lse), before);
        state.l *= weight(before, state_reference(&state));
        kept = state.l;
        w = weight((floatv)(lse), state_reference(&state));
        state.l += w;
        over = state_finish(&state);
        kept *= over;
        w *= over;
        if (p.want_o) {
            /* an empty part is not even read; a NaN is no empty part */
            const floatv x = lse == -INFINITY ? (floatv)(0.0f)
                : part_columns(&p, p.part_offset + b * p.part_stride_b +
                                       h * p.part_stride_h + i * p.part_stride_l, d);

            sum = weighed(sum, kept) + weighed(x, w);
        }
        if (p.last) {
            if (p.want_o)
                store_columns(&p, p.o_offset + b * p.o_stride_b + h * p.o_stride_h +
                                      i * p.o_stride_l, d, sum);
            if (p.want_lse && d == 0)
                p.lse[p.lse_offset + b * p.lse_stride_b + h * p.lse_stride_h +
                      i * p.lse_stride_l] = lane0(state_lse(&state));
        } else {
            if (p.want_o)
                PASTE(vstore, VW)(sum, 0, acc + row * vectors * VW + d);
            if (d == 0) {
                p.work[((1 - p.odd) * rows + row) * 2] = lane0(state.m);
                p.work[((1 - p.odd) * rows + row) * 2 + 1] = lane0(state.l);
            }
        }
    }
}
