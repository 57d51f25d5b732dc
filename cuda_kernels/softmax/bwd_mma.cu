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
// Features  ranges, lengths, packed sequences, sinks through common/; no softcap, terms,
//           pages, dropout
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

constexpr int64_t UNBOUNDED = (int64_t)1 << 40;    // beyond any distance of positions

// The step after `before`, or the first one. By one thread, while the others wait for
// nothing: what changes from step to step alone is cheap.
template <typename T, int CAN>
DEVICE void find_step(const attn_kparams &p, back_shared<T> &mem, const mma_step *before,
                      mma_step &at)
{
    const attn_range range = mem.range;
    const bool goes_on = before && before->i0 > range.first;

    at.there = (!before || before->there) && range.end > range.first;
    if (!at.there)
        return;
    if (goes_on) {
        at.h = before->h;
        at.i0 = before->i0 - T::BN;
        at.row = before->row - T::BN;
        at.flag = before->flag - T::BN / FLAG_ROWS;
    } else {
        const int h = before ? before->h + 1 : mem.owner * p.group;

        at.h = h;
        at.i0 = (range.end - 1) / T::BN * T::BN;
        at.there = h < (mem.owner + 1) * p.group;
        if (!at.there)
            return;
        at.row = back_delta_at(p, mem.b, h, at.i0);
        at.flag = mem.work.flags + (mem.b * p.heads_q + h) * mem.work.head_flags +
                  at.i0 / FLAG_ROWS;
        mem.head[h % 2].q_rows = ADDRESS_QUERIES(p, q, mem.seq, mem.b, h);
        mem.head[h % 2].o_rows = ADDRESS_QUERIES(p, grad_o, mem.seq, mem.b, h);
    }

    const int64_t keys = mem.seq.keys, left = at.i0 + mem.left, right = at.i0 + mem.right;

    at.lo = max(range.first - at.i0, 0);
    at.n = min(range.end - at.i0, T::BN);
    at.first = (int)clamp(left, -SCORE_FAR, keys);
    at.end = (int)clamp(right, -SCORE_FAR, keys);
    at.masked = mem.owned < T::BM || at.n < T::BN || at.lo > 0 ||
                mem.first < left + at.n - 1 || mem.first + mem.owned > right;
    at.before = mem.tile - (int)clamp(left, (int64_t)0, keys) / T::BM;
}

// What this group is to do. By one thread.
template <typename T, int CAN>
DEVICE void find_work(const attn_kparams &p, back_shared<T> &mem)
{
    const int heads = p.batch * p.heads_kv;

    mem.work = find_back_work(p);

    // without queries there was no step before that begins the count
    const int ticket = T::K && p.len_q ? atomicAdd(mem.work.ticket, 1) : (int)blockIdx.x;

    mem.tile = ticket / heads;
    mem.owner = ticket % heads % p.heads_kv;
    mem.b = ticket % heads / p.heads_kv;
    mem.first = mem.tile * T::BM;
    mem.seq = range_sequence<CAN>(p, mem.b);
    mem.owned = clamp(mem.seq.keys - mem.first, 0, T::BM);
    mem.range = range_queries<CAN>(p, mem.seq, mem.first, mem.owned);
    mem.left = has<CAN>(p, FEAT_RANGE_LEFT) ? mem.seq.position - p.left : -UNBOUNDED;
    mem.right = has<CAN>(p, FEAT_RANGE_RIGHT) ? mem.seq.position + p.right + 1 : UNBOUNDED;
    find_step<T, CAN>(p, mem, NULL, mem.step[0]);
    find_step<T, CAN>(p, mem, &mem.step[0], mem.step[1]);
}

// Brings Q, dO, LSE and delta of a step.
template <typename T, int CAN>
DEVICE void fetch_step(const attn_kparams &p, back_shared<T> &mem, const mma_step &at,
                       int slot)
{
    const attn_range there = { at.i0 + at.lo, at.i0 + at.n };
    const mma_head &head = mem.head[at.h % 2];

    fetch<T::BN, CHUNKS_K, T::THREADS, CAN>(p, mem.q[slot], p.q, head.q_rows,
                                            p.q_stride_l, at.i0, there, p.d, has<CAN>(p, WHOLE_Q));
    if (p.has & HAS_GRAD_O)
        fetch<T::BN, CHUNKS_K, T::THREADS, CAN>(p, mem.o[slot], p.grad_o, head.o_rows,
                                                p.grad_o_stride_l, at.i0, there, p.dv,
                                                has<CAN>(p, WHOLE_GRADS));

    for (int x = threadIdx.x; x < (T::LIFTS ? 3 : 2) * T::BN; x += T::THREADS) {
        const int of = x / T::BN, query = x % T::BN;
        const float *const from = of == 0 ? mem.work.lse : of == 1 ? p.work : mem.work.size;
        float *const to = of == 0   ? mem.lse[slot]
                          : of == 1 ? mem.delta[slot]
                                    : mem.size[slot];

        device_copy<4>(to + query, from + at.row + min(query, at.n - 1), query < at.n);
    }
}

// Scores become weights; out of range they are 0. `key`: the lane's first.
template <typename T>
DEVICE void find_weights(back_pairs<T> &s, float unit, const float *lse, const mma_step &at,
                         int key, int keys)
{
    const int c0 = threadIdx.x % 4 * 2;

    #pragma unroll
    for (int t = 0; t < T::NT; t++) {
        const float own[2] = { lse[t * 8 + c0], lse[t * 8 + c0 + 1] };

        #pragma unroll
        for (int e = 0; e < 4; e++)
            s[t][e] = state_exp2(device_min(fmaf(s[t][e], unit, -own[e % 2]), 0.0f));
    }
    if (!at.masked)
        return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t j = key + half * 8;
        const int first = (int)max(j - at.end + 1, (int64_t)at.lo) - c0;
        const int end = j < keys ? (int)min(j - at.first + 1, (int64_t)at.n) - c0 : 0;

        #pragma unroll
        for (int e = 0; e < 2 * T::NT; e++) {
            const int c = e / 2 * 8 + e % 2;
            float &w = s[e / 2][half * 2 + e % 2];

            w = c >= first && c < end ? w : 0.0f;
        }
    }
}

// dP becomes the gradients of the scores. Out of range they are 0, whatever dP holds.
template <typename T>
DEVICE void find_gradients(const back_pairs<T> &w, back_pairs<T> &dp, const float *delta,
                           bool masked)
{
    const int c0 = threadIdx.x % 4 * 2;

    #pragma unroll
    for (int t = 0; t < T::NT; t++) {
        const float own[2] = { delta[t * 8 + c0], delta[t * 8 + c0 + 1] };

        #pragma unroll
        for (int e = 0; e < 4; e++)
            dp[t][e] = w[t][e] * (dp[t][e] - own[e % 2]);
    }
    #pragma unroll
    for (int e = 0; e < T::NT * 4 && masked; e++)
        dp[e / 4][e % 4] = w[e / 4][e % 4] == 0.0f ? 0.0f : dp[e / 4][e % 4];
}

// Lets those go on who wait for the sums of a step, all of which were written before a
// barrier. By one thread.
DEVICE void end_turn(const mma_step &at)
{
    device_fence();
    device_set_flag(at.flag, at.before + 1);
}

// Waits until it is this group's turn to add to the sums of a step, of whose flag `seen` was
// read a while ago. Ends its turn at the step before (NULL: there was none). By one thread; a
// barrier follows.
DEVICE void take_turn(const mma_step &at, int seen, const mma_step *before)
{
    if (before)
        end_turn(*before);
    else if (at.before)
        device_fence();
    if (seen >= at.before)
        return;
    while (device_flag(at.flag) < at.before)
        ;
    device_fence();
}

template <typename T, int CAN> DEVICE void bwd_mma(const attn_kparams &p)
{
    static_assert(sizeof(back_shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    back_shared<T> &mem = *(back_shared<T> *)memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool want_q = T::K && p.has & HAS_GRAD_Q, want_k = T::K && p.has & HAS_GRAD_K;
    const bool want_v = T::V && p.has & HAS_GRAD_V, given = p.has & HAS_GRAD_O;
    const float unit = p.scale * 1.44269504088896340736f;
    uint32_t k_stays[T::STAYS ? T::KT : 1][4], v_stays[T::STAYS ? T::KT : 1][4];
    back_sums<T> dk, dv;
    float lift = 0x1p60f;    // what dK is times what it should be
    int n = 0;

    if (threadIdx.x == 0)
        find_work<T, CAN>(p, mem);
    __syncthreads();
    if (mem.owned == 0)
        return;

    #pragma unroll
    for (int i = 0; i < T::DT * 4; i++)
        dk[i / 4][i % 4] = dv[i / 4][i % 4] = 0.0f;
    if (mem.step[0].there) {
        // what lies in keys that no query sees must not meet a 0 in the product for dQ
        const attn_range any = range_any<CAN>(p, mem.seq, 0, mem.seq.queries);
        const attn_range own = { max(mem.first, any.first),
                                 min(mem.first + mem.owned, any.end) };
        const int head = mem.owner;

        fetch<T::BM, CHUNKS_K, T::THREADS, CAN>(p, mem.k, p.k,
                                                ADDRESS_KEYS(p, k, mem.seq, mem.b, head),
                                                p.k_stride_l, mem.first, own, p.d,
                                                has<CAN>(p, WHOLE_K));
        if (T::K)
            fetch<T::BM, CHUNKS_K, T::THREADS, CAN>(p, mem.v, p.v,
                                                    ADDRESS_KEYS(p, v, mem.seq, mem.b, head),
                                                    p.v_stride_l, mem.first, own, p.dv,
                                                    has<CAN>(p, WHOLE_V));
        for (int e = threadIdx.x; e < 2 * T::BN * CHUNKS_K && !given; e += T::THREADS)
            mem.o[0][e] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        fetch_step<T, CAN>(p, mem, mem.step[0], 0);
    }
    device_commit();

    #pragma unroll 1
    for (; mem.step[n % 4].there; n++) {
        const mma_step &at = mem.step[n % 4], &next = mem.step[(n + 1) % 4];
        const int slot = n % 2, key = mem.first + warp * 16 + lane / 4;
        const bool mine = sees(at, mem.first + warp * 16, mem.seq.keys);
        back_pairs<T> s, dp;
        back_operand<T> w;
        int before = 0;

        device_copied<0>();
        __syncthreads();    // the step has arrived for all, and the one before was read
        if (want_q && threadIdx.x == 0)
            before = device_flag(at.flag);
        if (T::LIFTS && n == 0) {
            mem.largest[warp] = find_largest<T>(mem.v);
            __syncthreads();
        }
        if (T::LIFTS) {
            const float now =
                find_lift<T>(mem.size[slot], mem.delta[slot], mem.largest);

            if (now < lift) {
                #pragma unroll
                for (int i = 0; i < T::DT * 4; i++)
                    dk[i / 4][i % 4] *= now / lift;
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
            find_weights<T>(s, unit, mem.lse[slot], at, key, mem.seq.keys);
            if (want_v) {
                pack_pairs<T>(s, TYPE == TYPE_F16 ? 0x1p14f : 1.0f, w);
                add_products<T>(dv, w, mem.o[slot]);
            }
            if (T::K) {
                find_pairs<T>(dp, mem.v + warp * 16 * CHUNKS_K, v_stays, mem.o[slot]);
                find_gradients<T>(s, dp, mem.delta[slot], at.masked);
                pack_pairs<T>(dp, T::LIFTS ? lift : 1.0f, w);
                if (want_q)
                    put_gradients<T>(w, mem.ds);
                if (want_k)
                    add_products<T>(dk, w, mem.q[slot]);
            }
        }
        if (threadIdx.x == T::THREADS - 32)
            find_step<T, CAN>(p, mem, &next, mem.step[(n + 2) % 4]);
        if (!want_q)
            continue;
        if (threadIdx.x == 0)
            take_turn(at, before, n ? &mem.step[(n - 1) % 4] : NULL);
        __syncthreads();    // dS is there for all, and the sums are this group's
        add_queries<T>(at, mem.work, mem.ds, mem.k, mem.first, mem.seq.keys,
                       T::LIFTS ? 1.0f / lift : 1.0f);
    }
    if (want_q && n) {
        __syncthreads();
        if (threadIdx.x == 0)
            end_turn(mem.step[(n - 1) % 4]);
    }
    if (want_k)
        store_keys<T, CAN>(p, dk, p.grad_k,
                           ADDRESS_KEYS(p, grad_k, mem.seq, mem.b, mem.owner), mem.first,
                           mem.owned, p.d, T::LIFTS ? p.scale / lift : p.scale);
    if (want_v)
        store_keys<T, CAN>(p, dv, p.grad_v,
                           ADDRESS_KEYS(p, grad_v, mem.seq, mem.b, mem.owner), mem.first,
                           mem.owned, p.dv, unlifted<TYPE>(1.0f));
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        bwd_mma<T, CAN_RANGES>(p); \
    }

// Two groups of four warps hide each other's barriers and turns; one of eight reads Q and dO
// half as often, and needs less shared memory than two.
#if DIM <= 128
using both = back<8, 64, 1, true, true>;
using both_small = back<4, 64, 2, true, true>;
KERNEL(NAME, _both, both)
KERNEL(NAME, _both_small, both_small)
#else
using keys = back<8, 32, 1, true, false>;
using keys_small = back<4, 32, 1, true, false>;
using values = back<8, 32, 1, false, true>;
using values_small = back<4, 32, 1, false, true>;
KERNEL(NAME, _keys, keys)
KERNEL(NAME, _keys_small, keys_small)
KERNEL(NAME, _values, values)
KERNEL(NAME, _values_small, values_small)
#endif
