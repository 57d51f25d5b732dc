// SPDX-License-Identifier: MIT
// softmax/fwd_wgmma.cu: softmax attention forward on Hopper's tensor cores.
//
// Computes  O = softmax(scale Q K^T + ...) V and the LSE; formula and rules: attn/softmax.h
// Method    J. Shah et al., "FlashAttention-3" (2024): one warpgroup loads, the others have 64
//           queries each. The products of a step with K run beside those of the step before
//           with V, and the softmax beside those; warpgroups take turns at issuing products,
//           so that one's softmax lies under the other's products. Keys are walked from the
//           last to the first: what is masked comes at the beginning
// Grid      1-D, as many groups as fit the device, each with one tile after another: every
//           so-manieth in _plain, else the next that nobody has, by a counter in the
//           workspace, which is 0 at the beginning; with a right bound the longest first, in
//           sections of heads whose K and V fit the L2
// Block     128 * (1 + WGS) threads, 1-D: the loading warpgroup first
// Shared    dynamic: Q, rings of STAGES steps of K and of V, O on its way, barriers, work
// Barriers  full and empty ones in shared memory for Q and each slot of a ring; named ones for
//           the loading warpgroup (1), the turns (2 + warpgroup) and, where O passes through
//           Q's memory, each warpgroup (2 + WGS + warpgroup)
// Layout    Q, K, V: rows of 16-byte chunks at multiples of 16 bytes; O any strides
// Numerics  as fwd_mma.cu. Steps lie on a grid that begins at key 0
// Features  ranges of keys, packed sequences; softcap in _capped; no other that looks at single
//           scores
// Requires  sm_90a; D up to DIM, Dv up to DIMV; columns past them are 0 and not read
// Tunables  the shapes below; src/plan/cuda/softmax_fwd_wgmma.c has the same numbers
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for f16 and bf16 with DIM = DIMV 64, 128 and 256: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef DIM
#define DIM 128
#endif
#ifndef DIMV
#define DIMV DIM
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_wgmma_f16_d128
#endif

#include "softmax/wgmma.cuh"

#if DIM <= 64
using large = wgmma<3, 128, 3, true>;
#elif DIM <= 128
using large = wgmma<2, 128, 2, true>;
#else
using large = wgmma<2, 64, 2, false>;
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// By the loading warpgroup. What a copy wants is in registers before its slot is free.
template <typename T, int CAN>
DEVICE void load(const attn_kparams &p, const attn_maps &maps, wgmma_shared<T> &mem)
{
    for (int t = -1;; t++) {    // at -1 nothing but finding the first
        const wgmma_work<T> &work = mem.work[t & (WORKS - 1)];
        place_in_map at = { 0, 0, 0 };
        attn_range boxed = { 0, 0 };
        int steps = 0, base = 0, row = 0;

        if (t >= 0) {
            device_meet<128>(LOADERS);
            steps = work.steps, base = work.base, row = work.key(0);
            at = work.in_k, boxed = work.boxed;
            device_barrier_wait(&mem.empty_q, ~t & 1);
            #pragma unroll 1
            for (int wg = 0; wg < T::WGS; wg++)
                if (!steps)
                    arrive(&mem.full_q);
                else if (maps.there && work.queries >= wg * 64 + 64)
                    bring_box<64, CHUNKS_K>(mem.q[wg], &maps.q, work.i0 + wg * 64, work.in_q,
                                            &mem.full_q);
                else
                    bring_rows<64, CHUNKS_K, T::TOGETHER>(mem.q[wg], work.from_q, work.i0 + wg * 64,
                                             &mem.full_q);
            if (work.queries < 0)
                return;
        }
        #pragma unroll 1
        for (int i = 0; i <= steps; i++, row -= T::BN) {    // V a step behind K
            if (i < steps) {
                const place<T> in(base + i);

                device_barrier_wait(&mem.empty_k[in.slot], in.parity ^ 1);
                if (i >= boxed.first && i < boxed.end)
                    bring_box<T::BN, CHUNKS_K>(mem.k[in.slot], &maps.k, row, at,
                                               &mem.full_k[in.slot]);
                else
                    bring_rows<T::BN, CHUNKS_K, T::TOGETHER>(
                        mem.k[in.slot], work.from_k, row, &mem.full_k[in.slot]);
            }
            if (i > 0) {
                const place<T> in(base + i - 1);

                device_barrier_wait(&mem.empty_v[in.slot], in.parity ^ 1);
                if (i > boxed.first && i <= boxed.end)
                    bring_box<T::BN, CHUNKS_V>(mem.v[in.slot], &maps.v, row + T::BN, at,
                                               &mem.full_v[in.slot]);
                else
                    bring_rows<T::BN, CHUNKS_V, T::TOGETHER>(
                        mem.v[in.slot], work.from_v, row + T::BN, &mem.full_v[in.slot]);
            }
            if (i == min(steps, (int)T::STAGES) && threadIdx.x == 0) {
                // the rings are full. Where tiles differ, who is free takes the next
                const int number = t < 0 || CAN == (CAN_PLAIN)
                                       ? (t + 1) * gridDim.x + blockIdx.x
                                       : gridDim.x + atomicAdd((int *)p.work, 1);

                wgmma_work<T> &next = mem.work[(t + 1) % WORKS];

                next.base = base + steps;
                find_work<T, CAN>(p, maps, number, mem, next);
            }
        }
    }
}

// S = Q K^T begins.
template <typename T>
DEVICE void begin_scores(const float4 *q, const float4 *k, scores<T> &s)
{
    const uint64_t a = device_tile(device_address(q), 64 * 128);
    const uint64_t b = device_tile(device_address(k), T::BN * 128);

    device_products_hold(s[0]);
    device_products_begin();
    #pragma unroll
    for (int x = 0; x < DIM / 16; x++)
        device_products_in<TYPE>(s[0], a + (x / 4 * 64 * 128 + x % 4 * 32) / 16,
                                 b + (x / 4 * T::BN * 128 + x % 4 * 32) / 16, x > 0);
    device_products_commit();
}

// O += P V begins.
template <typename T>
DEVICE void begin_values(const weights<T> &w, const float4 *v, rows_state<T> &my)
{
    const uint64_t b = device_tile(device_address(v), T::BN * 128);

    device_products_hold(my.o[0]);
    device_products_begin();
    #pragma unroll
    for (int t = 0; t < T::NT / 2; t++)
        device_products_of<TYPE>(my.o[0], w[t][0], b + t * 16 * 128 / 16);
    device_products_commit();
}

// Steps one after another, of which some have keys that are hidden from some queries, or none.
template <bool MASKED_> struct steps {
    static constexpr bool MASKED = MASKED_;
};

template <typename T, int CAN>
DEVICE void compute(const attn_kparams &p, wgmma_shared<T> &mem)
{
    const int wg = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) - 1;    // of the warp
    const int next = TURNS + (wg + 1 < T::WGS ? wg + 1 : 0);
    const bool capped = CAN & FEAT_SOFTCAP;
    const bool scaled = capped || !(p.scale > 0.0f && p.scale < 1e30f);
    const float log2_e = 1.44269504088896340736f;
    const float unit = scaled ? log2_e : p.scale * log2_e;
    const float4 *const q = mem.q[wg];
    // the warp's first row in the group, found anew where it is wanted
    const auto first_row = [] { return (device_thread() / 32 - 4) * 16; };

    if (wg == T::WGS - 1)    // the first has the first turn
        device_pass<256>(TURNS);
    for (int t = 0;; t++) {
        const wgmma_work<T> &work = mem.work[t % WORKS];
        rows_state<T> my;
        scores<T> s;
        weights<T> w;
        score_limits<T> limits;

        no_limits(limits);
        #pragma unroll
        for (int i = 0; i < T::VT * 4; i++)
            my.o[0][i / 4][i % 4] = 0.0f;
        my.m[0][0] = my.m[0][1] = -INFINITE;
        my.l[0][0] = my.l[0][1] = 0.0f;
        device_barrier_wait(&mem.full_q, t & 1);
        if (work.queries < 0) {
            if (wg == 0)    // nobody takes the last turn that was passed on
                device_meet<256>(TURNS);
            return;
        }

        const int base = work.base;
        const int from = CAN == (CAN_PLAIN) ? 0 : work.part[wg].first;
        const int to = CAN == (CAN_PLAIN) ? work.steps : work.part[wg].end;

        const auto pass_over = [&](int i) {
            const place<T> in(base + i);

            device_meet<256>(TURNS + wg);
            device_pass<256>(next);
            device_barrier_wait(&mem.full_k[in.slot], in.parity);
            arrive(&mem.empty_k[in.slot]);
            device_barrier_wait(&mem.full_v[in.slot], in.parity);
            arrive(&mem.empty_v[in.slot]);
        };
        // some of the keys of step i are hidden from some of the queries
        const auto is_masked = [&](int i) {
            return i < work.clear[wg].first || i >= work.clear[wg].end;
        };
        // the scores of step i become weights
        const auto fold = [&](int i, bool masked) {
            device_products_hold(s[0]);
            if (scaled) {
                #pragma unroll
                for (int e = 0; e < T::NT * 4; e++) {
                    float &x = s[0][e / 4][e % 4];

                    x = capped ? score_value<CAN>(p, x) : x * p.scale;
                }
            }
            if (masked)
                mask_scores<T>(work.score, first_row(), work.key(i), s);

            const references<T> r = find_references(my, unit, s, limits);

            weigh(my, r, unit, s);
            return r;
        };

        #pragma unroll 1
        for (int i = 0; i < from; i++)
            pass_over(i);
        if (from < to) {
            const place<T> in(base + from);

            device_barrier_wait(&mem.full_k[in.slot], in.parity);
            device_meet<256>(TURNS + wg);
            begin_scores<T>(q, mem.k[in.slot], s);
            device_pass<256>(next);
            device_products_wait<0>();
            arrive(&mem.empty_k[in.slot]);
            fold(from, is_masked(from));
            pack_weights<T>(s, NULL, w);
        }
        const auto walk = [&](int i, int end, auto kind) {
            #pragma unroll 1
            for (; i < end; i++) {
                const place<T> k_in(base + i), v_in(base + i - 1);

                device_barrier_wait(&mem.full_k[k_in.slot], k_in.parity);
                device_meet<256>(TURNS + wg);
                begin_scores<T>(q, mem.k[k_in.slot], s);
                device_barrier_wait(&mem.full_v[v_in.slot], v_in.parity);
                begin_values<T>(w, mem.v[v_in.slot], my);
                device_pass<256>(next);
                device_products_wait<1>();
                arrive(&mem.empty_k[k_in.slot]);

                const references<T> r = fold(i, kind.MASKED);

                device_products_wait<0>();
                device_products_hold(my.o[0]);
                arrive(&mem.empty_v[v_in.slot]);
                if (r.moves)
                    move_rows(my, r);
                pack_weights<T>(s, NULL, w);
            }
        };

        if (CAN == (CAN_PLAIN)) {
            walk(from + 1, to, steps<false>());
        } else {
            const attn_range clear = { clamp(work.clear[wg].first, from + 1, max(from + 1, to)),
                                       clamp(work.clear[wg].end, from + 1, max(from + 1, to)) };

            walk(from + 1, clear.first, steps<true>());
            walk(clear.first, clear.end, steps<false>());
            walk(max(clear.first, clear.end), to, steps<true>());
        }
        if (T::O_APART)
            arrive(&mem.empty_q);
        if (from < to) {
            const place<T> in(base + to - 1);

            device_barrier_wait(&mem.full_v[in.slot], in.parity);
            begin_values<T>(w, mem.v[in.slot], my);
            device_products_wait<0>();
            device_products_hold(my.o[0]);
            arrive(&mem.empty_v[in.slot]);
        }
        #pragma unroll 1
        for (int i = to; i < work.steps; i++)
            pass_over(i);
        if (!T::O_APART)    // all products of the warpgroup with its Q are over
            device_meet<128>(TURNS + T::WGS + wg);

        const int x = first_row();

        write_rows<T, CAN>(p, work, x,
                           T::O_APART ? mem.o + x * CHUNKS_V : mem.q[wg] + x % 64 * CHUNKS_K,
                           scaled ? 1.0f : p.scale, my);
        if (!T::O_APART)
            arrive(&mem.empty_q);
    }
}

template <typename T, int CAN>
DEVICE void fwd_wgmma(const attn_kparams &p, const attn_maps &maps)
{
    static_assert(sizeof(wgmma_shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    wgmma_shared<T> &mem = *(wgmma_shared<T> *)memory;

    if (threadIdx.x == 0) {
        const int64_t bytes = (int64_t)p.len_kv * (p.d + p.dv) * elem_bytes<TYPE>();
        const int64_t fit = L2_BYTES / max(bytes, (int64_t)1);

        mem.tiles = ceil_div(p.len_q, T::BM);
        mem.heads = p.batch * p.heads_q;
        mem.section = (int)clamp(fit, (int64_t)1, (int64_t)p.batch * p.heads_kv) * p.group;
        device_barrier_init(&mem.full_q, 4 * T::WGS);
        device_barrier_init(&mem.empty_q, 4 * T::WGS);
        for (int i = 0; i < T::STAGES; i++) {
            device_barrier_init(&mem.full_k[i], 4);
            device_barrier_init(&mem.full_v[i], 4);
            device_barrier_init(&mem.empty_k[i], 4 * T::WGS);
            device_barrier_init(&mem.empty_v[i], 4 * T::WGS);
        }
    }
    device_barriers_ready();
    if (threadIdx.x < 128) {
        device_leave_registers<T::LOAD_REGISTERS>();
        load<T, CAN>(p, maps, mem);
    } else {
        device_take_registers<T::MATH_REGISTERS>();
        compute<T, CAN>(p, mem);
    }
}

#define KERNEL_BODY(T, CAN) fwd_wgmma<T, CAN>(p, maps)
#elif defined(__CUDA_ARCH__)
#error "sm_90a alone has these instructions"
#else    // the compiler's pass for the host
#define KERNEL_BODY(T, CAN)
#endif

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p, const __grid_constant__ attn_maps maps) \
    { \
        KERNEL_BODY(T, (CAN)); \
    }

KERNEL(NAME, _plain, large, CAN_PLAIN)
KERNEL(NAME, _ranges, large, CAN_RANGES)
KERNEL(NAME, _capped, large, CAN_RANGES | FEAT_SOFTCAP)
