// SPDX-License-Identifier: MIT
// softmax/fwd_mma.cu: softmax attention forward on tensor cores.
//
// Computes  O = softmax(scale Q K^T + ...) V and the LSE; formula and rules: attn/softmax.h
// Method    T. Dao, "FlashAttention-2" (2023): a group has BM queries and walks over the
//           keys, BN a step; a warp has 16 or 32 of the queries to itself, or 32 with another
//           one (mma_pairs.cuh). S = Q K^T by mma, weights in place, O += P V, where the
//           registers that hold S hold P next. K and V of a step lie in shared memory, K of
//           the next comes while V is read and V while K is (cp.async), and go from there to
//           registers by ldmatrix. A warp whose rows see none of a step's keys does nothing
//           in it; scores are masked only where a row's range ends. Bias and mask come as they
//           are by cp.async too, 16-bit ones and masks a step further ahead, if 16 bytes
//           divide their rows; else threads write the terms of a step (mma_terms.cuh)
// Grid      1-D, ceil(Lq / BM) * B * Hq groups, the tile fastest; with a right bound the tiles
//           that have the most keys first, over sections of heads whose K and V fit the L2
// Block     32 * WARPS threads, 1-D
// Shared    dynamic: Q, K and V of a step, in the instances _all the terms of a step; weights
//           of f32 and of warps in pairs; the group's work
// Barriers  two a step; one more where keys are hidden from all queries of the group. Warps in
//           pairs have none of the group, but barriers in memory, so that one may be a
//           softmax ahead of another: K and V are there, or all have done with them. A pair
//           meets twice a step, and twice more where it moves its references
// Layout    any strides, in elements; WHOLE_ bits promise more (params.h)
// Numerics  16-bit types: products and sums f32; weights f32, rounded to the type before
//           they meet V, times 2^14 in f16, their sum taken before that. f32: three products
//           of TF32 for one, summed in f32 (mma_products32.cuh); over the steps plainly in
//           _ranges, for 2048 keys at most, else with compensation; in _tf32 and _tf32_all
//           everything but the softmax in TF32. Steps lie on a grid that begins at key 0, so
//           that a row's bits do not depend on other rows, nor on B or H
// Features  all, through common/; _plain knows no ranges, _ranges no pages, softcap, terms or
//           dropout. Keys that no query of a group sees behind masks are zeroed, so that V may
//           hold anything there
// Requires  sm_80; D up to DIM, Dv up to DIMV; columns past them are 0 and not read
// Tunables  the shapes below; src/plan/cuda/softmax_fwd_mma.c has the same numbers
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for f16 and bf16 with DIM, DIMV 64, 96, 128, 192, 256 each with itself and 192 with
// 128, for f32 (TYPE_IS_F32) with 64, 128 and 256: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef DIMV
#define DIMV DIM
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_mma_f16_d64
#endif

#include "softmax/mma_rows.cuh"

enum {
    CAN_PLAIN = CAN_LAYOUTS | FEAT_LSE,
    CAN_SPECIAL = FEAT_SOFTCAP | FEAT_TERMS    // has to look at single scores
};

#ifdef TYPE_IS_F32
// The parts of each number want registers too, so a warp has 16 rows.
#if DIM <= 128
template <sums SUMS> using f32 = mma<4, 1, 64, DIM == 64 ? 3 : 2, false, SUMS>;
template <sums SUMS> using f32_special = mma<4, 1, 32, DIM == 64 ? 3 : 2, false, SUMS>;
#else
template <sums SUMS> using f32 = mma<8, 1, 32, 1, false, SUMS>;
template <sums SUMS> using f32_special = mma<4, 1, 32, 1, false, SUMS>;
#endif
#else
// Code that no device without 227 KiB runs has tiles that want them.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER
#endif

// A warp of 32 rows loads K and V from shared memory half as often as two of 16, but has
// twice the sums in its registers: 32 where O of so many columns leaves room for S.
#if DIMV == 64
using large = mma<4, 2, 128, 2, false>;
#elif DIM <= 128
using large = mma<4, 2, 64, 2, false>;
#elif DIM == 192
using large = mma<8, 1, 64, 1, DIMV == 192>;
#elif defined(HOPPER)
using large = mma<8, 2, 128, 1, false, IN_CORES, 2>;
#else
using large = mma<8, 1, 64, 1, false>;
#endif
#if DIM <= 128
using special = mma<4, 2, 64, 2, DIM == 64>;
#elif DIM > 192 && defined(HOPPER)
using special = mma<8, 1, 64, 1, false>;
#else
using special = mma<4, 1, 32, 2, false>;
#endif
#endif

// Which tile of queries this group has. With a right bound the longest first, of as many heads as
// have their keys and values in the L2 at a time.
struct group_place {
    int64_t b;
    int h, i0;
};

template <typename T, int CAN> DEVICE group_place find_place(const attn_kparams &p)
{
    const int tiles = ceil_div(p.len_q, T::BM), at = blockIdx.x;
    int tile = at % tiles, head = at / tiles;

    if (has<CAN>(p, FEAT_RANGE_RIGHT)) {
        const int64_t bytes = (int64_t)p.len_kv * ((p.d + p.dv) * elem_bytes<TYPE>());
        const int fit = (int)((unsigned)(L2_BYTES >> 12) / ((unsigned)(bytes >> 12) + 1));
        const int heads = p.batch * p.heads_q;
        const int section = clamp(fit, 1, p.batch * p.heads_kv) * p.group;
        const int first = at / (section * tiles) * section, rest = at - first * tiles;
        const int width = min(section, heads - first);

        head = first + rest % width;
        tile = tiles - 1 - rest / width;
    }
    return { head / p.heads_q, head % p.heads_q, tile * T::BM };
}

// Writes down what this group is to do: a warp the ranges of all warps, a lane for each, three
// more, or the same one, a part of the rest each.
template <typename T, int CAN>
DEVICE void describe_group(const attn_kparams &p, const attn_sequence &seq, const group_place &at,
                           int queries, shared<T, CAN> &mem)
{
    const int warp = threadIdx.x / 32, w = threadIdx.x % 32;

    if (warp == 0 && w < T::WARPS) {
        const int i = at.i0 + w / T::COLS * T::ROWS, n = clamp(seq.queries - i, 0, T::ROWS);

        mem.warp_any[w] = range_any<CAN>(p, seq, i, n);
        mem.warp_all[w] = range_all<CAN>(p, seq, i, n);
        if (n < T::ROWS)    // rows that do not exist see nothing, and their scores are masked
            mem.warp_all[w].end = 0;
    }
    if (w > 0)
        return;
    if (warp == 1) {
        mem.work.k_rows = ADDRESS_KEYS(p, k, seq, at.b, address_head_kv(p, at.h));
        mem.work.v_rows = ADDRESS_KEYS(p, v, seq, at.b, address_head_kv(p, at.h));
    }
    if (warp == 2)
        mem.work.score = score_run<CAN>(p, seq, at.b, at.h, at.i0, queries);
    if (warp == 3) {
        mem.work.seq = seq;
        mem.work.any = range_any<CAN>(p, seq, at.i0, queries);
        mem.work.b = at.b;
        mem.work.h = at.h;
        mem.work.i0 = at.i0;
        mem.work.queries = queries;
    }
}

template <typename T, int CAN> DEVICE void fwd_mma(const attn_kparams &p)
{
    constexpr bool ranged = CAN != (CAN_PLAIN), looks = (CAN & FEAT_TERMS) != 0;
    // registers are full else
    constexpr bool QUICK = T::COLS > 1 || (TYPE != TYPE_F32 && (!looks || DIM > 128));
    static_assert(sizeof(shared<T, CAN>) <= T::BYTES + (CAN & FEAT_TERMS ? T::TERMS : 0),
                  "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T, CAN> &mem = *(shared<T, CAN> *)memory;
    const int warp = threadIdx.x / 32, x = warp / T::COLS * T::ROWS;
    rows_state<T> my;
    score_limits<T> limits;
    uint32_t stays[T::MT][T::KT][4];
    const warp_pair<T> pair = pair_of<T>(mem.weight.of(warp), warp);

    static_assert(T::WARPS >= 4, "parts of the group's work");
    const group_place place = find_place<T, CAN>(p);
    const attn_sequence seq = range_sequence<CAN>(p, place.b);
    const int queries = clamp(seq.queries - place.i0, 0, T::BM);

    if (queries == 0)
        return;

    // rows of Q and of the first step are on their way before all else is found
    const attn_range begins = range_any<CAN>(p, seq, place.i0, queries);
    const int first = begins.end > begins.first ? begins.first / T::BN * T::BN : begins.end;

    if (first < begins.end) {
        const attn_rows rows = ADDRESS_QUERIES(p, q, seq, place.b, place.h);
        const attn_rows keys = ADDRESS_KEYS(p, k, seq, place.b, address_head_kv(p, place.h));

        fetch<T::BM, CHUNKS_K, T::THREADS, CAN & ~FEAT_PAGES>(
            p, mem.q, p.q, rows, p.q_stride_l, place.i0, { place.i0, place.i0 + queries }, p.d,
            has<CAN>(p, WHOLE_Q));
        fetch<T::BN, CHUNKS_K, T::THREADS, CAN>(p, mem.k, p.k, keys, p.k_stride_l, first, begins,
                                                p.d, has<CAN>(p, WHOLE_K));
    }
    describe_group<T, CAN>(p, seq, place, queries, mem);
    if constexpr (T::COLS > 1) {
        if (threadIdx.x == 0) {
            device_barrier_init(&mem.turns.full_k, T::THREADS);
            device_barrier_init(&mem.turns.full_v, T::THREADS);
            device_barrier_init(&mem.turns.empty_k, T::THREADS);
            device_barrier_init(&mem.turns.empty_v, T::THREADS);
        }
    }
    __syncthreads();
    if constexpr (T::COLS > 1)
        if (first < begins.end)
            arrive_with_copies(&mem.turns.full_k,
                               has<CAN>(p, WHOLE_Q) && has<CAN>(p, WHOLE_K));
    if constexpr (looks) {
        if (threadIdx.x == 0)
            plan_terms<T, CAN>(p, mem.work, mem.terms.plan);
        __syncthreads();
    }

    no_limits(limits);
    #pragma unroll
    for (int i = 0; i < 2 * T::MT; i++) {
        my.m[i / 2][i % 2] = -INFINITE;
        my.l[i / 2][i % 2] = 0.0f;
        if (T::LONG)
            my.l_rest[T::LONG ? i / 2 : 0][i % 2] = 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < T::MT * T::VT * 4; i++)
        my.o[i / 4 / T::VT][i / 4 % T::VT][i % 4] = 0.0f;
    #pragma unroll
    for (int i = 0; i < T::MT * T::VT * 2 && T::LONG; i++)
        my.rest[T::LONG ? i / 2 / T::VT : 0][i / 2 % T::VT][i % 2] = { 0 };

    // where no instance knows of ranges, nothing of them is loaded
    const attn_range all_keys = { 0, p.len_kv };
    const attn_range &any = ranged ? mem.work.any : all_keys;
    const bool is_special = has<CAN>(p, CAN_SPECIAL);
    // a scale that is no plain factor is multiplied first: then hidden scores stay -inf
    const bool scaled = is_special || !(p.scale > 0.0f && p.scale < 1e30f);
    const float log2_e = 1.44269504088896340736f;
    const float unit = scaled ? log2_e : p.scale * log2_e;

    const auto fetch_keys = [&](int j) {
        if (j < any.end)
            fetch<T::BN, CHUNKS_K, T::THREADS, CAN>(p, mem.k, p.k, mem.work.k_rows, p.k_stride_l,
                                                    j, any, p.d, has<CAN>(p, WHOLE_K));
    };
    const auto fetch_values = [&](int j) {
        fetch<T::BN, CHUNKS_V, T::THREADS, CAN>(p, mem.v, p.v, mem.work.v_rows, p.v_stride_l, j,
                                                any, p.dv, has<CAN>(p, WHOLE_V));
    };

    if constexpr (looks) {
        for (int i = threadIdx.x; i < 2 * T::BN; i += T::THREADS)
            mem.terms.seen[i / T::BN][i % T::BN] = 0;
        #pragma unroll 1
        for (int j = first; j <= first + (mem.terms.plan.second ? T::BN : 0); j += T::BN) {
            fetch_terms<T, CAN>(p, mem.work, mem.terms, j);
            device_commit();
        }
    }

    [[maybe_unused]] uint32_t turn = 0;

    #pragma unroll 1
    for (int j = first; j < any.end; j += T::BN) {
        const attn_range mine = ranged ? mem.warp_any[warp] : all_keys;
        const attn_range all = ranged ? mem.warp_all[warp] : all_keys;
        const bool sees = !ranged || (mine.first < j + T::BN && mine.end > j);
        [[maybe_unused]] const bool odd = j / T::BN % 2;
        weights<T> w;

        if constexpr (looks) {
            if (mem.terms.plan.written)
                write_terms<T, CAN>(p, mem.work, mem.terms, j);
            if (mem.terms.plan.second)    // the terms of the next step may be on their way
                device_copied<1>();
            else
                device_copied<0>();
            __syncthreads();
        } else if constexpr (T::COLS == 1) {
            device_arrive();
        }
        if constexpr (T::COLS == 1)
            fetch_values(j);
        else
            device_barrier_wait(&mem.turns.full_k, turn);

        const auto bring_values = [&] {
            if constexpr (T::COLS > 1) {    // behind the others' products of the last step
                device_barrier_wait(&mem.turns.empty_v, turn ^ 1);
                fetch_values(j);
                arrive_with_copies(&mem.turns.full_v, has<CAN>(p, WHOLE_V));
            }
        };

        if (T::Q_STAYS && j == first) {
            #pragma unroll
            for (int i = 0; i < T::MT * T::KT; i++)
                load_queries(stays[i / T::KT][i % T::KT],
                             address_of_queries(mem.q + x * CHUNKS_K), i / T::KT * 16,
                             i % T::KT);
        }
        if (sees) {
            scores<T> s;
            [[maybe_unused]] bool hide = false;

            if constexpr (looks)
                if (has<CAN>(p, FEAT_HIDES))
                    hide = terms_hide<T>(mem.terms, odd, x);
            find_scores<T>(mem.q + x * CHUNKS_K, stays, mem.k, pair.column(), s, bring_values);
            if constexpr (T::COLS > 1)
                device_barrier_arrive(&mem.turns.empty_k);
            if constexpr (looks)
                if (is_special)
                    special_scores<T, CAN>(p, mem.work, mem.terms, odd, x, j, hide, s);
            if (scaled && !is_special) {
                #pragma unroll
                for (int i = 0; i < T::MT * T::NT * 4; i++)
                    s[i / 4 / T::NT][i / 4 % T::NT][i % 4] *= p.scale;
            }
            if (j < all.first || all.end - j < T::BN)
                mask_scores<T>(mem.work.score, x, j + pair.column() * 16, s);
            if constexpr (looks) {
                if (hide)
                    mark_seen<T>(s, mem.terms.seen[odd]);
                else if (has<CAN>(p, FEAT_HIDES))
                    mark_range<T>(mine, j, mem.terms.seen[odd]);
            }
            fold_scores<T, QUICK>(my, unit, j > first, s, limits, pair);

            const uint32_t head = (uint32_t)(mem.work.b * p.heads_q + mem.work.h);

            if (has<CAN>(p, FEAT_DROPOUT))
                drop_scores<T>(p, head, mem.work.i0 + x, j, s);
            pack_weights<T>(s, mem.weight.of(warp), w, pair);
            if constexpr ((CAN & FEAT_DROPOUT) != 0)
                if (has<CAN>(p, FEAT_DROPOUT))
                    drop_weights<T>(p, head, mem.work.i0 + x, j, w);
        } else {
            no_weights<T>(w);
            bring_values();
            if constexpr (T::COLS > 1)
                device_barrier_arrive(&mem.turns.empty_k);
        }
        if constexpr (T::COLS > 1) {
            if (j + T::BN < any.end) {
                device_barrier_wait(&mem.turns.empty_k, turn);
                fetch_keys(j + T::BN);
                arrive_with_copies(&mem.turns.full_k, has<CAN>(p, WHOLE_K));
            }
            device_barrier_wait(&mem.turns.full_v, turn);
        } else {
            device_arrive();
            fetch_keys(j + T::BN);
        }
        if constexpr (looks) {
            device_commit();
            fetch_terms<T, CAN>(p, mem.work, mem.terms,
                                j + (mem.terms.plan.second ? 2 : 1) * T::BN);
            device_commit();
            for (int i = threadIdx.x; i < T::BN; i += T::THREADS)
                mem.terms.seen[!odd][i] = 0;
            if (has<CAN>(p, FEAT_HIDES))
                hide_values<T>(mem.terms.seen[odd], mem.v);
        }
        if (sees)
            add_values<T>(mem.v, w, my, pair);
        if constexpr (T::COLS > 1)
            device_barrier_arrive(&mem.turns.empty_v);
        turn ^= 1;
    }
    // Q is not read any more, and the warp's own rows of it are where its rows of O pass through
    static_assert(DIMV <= DIM, "a row of O has room where one of Q was");
    if constexpr (T::COLS > 1)
        write_rows_of_pair<T, CAN>(p, mem.work, x, mem.q + x * CHUNKS_K,
                                   scaled ? 1.0f : p.scale, my, pair);
    else
        write_rows<T, CAN>(p, mem.work, x, mem.q + x * CHUNKS_K, scaled ? 1.0f : p.scale, my);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        fwd_mma<T, CAN>(p); \
    }

#ifdef TYPE_IS_F32
KERNEL(NAME, _ranges, f32<EXACT>, CAN_RANGES)
#if DIM <= 128
KERNEL(NAME, _long, f32<EXACT_LONG>, CAN_RANGES)
KERNEL(NAME, _all, f32_special<EXACT_LONG>, CAN_ALL)
#else    // no registers for compensation: 2048 keys at most
KERNEL(NAME, _all, f32_special<EXACT>, CAN_ALL)
#endif
KERNEL(NAME, _tf32, f32<IN_CORES>, CAN_RANGES)
KERNEL(NAME, _tf32_all, f32_special<IN_CORES>, CAN_ALL)
#else
KERNEL(NAME, _plain, large, CAN_PLAIN)
KERNEL(NAME, _ranges, large, CAN_RANGES)
KERNEL(NAME, _all, special, CAN_ALL)
#endif
