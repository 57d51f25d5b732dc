// SPDX-License-Identifier: MIT
// linear/columns.cuh: the columns of a state that a group walks the tokens with, a lane each,
// every SLICES-th row of them in a warp.
#pragma once
#include "linear/linear.cuh"

constexpr int COLUMNS = 32, SLICES = 8, THREADS = COLUMNS * SLICES;

// Row r of a thread is row r * SLICES + (its warp) of the state. KEEP of them in registers;
// 0: in memory.
template <int KEEP> struct columns {
    float kept[KEEP ? KEEP : 1];
    float *at;    // without KEEP: row 0 of this thread
    int rows;

    __device__ __forceinline__ float get(int r) const
    {
        return KEEP ? kept[r] : at[(int64_t)r * THREADS];
    }
    __device__ __forceinline__ void put(int r, float x)
    {
        if (KEEP)
            kept[r] = x;
        else
            at[(int64_t)r * THREADS] = x;
    }
};

// Every row of a thread, in its order; of those in registers the number is known.
#define EACH_ROW(s, r) \
    _Pragma("unroll") for (int r = 0; r < (KEEP ? KEEP : (s).rows); r++)
