// SPDX-License-Identifier: MIT
// softmax/fwd_wgmma.cu: softmax attention forward on Hopper's tensor cores.
//
// Computes  O = softmax(scale Q K^T + ...) V and the LSE; formula and rules: attn/softmax.h
// Method    J. Shah et al., "FlashAttention-3" (2024): one warpgroup loads, the others have 64
//           queries each. The products of a step with K run beside those of the step before
//           with V, and the softmax beside those, over the ends of tiles too: the first
//           product of a tile runs beside the last of the one before, whose O is written
//           then. Warpgroups take turns at issuing products, so that one's softmax lies under
//           the other's products; in shapes that are APART not where a tile begins, which with
//           causal each does a step after the next one. Keys are walked from the last to the
//           first: what is masked comes at the beginning
// Grid      1-D, as many groups as fit the device, each with one tile after another: every
//           so-manieth in _plain and _tall, the last ones in parts that fill the grid; else the
//           next that nobody has, by a counter in the workspace, which is 0 at the beginning;
//           with a right bound the longest first, in sections of heads whose K and V fit the L2,
//           and of a head the first tile is the one that is not whole
// Block     128 * (1 + WGS) threads, 1-D: the loading warpgroup first
// Shared    dynamic: tiles of Q, rings of STAGES steps of K and of V, O on its way, barriers,
//           work
// Barriers  in shared memory, where every lane arrives for itself, since racecheck follows
//           nothing else: full and empty ones for each slot of Q and of a ring, known and left
//           ones for each of work, one for three warps of the loading group. Named ones: for
//           asking for work (1) and for the turns (2 + warpgroup)
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

#include "softmax/wgmma_load.cuh"

// large: of _plain; ranged: of the others. _tall: as _plain, in the others' tiles.
#if DIM <= 64
using large = wgmma<3, 128, 4, 4, 2, 1>;
using ranged = large;
#elif DIM <= 128
using large = wgmma<2, 128, 2, 2, 2, 1>;
using ranged = wgmma<3, 64, 3, 3, 2, 2>;
#else
using large = wgmma<2, 64, 2, 2, 1, 2>;
using ranged = large;
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

template <typename T, int CAN>
DEVICE void compute(const attn_kparams &p, wgmma_shared<T> &mem)
{
    const int wg = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0) - 1;    // of the warp
    const int next = TURNS + (wg + 1 < T::WGS ? wg + 1 : 0);
    const bool capped = CAN & FEAT_SOFTCAP;
    const bool scaled = capped || !(p.scale > 0.0f && p.scale < 1e30f);
    const float log2_e = 1.44269504088896340736f;
    const float unit = scaled ? log2_e : p.scale * log2_e;
    // score_value() without a division for each score, which is a call that registers are too
    // few for
    const float uncap = capped ? fminf(1.0f / p.softcap, 3e38f) : 1.0f;
    // the warp's first row in the group, found anew where it is wanted
    const auto first_row = [] { return (device_thread() / 32 - 4) * 16; };

    if (wg == T::WGS - 1)    // the first has the first turn
        device_pass<256>(TURNS);
    rows_state<T> my;
    scores<T> s;
    weights<T> w;
    score_limits<T> limits;
    // the tile before has been through all but its last product with V, and O
    bool begun = false;
    int passed = 0;    // steps of the next tile whose K this one has passed over
    constexpr bool STREAMS = !(CAN & FEAT_SOFTCAP) || T::WGS < 3;    // else registers are too few

    no_limits(limits);

    // the scores of a step, which begins with that key, become weights
    const auto fold = [&](const wgmma_work<T> &work, int key, bool masked) {
        device_products_hold(s[0]);
        if (scaled) {
            #pragma unroll
            for (int e = 0; e < T::NT * 4; e++) {
                float &x = s[0][e / 4][e % 4];

                x *= p.scale;
                if (capped)
                    x = p.softcap * tanhf(x * uncap);
            }
        }
        if (masked)
            hide_scores<T>(work.score, first_row(), key, s);

        const references<T> r = find_references(my, unit, s, limits);

        weigh(my, r, unit, s);
        return r;
    };
    const auto pass_over_k = [&](int n, int end) {
        #pragma unroll 1
        for (; n < end; n++) {
            const place_of_k<T> in(n);

            if (!T::APART)
                device_meet<256>(TURNS + wg), device_pass<256>(next);
            device_barrier_wait(&mem.full_k[in.slot], in.parity);
            device_barrier_arrive(&mem.empty_k[in.slot]);
        }
    };
    const auto pass_over_v = [&](int n, int end) {
        #pragma unroll 1
        for (; n < end; n++) {
            const place_of_v<T> in(n);

            device_barrier_wait(&mem.full_v[in.slot], in.parity);
            device_barrier_arrive(&mem.empty_v[in.slot]);
        }
    };
    const auto pass_over = [&](int n, int end) {
        #pragma unroll 1
        for (; n < end; n++)
            pass_over_k(n, n + 1), pass_over_v(n, n + 1);
    };
    // of no key yet
    const auto forget_rows = [&] {
        my.m[0][0] = my.m[0][1] = -INFINITE;
        my.l[0][0] = my.l[0][1] = 0.0f;
        no_limits(limits);
    };
    const auto forget_values = [&] {
        #pragma unroll
        for (int i = 0; i < T::VT * 4; i++)
            my.o[0][i / 4][i % 4] = 0.0f;
    };
    const auto write = [&](const wgmma_work<T> &work, int t) {
        const int x = first_row();

        if (work.queries > wg * 64)
            write_rows<T, CAN, T::O_PARTS>(p, work, x, mem.o + x * CHUNKS_V / T::O_PARTS,
                                           scaled ? 1.0f : p.scale, my);
        device_barrier_arrive(&mem.left[t % WORKS]);
    };
    const auto part_of = [&](const wgmma_work<T> &work) {
        wgmma_part part = work.part[wg];

        if (CAN == (CAN_PLAIN))
            part.first = 0;
        return part;
    };
    // a tile's work and its Q are there
    const auto see_tile = [&](int t) {
        const place_of_q<T> in(t);

        wait_for_work(mem, t);
        device_barrier_wait(&mem.full_q[in.slot][wg], in.parity);
    };

    see_tile(0);
    for (int t = 0;; t++) {
        const wgmma_work<T> &work = mem.work[t % WORKS];
        const place_of_q<T> here(t);
        const float4 *const q = mem.q[here.slot][wg];

        if (work.queries < 0) {
            if (wg == 0)    // nobody takes the last turn that was passed on
                device_meet<256>(TURNS);
            return;
        }

        // steps by their numbers over all tiles
        const int first = work.base + part_of(work).first, end = work.base + part_of(work).end;
        int n = first;
        const int clear = work.base + part_of(work).clear, hides = work.base + part_of(work).hides;
        const auto is_masked = [&](int n) {
            return n < clear || (CAN != (CAN_PLAIN) && n >= hides);
        };

        if (begun) {
            pass_over_k(work.base, n);
        } else {
            forget_rows();
            forget_values();
            pass_over_v(work.base, work.base + passed);
            pass_over(work.base + passed, n);
            passed = 0;
            if (n < end) {
                const place_of_k<T> in(n);

                device_barrier_wait(&mem.full_k[in.slot], in.parity);
                if (!T::APART)
                    device_meet<256>(TURNS + wg);
                begin_scores<T>(q, mem.k[in.slot], s);
                if (!T::APART)
                    device_pass<256>(next);
                device_products_wait<0>();
                device_barrier_arrive(&mem.empty_k[in.slot]);
                if (n == end - 1)
                    device_barrier_arrive(&mem.empty_q[here.slot][wg]);
                fold(work, work.key(n - work.base), is_masked(n));
                pack_weights<T>(s, NULL, w);
                n++;
            } else {
                device_barrier_arrive(&mem.empty_q[here.slot][wg]);
            }
        }

        const int turn = work.base + work.turns.first, turn_end = work.base + work.turns.end;
        // a step beside the product with V of the weights before it, which lie at v_in: of the
        // tile before where it begins this one
        const auto step = [&](int n, const place_of_v<T> &v_in, auto begins) {
            const place_of_k<T> k_in(n);
            const bool in_turn = !T::APART || (n >= turn && n < turn_end);

            device_barrier_wait(&mem.full_k[k_in.slot], k_in.parity);
            if (in_turn)
                device_meet<256>(TURNS + wg);
            begin_scores<T>(q, mem.k[k_in.slot], s);
            device_barrier_wait(&mem.full_v[v_in.slot], v_in.parity);
            begin_values<T>(w, mem.v[v_in.slot], my);
            if (in_turn)
                device_pass<256>(next);
            device_products_wait<1>();
            device_barrier_arrive(&mem.empty_k[k_in.slot]);
            if (n == end - 1)
                device_barrier_arrive(&mem.empty_q[here.slot][wg]);

            // of the tile that is written, where this one begins
            float m[2] = { my.m[0][0], my.m[0][1] }, l[2] = { my.l[0][0], my.l[0][1] };

            if (begins.value)
                forget_rows();

            const references<T> r = fold(work, work.key(n - work.base), is_masked(n));

            device_products_wait<0>();
            device_products_hold(my.o[0]);
            device_barrier_arrive(&mem.empty_v[v_in.slot]);
            if (r.moves && !begins.value)
                move_rows(my, r);
            pack_weights<T>(s, NULL, w);
            if (begins.value) {
                pass_over_v(work.base, n);
                exchange(my, m, l);
                write(mem.work[(t - 1) & (WORKS - 1)], t - 1);
                exchange(my, m, l);
                forget_values();
            }
        };

        if (T::APART && begun) {
            step(n++, place_of_v<T>(work.base - 1), constant<true>());
            begun = false;
        }
        #pragma unroll 1
        for (; n < end; n++) {
            if constexpr (T::APART) {
                step(n, place_of_v<T>(n - 1), constant<false>());
            } else {
                const struct {
                    bool value;
                } begins = { begun };

                step(n, place_of_v<T>(begun ? work.base - 1 : n - 1), begins);
                begun = false;
            }
        }

        // the tile's last product with V, beside the next one's first with K where there are
        // both, the rings have room for the steps between, and nobody waits for turns of this
        // tile's while the next one's Q is waited for
        const bool sees = first < end, streams = STREAMS && sees && end == work.base + work.steps;

        begun = false;
        if (streams) {
            const wgmma_work<T> &after = mem.work[(t + 1) % WORKS];

            see_tile(t + 1);
            begun = after.steps > 0 &&
                    part_of(after).first < min(part_of(after).end, (int)T::STAGES_V);
        }
        if (!begun) {
            if (sees) {
                const place_of_v<T> in(end - 1);

                device_barrier_wait(&mem.full_v[in.slot], in.parity);
                begin_values<T>(w, mem.v[in.slot], my);
                if (T::APART && streams) {    // what others wait for before O leaves
                    const wgmma_work<T> &after = mem.work[(t + 1) % WORKS];

                    if (after.steps > 0 && part_of(after).first > 0) {
                        pass_over_k(after.base, after.base + 1);
                        passed = 1;
                    }
                }
                device_products_wait<0>();
                device_products_hold(my.o[0]);
                device_barrier_arrive(&mem.empty_v[in.slot]);
            }
            pass_over(end, work.base + work.steps);
            write(work, t);
            if (!streams)
                see_tile(t + 1);
        }
    }
}

template <typename T, int CAN>
DEVICE void fwd_wgmma(const attn_kparams &p, const attn_maps &maps)
{
    static_assert(sizeof(wgmma_shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    wgmma_shared<T> &mem = *(wgmma_shared<T> *)memory;

    if (threadIdx.x == 0) {
        mem.tiles = ceil_div(p.len_q, T::BM);
        mem.heads = p.batch * p.heads_q;
        if (CAN == (CAN_PLAIN))
            find_plain_tiles<T>(p.len_q, mem.heads, mem.plain);
        if (has<CAN>(p, FEAT_RANGE_RIGHT)) {    // sections alike, whose K and V fit the L2
            const float bytes = (float)p.len_kv * (p.d + p.dv) * elem_bytes<TYPE>();
            const int heads = p.batch * p.heads_kv;
            const int most = (int)clamp((float)L2_BYTES / bytes, 1.0f, (float)heads);

            mem.section = ceil_div(heads, ceil_div(heads, most)) * p.group;
        }
        for (int i = 0; i < T::QUERIES * T::WGS; i++) {
            device_barrier_init(&mem.full_q[i / T::WGS][i % T::WGS], BRINGERS);
            device_barrier_init(&mem.empty_q[i / T::WGS][i % T::WGS], 128);
        }
        for (int i = 0; i < T::STAGES_K; i++) {
            device_barrier_init(&mem.full_k[i], BRINGERS);
            device_barrier_init(&mem.empty_k[i], 128 * T::WGS);
        }
        for (int i = 0; i < T::STAGES_V; i++) {
            device_barrier_init(&mem.full_v[i], BRINGERS);
            device_barrier_init(&mem.empty_v[i], 128 * T::WGS);
        }
        for (int i = 0; i < WORKS; i++) {
            device_barrier_init(&mem.known[i], 1);
            device_barrier_init(&mem.left[i], 96 + 128 * T::WGS);
        }
        device_barrier_init(&mem.hands, 96);
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
#if DIM > 64 && DIM <= 128
KERNEL(NAME, _tall, ranged, CAN_PLAIN)
#endif
KERNEL(NAME, _ranges, ranged, CAN_RANGES)
KERNEL(NAME, _capped, ranged, CAN_RANGES | FEAT_SOFTCAP)
