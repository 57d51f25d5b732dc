// SPDX-License-Identifier: MIT
// softmax/tile_part.cuh: which tile a group of fwd_tile.cu computes, or which part of one
// (common/cut.h), and how sums go from part to part: through the workspace, bit by bit.
#pragma once
#include "common/cut.h"
#include "softmax/sums.cuh"
#include "softmax/tile.cuh"

// Floats of a tile's state in the workspace: O, its rests, maxima and sums of the rows.
template <typename T, bool LONG>
constexpr int STATE = T::BM * DIM + (LONG ? T::BM * DIM / 2 : 0) + 3 * T::BM;

template <typename T, bool LONG>
DEVICE float *part_state(const attn_kparams &p, const tile_part &part)
{
    return p.work + CUT_COUNTERS(p.cut.slots) + (int64_t)part.cut * STATE<T, LONG>;
}

DEVICE int *part_flag(const attn_kparams &p, const tile_part &part)
{
    return (int *)p.work + 1 + part.cut;
}

// Job `id` of those in cut.h.
DEVICE tile_part part_of_job(const attn_cut &cut, int id)
{
    const int tails = cut.whole + cut.rest + cut.middles;
    int t = id;

    if (t < cut.rest)
        return { cut.whole + t, 0, CUT_HEAD(cut, t), t };
    t -= cut.rest;
    if (t < cut.slots)
        return { t, 0, cut.steps, -1 };
    t -= cut.slots;
    if (t < cut.middles)
        return { cut.whole + t, CUT_HEAD(cut, t), CUT_TAIL(cut, t), t };
    if (id < tails)
        return { t - cut.middles + cut.slots, 0, cut.steps, -1 };
    t = (id - tails + cut.middles) % cut.rest;
    return { cut.whole + t, CUT_TAIL(cut, t), cut.steps, t };
}

// The next job. Groups take them in order, so whoever a part waits for has begun. By one thread.
DEVICE tile_part next_part(const attn_kparams &p)
{
    if (!p.cut.rest)
        return { (int)blockIdx.x, 0, 0, -1 };

    const tile_part part = part_of_job(p.cut, atomicAdd((int *)p.work, 1));

    if (part.first > 0 && part.first < part.end)
        while (device_flag_acquire(part_flag(p, part)) < part.first)
            ;
    return part;
}

template <typename T, bool LONG>
DEVICE void load_state(const attn_kparams &p, shared<T> &mem, float (&o)[T::RM][T::RV],
                       rests (&extra)[T::RM][T::RV / 2])
{
    const float *const state = part_state<T, LONG>(p, mem.part);
    const float *const rows = state + STATE<T, LONG> - 3 * T::BM;
    const float4 *const sums = (const float4 *)state + threadIdx.x;
    const uint2 *const rest = (const uint2 *)(state + T::BM * DIM) + threadIdx.x;

    for (int i = threadIdx.x; i < T::BM; i += T::THREADS) {
        mem.m[i] = rows[i];
        mem.l[i] = rows[T::BM + i];
        mem.l_extra[i] = rows[2 * T::BM + i];
    }
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int g = 0; g < T::RV; g += 4) {
            const int at = (r * T::RV + g) / 4 * T::THREADS;
            const float4 x = sums[at];

            o[r][g] = x.x;
            o[r][g + 1] = x.y;
            o[r][g + 2] = x.z;
            o[r][g + 3] = x.w;
            if (LONG) {
                extra[r][g / 2] = { rest[at].x };
                extra[r][g / 2 + 1] = { rest[at].y };
            }
        }
    }
}

// Who has the next part may begin when this is there.
template <typename T, bool LONG>
DEVICE void save_state(const attn_kparams &p, const shared<T> &mem,
                       const float (&o)[T::RM][T::RV],
                       const rests (&extra)[T::RM][T::RV / 2])
{
    float *const state = part_state<T, LONG>(p, mem.part);
    float *const rows = state + STATE<T, LONG> - 3 * T::BM;
    float4 *const sums = (float4 *)state + threadIdx.x;
    uint2 *const rest = (uint2 *)(state + T::BM * DIM) + threadIdx.x;

    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int g = 0; g < T::RV; g += 4) {
            const int at = (r * T::RV + g) / 4 * T::THREADS;

            sums[at] = make_float4(o[r][g], o[r][g + 1], o[r][g + 2], o[r][g + 3]);
            if (LONG)
                rest[at] = { extra[r][g / 2].pair, extra[r][g / 2 + 1].pair };
        }
    }
    __syncthreads();    // warps are apart
    for (int i = threadIdx.x; i < T::BM; i += T::THREADS) {
        rows[i] = mem.m[i];
        rows[T::BM + i] = mem.l[i];
        rows[2 * T::BM + i] = mem.l_extra[i];
    }
    __syncthreads();
    if (threadIdx.x == 0)
        device_set_flag_release(part_flag(p, mem.part), mem.part.end);
}
