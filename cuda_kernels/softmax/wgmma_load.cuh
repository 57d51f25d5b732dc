// SPDX-License-Identifier: MIT
// softmax/wgmma_load.cuh: the loading warpgroup of fwd_wgmma.cu. One warp finds the work of
// tiles; one begins copies of boxes and waits for nothing but empty slots; two bring rows that
// no map can. These three walk the same tiles and steps. They ask for the next tile as late as
// it can be found, lest a group holds long tiles that others are free for, and meet the one who
// finds it once a tile.
#pragma once
#include "softmax/wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// No lane goes on before all have seen it: one of them arrives for the warp, and a lane that
// still waits could find the slot filled, emptied and filled again.
DEVICE void wait_all(device_barrier *b, uint32_t parity)
{
    device_barrier_wait(b, parity);
    __syncwarp();
}

// Rows of Q, K or V come to a slot that is empty: as a box of a map, which the warp begins that
// COPIES, or else by two others, whom it meets: they pass over boxes, and nothing else keeps them
// within a phase of a slot. As many arrivals as those have lanes.
template <typename T, bool COPIES, int HEIGHT, int CHUNKS>
DEVICE void bring(bool box, float4 *to, const attn_map &map, const source &from, int row,
                  const place_in_map &at, device_barrier *empty, uint32_t parity,
                  device_barrier *full, device_barrier *hands)
{
    if (COPIES) {
        wait_all(empty, parity ^ 1);
        if (!box) {
            device_barrier_meet(hands);
        } else if (threadIdx.x % 32 == 0) {
            begin_box<HEIGHT, CHUNKS>(to, &map, row, at, full);
            device_barrier_arrive(full, BRINGERS - 1);
        }
    } else if (!box) {
        device_barrier_meet(hands);
        device_barrier_wait(empty, parity ^ 1);    // over, but those who wait see what they order
        bring_rows<HEIGHT, CHUNKS, T::TOGETHER, BRINGERS>(to, from, row, full);
    }
}

// The queries of tile number t; of a warpgroup without any, or of a tile without keys, their
// barrier alone.
template <typename T, bool COPIES>
DEVICE void bring_queries(const attn_maps &maps, int t, wgmma_shared<T> &mem)
{
    const wgmma_work<T> &work = mem.work[t % WORKS];
    const place_of_q<T> in(t);

    #pragma unroll 1
    for (int wg = 0; wg < T::WGS; wg++) {
        device_barrier *const full = &mem.full_q[in.slot][wg];
        device_barrier *const empty = &mem.empty_q[in.slot][wg];

        if (work.steps && work.queries > wg * 64) {
            bring<T, COPIES, 64, CHUNKS_K>(maps.there && work.queries >= wg * 64 + 64,
                                           mem.q[in.slot][wg], maps.q, work.from_q,
                                           work.i0 + wg * 64, work.in_q, empty, in.parity,
                                           full, &mem.hands);
        } else if (COPIES) {
            wait_all(empty, in.parity ^ 1);
            if (threadIdx.x % 32 == 0)
                device_barrier_arrive(full, BRINGERS);
        }
    }
}

// A tile so short that the next is asked for when its work is known.
DEVICE bool is_short(int steps) { return steps < SOON; }

// By three warps of the loading group. What a copy wants is in registers before its slot is
// free. K is a step ahead of V, over the ends of tiles too.
template <typename T, bool COPIES>
DEVICE void bring_tiles(const attn_maps &maps, wgmma_shared<T> &mem)
{
    for (int t = -1;; t++) {    // before 0 nothing but the first one's queries
        const wgmma_work<T> &work = mem.work[t & (WORKS - 1)];
        place_in_map at = { 0, 0, 0 };
        attn_range boxed = { 0, 0 };
        int steps = 0, base = 0, row = 0;

        if (t >= 0) {
            steps = work.steps, base = work.base, row = work.key(0);
            at = work.in_k, boxed = work.boxed;
        }
        const auto bring_values = [&](const wgmma_work<T> &of, int n, int row, bool box,
                                      const place_in_map &at) {
            const place_of_v<T> in(n);

            bring<T, COPIES, T::BN, CHUNKS_V>(box, mem.v[in.slot], maps.v, of.from_v, row, at,
                                              &mem.empty_v[in.slot], in.parity,
                                              &mem.full_v[in.slot], &mem.hands);
        };
        const int last = max(steps - 1, 0);
        // waits for the work of the next tile; that after it is asked for now or, as below, later
        const auto meet_finder = [&] {
            const wgmma_work<T> &next = mem.work[(t + 1) % WORKS];

            wait_for_work(mem, t + 1);
            if (next.queries >= 0 && is_short(next.steps))
                device_pass<128>(ASKED);
        };

        #pragma unroll 1
        for (int i = 0; i <= last; i++, row -= T::BN) {
            if (i < steps) {
                const place_of_k<T> in(base + i);

                bring<T, COPIES, T::BN, CHUNKS_K>(i >= boxed.first && i < boxed.end,
                                                  mem.k[in.slot], maps.k, work.from_k, row, at,
                                                  &mem.empty_k[in.slot], in.parity,
                                                  &mem.full_k[in.slot], &mem.hands);
            }
            if (i == 0 && t > 0) {
                const wgmma_work<T> &before = mem.work[(t - 1) % WORKS];
                const int n = before.steps - 1;

                if (n >= 0)
                    bring_values(before, before.base + n, before.key(n),
                                 n >= before.boxed.first && n < before.boxed.end, before.in_k);
                device_barrier_arrive(&mem.left[(t - 1) % WORKS]);
            }
            if (T::QUERIES > 1 && work.queries < 0 && t >= 0)
                return;
            if (i > 0)
                bring_values(work, base + i - 1, row + T::BN,
                             i > boxed.first && i <= boxed.end, at);
            if (!is_short(steps) && i == steps - SOON)
                device_pass<128>(ASKED);
            // Q waits for the last scores before it in its slot: where there are two, not before
            // the steps that may begin beside O of the tile before
            if (T::QUERIES > 1 && i == max(last - 2, min(last, T::STAGES_V - 1))) {
                meet_finder();
                bring_queries<T, COPIES>(maps, t + 1, mem);
            }
            if (T::QUERIES == 1) {
                if (i == 0 && t >= 0)
                    bring_queries<T, COPIES>(maps, t, mem);
                if (work.queries < 0 && t >= 0)
                    return;
                if (i == last)
                    meet_finder();
            }
        }
    }
}

// By a warp of the loading group: the work of tiles, ahead of those who bring it. Where tiles
// differ, who is free takes the next.
template <typename T, int CAN>
DEVICE void find_tiles(const attn_kparams &p, const attn_maps &maps, wgmma_shared<T> &mem)
{
    for (int t = 0;; t++) {
        wgmma_work<T> &work = mem.work[t % WORKS];

        if (threadIdx.x % 32 == 0) {
            const place<WORKS> in(t);
            const wgmma_work<T> &before = mem.work[(t - 1) & (WORKS - 1)];
            const int number = CAN == (CAN_PLAIN) || t == 0
                                   ? t * gridDim.x + blockIdx.x
                                   : gridDim.x + atomicAdd((int *)p.work, 1);

            device_barrier_wait(&mem.left[in.slot], in.parity ^ 1);
            work.base = t > 0 ? before.base + before.steps : 0;
            find_work<T, CAN>(p, maps, number, mem, work);
            device_barrier_arrive(&mem.known[in.slot]);
        }
        wait_for_work(mem, t);
        if (work.queries < 0)
            return;
        device_meet<128>(ASKED);
    }
}

template <typename T, int CAN>
DEVICE void load(const attn_kparams &p, const attn_maps &maps, wgmma_shared<T> &mem)
{
    switch (__shfl_sync(0xffffffffu, (int)threadIdx.x / 32, 0)) {    // known as uniform
    case 0: find_tiles<T, CAN>(p, maps, mem); break;
    case 1: bring_tiles<T, true>(maps, mem); break;
    default: bring_tiles<T, false>(maps, mem);
    }
}

#endif
