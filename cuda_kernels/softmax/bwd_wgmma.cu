// SPDX-License-Identifier: MIT
// softmax/bwd_wgmma.cu: gradients of softmax attention on Hopper's tensor cores.
//
// Computes  dK and dV, and sums of which dQ is a multiple, as in include/attn/softmax.h
// Method    bwd_mma.cu's, with warpgroups, after J. Shah et al., "FlashAttention-3" (2024). Two
//           have 64 keys each: S^T = K Q^T and dP^T = V dO^T from shared memory; P^T and dS^T
//           stay in the registers for dV += P^T dO and dK += dS^T Q; dS goes through shared
//           memory for dS K, of which each has half the columns. Of the third three warps load
//           K and V, then Q and dO of one step after the other with LSE and delta; the last
//           lets the copy engine add dQ to the sums when it is the group's turn
// Grid      1-D, ceil(Lk / BM) * B * Hkv groups, in the order of tickets
// Block     128 * (1 + WGS) threads, 1-D: the loading warpgroup first
// Shared    dynamic: K, V; STAGES of Q and dO; two of dS; dQ on its way; LSE, delta; barriers, work
// Barriers  full and empty ones in shared memory for K and V, each stage, dS and dQ; named ones
//           for the loading warps (1) and, once a step with dQ where they are not apart, the
//           warpgroups with keys (2)
// Layout    Q, K, V, dO: rows of 16-byte chunks at multiples of 16 bytes; dK, dV any strides.
//           work: bwd_mma_work.cuh
// Numerics  as bwd_mma.cu
// Features  ranges, lengths, packed sequences, sinks through common/; no softcap, terms,
//           pages, dropout
// Requires  sm_90a; bwd_mma_begin.cu before, bwd_mma_finish.cu behind; D and Dv up to DIM,
//           columns past them are 0 and not read
// Tunables  STAGES; src/plan/cuda/softmax_bwd_wgmma.c has the same numbers
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for f16 and bf16 with DIM 64 and 128: NAME is the image's. _all has sums of dQ, _keys
// none.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef DIM
#define DIM 64
#endif
#define DIMV DIM
#ifndef NAME
#define NAME attn_softmax_bwd_wgmma_f16_d64
#endif

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

    if (mem.step[0].there && warp < 2)
        load_own<T, CAN>(p, maps, mem, warp == 1);
    #pragma unroll 1
    for (int n = 0;; n++) {
        const mma_step &at = mem.step[n % STEPS];
        const int slot = n % T::STAGES;

        device_meet<LOADING>(LOADERS);
        device_barrier_wait(&mem.empty[slot], n / T::STAGES & 1 ^ 1);
        if (at.there && warp < 2) {
            load_step<T, CAN>(p, maps, mem, at, slot, warp == 1);
            continue;
        }
        if (at.there)
            load_rows<T>(p, mem, at, slot);
        if (warp != 1)
            arrive(&mem.full_q[slot]);
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
        const int slot = n % SUMS;

        device_barrier_wait(&mem.full_dq[slot], n / SUMS & 1);
        if (at.there) {
            const int lo = at.before ? at.lo : 0;
            const int end = at.before ? at.n : min(group.seq.queries - at.i0, T::BN);
            float *const to = group.work.sums + (at.row + lo) * DIM;
            const float *const from = mem.dq[slot] + lo * DIM;

            while (device_flag_acquire(at.flag) < at.before)
                ;
            if (at.before)
                device_bulk_add(to, from, (end - lo) * DIM * 4);
            else
                device_bulk_store(to, from, (end - lo) * DIM * 4);
            device_bulk_commit();
            device_bulk_wait_read();
            device_barrier_arrive(&mem.empty_dq[slot]);
        }
        if (n > 0) {
            if (at.there)
                device_bulk_wait<1>();
            else
                device_bulk_wait<0>();
            device_set_flag_release(last.flag, last.before + 1);
        }
        if (!at.there)
            return;
    }
}

template <typename T, int CAN> DEVICE void compute(const attn_kparams &p, back_shared<T> &mem)
{
    constexpr int SUMS = T::Q ? T::SUMS : 1;
    const back_group &group = mem.group;
    const int wg = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 - 4;
    const int lane = threadIdx.x % 32, key = group.first + warp * 16 + lane / 4;
    const float unit = p.scale * 1.44269504088896340736f;
    const uint64_t k_at = device_tile(device_address(mem.k + wg * 64 * 8), T::BM * 128);
    const uint64_t v_at = device_tile(device_address(mem.v + wg * 64 * 8), T::BM * 128);
    back_pairs<T> s;
    back_sums<T> dk, dv;
    float lift = T::LIFTS ? 0x1p60f : 1.0f;    // what dK is times what it should be
    float unlift = 1.0f;                       // and dQ of a step, the other way round
    int n = 0;

    #pragma unroll
    for (int i = 0; i < T::DT * 4; i++)
        dk[i / 4][i % 4] = dv[i / 4][i % 4] = 0.0f;
    if (mem.step[0].there) {
        device_barrier_wait(&mem.full_own, 0);
        if (T::LIFTS) {
            mem.largest[warp] = find_largest(mem.v, warp * 16, place_of_own<T>);
            device_meet<128 * T::WGS>(PAIRS);
        }
    }

    const auto wait_for_step = [&](int i) {    // or for word that there is none
        device_barrier_wait(&mem.full_q[i % T::STAGES], i / T::STAGES & 1);
    };
    const auto begin_scores = [&](int i) {    // if there is no such step, of what lies there
        begin_pairs<T>(s, k_at, mem.q[i % T::STAGES]);
    };
    const auto find_next_lift = [&](int i) {    // its Q has arrived
        const int slot = i % T::STAGES;
        const mma_step &at = mem.step[i % STEPS];

        if (!T::LIFTS || !at.there)
            return;

        const float now =
            find_lift<T>(at, mem.size[slot], mem.delta[slot], mem.lse[slot], mem.largest);

        // each head begins with its own: its bits are not another head's affair
        if (now < lift || i == 0 || at.h != mem.step[(i + STEPS - 1) % STEPS].h) {
            move_sums<T>(dk, lift, now);
            lift = now;
        }
        device_products_hold(dk);
    };
    // dQ of step i, whose product is over, goes to who adds it
    const auto hand_over = [&](back_queries<T> &dq, int i) {
        const int to = i % SUMS;

        device_products_hold(dq);
        device_barrier_wait(&mem.empty_dq[to], i / SUMS & 1 ^ 1);
        put_queries<T>(dq, wg, warp % 4, unlift, mem.dq[to]);
        device_copies_to_products();
        arrive(&mem.full_dq[to]);
    };

    wait_for_step(0);
    find_next_lift(0);
    if (T::APART) {
        begin_scores(0);
        device_products_wait<0>();
    }
    #pragma unroll 1
    for (; mem.step[n % STEPS].there; n++) {
        const mma_step &at = mem.step[n % STEPS];
        const int slot = n % T::STAGES, pairs = n % 2, before = pairs ^ 1;
        back_pairs<T> dp;
        back_operand<T> w, x;
        back_queries<T> dq;

        if (!T::APART)
            begin_scores(n);
        device_barrier_wait(&mem.full_o[slot], n / T::STAGES & 1);
        begin_pairs<T>(dp, v_at, mem.o[slot]);
        if (T::APART && T::Q) {    // of the step before; if there was none, of what lies there
            if (n > 0)
                device_barrier_wait(&mem.full_ds[before], (n - 1) / 2 & 1);
            begin_queries<T>(dq, mem.ds[before], mem.k, wg);
        }
        if (!T::APART)
            device_products_wait<1>();
        device_products_hold(s);
        find_weights<T>(s, unit, mem.lse[slot], at, key, group.seq.keys);
        pack_pairs<T>(s, TYPE == TYPE_F16 ? 0x1p14f : 1.0f, w);
        begin_sums<T>(dv, w, mem.o[slot]);
        device_products_wait<1>();
        device_products_hold(dp);
        find_gradients<T>(s, dp, mem.delta[slot], at.masked);
        if (T::APART) {
            wait_for_step(n + 1);
            begin_scores(n + 1);
        }
        if (T::APART && T::Q && n > 0) {
            arrive(&mem.empty_ds[before]);
            hand_over(dq, n - 1);
        }
        unlift = T::LIFTS ? 1.0f / lift : 1.0f;
        pack_pairs<T>(dp, lift, x);
        if (T::Q) {
            if (T::APART)
                device_barrier_wait(&mem.empty_ds[pairs], n / 2 & 1 ^ 1);
            put_gradients<T>(x, warp * 16, mem.ds[pairs]);
            device_copies_to_products();
            if (T::APART)
                arrive(&mem.full_ds[pairs]);
        }
        begin_sums<T>(dk, x, mem.q[slot]);
        if (!T::APART && T::Q) {
            device_meet<128 * T::WGS>(PAIRS);    // dS is there for both
            begin_queries<T>(dq, mem.ds[pairs], mem.k, wg);
        }
        device_products_wait<0>();
        device_products_hold(dk);
        device_products_hold(dv);
        arrive(&mem.empty[slot]);
        if (!T::APART && T::Q)
            hand_over(dq, n);
        if (!T::APART)
            wait_for_step(n + 1);
        find_next_lift(n + 1);
    }
    if (T::APART && T::Q && n > 0) {
        back_queries<T> dq;

        device_barrier_wait(&mem.full_ds[(n - 1) % 2], (n - 1) / 2 & 1);
        begin_queries<T>(dq, mem.ds[(n - 1) % 2], mem.k, wg);
        device_products_wait<0>();
        hand_over(dq, n - 1);
    }
    if (T::Q) {    // there is no such step
        device_barrier_wait(&mem.empty_dq[n % SUMS], n / SUMS & 1 ^ 1);
        arrive(&mem.full_dq[n % SUMS]);
    }
    device_products_hold(dk);
    device_products_hold(dv);
    if (p.has & HAS_GRAD_K)
        store_keys<T, CAN>(p, dk, warp * 16, p.grad_k,
                           ADDRESS_KEYS(p, grad_k, group.seq, group.b, group.owner),
                           group.first, group.owned, p.d, p.scale / lift);
    if (p.has & HAS_GRAD_V)
        store_keys<T, CAN>(p, dv, warp * 16, p.grad_v,
                           ADDRESS_KEYS(p, grad_v, group.seq, group.b, group.owner),
                           group.first, group.owned, p.dv, unlifted<TYPE>(1.0f));
}

template <typename T, int CAN>
DEVICE void bwd_wgmma(const attn_kparams &p, const attn_maps &maps)
{
    static_assert(sizeof(back_shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    back_shared<T> &mem = *(back_shared<T> *)memory;

    if (threadIdx.x == 0) {
        mem.from[0] = { p.q, p.d };
        mem.from[1] = { p.grad_o, p.has & HAS_GRAD_O ? p.dv : 0 };    // not given, it is 0
        find_group<T, CAN>(p, mem.group);
        find_step<T, CAN>(p, mem.group, NULL, mem.step[0]);
        device_barrier_init(&mem.full_own, 2);
        for (int i = 0; i < T::STAGES; i++) {
            device_barrier_init(&mem.full_q[i], 2);
            device_barrier_init(&mem.full_o[i], 1);
            device_barrier_init(&mem.empty[i], 4 * T::WGS);
        }
        for (int i = 0; i < 2; i++) {
            device_barrier_init(&mem.full_ds[i], 4 * T::WGS);
            device_barrier_init(&mem.empty_ds[i], 4 * T::WGS);
            device_barrier_init(&mem.full_dq[i], 4 * T::WGS);
            device_barrier_init(&mem.empty_dq[i], 1);
        }
    }
    device_barriers_ready();
    if (mem.group.owned == 0)
        return;
    if (threadIdx.x < 128) {
        device_leave_registers<T::LOAD_REGISTERS>();
        if (threadIdx.x < LOADING)
            load<T, CAN>(p, maps, mem);
        else if (T::Q && threadIdx.x == LOADING)
            add_queries<T>(p, mem);
    } else {
        device_take_registers<T::MATH_REGISTERS>();
        compute<T, CAN>(p, mem);
    }
}

#define KERNEL_BODY(T) bwd_wgmma<T, CAN_RANGES>(p, maps)
#elif defined(__CUDA_ARCH__)
#error "sm_90a alone has these instructions"
#else    // the compiler's pass for the host
#define KERNEL_BODY(T)
#endif

#define JOIN(a, b) a##b
#define KERNEL(name, part, T) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p, const __grid_constant__ attn_maps maps) \
    { \
        KERNEL_BODY(T); \
    }

// Two stages at 128 columns, since the shared memory has no room for more.
constexpr int STAGES = DIM == 64 ? 4 : 2;
using with_queries = back_wgmma<STAGES, true>;
using without = back_wgmma<STAGES, false>;

KERNEL(NAME, _all, with_queries)
KERNEL(NAME, _keys, without)
