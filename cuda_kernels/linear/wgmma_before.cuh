// SPDX-License-Identifier: MIT
// linear/wgmma_before.cuh: how warpgroups add up the state that a segment begins with, for
// fwd_wgmma_bf16.cu, as the slots of the segments before are stored (wgmma_relay.cuh): those that
// have no queries yet, while others sum up the segment's own keys, or all (wgmma_once.cuh).
//
// For take_before() the sum lies in shared memory where the states are later, float4 of the
// keepers' threads, tile by tile of 64 rows and 8 columns; z where the first one's is.
#pragma once
#include "linear/wgmma_bf16.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Of a state.
constexpr int TILES = PANELS * NT;

// Waits for `count` slots, `apart` from each other, by what is stored last of ADDED tiles: a word
// of each, so that memory is the others'.
template <int ADDED> DEVICE void await_slots(const float4 *from, int64_t apart, int count)
{
    const int lane = threadIdx.x % 32;
    const float4 *const last = from + (ADDED - 1) * 128 + lane * (apart - 1) + 31;

    while (__any_sync(0xffffffffu, lane < count && !is_there(device_words(last))))
        ;
}

// By warpgroup `group` of so many, TOGETHER slots at once: calls with the first of ADDED
// tiles and what a thread has of them; z goes to mem.z[0].
template <int GROUPS, int ADDED, int TOGETHER, class MEM, class PUT>
DEVICE void add_before(const attn_linear_kparams &p, const chunk_work &w, int group, MEM &mem,
                       const PUT &put)
{
    const slots_before before = find_slots_before(p, w);
    const int64_t number = number_of_slot(p, w, before.first, w.column / COLUMNS);
    const int64_t apart = (int64_t)slices_of(p) * KEEPERS * KEPT_TILES * 128;

    #pragma unroll 1
    for (int i = group * ADDED; i < TILES; i += GROUPS * ADDED) {
        const bool sums = i % NT == 0 && linear_has(p, LINEAR_NORMALIZE);
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
                await_slots<ADDED>(from, apart, count);
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
        put(i, sum);
        if (i % NT == 0 && threadIdx.x % 4 == 0) {
            const int row = panel * 64 + row_of_warp() + threadIdx.x % 32 / 4;

            mem.z[0][row] = z[0], mem.z[0][row + 8] = z[1];
        }
    }
}

// By warpgroup `group` of those with queries, for take_before().
template <class MEM>
DEVICE void add_for_keepers(const attn_linear_kparams &p, const chunk_work &w, int group, MEM &mem)
{
    constexpr int ADDED = TILES / QUERIES < 8 ? TILES / QUERIES : 8;

    if (find_slots_before(p, w).count)
        add_before<QUERIES, ADDED, DIM == 64 ? 5 : 2>(
            p, w, group, mem, [&](int i, const float (&sum)[ADDED][4]) {
                #pragma unroll
                for (int m = 0; m < ADDED; m++)
                    mem.s[0][0][0][(i + m) * 128 + thread_of_group()] =
                        make_float4(sum[m][0], sum[m][1], sum[m][2], sum[m][3]);
            });
    device_barrier_arrive(&mem.added);
}

// By a keeper, from panel `first` on, in place of what it summed up or, of two segments, to it.
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
