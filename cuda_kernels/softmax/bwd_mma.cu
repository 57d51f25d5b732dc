// SPDX-License-Identifier: MIT
// softmax/bwd_mma.cu: gradients of softmax attention on tensor cores.
//
// Computes  dK and dV, and sums of which dQ is a multiple, as in include/attn/softmax.h
// Method    T. Dao, "FlashAttention-2" (2023): a group has BM keys, a warp 16 of them, and
//           walks over the queries that see them, BN a step, head by head, the last ones
//           first. S^T = K Q^T and dP^T = V dO^T by mma; P^T and dS^T stay in the registers
//           for dV += P^T dO and dK += dS^T Q; dS goes through shared memory for dS K, which
//           is added to the sums of dQ in the workspace. Groups add to a tile of queries one
//           after the other, in the order of their keys: each waits for a flag that counts
//           those before it, so that the sums have one order and the bits one value. A group
//           takes its keys by a ticket, so whom it waits for has begun; heads are fastest, so
//           that it seldom has to. Q and dO come one step ahead (cp.async)
// Grid      1-D, ceil(Lk / BM) * B * Hkv groups, in the order of tickets
// Block     32 * WARPS threads, 1-D
// Shared    dynamic: K, V; two of Q and dO; dS; LSE and delta; the group's work
// Barriers  two a step, one without dQ
// Layout    any strides, in elements; WHOLE_ bits promise more (params.h). work:
//           bwd_mma_work.cuh
// Numerics  products and sums f32; weights and gradients of scores f32, rounded to the
//           type before they meet the other operand. f16 has nothing below 2^-24: there weights
//           are 2^14 times what they are, and gradients of scores a power of 2 that a bound
//           of them, |dO| |v| + |delta|, allows; sums follow it
// Features  all but pages, through common/; softcap, terms and dropout in the instances _all.
//           Where a mask or a bias hides keys, rows of K, Q and dO without a weight are taken
//           as 0 if any of them is not finite: it would meet weights of 0
// Requires  sm_80; bwd_mma_begin.cu before, bwd_mma_finish.cu behind; D and Dv up to DIM,
//           columns past them are 0 and not read
// Tunables  WARPS, BN, BLOCKS; src/plan/cuda/softmax_bwd_mma.c has the same numbers
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for f16 and bf16 with DIM 64, 128, 256: NAME is the image's. 256 columns of dK and
// of dV do not fit the registers together: there _keys and _values are apart.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef DIM
#define DIM 64
#endif
#define DIMV DIM
#ifndef NAME
#define NAME attn_softmax_bwd_mma_f16_d64
#endif

#include "softmax/bwd_mma.cuh"
#include "softmax/bwd_terms.cuh"

// Brings Q, dO, LSE and delta of a step.
template <typename T, int CAN>
DEVICE void fetch_step(const attn_kparams &p, back_shared<T> &mem, const mma_step &at,
                       int slot)
{
    const attn_range there = { at.i0 + at.lo, at.i0 + at.n };
    const mma_head &head = mem.group.head[at.h % 2];

    fetch<T::BN, CHUNKS_K, T::THREADS, CAN>(p, mem.q[slot], p.q, head.q_rows,
                                            p.q_stride_l, at.i0, there, p.d, has<CAN>(p, WHOLE_Q));
    if (p.has & HAS_GRAD_O)
        fetch<T::BN, CHUNKS_K, T::THREADS, CAN>(p, mem.o[slot], p.grad_o, head.o_rows,
                                                p.grad_o_stride_l, at.i0, there, p.dv,
                                                has<CAN>(p, WHOLE_GRADS));

    for (int x = threadIdx.x; x < (T::LIFTS ? 3 : 2) * T::BN; x += T::THREADS) {
        const int of = x / T::BN, query = x % T::BN;
        const float *const from = of == 0   ? mem.group.work.lse
                                  : of == 1 ? p.work
                                            : mem.group.work.size;
        float *const to = of == 0   ? mem.lse[slot]
                          : of == 1 ? mem.delta[slot]
                                    : mem.size[slot];

        device_copy<4>(to + query, from + at.row + min(query, at.n - 1), query < at.n);
    }
}

template <typename T, int CAN> DEVICE void bwd_mma(const attn_kparams &p)
{
    static_assert(sizeof(back_shared<T>) <= T::BYTES, "the planner's budget");
    constexpr bool LOOKS = (CAN & FEAT_TERMS) != 0;    // at single scores
    SHARED_MEMORY(memory);
    back_shared<T> &mem = *(back_shared<T> *)memory;
    const back_group &group = mem.group;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool want_q = T::K && p.has & HAS_GRAD_Q, want_k = T::K && p.has & HAS_GRAD_K;
    const bool want_v = T::V && p.has & HAS_GRAD_V, given = p.has & HAS_GRAD_O;
    const float unit = p.scale * 1.44269504088896340736f;
    uint32_t k_stays[T::STAYS ? T::KT : 1][4], v_stays[T::STAYS ? T::KT : 1][4];
    back_sums<T> dk, dv;
    const bool special = has<CAN>(p, FEAT_SOFTCAP | FEAT_TERMS), hides = has<CAN>(p, FEAT_HIDES);
    float lift = 0x1p60f;    // what dK is times what it should be
    int n = 0;

    if (threadIdx.x == 0) {
        find_group<T, CAN>(p, mem.group);
        find_step<T, CAN>(p, mem.group, NULL, mem.step[0]);
        find_step<T, CAN>(p, mem.group, &mem.step[0], mem.step[1]);
        if constexpr (LOOKS) {
            find_score<T, CAN>(p, mem, 0);
            find_score<T, CAN>(p, mem, 1);
            mem.odd_keys = mem.odd[0] = mem.odd[1] = 0;
        }
    }
    __syncthreads();
    if (group.owned == 0)
        return;

    #pragma unroll
    for (int i = 0; i < T::DT * 4; i++)
        dk[i / 4][i % 4] = dv[i / 4][i % 4] = 0.0f;
    if (mem.step[0].there) {
        // what lies in keys that no query sees must not meet a 0 in the product for dQ
        const attn_range any = range_any<CAN>(p, group.seq, 0, group.seq.queries);
        const attn_range own = { max(group.first, any.first),
                                 min(group.first + group.owned, any.end) };
        const int head = group.owner;

        fetch<T::BM, CHUNKS_K, T::THREADS, CAN>(p, mem.k, p.k,
                                                ADDRESS_KEYS(p, k, group.seq, group.b, head),
                                                p.k_stride_l, group.first, own, p.d,
                                                has<CAN>(p, WHOLE_K));
        if (T::K)
            fetch<T::BM, CHUNKS_K, T::THREADS, CAN>(p, mem.v, p.v,
                                                    ADDRESS_KEYS(p, v, group.seq, group.b, head),
                                                    p.v_stride_l, group.first, own, p.dv,
                                                    has<CAN>(p, WHOLE_V));
        for (int e = threadIdx.x; e < 2 * T::BN * CHUNKS_K && !given; e += T::THREADS)
            mem.o[0][e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        fetch_step<T, CAN>(p, mem, mem.step[0], 0);
    }
    device_commit();

    #pragma unroll 1
    for (; mem.step[n % 4].there; n++) {
        const mma_step &at = mem.step[n % 4], &next = mem.step[(n + 1) % 4];
        const int slot = n % 2, key = group.first + warp * 16 + lane / 4;
        const bool mine = sees(at, group.first + warp * 16, group.seq.keys);
        back_pairs<T> s, dp;
        back_operand<T> w;
        int before = 0;

        device_copied<0>();
        __syncthreads();    // the step has arrived for all, and the one before was read
        if (want_q && threadIdx.x == 0)
            before = device_flag(at.flag);
        if (hides) {
            if (n == 0)
                note_odd<T::BM * CHUNKS_K, T::THREADS>(mem.k, mem.odd_keys);
            note_odd<T::BN * CHUNKS_K, T::THREADS>(mem.q[slot], mem.odd[slot]);
            note_odd<T::BN * CHUNKS_K, T::THREADS>(mem.o[slot], mem.odd[slot]);
            __syncthreads();
            if (threadIdx.x == 0)
                mem.odd[slot ^ 1] = 0;
        }

        const bool odd_keys = hides && mem.odd_keys, odd = hides && mem.odd[slot];

        if (T::LIFTS && n == 0) {
            mem.largest[warp] = find_largest(mem.v, warp * 16, place_of<CHUNKS_K>);
            __syncthreads();
        }
        if (T::LIFTS) {
            const float now =
                find_lift<T>(at, mem.size[slot], mem.delta[slot], mem.lse[slot], mem.largest,
                             has<CAN>(p, FEAT_DROPOUT) ? p.drop_factor : 1.0f);

            // each head begins with its own: its bits are not another head's affair
            if (now < lift || n == 0 || at.h != mem.step[(n + 3) % 4].h) {
                move_sums<T>(dk, lift, now);
                lift = now;
            }
        }
        if (T::STAYS && n == 0) {
            #pragma unroll
            for (int x = 0; x < T::KT; x++) {
                const int of = T::STAYS ? x : 0;

                load_queries(k_stays[of], address_of_queries(mem.k), warp * 16, x);
                load_queries(v_stays[of], address_of_queries(mem.v), warp * 16, x);
            }
        }

        if (mine)
            find_pairs<T>(s, mem.k + warp * 16 * CHUNKS_K, k_stays, mem.q[slot]);
        if (next.there)
            fetch_step<T, CAN>(p, mem, next, slot ^ 1);
        device_commit();
        if (mine) {
            back_kept kept;
            uint32_t seen = 0;
            [[maybe_unused]] back_slopes<T, LOOKS> slopes;

            if constexpr (LOOKS)
                if (special)
                    find_scores<T, CAN>(p, mem.score[n % 4], key, s, slopes);
            if (special)
                find_natural_weights<T>(s, mem.lse[slot]);
            else
                find_weights<T>(s, unit, mem.lse[slot]);
            if (at.masked)
                mask_weights<T>(s, at, key, group.seq.keys);
            if constexpr (LOOKS)
                if (odd || odd_keys)
                    seen = find_seen<T>(s, warp * 16, mem.seen);
            if (has<CAN>(p, FEAT_DROPOUT))
                find_kept<T>(p, (uint32_t)(group.b * p.heads_q + at.h), at.i0, key, kept);
            if (want_v) {
                pack_pairs<T>(s, WEIGHT_LIFT, w);
                if (has<CAN>(p, FEAT_DROPOUT))
                    drop_packed<T>(kept, w);
                add_products<T>(dv, w, mem.o[slot], odd, seen);
            }
            if (T::K) {
                find_pairs<T>(dp, mem.v + warp * 16 * CHUNKS_K, v_stays, mem.o[slot]);
                if (has<CAN>(p, FEAT_DROPOUT))
                    drop_pairs<T>(p, kept, dp);
                if constexpr (LOOKS)
                    if (has<CAN>(p, FEAT_SOFTCAP))
                        slope_gradients<T>(s, dp, mem.delta[slot], slopes);
                if (!has<CAN>(p, FEAT_SOFTCAP))
                    find_gradients<T>(s, dp, mem.delta[slot], at.masked || hides);
                pack_pairs<T>(dp, T::LIFTS ? lift : 1.0f, w);
                if (want_q)
                    put_gradients<T>(w, warp * 16, mem.ds);
                if (want_k)
                    add_products<T>(dk, w, mem.q[slot], odd, seen);
            }
        }
        if (threadIdx.x == T::THREADS - 32) {
            find_step<T, CAN>(p, mem.group, &next, mem.step[(n + 2) % 4]);
            if constexpr (LOOKS)
                find_score<T, CAN>(p, mem, (n + 2) % 4);
        }
        if (!want_q)
            continue;
        if (threadIdx.x == 0)
            take_turn(at, before, n ? &mem.step[(n - 1) % 4] : NULL);
        __syncthreads();    // dS is there for all, and the sums are this group's
        add_queries<T>(at, group.work, mem.ds, mem.k, group.first, group.seq.keys,
                       T::LIFTS ? 1.0f / lift : 1.0f, odd_keys ? mem.seen : NULL);
    }
    if (want_q && n) {
        __syncthreads();
        if (threadIdx.x == 0)
            end_turn(mem.step[(n - 1) % 4]);
    }
    if (want_k)
        store_keys<T, CAN>(p, dk, warp * 16, p.grad_k,
                           ADDRESS_KEYS(p, grad_k, group.seq, group.b, group.owner),
                           group.first, group.owned, p.d, T::LIFTS ? p.scale / lift : p.scale);
    if (want_v)
        store_keys<T, CAN>(p, dv, warp * 16, p.grad_v,
                           ADDRESS_KEYS(p, grad_v, group.seq, group.b, group.owner),
                           group.first, group.owned, p.dv,
                           (has<CAN>(p, FEAT_DROPOUT) ? p.drop_factor : 1.0f) / WEIGHT_LIFT);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        bwd_mma<T, (CAN)>(p); \
    }

// Two groups of four warps hide each other's barriers and turns; one of eight reads Q and dO
// half as often, and needs less shared memory than two. Where single scores are looked at small
// ones alone, of 32 queries: slopes want registers.
enum { CAN_LOOK = CAN_ALL & ~FEAT_PAGES };
#if DIM <= 128
using both = back<8, 64, 1, true, true>;
using both_small = back<4, 64, 2, true, true>;
using both_all = back<4, 32, 2, true, true>;
KERNEL(NAME, _both, both, CAN_RANGES)
KERNEL(NAME, _both_small, both_small, CAN_RANGES)
KERNEL(NAME, _both_all, both_all, CAN_LOOK)
#else
using keys = back<8, 32, 1, true, false>;
using keys_small = back<4, 32, 1, true, false>;
using values = back<8, 32, 1, false, true>;
using values_small = back<4, 32, 1, false, true>;
KERNEL(NAME, _keys, keys, CAN_RANGES)
KERNEL(NAME, _keys_small, keys_small, CAN_RANGES)
KERNEL(NAME, _keys_all, keys_small, CAN_LOOK)
KERNEL(NAME, _values, values, CAN_RANGES)
KERNEL(NAME, _values_small, values_small, CAN_RANGES)
KERNEL(NAME, _values_all, values_small, CAN_LOOK)
#endif
