// SPDX-License-Identifier: MIT
// softmax/fwd_tile.cu: softmax attention forward on plain CUDA cores, exact in f32: one
// group computes one tile of queries, on register tiles fed from shared memory.
//
// Computes  O = softmax(score(Q K^T)) V and its LSE, as in include/attn/softmax.h
// Method    online softmax (Milakov and Gimelshein 2018) over tiles of BN keys
//           (FlashAttention-2, Dao 2023). Thread (tx, ty) holds RM x RN scores and
//           RM x 4 RV sums of O in registers (RM = BM / TY, RN = BN / TX, RV =
//           DIM / 4 TX). Q stays in shared memory; K in chunks of DC columns and V in
//           chunks of JC keys go through two slots in turn: one is filled (cp.async) while
//           the other is computed on. A row belongs to lanes of one warp, so weights,
//           maxima and sums need no barrier
// Grid      1-D, ceil(Lq / BM) * Hq * B groups, tile fastest; the last tile first if the
//           right side is bounded, since it is the longest
// Block     TX * TY threads, 1-D
// Shared    dynamic, in f32: BM * (DIM + 4)                   Q
//             + 2 * max(BN * (DC + 4), JC * DIM)              chunks of K and V
//             + BM * (BN + 8)                                 weights
//             + 3 * BM + BN                                   rows; keys that are seen
//           The pitches put what a half-warp touches at once into different banks
// Barriers  one a chunk; three more a step of keys where masks or biases hide keys
// Layout    any strides, in elements; CONTIG_ and WIDE_ bits promise more (params.h)
// Numerics  f32 throughout, 16-bit types are storage; a row without visible keys: O = 0,
//           LSE = -inf. Steps of keys lie on a grid, and what compensated sums have too
//           much is taken off at the end, so that a step of nothing before or behind
//           changes no bit: a row's bits do not depend on other rows, nor on B or H.
//           TYPE_F32: a tile's products with V are summed in fresh registers, at most BN of
//           them, and added to O with compensation (Kahan 1965); row sums likewise. In the
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

#include "softmax/tile_fold.cuh"

// Few threads a multiprocessor, but many registers each: an 8 x 8 tile needs 16 loads from
// shared memory for 256 multiply-adds.
#if DIM == 64
using large = tile<128, 64, 8, 16, 64, 64, 2>;
#elif DIM == 128
using large = tile<128, 128, 16, 16, 64, 64, 1>;
#else
using large = tile<64, 64, 16, 16, 128, 32, 1>;
#endif
using small = tile<32, 64, 16, 8, 32, 2048 / DIM, 1>;

// What this group is to do. By one thread.
template <typename T, int CAN> DEVICE void find_work(const attn_kparams &p, shared<T> &mem)
{
    const int tiles = ceil_div(p.len_q, T::BM);
    const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles;
    const int h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const int i0 = (has<CAN>(p, FEAT_RANGE_RIGHT) ? tiles - 1 - tile : tile) * T::BM;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const int queries = clamp(seq.queries - i0, 0, T::BM);

    mem.seq = seq;
    mem.any = range_any<CAN>(p, seq, i0, queries);
    mem.all = range_all<CAN>(p, seq, i0, queries);
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

    stage<T::BM, DIM, T::QP, T::THREADS, CAN & ~FEAT_PAGES>(
        p, mem.q, p.q, rows, mem.i0, 0, mem.queries, 0, p.d, has<CAN>(p, WIDE_Q),
        has<CAN>(p, CONTIG_Q));
}

template <typename T, int CAN>
DEVICE void stage_k(const attn_kparams &p, shared<T> &mem, int slot, int j, int d)
{
    stage<T::BN, T::DC, T::KP, T::THREADS, CAN>(p, mem.slot[slot], p.k, mem.k_rows, j,
                                                mem.any.first - j, mem.any.end - j, d, p.d,
                                                has<CAN>(p, WIDE_K), has<CAN>(p, CONTIG_K));
}

template <typename T, int CAN>
DEVICE void stage_v(const attn_kparams &p, shared<T> &mem, int slot, int j)
{
    stage<T::JC, DIM, T::VP, T::THREADS, CAN>(p, mem.slot[slot], p.v, mem.v_rows, j,
                                              mem.any.first - j, mem.any.end - j, 0, p.dv,
                                              has<CAN>(p, WIDE_V), has<CAN>(p, CONTIG_V));
}

template <typename T, int CAN>
DEVICE void write_rows(const attn_kparams &p, const place<T> &my, const shared<T> &mem,
                       const float4 (&o)[T::RM][T::RV],
                       const rests (&extra)[T::RM][2 * T::RV])
{
    const attn_rows rows = ADDRESS_QUERIES(p, o, mem.seq, mem.b, mem.h);
    const float sink = state_sink<CAN>(p, mem.h);

    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        const int i = my.ty + r * T::TY;
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
        for (int g = 0; g < T::RV; g++) {
            const int c = 4 * (my.tx + g * T::TX);
            const rests low = extra[r][2 * g], high = extra[r][2 * g + 1];
            const float x[4] = { (o[r][g].x - first_rest(low)) * factor,
                                 (o[r][g].y - second_rest(low)) * factor,
                                 (o[r][g].z - first_rest(high)) * factor,
                                 (o[r][g].w - second_rest(high)) * factor };

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

template <typename T, int CAN, bool LONG> DEVICE void fwd_tile(const attn_kparams &p)
{
    static_assert(sizeof(shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T> &mem = *(shared<T> *)memory;
    const place<T> my = find_place<T>();
    float4 o[T::RM][T::RV] = {};
    rests extra[T::RM][2 * T::RV] = {};
    int slot = 0;

    if (threadIdx.x == 0)
        find_work<T, CAN>(p, mem);
    __syncthreads();
    if (mem.queries == 0)
        return;

    const bool none = mem.any.first >= mem.any.end;
    const int begin = none ? mem.any.end : mem.any.first / T::BN * T::BN;

    for (int i = threadIdx.x; i < T::BM; i += T::THREADS) {
        const attn_row row = state_init();

        mem.m[i] = row.m;
        mem.l[i] = row.l;
        mem.l_extra[i] = 0.0f;
    }
    if (!none) {
        stage_q<T, CAN>(p, mem);
        stage_k<T, CAN>(p, mem, 0, begin, 0);
    }
    __syncthreads();

    // thread (tx, ty) owns queries i0 + ty + r * TY, keys j0 + tx + c * TX, and elements
    // 4 * (tx + g * TX) .. + 3 of the value rows
    #pragma unroll 1
    for (int j0 = begin; j0 < mem.any.end; j0 += T::BN) {
        float s[T::RM][T::RN] = {};

        #pragma unroll 1
        for (int d = 0; d < p.d; d += T::DC, slot ^= 1) {
            device_arrive();
            if (d + T::DC < p.d)
                stage_k<T, CAN>(p, mem, slot ^ 1, j0, d + T::DC);
            else
                stage_v<T, CAN>(p, mem, slot ^ 1, j0);
            add_scores<T>(s, mem.q + my.ty * T::QP + d, mem.slot[slot] + my.tx * T::KP,
                          min(T::DC, (p.d - d + 7) / 8 * 8));
        }

        if (has<CAN>(p, FEAT_SOFTCAP | FEAT_TERMS)) {
            special_scores<T, CAN>(p, my, mem, s, j0);
            fold_scores<T, LONG, DONE>(p, my, mem, s, j0, o, extra);
        } else if (j0 < mem.all.first || mem.all.end - j0 < T::BN) {
            fold_scores<T, LONG, RAW_AT_EDGE>(p, my, mem, s, j0, o, extra);
        } else {
            fold_scores<T, LONG, RAW>(p, my, mem, s, j0, o, extra);
        }
        if (has<CAN>(p, FEAT_DROPOUT))
            drop_weights<T>(p, my, mem, j0);

        float4 part[T::RM][T::RV] = {};

        #pragma unroll 1
        for (int j = j0; j < min(j0 + T::BN, mem.any.end); j += T::JC, slot ^= 1) {
            device_arrive();
            if (j + T::JC < min(j0 + T::BN, mem.any.end))
                stage_v<T, CAN>(p, mem, slot ^ 1, j + T::JC);
            else if (j0 + T::BN < mem.any.end)
                stage_k<T, CAN>(p, mem, slot ^ 1, j0 + T::BN, 0);
            if (has<CAN>(p, FEAT_HIDES))
                hide_values<T>(mem, mem.slot[slot], j - j0);
            add_values<T>(TYPE == TYPE_F32 ? part : o, mem.weight + my.ty * T::WP + j - j0,
                          mem.slot[slot] + my.tx * 4);
        }
        if (TYPE == TYPE_F32)
            add_tile<T, LONG>(o, extra, part);
    }
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
