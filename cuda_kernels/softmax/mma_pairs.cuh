// SPDX-License-Identifier: MIT
// softmax/mma_pairs.cuh: two warps of fwd_mma.cu that share rows (T::COLS is 2). Each finds the
// scores of every other 16 keys of a step and has half the columns of O, so that it loads half
// of K and half of V for twice the rows. Weights pass from one to the other through a tile of
// the pair's; what a row is held against is found by both together, and is the same in both.
#pragma once
#include "softmax/mma_terms.cuh"

// Of a warp that has its rows to itself.
template <typename T, bool PAIRED = (T::COLS > 1)> struct warp_pair {
    __device__ bool any(bool x) const { return __any_sync(0xffffffffu, x); }
    __device__ void largest(float (&)[T::MT][2]) const {}
    __device__ void sum(float (&)[T::MT][2]) const {}
    __device__ int column() const { return 0; }
};

template <typename T> struct warp_pair<T, true> {
    static constexpr int CHUNKS = T::BN / 8;    // of a row of weights

    float4 *tile;
    int warp;

    __device__ int column() const { return warp % 2; }
    // where a lane writes its weights of row 0 and the warp's first 16 keys, and where it reads
    // operands of the other one's
    __device__ device_shared mine() const
    {
        return address_of<CHUNKS>(tile, threadIdx.x % 32 / 4, 2 * column()) +
               threadIdx.x % 4 * 4;
    }
    __device__ device_shared others() const
    {
        return address_of<CHUNKS>(tile, threadIdx.x % 16,
                                  threadIdx.x / 16 % 2 + 2 * (1 - column()));
    }
    __device__ void meet() const { device_meet<64>(1 + warp / 2); }
    // the same, and whether a lane of them has it
    __device__ bool any(bool x) const { return device_meet_any<64>(1 + warp / 2, x); }

    // Both give a number for each of their rows, lane by lane, and get the other's. The tile
    // holds no weights that are still to be read.
    __device__ void exchange(const float (&x)[T::MT][2], float (&other)[T::MT][2]) const
    {
        constexpr int N = 2 * T::MT;
        float *const to = (float *)tile + column() * N * 32 + threadIdx.x % 32;
        const float *const from = (float *)tile + (1 - column()) * N * 32 + threadIdx.x % 32;

        #pragma unroll
        for (int i = 0; i < N; i++)
            to[i * 32] = x[i / 2][i % 2];
        meet();
        #pragma unroll
        for (int i = 0; i < N; i++)
            other[i / 2][i % 2] = from[i * 32];
        meet();
    }

    __device__ void largest(float (&x)[T::MT][2]) const
    {
        float other[T::MT][2];

        exchange(x, other);
        #pragma unroll
        for (int i = 0; i < 2 * T::MT; i++)
            x[i / 2][i % 2] = state_max(other[i / 2][i % 2], x[i / 2][i % 2]);
    }

    __device__ void sum(float (&x)[T::MT][2]) const
    {
        float other[T::MT][2];

        meet();
        exchange(x, other);
        #pragma unroll
        for (int i = 0; i < 2 * T::MT; i++)
            x[i / 2][i % 2] += other[i / 2][i % 2];
    }
};

// This thread arrives at a barrier with all it has brought to shared memory: by copies, if all
// was `whole`. (A template, for code of a capability that has no such barriers.)
template <typename BARRIER> DEVICE void arrive_with_copies(BARRIER *b, bool whole)
{
    if (whole) {
        device_barrier_arrive_copied(b);
    } else {
        device_copied<0>();
        device_barrier_arrive(b);
    }
}

template <typename T> DEVICE warp_pair<T> pair_of([[maybe_unused]] float4 *tile,
                                                  [[maybe_unused]] int warp)
{
    if constexpr (T::COLS > 1)
        return { tile, warp };
    else
        return {};
}
