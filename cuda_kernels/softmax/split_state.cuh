// SPDX-License-Identifier: MIT
// softmax/split_state.cuh: the states of rows in the registers of fwd_split_mma.cu: how the
// parts of a tile that its warps have scores of become a leaf of split_tree.cuh, and how leaves
// climb. TYPE and DIM are the image's.
//
// A shape T has TILE (keys of a leaf, 16 of each warp), WARPS, ROWS (of a group), HALVES (eights
// of them), CHUNKS (of 16 bytes, of a row of V), PANELS (sixteens of columns, of a warp) and
// LEVELS.
#pragma once
#include "common/device.cuh"
#include "common/types.cuh"
#include "common/state.cuh"
#include "softmax/split_tree.cuh"
#include "softmax/sums.cuh"

// What one warp tells the others of its keys of a tile: their weights, a row of eight for each
// half, held against the largest score among them.
template <typename T> struct split_weights {
    float4 of[T::HALVES][T::TILE];
    attn_row row[T::WARPS][T::ROWS];
};

// The states of the group's rows at the warp's columns. A lane has rows 2 (lane % 4) and the
// next of each half, and of each 16 columns lane / 4 and that + 8: o[half][n][0, 1] of the
// first column, [2, 3] of the other.
template <typename T> struct rows_state {
    attn_row row[T::HALVES][2];
    float o[T::HALVES][T::PANELS][4];
};

template <typename T> DEVICE void make_empty(rows_state<T> &x)
{
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        x.row[half][0] = x.row[half][1] = state_init();
        #pragma unroll
        for (int n = 0; n < T::PANELS; n++)
            x.o[half][n][0] = x.o[half][n][1] = x.o[half][n][2] = x.o[half][n][3] = 0.0f;
    }
}

// `before` takes in `next`.
template <typename T> DEVICE void join(rows_state<T> &before, const rows_state<T> &next)
{
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        const tree_factors f[2] = { tree_join(before.row[half][0], next.row[half][0]),
                                    tree_join(before.row[half][1], next.row[half][1]) };

        #pragma unroll
        for (int n = 0; n < T::PANELS; n++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                before.o[half][n][e] =
                    tree_sum(before.o[half][n][e], next.o[half][n][e], f[e % 2]);
    }
}

// Over the keys of the warp: lanes with the same rows.
DEVICE float largest_of_keys(float x)
{
    x = state_max(__shfl_xor_sync(0xffffffffu, x, 4), x);
    x = state_max(__shfl_xor_sync(0xffffffffu, x, 8), x);
    return state_max(__shfl_xor_sync(0xffffffffu, x, 16), x);
}

DEVICE float sum_of_keys(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 4);
    x += __shfl_xor_sync(0xffffffffu, x, 8);
    return x + __shfl_xor_sync(0xffffffffu, x, 16);
}

// From the scores of the warp's 16 keys, s[half][e] of key lane / 4 + e / 2 * 8 and row
// 2 (lane % 4) + e % 2, to weights, for all warps.
template <typename T>
DEVICE void leave_weights(const float (&s)[T::HALVES][4], split_weights<T> &out)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        float w[4];

        #pragma unroll
        for (int i = 0; i < 2; i++) {
            attn_row row = state_init();

            row.m = largest_of_keys(state_max(s[half][i + 2], state_max(s[half][i], row.m)));
            #pragma unroll
            for (int e = i; e < 4; e += 2)
                w[e] = state_exp2(fmaf(s[half][e] - state_reference(row.m),
                                       1.44269504088896340736f, LIFT<TYPE>));
            row.l = sum_of_keys(w[i] + w[i + 2]);
            if (lane < 4)
                out.row[warp][half * 8 + lane * 2 + i] = row;
        }

        uint32_t *const to = (uint32_t *)&out.of[half][warp * 16] + lane;

        to[0] = elem_pair<TYPE>(w[0], w[1]);
        to[32] = elem_pair<TYPE>(w[2], w[3]);
    }
}

// A leaf: what all warps left, and O^T = V^T P^T at this warp's columns.
template <typename T>
DEVICE void make_leaf(const float4 *slot, const split_weights<T> &in, rows_state<T> &leaf)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int r = lane / 16 * 8 + lane % 8, odd = lane / 8 % 2;
    float f[T::HALVES][2][T::WARPS];

    make_empty(leaf);
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++)
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            attn_row &row = leaf.row[half][i];
            attn_row part[T::WARPS];

            #pragma unroll
            for (int w = 0; w < T::WARPS; w++) {
                part[w] = in.row[w][half * 8 + lane % 4 * 2 + i];
                row.m = state_max(part[w].m, row.m);
            }
            #pragma unroll
            for (int w = 0; w < T::WARPS; w++) {
                f[half][i][w] = tree_weight(part[w], state_reference(row.m));
                row.l = fmaf(part[w].l, f[half][i][w], row.l);
            }
        }
    #pragma unroll
    for (int w = 0; w < T::WARPS; w += 2) {
        uint32_t b[T::HALVES][4];

        #pragma unroll
        for (int half = 0; half < T::HALVES; half++)
            device_matrices_turned(b[half], &in.of[half][w * 16 + lane]);
        #pragma unroll
        for (int x = 0; x < 2; x++)
            #pragma unroll
            for (int n = 0; n < T::PANELS; n++) {
                uint32_t a[4];

                device_matrices_turned(a, slot + ((w + x) * 16 + r) * T::CHUNKS +
                                              ((2 * (warp * T::PANELS + n) + odd) ^ (r & 7)));
                #pragma unroll
                for (int half = 0; half < T::HALVES; half++) {
                    float sum[4];

                    device_product_of<TYPE>(sum, a, b[half][2 * x], b[half][2 * x + 1]);
                    #pragma unroll
                    for (int e = 0; e < 4; e++)
                        leaf.o[half][n][e] = tree_sum(leaf.o[half][n][e], sum[e],
                                                      { 1.0f, f[half][e % 2][w + x] });
                }
            }
    }
}

// What is known of the leaves so far: of each level what has no place above it yet. The last
// level takes in all that comes.
template <typename T> struct climb {
    rows_state<T> level[T::LEVELS];
};

// Leaf number n of the piece.
template <typename T> DEVICE void add_leaf(climb<T> &my, int n, rows_state<T> &x)
{
    bool climbs = true;
    int first = 0;    // level

    // every leaf is taken in, by an empty state if need be, without a branch: so factors can be
    // found while products are on their way
    if (T::HALVES == 1) {
        if (n % TREE_WIDTH == 0)
            make_empty(my.level[0]);
        join(my.level[0], x);
        climbs = n % TREE_WIDTH == TREE_WIDTH - 1;
        x = my.level[0];
        n /= TREE_WIDTH;
        first = 1;
    }
    #pragma unroll
    for (int i = first; i < T::LEVELS; i++, n /= TREE_WIDTH)
        if (climbs) {
            if (i + 1 < T::LEVELS ? n % TREE_WIDTH : n)
                join(my.level[i], x);
            else
                my.level[i] = x;
            climbs = n % TREE_WIDTH == TREE_WIDTH - 1;
            if (i + 1 < T::LEVELS)
                x = my.level[i];
        }
}

// What becomes of leaves up to number n.
template <typename T> DEVICE rows_state<T> join_levels(const climb<T> &my, int n)
{
    rows_state<T> x;

    make_empty(x);
    #pragma unroll
    for (int i = 0; i < T::LEVELS; i++, n /= TREE_WIDTH)
        if (i + 1 < T::LEVELS ? n % TREE_WIDTH : n) {
            rows_state<T> y = my.level[i];

            join(y, x);
            x = y;
        }
    return x;
}
