// SPDX-License-Identifier: MIT
// softmax/split_state.cuh: the states of rows in the registers of a warp of fwd_split_mma.cu:
// how a tile of keys is folded into them, and how they climb the tree of split_tree.cuh. TYPE
// and DIM are the image's.
//
// A shape T has TILE (keys that are folded at once), CHUNKS (of 16 bytes, of a row of V), HALVES
// (of the 16 rows of an operand of mma.m16n8k16 that are used) and CLIMBS (leaves are brought
// together here).
#pragma once
#include "common/device.cuh"
#include "common/types.cuh"
#include "common/state.cuh"
#include "softmax/split_tree.cuh"
#include "softmax/sums.cuh"

// The states of some rows. Of the 16-row operand this lane knows rows lane / 4 and that + 8;
// l is of its own keys in a leaf, of all keys from there on. Of O, the columns along the rows
// of the operand, it has of each 16 columns lane / 4 and that + 8, of rows 2 (lane % 4) and
// the next of each half: o[half][n][0, 1] of the first column, [2, 3] of the other.
template <typename T> struct rows_state {
    attn_row row[T::HALVES];
    float o[T::HALVES][DIM / 16][4];
};

template <typename T> DEVICE void make_empty(rows_state<T> &x)
{
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        x.row[half] = state_init();
        #pragma unroll
        for (int n = 0; n < DIM / 16; n++)
            x.o[half][n][0] = x.o[half][n][1] = x.o[half][n][2] = x.o[half][n][3] = 0.0f;
    }
}

// What the lanes of row lane / 4 have, for rows 2 (lane % 4) and the next.
DEVICE void across(float x, float (&two)[2])
{
    const int from = threadIdx.x % 4 * 8;

    two[0] = __shfl_sync(0xffffffffu, x, from);
    two[1] = __shfl_sync(0xffffffffu, x, from + 4);
}

// `before` takes in `next`.
template <typename T> DEVICE void join(rows_state<T> &before, const rows_state<T> &next)
{
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        const tree_factors f = tree_join(before.row[half], next.row[half]);
        float of_before[2], of_next[2];

        across(f.before, of_before);
        across(f.next, of_next);
        #pragma unroll
        for (int n = 0; n < DIM / 16; n++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                before.o[half][n][e] = tree_sum(before.o[half][n][e], next.o[half][n][e],
                                                { of_before[e % 2], of_next[e % 2] });
    }
}

// From scores to weights, in place; rows move to their new maximum, and O with them.
template <typename T>
DEVICE void fold_scores(rows_state<T> &my, float (&s)[T::TILE / 8][4])
{
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        attn_row &row = my.row[half];
        float top = -INFINITE, sum = 0.0f;

        #pragma unroll
        for (int e = 0; e < T::TILE / 4; e++)
            top = state_max(s[e / 2][half * 2 + e % 2], top);
        top = state_max(__shfl_xor_sync(0xffffffffu, top, 1), top);
        top = state_max(__shfl_xor_sync(0xffffffffu, top, 2), top);

        const float factor = state_fold(&row, top), reference = state_reference(row.m);

        #pragma unroll
        for (int e = 0; e < T::TILE / 4; e++) {
            float &x = s[e / 2][half * 2 + e % 2];

            x = state_exp2(fmaf(x - reference, 1.44269504088896340736f, LIFT<TYPE>));
            sum += x;
        }
        row.l += sum;
        if (__any_sync(0xffffffffu, factor != 1.0f)) {
            float two[2];

            across(factor, two);
            #pragma unroll
            for (int n = 0; n < DIM / 16; n++)
                #pragma unroll
                for (int e = 0; e < 4; e++)
                    my.o[half][n][e] = rescaled(my.o[half][n][e], two[e % 2]);
        }
    }
}

// O += P V, as V^T P^T: the registers that hold S hold the second operand.
template <typename T>
DEVICE void add_values(const float4 *slot, const float (&w)[T::TILE / 8][4],
                       rows_state<T> &my)
{
    const int lane = threadIdx.x % 32, r = lane / 16 * 8 + lane % 8, odd = lane / 8 % 2;

    #pragma unroll
    for (int t = 0; t < T::TILE / 8; t += 2) {
        uint32_t b[T::HALVES][2];

        #pragma unroll
        for (int i = 0; i < 2 * T::HALVES; i++)
            b[i / 2][i % 2] = elem_pair<TYPE>(w[t + i % 2][i / 2 * 2],
                                              w[t + i % 2][i / 2 * 2 + 1]);
        #pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            uint32_t a[4];

            device_matrices_turned(a, slot + (t * 8 + r) * T::CHUNKS +
                                          ((2 * n + odd) ^ (r & 7)));
            #pragma unroll
            for (int half = 0; half < T::HALVES; half++)
                device_multiply<TYPE>(my.o[half][n], a, b[half][0], b[half][1]);
        }
    }
}

// What is known of the warp's keys: `leaf` is of those folded since the last leaf ended,
// `whole` of whole leaves, of which there is one if T does not climb.
template <typename T> struct climb {
    rows_state<T> leaf, whole;
};

// A leaf ends: its l is brought together, and it climbs.
template <typename T> DEVICE void end_leaf(climb<T> &my)
{
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        float &l = my.leaf.row[half].l;

        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
    }
    if (T::CLIMBS) {
        join(my.whole, my.leaf);
        make_empty(my.leaf);
    }
}
