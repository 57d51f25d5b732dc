// SPDX-License-Identifier: MIT
// softmax/mma.cuh: the tile of fwd_mma.cu: its numbers, what lies in shared memory, and how
// rows come into it and from there to the tensor cores. TYPE, DIM and DIMV are the image's.
//
// Rows lie in chunks of 16 bytes. Eight rows at one chunk, which is what
// ldmatrix reads at once, are spread over all banks by exchanging chunks (xor) by the row's
// number.
#pragma once
#include "common/device.cuh"
#include "common/hopper.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/score.cuh"
#include "common/state.cuh"
#include "softmax/gather.cuh"
#include "softmax/sums.cuh"

template <bool X> struct constant {
    static constexpr bool value = X;
};

// How products are summed: in the tensor cores, of 16-bit types, or of f32 rounded to TF32;
// or in f32 to its full accuracy, as mma_products32.cuh has it, over the steps plainly or
// with compensation.
enum sums { IN_CORES, EXACT, EXACT_LONG };

template <int WARPS_, int MT_, int BN_, int BLOCKS_, bool Q_STAYS_, sums SUMS_ = IN_CORES,
          int COLS_ = 1>
struct mma {
    static constexpr int WARPS = WARPS_;
    static constexpr int MT = MT_;            // operands of 16 rows that a warp has
    static constexpr int BN = BN_;            // keys of a step
    static constexpr int BLOCKS = BLOCKS_;    // groups on a multiprocessor
    static constexpr bool Q_STAYS = Q_STAYS_; // Q in registers, not loaded anew each step
    static constexpr sums SUMS = SUMS_;
    static constexpr int COLS = COLS_;        // warps that share their rows: mma_pairs.cuh
    static constexpr bool LONG = SUMS == EXACT_LONG;
    static constexpr int THREADS = 32 * WARPS;
    static constexpr int ROWS = 16 * MT, BM = WARPS / COLS * ROWS;    // of a warp, of the group

    // as the planner counts them; 512 for the group's work
    static constexpr int BYTES =
        elem_bytes<TYPE>() * (BM * DIM + BN * (DIM + DIMV)) +
        (TYPE == TYPE_F32 ? 4 * BM * BN : COLS > 1 ? 2 * BM * BN : 0) + 512;
    static constexpr int TERM_BYTES = 4 * (BM + 1) * BN;
    static constexpr int TERMS = TERM_BYTES + 2 * 4 * BN;
    static constexpr int NT = BN / COLS / 8, VT = DIMV / COLS / 8;    // of a warp
    static constexpr int KT = DIM * elem_bytes<TYPE>() / 32;    // steps of two chunks
};

enum {
    PER = 16 / elem_bytes<TYPE>(),    // elements of a chunk
    CHUNKS_K = DIM / PER,
    CHUNKS_V = DIMV / PER
};

// How a group's terms come: mma_terms.cuh.
struct terms_plan {
    int bias;         // bytes of an element of the bias in shared memory; 0: there is none
    int mask_at;      // where the mask lies behind it, in bytes
    int second;       // where a second slot begins, in bytes; 0: there is one
    bool mask, alibi;
    bool bias_shared, mask_shared;    // one row for all queries
    bool written;     // as f32, the terms of a pair in one
};

// What single scores need, in the instances that look at them.
template <typename T, bool TERMS> struct mma_terms {
    float4 tile[T::TERM_BYTES / 16];    // begins at a multiple of 256 bytes
    int seen[2][T::BN];    // keys of this step, and of the next, that a query sees
    terms_plan plan;
};
template <typename T> struct mma_terms<T, false> {};

// Weights on their way from the scores to the products, of f32 and of warps in pairs.
template <typename T, bool F32, bool PAIRED = (T::COLS > 1)> struct mma_weights {
    alignas(128) float4 w[T::WARPS / T::COLS][T::ROWS * T::BN * elem_bytes<TYPE>() / 16];

    __device__ float4 *of(int warp) { return w[warp / T::COLS]; }
};
template <typename T> struct mma_weights<T, false, false> {
    __device__ float4 *of(int) { return NULL; }
};

// A group's work.
struct mma_work {
    attn_sequence seq;
    attn_range any;
    attn_rows k_rows, v_rows;
    attn_score score;
    int64_t b;
    int h, i0, queries;
};

// Of `queries` queries, i0 the first. Field by field, for threads that have few registers.
template <int CAN>
DEVICE void describe_work(const attn_kparams &p, const attn_sequence &seq, int64_t b, int h,
                          int i0, int queries, mma_work &work)
{
    work.seq = seq;
    work.any = range_any<CAN>(p, seq, i0, queries);
    device_forget();
    work.k_rows = ADDRESS_KEYS(p, k, seq, b, address_head_kv(p, h));
    device_forget();
    work.v_rows = ADDRESS_KEYS(p, v, seq, b, address_head_kv(p, h));
    device_forget();
    work.score = score_run<CAN>(p, seq, b, h, i0, queries);
    device_forget();
    work.b = b;
    work.h = h;
    work.i0 = i0;
    work.queries = queries;
}

// Of warps in pairs: K and V of a step are there; all have done with those of the last.
template <bool PAIRED> struct mma_turns {
    device_barrier full_k, full_v, empty_k, empty_v;
};
template <> struct mma_turns<false> {};

template <typename T, int CAN> struct shared {
    float4 q[T::BM * CHUNKS_K];
    float4 k[T::BN * CHUNKS_K], v[T::BN * CHUNKS_V];    // of a step
    mma_terms<T, (CAN & FEAT_TERMS) != 0> terms;
    mma_weights<T, TYPE == TYPE_F32> weight;
    mma_work work;
    attn_range warp_any[T::WARPS], warp_all[T::WARPS];
    mma_turns<(T::COLS > 1)> turns;
};

// Where chunk c of row r lies.
template <int CHUNKS> DEVICE int place_of(int r, int c)
{
    static_assert(CHUNKS % 4 == 0, "no row ends in the middle of an exchange");
    return r * CHUNKS + (CHUNKS % 8 == 0 ? c ^ (r & 7) : c ^ (r >> 1 & 3));
}

// The address of that, and from there of chunk c, which is even, in the row that lies `down`
// rows, a multiple of 8, below: two instructions, or none where c is a constant. The tile
// begins at a multiple of 128 bytes, and the first chunk is 0 or 1.
template <int CHUNKS> DEVICE device_shared address_of(const float4 *tile, int r, int c)
{
    return device_address(tile + place_of<CHUNKS>(r, c));
}

template <int CHUNKS> DEVICE device_shared moved(device_shared at, int down, int c)
{
    constexpr int EXCHANGED = CHUNKS % 8 == 0 ? 7 : 3;

    return (at ^ (device_shared)((c & EXCHANGED) * 16)) +
           (device_shared)((down * CHUNKS + (c & ~EXCHANGED)) * 16);
}

// Brings rows j .. j + HEIGHT - 1 of a view into shared memory, by all threads. Rows outside
// [first, end) and columns from `depth` on become 0 and are not read. stride: rows.stride_l
// from where it costs no load.
template <int HEIGHT, int CHUNKS, int THREADS, int CAN>
DEVICE void fetch(const attn_kparams &p, float4 *to, const void *x, const attn_rows &rows,
                  int64_t stride, int j, attn_range range, int depth, bool whole)
{
    constexpr int PASS = THREADS / CHUNKS;    // rows at once
    [[maybe_unused]] constexpr int TOGETHER = (CAN & FEAT_PAGES) != 0 ? 2 : 1;
    constexpr int64_t BYTES = elem_bytes<TYPE>();
    const char *const bytes = (const char *)x;
    const int me = threadIdx.x;

    if (THREADS % CHUNKS == 0 && PASS % 8 == 0 && HEIGHT % larger(PASS, 1) == 0 && whole &&
        j >= range.first && range.end - j >= HEIGHT && !has<CAN>(p, FEAT_PAGES)) {
        const int r = me / CHUNKS, c = me % CHUNKS;
        const char *from = bytes + (rows.base + (j + r) * stride + c * PER) * BYTES;
        float4 *const at = to + place_of<CHUNKS>(r, c);

        #pragma unroll
        for (int i = 0; i < HEIGHT / larger(PASS, 1); i++, from += PASS * stride * BYTES)
            device_copy<16>((float *)(at + i * PASS * CHUNKS), from, c * PER < depth);
        return;
    }
    #pragma unroll TOGETHER
    for (int e = me; e < HEIGHT * CHUNKS; e += THREADS) {
        const int r = e / CHUNKS, c = e % CHUNKS;
        const bool inside = j + r >= range.first && j + r < range.end;
        const int64_t row =
            address_row<CAN>(p, rows, clamp(j + r, range.first, range.end - 1));
        float4 *const at = to + place_of<CHUNKS>(r, c);

        if (whole)
            device_copy<16>((float *)at, bytes + (row + c * PER) * BYTES,
                            inside && c * PER < depth);
        else
            *at = gather(x, row, rows.stride_d, c * PER, inside ? depth : 0);
    }
}

// The first operand from 16 rows of Q, `down` below the first, at two chunks of columns.
DEVICE device_shared address_of_queries(const float4 *rows)
{
    return address_of<CHUNKS_K>(rows, threadIdx.x % 16, threadIdx.x / 16 % 2);
}

DEVICE void load_queries(uint32_t (&a)[4], device_shared rows, int down, int k)
{
    device_matrices(a, moved<CHUNKS_K>(rows, down, 2 * k));
}
