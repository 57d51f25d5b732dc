// SPDX-License-Identifier: MIT
// linear/wgmma_before.cuh: how warpgroups that have no queries yet add up the state that a segment
// begins with, for fwd_wgmma_bf16.cu: while others sum up the keys before it, and as the slots of
// the segments before are stored (wgmma_relay.cuh).
//
// The sum lies in shared memory where the states are later, float4 of the keepers' threads, tile by
// tile of 64 rows and 8 columns; z where the first one's is.
#pragma once
#include "linear/wgmma_bf16.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Tiles that a warpgroup adds at once, of so many slots.
constexpr int TILES = PANELS * NT, ADDED = TILES / QUERIES < 8 ? TILES / QUERIES : 8;
constexpr int TOGETHER = DIM == 64 ? 5 : 2;

// Waits for `count` slots, `apart` from each other, by what is stored last of them: a word of each,
// so that memory is the others'.
DEVICE void await_slots(const float4 *from, int64_t apart, int count)
{
    const int lane = threadIdx.x % 32;
    const float4 *const last = from + (ADDED - 1) * 128 + lane * (apart - 1) + 31;

    while (__any_sync(0xffffffffu, lane < count && !is_there(device_words(last))))
        ;
}

// By warpgroup `group` of those with queries.
template <class MEM>
DEVICE void add_before(const attn_linear_kparams &p, const chunk_work &w, int group, MEM &mem)
{
    const bool sums = linear_has(p, LINEAR_NORMALIZE);
    const slots_before before = find_slots_before(p, w);
    const int64_t number = number_of_slot(p, w, before.first, w.column / COLUMNS);
    const int64_t apart = (int64_t)slices_of(p) * KEEPERS * KEPT_TILES * 128;

    #pragma unroll 1
    for (int i = group * ADDED; i < TILES && before.count; i += QUERIES * ADDED) {
        const int panel = i / NT, tile = panel % KEPT * NT + i % NT;
        const float4 *from = part_of_slot(p, number, panel / KEPT) + tile * 128;
        const int to_z = (KEPT * NT + panel % KEPT - tile) * 128;
        float sum[ADDED][4] = {}, z[2] = {};

        #pragma unroll 1
        for (int n = 0; n < before.count; n += TOGETHER, from += TOGETHER * apart) {
            const int count = min(before.count - n, TOGETHER);
            float4 x[TOGETHER][ADDED], y[TOGETHER];

            for (;;) {    // most are there by the time they are wanted
                bool there = true;

                #pragma unroll
                for (int t = 0; t < TOGETHER; t++) {
                    const float4 *const at = from + min(t, count - 1) * apart;

                    #pragma unroll
                    for (int m = 0; m < ADDED; m++)
                        x[t][m] = device_words(at + m * 128);
                    y[t] = sums ? device_words(at + to_z) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
                #pragma unroll
                for (int t = 0; t < TOGETHER; t++) {
                    there &= is_there(y[t]);
                    #pragma unroll
                    for (int m = 0; m < ADDED; m++)
                        there &= is_there(x[t][m]);
                }
                if (!__any_sync(0xffffffffu, !there))
                    break;
                await_slots(from, apart, count);
            }
            #pragma unroll
            for (int t = 0; t < TOGETHER; t++)
                if (t < count) {
                    #pragma unroll
                    for (int m = 0; m < ADDED; m++)
                        sum[m][0] += x[t][m].x, sum[m][1] += x[t][m].y, sum[m][2] += x[t][m].z,
                            sum[m][3] += x[t][m].w;
                    z[0] += y[t].x, z[1] += y[t].z;
                }
        }
        #pragma unroll
        for (int m = 0; m < ADDED; m++)
            mem.s[0][0][0][(i + m) * 128 + thread_of_group()] =
                make_float4(sum[m][0], sum[m][1], sum[m][2], sum[m][3]);
        if (i % NT == 0 && threadIdx.x % 4 == 0) {
            const int row = panel * 64 + row_of_warp() + threadIdx.x % 32 / 4;

            mem.z[0][row] = z[0], mem.z[0][row + 8] = z[1];
        }
    }
    device_barrier_arrive(&mem.added);
}

// By a keeper, from panel `first` on, to what it has summed up.
template <class MEM> DEVICE void take_before(int first, MEM &mem, kept_state &my)
{
    device_barrier_wait(&mem.added, 0);
    #pragma unroll
    for (int i = 0; i < KEPT * NT; i++)
        my.add(i, mem.s[0][0][0][(first * NT + i) * 128 + thread_of_group()]);
    #pragma unroll
    for (int i = 0; i < KEPT; i++) {
        const int row = (first + i) * 64 + row_of_warp() + threadIdx.x % 32 / 4;
        const float above = mem.z[0][row], below = mem.z[0][row + 8];

        my.add(KEPT * NT + i, make_float4(above, above, below, below));
    }
    device_barrier_meet(&mem.clear);    // before states come there
}

#endif
