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

// The values of four keys for column group g.
template <typename T> DEVICE void load_values(float4 (&b)[4], const float *v, int g)
{
    #pragma unroll
    for (int y = 0; y < 4; y++)
        b[y] = *(const float4 *)(v + y * T::VP + g * 4 * T::TX);
}

// o[r][g] += weights times values, for one chunk of keys. Values are loaded one column group
// ahead, if a second register for them is known at compile time.
template <typename T>
DEVICE void add_values(float4 (&o)[T::RM][T::RV], const float *w, const float *v)
{
    constexpr bool AHEAD = T::RV % 2 == 0;
    float4 b[2][4];

    if (AHEAD)
        load_values<T>(b[0], v, 0);
    #pragma unroll 1
    for (int j = 0; j < T::JC; j += 4, v += 4 * T::VP) {
        float4 a[T::RM];

        #pragma unroll
        for (int r = 0; r < T::RM; r++)
            a[r] = *(const float4 *)(w + r * T::TY * T::WP + j);
        #pragma unroll
        for (int g = 0; g < T::RV; g++) {
            const float4(&now)[4] = b[g % 2];

            if (!AHEAD)
                load_values<T>(b[g % 2], v, g);
            else if (g + 1 < T::RV)
                load_values<T>(b[(g + 1) % 2], v, g + 1);
            else
                load_values<T>(b[0], j + 4 < T::JC ? v + 4 * T::VP : v, 0);
            #pragma unroll
            for (int r = 0; r < T::RM; r++) {
                add_scaled(o[r][g], a[r].x, now[0]);
                add_scaled(o[r][g], a[r].y, now[1]);
                add_scaled(o[r][g], a[r].z, now[2]);
                add_scaled(o[r][g], a[r].w, now[3]);
            }
        }
    }
}
