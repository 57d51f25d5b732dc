// SPDX-License-Identifier: MIT
// softmax/bwd_wgmma_load.cuh: the loading warpgroup of bwd_wgmma.cu: three warps bring what the
// steps read, the last adds dQ to the sums. TYPE and DIM are the image's.
#pragma once
#include "softmax/bwd_wgmma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Brings the group's K, or V, by a warp. What lies in keys that no query sees must not meet a 0
// in the product for dQ.
template <typename T, int CAN>
DEVICE void load_own(const attn_kparams &p, const attn_maps &maps, back_shared<T> &mem, bool is_v)
{
    const back_group &group = mem.group;
    const attn_range any = range_any<CAN>(p, group.seq, 0, group.seq.queries);
    const attn_range own = { max(group.first, any.first),
                             min(group.first + group.owned, any.end) };
    float4 *const to = is_v ? mem.v : mem.k;

    if (maps.there && own.first == group.first && own.end == group.first + T::BM) {
        const place_in_map at = { (int)group.seq.k_first, group.owner,
                                  has<CAN>(p, FEAT_PACKED_K) ? 0 : (int)group.b };

        bring_box<T::BM, CHUNKS_K, 32>(to, is_v ? &maps.v : &maps.k, group.first, at,
                                       &mem.full_own);
        return;
    }

    const source from = { is_v ? p.v : p.k,
                          is_v ? ADDRESS_KEYS(p, v, group.seq, group.b, group.owner)
                               : ADDRESS_KEYS(p, k, group.seq, group.b, group.owner),
                          own, is_v ? p.dv : p.d };

    bring_rows<T::BM, CHUNKS_K, 1, 32>(to, from, group.first, &mem.full_own);
}

// Brings LSE, delta and, of f16, |dO| of a step, by a warp.
template <typename T>
DEVICE void load_rows(const attn_kparams &p, back_shared<T> &mem, const mma_step &at, int slot)
{
    #pragma unroll 1
    for (int x = threadIdx.x % 32; x < (T::LIFTS ? 3 : 2) * T::BN; x += 32) {
        const int of = x / T::BN, query = x % T::BN;
        const float *const from = of == 0   ? mem.group.work.lse
                                  : of == 1 ? p.work
                                            : mem.group.work.size;
        float *const to = of == 0   ? mem.lse[slot]
                          : of == 1 ? mem.delta[slot]
                                    : mem.size[slot];

        device_copy<4>(to + query, from + at.row + min(query, at.n - 1), query < at.n);
    }
    device_commit();
    device_copied<0>();
}

// Brings Q, or dO, of a step, by a warp.
template <typename T, int CAN>
DEVICE void load_step(const attn_kparams &p, const attn_maps &maps, back_shared<T> &mem,
                      const mma_step &at, int slot, bool is_o)
{
    const back_group &group = mem.group;
    float4 *const to = is_o ? mem.o[slot] : mem.q[slot];
    device_barrier *const full = is_o ? &mem.full_o[slot] : &mem.full_q[slot];

    if (maps.there && p.has & HAS_GRAD_O && at.lo == 0 && at.n == T::BN) {
        const place_in_map in = { (int)group.seq.q_first, at.h,
                                  has<CAN>(p, FEAT_PACKED_Q) ? 0 : (int)group.b };

        bring_box<T::BN, CHUNKS_K, 32>(to, is_o ? &maps.o : &maps.q, at.i0, in, full);
        return;
    }

    const mma_head &head = group.head[at.h % 2];
    const source from = { mem.from[is_o].x, is_o ? head.o_rows : head.q_rows,
                          { at.i0 + at.lo, at.i0 + at.n }, mem.from[is_o].depth };

    bring_rows<T::BN, CHUNKS_K, 1, 32>(to, from, at.i0, full);
}

// Step after step as they are written down and its slot is free, a warp each for Q, for dO,
// and for the rest. The one after the last is told, too.
template <typename T, int CAN>
DEVICE void load(const attn_kparams &p, const attn_maps &maps, back_shared<T> &mem)
{
    const int warp = threadIdx.x / 32;
    const bool is_o = warp == 1;
    const int stages = is_o ? T::STAGES_O : T::STAGES;

    if (mem.step[0].there && warp < 2)
        load_own<T, CAN>(p, maps, mem, is_o);
    #pragma unroll 1
    for (int n = 0;; n++) {
        const mma_step &at = mem.step[n % STEPS];
        const int slot = n % stages;

        device_meet<LOADING>(LOADERS);
        device_barrier_wait(is_o && T::PARTS ? &mem.empty_o : &mem.empty[slot],
                            n / stages & 1 ^ 1);
        if (at.there && warp < 2) {
            load_step<T, CAN>(p, maps, mem, at, slot, is_o);
            continue;
        }
        if (at.there)
            load_rows<T>(p, mem, at, slot);
        if (!is_o)
            device_barrier_arrive(&mem.full_q[slot]);
        if (!at.there)
            return;
        if (threadIdx.x == LOADING - 32)
            find_step<T, CAN>(p, mem.group, &at, mem.step[(n + 1) % STEPS]);
    }
}

// Adds dQ of each step to the sums when it is this group's turn; the first writes them. By
// one thread. Who comes next may begin when they are written, which is waited for a step later.
template <typename T> DEVICE void add_queries(const attn_kparams &p, back_shared<T> &mem)
{
    constexpr int SUMS = T::Q ? T::SUMS : 1;
    const back_group &group = mem.group;

    #pragma unroll 1
    for (int n = 0;; n++) {
        const mma_step &at = mem.step[n % STEPS], &last = mem.step[(n + STEPS - 1) % STEPS];
        const int slot = n % SUMS, barrier = T::PARTS ? 0 : slot;

        device_barrier_wait(&mem.full_dq[barrier], n / SUMS & 1);
        if (at.there) {
            const int rows = min(group.seq.queries - at.i0, T::BN);
            const int lo = at.before ? at.lo : 0, end = at.before ? at.n : rows;
            float *to = group.work.sums + at.row * DIM;

            while (device_flag_acquire(at.flag) < at.before)
                ;
            #pragma unroll 1
            for (int piece = 0; piece < T::PIECES; piece++, to += T::WIDTH * rows) {
                const int width = piece ? DIM - T::WIDTH : T::WIDTH;
                const float *const from = mem.dq[slot] + lo * width;

                if (piece)
                    device_barrier_wait(&mem.full_dq[1], n & 1);
                if (at.before)
                    device_bulk_add(to + lo * width, from, (end - lo) * width * 4);
                else
                    device_bulk_store(to + lo * width, from, (end - lo) * width * 4);
                device_bulk_commit();
                device_bulk_wait_read();
                device_barrier_arrive(&mem.empty_dq[barrier + piece]);
            }
        }
        if (n > 0) {
            if (at.there)
                device_bulk_wait<T::PIECES>();
            else
                device_bulk_wait<0>();
            device_set_flag_release(last.flag, last.before + 1);
        }
        if (!at.there)
            return;
    }
}

#endif
