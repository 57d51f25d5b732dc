// SPDX-License-Identifier: MIT
// softmax/products.cuh: products of tiles in shared memory, by register tiles. A thread has
// RM rows of what the group owns, TY apart, in memory of pitch QP, and RN of what it visits,
// TX apart, of pitch KP; of results RM rows of RV float4s. Weights have pitch WP, rows that
// they multiply VP, JC of them in a chunk.
#pragma once
#include "common/types.cuh"

// s[r][c] += the part of q.k that lies in `width` columns of a chunk, a multiple of 8.
template <typename T>
DEVICE void add_scores(float (&s)[T::RM][T::RN], const float *q, const float *k, int width)
{
    #pragma unroll 1
    for (int x = 0; x < width; x += 8) {
        #pragma unroll
        for (int d = 0; d < 8; d += 4) {
            float4 a[T::RM];

            #pragma unroll
            for (int r = 0; r < T::RM; r++)
                a[r] = *(const float4 *)(q + r * T::TY * T::QP + x + d);
            #pragma unroll
            for (int c = 0; c < T::RN; c++) {
                const float4 b = *(const float4 *)(k + c * T::TX * T::KP + x + d);

                #pragma unroll
                for (int r = 0; r < T::RM; r++) {
                    s[r][c] += a[r].x * b.x;
                    s[r][c] += a[r].y * b.y;
                    s[r][c] += a[r].z * b.z;
                    s[r][c] += a[r].w * b.w;
                }
            }
        }
    }
}

DEVICE void add_scaled(float4 &o, float w, float4 v)
{
    o.x += w * v.x;
    o.y += w * v.y;
    o.z += w * v.z;
    o.w += w * v.w;
}

// o[r][g] += weights times values, for one chunk of keys.
template <typename T>
DEVICE void add_values(float4 (&o)[T::RM][T::RV], const float *w, const float *v)
{
    #pragma unroll 1
    for (int j = 0; j < T::JC; j += 4) {
        float4 a[T::RM];

        #pragma unroll
        for (int r = 0; r < T::RM; r++)
            a[r] = *(const float4 *)(w + r * T::TY * T::WP + j);
        #pragma unroll
        for (int g = 0; g < T::RV; g++) {
            const float *x = v + j * T::VP + g * 4 * T::TX;
            const float4 b0 = *(const float4 *)x;
            const float4 b1 = *(const float4 *)(x + T::VP);
            const float4 b2 = *(const float4 *)(x + 2 * T::VP);
            const float4 b3 = *(const float4 *)(x + 3 * T::VP);

            #pragma unroll
            for (int r = 0; r < T::RM; r++) {
                add_scaled(o[r][g], a[r].x, b0);
                add_scaled(o[r][g], a[r].y, b1);
                add_scaled(o[r][g], a[r].z, b2);
                add_scaled(o[r][g], a[r].w, b3);
            }
        }
    }
}
