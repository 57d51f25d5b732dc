// SPDX-License-Identifier: MIT
// softmax/outer.cuh: products of tiles in shared memory as sums of outer products, by register
// tiles: both operands lie such that what a thread multiplies at a time are fours side by side.
//
// A multiply-add has three operands, and each of the two banks of registers (even and odd
// numbers) gives one a clock. So one operand has to be that of the instruction before, which
// takes long runs with one factor; of the others one has to be even and one odd. Fours come
// to registers that are multiples of four, so a sum that lies in the other bank than the factor
// that changes along the run is all it takes. Where fours lie along the inner dimension, every
// sum meets even and odd ones, and half of the instructions wait.
#pragma once
#include "common/types.cuh"

// x = fours of a row in memory, APART elements from one to the next.
template <int APART, int N> DEVICE void load_fours(float (&x)[N], const float *from)
{
    #pragma unroll
    for (int i = 0; i < N; i += 4) {
        const float4 four = *(const float4 *)(from + i / 4 * APART);

        x[i] = four.x;
        x[i + 1] = four.y;
        x[i + 2] = four.z;
        x[i + 3] = four.w;
    }
}

// What a thread multiplies at a time: a row's RM and RN elements, and those of the next row.
template <int RM, int RN> struct factors {
    float x[2][RM], y[2][RN];
};

template <int A_APART, int B_APART, int RM, int RN>
DEVICE void load_factors(factors<RM, RN> &f, int which, const float *a, const float *b)
{
    load_fours<A_APART>(f.x[which], a);
    load_fours<B_APART>(f.y[which], b);
}

// sum[r ^ FLIP][c] += a[r] * b[c] for n rows of a and b, an even number; rows of a lie A_PITCH
// apart and the fours of one A_APART, of b likewise. The first row is in f already, each other
// is loaded before the one before it is used. Runs go to and fro, so that where they turn a
// second operand is that of the instruction before.
template <int FLIP, int A_PITCH, int A_APART, int B_PITCH, int B_APART, int RM, int RN>
DEVICE void add_outer(float (&sum)[RM][RN], factors<RM, RN> &f, const float *a, const float *b,
                      int n)
{
    #pragma unroll 1
    for (int i = 0; i < n; i += 2, a += 2 * A_PITCH, b += 2 * B_PITCH) {
        #pragma unroll
        for (int k = 0; k < 2; k++) {
            if (k == 0 || i + 2 < n)
                load_factors<A_APART, B_APART>(f, 1 - k, a + (k + 1) * A_PITCH,
                                               b + (k + 1) * B_PITCH);
            #pragma unroll
            for (int c = 0; c < RN; c++) {
                #pragma unroll
                for (int e = 0; e < RM; e++) {
                    const int r = c % 2 ? RM - 1 - e : e;

                    sum[r ^ FLIP][c] += f.x[k][r] * f.y[k][c];
                }
            }
        }
    }
}
