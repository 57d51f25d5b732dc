// SPDX-License-Identifier: MIT
// softmax/fwd_tile.cu: softmax attention forward on plain CUDA cores, exact in f32: one
// group computes one tile of queries, on register tiles fed from shared memory.
//
// Computes  O = softmax(score(Q K^T)) V and its LSE, as in include/attn/softmax.h
// Method    online softmax (Milakov and Gimelshein 2018) over tiles of BN keys
//           (FlashAttention-2, Dao 2023). Thread (tx, ty) holds RM x RN scores and RM x RV
//           sums of O in registers (RM = BM / TY, RN = BN / TX, RV = DIM / TX). Q stays in
//           shared memory, column after column; K in chunks of DC columns, turned likewise,
//           and V in chunks of JC keys go through four slots in turn: two are on their way
//           (cp.async) while one is computed on. Weights lie key after key, so that both
//           products are sums of outer products (outer.cuh). Rows that lie side by side
//           belong to lanes of one warp, so weights, maxima and sums need no barrier, and
//           warps may be a chunk apart: one computes while another is at its exponentials.
//           A warp multiplies no keys that none of its queries sees
// Grid      1-D, ceil(Lq / BM) * Hq * B groups, tile fastest; if the right side is bounded
//           the last tile first, since it is the longest, of large tiles those of all heads.
//           Else the tiles of a last round that would leave multiprocessors idle are cut
//           along their keys (common/cut.h): more groups, each with the next job by a counter
//           in the workspace, through which sums go from part to part (tile_part.cuh)
// Block     TX * TY threads, 1-D
// Shared    dynamic, in f32: DIM * BM                         Q
//             + 4 * max(DC * (BN + 4), JC * DIM)              chunks of K and V
//             + BN * (BM + 8)                                 weights
//             + 4 * BM + BN                                   rows; keys that are seen
//           The pitches put what a half-warp touches at once into different banks
// Barriers  one a chunk, in compute capability 9.0 by an mbarrier that is passed before it
//           is waited for; more where masks or biases hide keys
// Layout    any strides, in elements; CONTIG_ and WIDE_ bits promise more (params.h)
// Numerics  f32 throughout, 16-bit types are storage; a row without visible keys: O = 0,
//           LSE = -inf. Steps of keys lie on a grid, and what compensated sums have too
//           much is taken off at the end, so that a step of nothing before or behind
//           changes no bit: a row's bits do not depend on other rows, nor on B or H.
//           A tile's products with V are summed in fresh registers, at most BN of them, and
//           added to O, in f32 with compensation (Kahan 1965); row sums likewise. In f32's
//           instance _ranges, for 8192 keys at most, O is summed plainly over the tiles
// Features  all, through common/; the instances _ranges and _long know no pages, softcap,
//           terms or dropout
// Requires  D and Dv up to DIM; columns past them are 0 and not read. cp.async from sm_80
//           on, plain copies before
// Tunables  the tiles below; src/plan/cuda/softmax_fwd_tile.c has the same numbers
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for each TYPE (f32, f16, bf16) and DIM (64, 128, 256), with SUMS_LONG for f32: NAME
// is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_tile_f32_d64
#endif

#include "softmax/tile_feed.cuh"
#include "softmax/tile_fold.cuh"
#include "softmax/tile_part.cuh"

// Few threads a multiprocessor, but many registers each: an 8 x 8 tile needs 4 loads from
// shared memory for 64 multiply-adds.
#if DIM == 64
using large = tile<128, 64, 8, 16, 32, 32, 2>;
#elif DIM == 128
using large = tile<128, 128, 16, 16, 32, 32, 1>;
#else
using large = tile<64, 64, 16, 16, 64, 16, 1>;
#endif
using small = tile<32, 64, 16, 8, 16, 1024 / DIM, 1>;

// Tiles that are cut along their keys all see the same ones.
template <int CAN> constexpr bool CUTS = CAN == CAN_RANGES;

// What this group is to do. By one thread.
template <typename T, int CAN> DEVICE void find_work(const attn_kparams &p, shared<T> &mem)
{
    const tile_part part = CUTS<CAN> ? next_part(p) : tile_part{ (int)blockIdx.x, 0, 0, -1 };
    const int tiles = ceil_div(p.len_q, T::BM), heads = p.batch * p.heads_q, id = part.tile;
    const bool ends = has<CAN>(p, FEAT_RANGE_RIGHT);

    // Small tiles side by side should read the same keys. Large ones compute so much on what
    // they read that the longest of all heads can come first, and the end is short.
    const bool by_tile = ends && T::BM >= 64;
    const int tile = by_tile ? id / heads : id % tiles, head = by_tile ? id % heads : id / tiles;
    const int h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const int i0 = (ends ? tiles - 1 - tile : tile) * T::BM;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const bool empty = part.cut >= 0 && part.first == part.end;
    const int queries = empty ? 0 : clamp(seq.queries - i0, 0, T::BM);

    mem.seq = seq;
    mem.any = range_any<CAN>(p, seq, i0, queries);
    mem.all = range_all<CAN>(p, seq, i0, queries);
    if (CUTS<CAN> && part.cut >= 0) {
        mem.any.first = part.first * T::BN;
        mem.any.end = min(mem.any.end, part.end * T::BN);
    }
    mem.part = part;
    mem.k_rows = ADDRESS_KEYS(p, k, seq, b, address_head_kv(p, h));
    mem.v_rows = ADDRESS_KEYS(p, v, seq, b, address_head_kv(p, h));
    mem.score = score_run<CAN>(p, seq, b, h, i0, queries);
    mem.b = b;
    mem.h = h;
    mem.i0 = i0;
    mem.queries = queries;
}

template <typename T, int CAN>
DEVICE void stage_q(const attn_kparams &p, shared<T> &mem)
{
    const attn_rows rows = ADDRESS_QUERIES(p, q, mem.seq, mem.b, mem.h);

    stage_turned<T::BM, DIM, T::QP, T::THREADS, CAN & ~FEAT_PAGES, 1>(
        p, mem.q, p.q, rows, mem.i0, 0, mem.queries, 0, p.d, has<CAN>(p, CONTIG_Q));
}

template <typename T, int CAN>
DEVICE void write_rows(const attn_kparams &p, const place<T> &my, const shared<T> &mem,
                       const float (&o)[T::RM][T::RV],
                       const rests (&extra)[T::RM][T::RV / 2])
{
    const attn_rows rows = ADDRESS_QUERIES(p, o, mem.seq, mem.b, mem.h);
    const float sink = state_sink<CAN>(p, mem.h);

    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        const int i = row_of<T>(my, r);
        attn_row row = { mem.m[i], mem.l[i] - mem.l_extra[i] };
        const float factor = state_finish_sink(&row, sink);

        if (i >= mem.queries)
            continue;
        if (has<CAN>(p, FEAT_LSE) && p.want_lse && my.tx == 0)
            p.lse[address_lse<CAN>(p, mem.seq, mem.b, mem.h, mem.i0 + i)] = state_lse(row);
        if (!p.want_o)
            continue;

        const int64_t to = address_row<CAN & ~FEAT_PAGES>(p, rows, mem.i0 + i);

        #pragma unroll
        for (int g = 0; g < T::RV; g += 4) {
            const int c = 4 * my.tx + g * T::TX;
            const rests low = extra[r][g / 2], high = extra[r][g / 2 + 1];
            const float x[4] = { (o[r][g] - first_rest(low)) * factor,
                                 (o[r][g + 1] - second_rest(low)) * factor,
                                 (o[r][g + 2] - first_rest(high)) * factor,
                                 (o[r][g + 3] - second_rest(high)) * factor };

            if (has<CAN>(p, WIDE_O)) {
                if (c < p.dv)
                    elem_store4<TYPE>(p.o, to + c, make_float4(x[0], x[1], x[2], x[3]));
                continue;
            }
            #pragma unroll
            for (int k = 0; k < 4; k++)
                if (c + k < p.dv)
                    elem_store<TYPE>(p.o, to + (c + k) * rows.stride_d, x[k]);
        }
    }
}

template <typename T> DEVICE void init_rows(shared<T> &mem)
{
    for (int i = threadIdx.x; i < T::BM; i += T::THREADS) {
        const attn_row row = state_init();

        mem.m[i] = row.m;
        mem.l[i] = row.l;
        mem.l_extra[i] = 0.0f;
    }
}

template <typename T, int CAN, bool LONG> DEVICE void fwd_tile(const attn_kparams &p)
{
    static_assert(sizeof(shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T> &mem = *(shared<T> *)device_hold(memory);
    const place<T> my = find_place<T>();
    float o[T::RM][T::RV] = {};
    rests extra[T::RM][T::RV / 2] = {};
    unsigned chunk = 0;

    if (threadIdx.x == 0) {
        find_work<T, CAN>(p, mem);
        init_passing(mem);
    }
    begin_passing();
    if (mem.queries == 0)
        return;

    const bool none = mem.any.first >= mem.any.end;
    const int end = mem.any.end, begin = none ? end : mem.any.first / T::BN * T::BN;

    if (CUTS<CAN> && mem.part.first > 0)
        load_state<T, LONG>(p, mem, o, extra);
    else
        init_rows(mem);
    const attn_range seen = seen_by_warp(my, mem);
    const int row = held(row_of(my, 0));
    feed<T> next = find_feed<T, CAN>(p, mem, begin);

    if (!none) {
        stage_q<T, CAN>(p, mem);
        for (int i = 0; i < AHEAD; i++) {
            stage_next<T, CAN>(p, mem, next, i);
            stage_rest<T>(mem, next, i);
            pass(mem, i);
        }
    }
    __syncthreads();

    // thread (tx, ty) owns queries i0 + row_of(my, r), keys j0 + tx + c * TX, and of the value
    // rows fours of elements from 4 tx on, 4 TX apart
    #pragma unroll 1
    for (int j0 = begin; j0 < end; j0 += T::BN) {
        float s[T::RM][T::RN] = {};

        #pragma unroll 1
        for (int d = 0; d < p.d; d += T::DC, chunk++) {
            const float *const a = mem.q + d * T::QP + row;
            const float *const b = mem.slot[chunk % SLOTS] + 4 * my.tx;
            factors<T::RM, T::RN> f;

            meet(mem, chunk);
            load_factors<T::APART, 4 * T::TX>(f, 0, a, b);
            stage_next<T, CAN>(p, mem, next, chunk + AHEAD);
            if (j0 < seen.end && j0 + T::BN > seen.first)
                add_outer<0, T::QP, T::APART, T::KP, 4 * T::TX>(
                    s, f, a, b, min(T::DC, round_up4(p.d) - d));
            stage_rest<T>(mem, next, chunk + AHEAD);
            pass(mem, chunk);
        }
        if (has<CAN>(p, FEAT_SOFTCAP | FEAT_TERMS)) {
            special_scores<T, CAN>(p, my, mem, s, j0);
            fold_scores<T, LONG, false>(my, mem, s, { 1.0f, 1.0f }, j0, o, extra);
        } else {
            const scaling scale = find_scaling(p);

            if (j0 < mem.all.first || mem.all.end - j0 < T::BN || scale.first != 1.0f)
                fold_scores<T, LONG, true>(my, mem, s, scale, j0, o, extra);
            else
                fold_scores<T, LONG, false>(my, mem, s, scale, j0, o, extra);
        }
        if (has<CAN>(p, FEAT_DROPOUT))
            drop_weights<T>(p, my, mem, j0);

        float part[T::RM][T::RV] = {};

        #pragma unroll 1
        for (int j = 0; j < min(T::BN, end - j0); j += T::JC, chunk++) {
            const float *const a = mem.weight + j * T::WP + row;
            const float *const b = mem.slot[chunk % SLOTS] + 4 * my.tx;
            factors<T::RM, T::RV> f;

            meet(mem, chunk);
            if (has<CAN>(p, FEAT_HIDES)) {
                if (j == 0)    // warps are apart, but all have marked what they see
                    __syncthreads();
                hide_values<T>(mem, mem.slot[chunk % SLOTS], j);
            }
            load_factors<T::APART, 4 * T::TX>(f, 0, a, b);
            stage_next<T, CAN>(p, mem, next, chunk + AHEAD);
            if (j0 + j < seen.end && j0 + j + T::JC > seen.first)
                add_outer<SWAP, T::WP, T::APART, T::VP, 4 * T::TX>(
                    part, f, a, b, min(T::JC, round_up4(end - j0 - j)));
            stage_rest<T>(mem, next, chunk + AHEAD);
            pass(mem, chunk);
        }
        add_tile<T, LONG>(o, extra, part);
    }
    if (CUTS<CAN> && mem.part.cut >= 0 && mem.part.end < p.cut.steps)
        save_state<T, LONG>(p, mem, o, extra);
    else
        write_rows<T, CAN>(p, my, mem, o, extra);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN, LONG) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        fwd_tile<T, CAN, TYPE == TYPE_F32 && LONG>(p); \
    }

KERNEL(NAME, _ranges, large, CAN_RANGES, false)
#ifdef SUMS_LONG
KERNEL(NAME, _long, large, CAN_RANGES, true)
#endif
KERNEL(NAME, _all, large, CAN_ALL, true)
KERNEL(NAME, _small, small, CAN_ALL, true)
