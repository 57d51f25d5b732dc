// SPDX-License-Identifier: MIT
// softmax/fwd_split_mma.cu: softmax attention forward for few queries and many keys on
// tensor cores, step 1: as fwd_split.cu, for 16-bit types.
//
// Computes  for each row (query and head) and each piece of the keys
//             m = max s_j    l = sum exp(s_j - m)    o = sum exp(s_j - m) v_j
//           which fwd_split_merge.cu turns into O and the LSE
// Method    T. Dao et al., "Flash-Decoding" (2023). The queries of all heads that share a
//           key/value head are the rows of a 16-row operand of mma.m16n8k16; the lower
//           half of it is empty where there are no more than 8. A warp folds TILE keys at
//           once with a maximum and sums of its own: S = Q K^T, weights, O += P V, where
//           the registers that hold S hold P next. Rows of K and V go through a ring in
//           shared memory that is the warp's own, SLOTS - 1 tiles ahead (cp.async), and
//           come from there by ldmatrix; warps meet at the end only
// Grid      1-D, ceil(round_queries * Hq / Hkv / ROWS) blocks * pieces * round_heads * Hkv
//           / Hq groups, the block fastest
// Block     128 threads, 1-D
// Shared    dynamic: the ring, SLOTS * TILE * DIM elements a warp, and the group's work.
//           Chunks of 16 bytes of a row are exchanged by the row's number (xor), so that
//           eight rows lie in different banks
// Barriers  one, and two at the end
// Layout    any strides, in elements; CONTIG_ and WHOLE_ bits promise more (params.h).
//           work: split_work.cuh
// Numerics  products and sums f32, weights rounded to the type before they meet V, times
//           2^14 in f16. The bits
//           of a row depend on its keys and on the tunables, not on the other rows of its
//           group, nor on B or H: keys belong to warps by their place in the piece
// Features  all but bias, mask and dropout, through common/: a weight of 0 multiplies V, which may
//           hold anything behind those. The instances _ranges know no pages, softcap or
//           ALiBi. Sinks are the merge's
// Requires  sm_80; D and Dv up to DIM; columns past them are 0 and not read
// Tunables  the shapes below; src/plan/cuda/softmax_fwd_split.c has the same numbers
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for each TYPE (f16, bf16) and DIM (64, 128, 256): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F16
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_split_mma_f16_d64
#endif

#include "softmax/split.cuh"

constexpr int CAN_MMA = CAN_ALL & ~FEAT_HIDES;

template <int ROWS_, int TILE_, int SLOTS_, int BLOCKS_> struct split {
    static constexpr int ROWS = ROWS_;        // of a group: 8 or 16
    static constexpr int TILE = TILE_;        // keys that a warp folds at once
    static constexpr int SLOTS = SLOTS_;      // of the ring, each for a tile of K or V
    static constexpr int BLOCKS = BLOCKS_;    // groups on a multiprocessor
    static constexpr int WARPS = 4, THREADS = 32 * WARPS;
    static constexpr int CHUNKS = DIM / 8;    // of 16 bytes, of a row
    static constexpr int HALVES = ROWS / 8;   // of the 16-row operand

    // as the planner counts them; 2048 for the group's work
    static constexpr int BYTES = 2 * WARPS * SLOTS * TILE * DIM + 2048;
};

// 8 KiB of a slot a warp: the bytes on their way are what counts, and next that the code
// stays small, since every group has to pull it through the instruction cache. Of 256
// columns there are no registers for 16 rows.
using few = split<8, 4096 / DIM, 2, DIM == 256 ? 2 : 3>;
#if DIM < 256
using many = split<16, 4096 / DIM, 2, 2>;
#endif

template <typename T> struct shared {
    // at the end the sums of the warps
    float4 ring[T::WARPS][T::SLOTS][T::TILE * T::CHUNKS];
    split_work<T> work;
};

// The states of this lane's rows, lane / 4 and that + 8: sums l of its own keys; of O the
// columns 8 n + 2 (lane % 4) and the next.
template <typename T> struct rows_state {
    float m[T::HALVES], l[T::HALVES];
    float o[DIM / 8][4];
};

// Brings rows j .. j + TILE - 1 of K or V, by this warp. Keys that nobody sees become 0 and
// are not read. Code that is seldom run stays small: all of it has to pass through the
// instruction cache once a group.
template <typename T, int CAN>
DEVICE void fetch(const attn_kparams &p, const split_work<T> &work, float4 *slot, bool of_k,
                  int j)
{
    constexpr int PIECES = T::TILE * T::CHUNKS / 32;
    const bool whole = has<CAN>(p, of_k ? WHOLE_K : WHOLE_V);
    const int lane = threadIdx.x % 32, depth = of_k ? p.d : p.dv;
    const uint16_t *const x = (const uint16_t *)(of_k ? p.k : p.v);
    const attn_rows rows = of_k ? work.k_rows : work.v_rows;
    const attn_range any = work.any;    // copies end what is known of shared memory

    #pragma unroll 1
    for (int i = 0; i < (whole ? 0 : PIECES); i++) {
        const int at = i * 32 + lane, r = at / T::CHUNKS, chunk = at % T::CHUNKS;
        const bool seen = j + r >= any.first && j + r < any.end;
        const int64_t row =
            address_row<CAN>(p, rows, clamp(j + r, any.first, any.end - 1));

        slot[r * T::CHUNKS + (chunk ^ (r & 7))] =
            gather(x, row, rows.stride_d, chunk * 8, seen ? depth : 0);
    }
    if (!whole)
        return;
    #pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const int at = i * 32 + lane, r = at / T::CHUNKS, chunk = at % T::CHUNKS;
        const bool seen = j + r >= any.first && j + r < any.end;
        const int64_t row =
            address_row<CAN>(p, rows, clamp(j + r, any.first, any.end - 1));

        device_copy<16>((float *)(slot + r * T::CHUNKS + (chunk ^ (r & 7))),
                        x + row + chunk * 8, seen && chunk * 8 < depth);
    }
}

// Q as the first operand: of each 16 columns, rows lane / 4 and that + 8, columns
// 2 (lane % 4) + 0, 1, 8, 9.
template <typename T, int CAN>
DEVICE void load_queries(const attn_kparams &p, const shared<T> &mem,
                         uint32_t (&q)[DIM / 16][4])
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int r = lane / 4 + half * 8, there = min(r, mem.work.rows - 1);
        const attn_rows rows = ADDRESS_QUERIES(p, q, mem.work.seq, mem.work.b,
                                               head_of(p, mem.work, there));
        const int64_t row =
            address_row<CAN & ~FEAT_PAGES>(p, rows, query_of(p, mem.work, there));

        #pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            const int c = n * 8 + lane % 4 * 2, depth = r < mem.work.rows ? p.d : 0;

            q[n / 2][half + n % 2 * 2] =
                half >= T::HALVES ? 0 : gather_pair(p.q, row, rows.stride_d, c, depth);
        }
    }
}

// S = Q K^T: s[t] has keys 8 t + 2 (lane % 4) + 0, 1 of row lane / 4, and of that + 8.
template <typename T>
DEVICE void find_scores(const float4 *slot, const uint32_t (&q)[DIM / 16][4],
                        float (&s)[T::TILE / 8][4])
{
    const int lane = threadIdx.x % 32, r = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;

    #pragma unroll
    for (int t = 0; t < T::TILE / 8; t++)
        s[t][0] = s[t][1] = s[t][2] = s[t][3] = 0.0f;
    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        #pragma unroll
        for (int t = 0; t < T::TILE / 8; t += 2) {
            uint32_t b[4];

            device_matrices(b, slot + (t * 8 + r) * T::CHUNKS + ((2 * k + odd) ^ (r & 7)));
            device_multiply<TYPE>(s[t], q[k], b[0], b[1]);
            device_multiply<TYPE>(s[t + 1], q[k], b[2], b[3]);
        }
    }
}

// What becomes of the scores of keys j .. before the softmax.
template <typename T, int CAN>
DEVICE void change_scores(const attn_kparams &p, const shared<T> &mem, int j, bool edge,
                          float (&s)[T::TILE / 8][4])
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        const attn_score &at = mem.work.score[lane / 4 + half * 8];

        #pragma unroll
        for (int e = 0; e < T::TILE / 4; e++) {
            float &x = s[e / 2][half * 2 + e % 2];
            const int key = j + e / 2 * 8 + lane % 4 * 2 + e % 2;

            x = score_value<CAN>(p, x);
            if (has<CAN>(p, FEAT_TERMS))
                x = score_add(x, score_term<CAN>(p, at, 0, key));
            if (edge)
                x = key - mem.work.first < p.piece ? score_masked(at, 0, key, x)
                                                   : -INFINITE;
        }
    }
}

// From scores to weights, in place; rows move to their new maximum, and O with them.
template <typename T>
DEVICE void fold_scores(rows_state<T> &my, float (&s)[T::TILE / 8][4])
{
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        attn_row row = { my.m[half], 0.0f };
        float top = -INFINITE, sum = 0.0f;

        #pragma unroll
        for (int e = 0; e < T::TILE / 4; e++)
            top = state_max(s[e / 2][half * 2 + e % 2], top);
        top = state_max(__shfl_xor_sync(0xffffffffu, top, 1), top);
        top = state_max(__shfl_xor_sync(0xffffffffu, top, 2), top);

        const float factor = state_fold(&row, top), reference = state_reference(row.m);

        my.m[half] = row.m;
        #pragma unroll
        for (int e = 0; e < T::TILE / 4; e++) {
            float &x = s[e / 2][half * 2 + e % 2];

            x = state_exp2(fmaf(x - reference, 1.44269504088896340736f, LIFT<TYPE>));
            sum += x;
        }
        if (__any_sync(0xffffffffu, factor != 1.0f)) {
            my.l[half] *= factor;
            #pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                my.o[n][half * 2] = rescaled(my.o[n][half * 2], factor);
                my.o[n][half * 2 + 1] = rescaled(my.o[n][half * 2 + 1], factor);
            }
        }
        my.l[half] += sum;
    }
}

// O += P V.
template <typename T>
DEVICE void add_values(const float4 *slot, const float (&w)[T::TILE / 8][4],
                       rows_state<T> &my)
{
    const int lane = threadIdx.x % 32, r = lane % 16, odd = lane / 16;

    #pragma unroll
    for (int t = 0; t < T::TILE / 8; t += 2) {
        uint32_t a[4];

        #pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = i % 2 < T::HALVES ? elem_pair<TYPE>(w[t + i / 2][i % 2 * 2],
                                                       w[t + i / 2][i % 2 * 2 + 1])
                                     : 0;
        #pragma unroll
        for (int n = 0; n < DIM / 8; n += 2) {
            uint32_t b[4];

            device_matrices_turned(b, slot + (t * 8 + r) * T::CHUNKS + ((n + odd) ^ (r & 7)));
            device_multiply<TYPE>(my.o[n], a, b[0], b[1]);
            device_multiply<TYPE>(my.o[n + 1], a, b[2], b[3]);
        }
    }
}

// All of the piece that is this warp's: K and V of its tiles in turn, one fetched SLOTS - 1
// steps before it is used.
template <typename T, int CAN>
DEVICE void fold_piece(const attn_kparams &p, shared<T> &mem, rows_state<T> &my)
{
    constexpr int STEP = T::WARPS * T::TILE, AHEAD = T::SLOTS - 1;
    const int warp = threadIdx.x / 32;
    const int at = mem.work.first + warp * T::TILE;    // the warp's first key
    const int first = at + max(mem.work.any.first - at, 0) / STEP * STEP;
    const int steps = 2 * max(ceil_div(mem.work.any.end - first, STEP), 0);
    uint32_t q[DIM / 16][4];
    float s[T::TILE / 8][4];
    int to = 0, from = 0;

    // step n: K of a tile, or V; a group of copies, though an empty one
    const auto fetch_step = [&](int n) {
        if (n < steps)
            fetch<T, CAN>(p, mem.work, mem.ring[warp][to], n % 2 == 0,
                          first + n / 2 * STEP);
        device_commit();
        to = to + 1 < T::SLOTS ? to + 1 : 0;
    };
    // the slot of step n, which has arrived; one more is on its way
    const auto arrived = [&](int n) {
        const int slot = from;

        device_copied<AHEAD - 1>();
        __syncwarp();
        fetch_step(n + AHEAD);
        from = from + 1 < T::SLOTS ? from + 1 : 0;
        return slot;
    };

    #pragma unroll 1
    for (int n = 0; n < AHEAD; n++)
        fetch_step(n);
    find_rows<T, CAN>(p, mem.work);
    load_queries<T, CAN>(p, mem, q);
    __syncthreads();    // behind find_rows()
    #pragma unroll 1
    for (int n = 0; n < steps; n += 2) {
        const int j = first + n / 2 * STEP;

        find_scores<T>(mem.ring[warp][arrived(n)], q, s);
        change_scores<T, CAN>(p, mem, j, at_edge(mem.work, j, T::TILE), s);
        fold_scores(my, s);
        add_values(mem.ring[warp][arrived(n + 1)], s, my);
    }
}

// Leaves the warp's states for write_rows().
template <typename T> DEVICE void write_states(shared<T> &mem, const rows_state<T> &my)
{
    static_assert(T::ROWS * DIM * T::WARPS * 4 <= sizeof mem.ring, "the sums of the warps");
    float *const sums = (float *)mem.ring;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        const int r = lane / 4 + half * 8;
        float l = my.l[half];

        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (lane % 4 == 0) {
            mem.work.m[warp][r] = my.m[half];
            mem.work.l[warp][r] = unlifted<TYPE>(l);
        }
        #pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            float *const to = sums + (warp * T::ROWS + r) * DIM + n * 8 + lane % 4 * 2;

            to[0] = unlifted<TYPE>(my.o[n][half * 2]);
            to[1] = unlifted<TYPE>(my.o[n][half * 2 + 1]);
        }
    }
}

template <typename T, int CAN> DEVICE void fwd_split_mma(const attn_kparams &p)
{
    static_assert(sizeof(shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T> &mem = *(shared<T> *)memory;

    device_let_next();
    if (threadIdx.x == 0)
        find_work<T, CAN>(p, mem.work);
    __syncthreads();
    if (mem.work.any.first < mem.work.any.end) {
        rows_state<T> my = {};

        #pragma unroll
        for (int half = 0; half < T::HALVES; half++)
            my.m[half] = -INFINITE;
        fold_piece<T, CAN>(p, mem, my);
        __syncthreads();
        write_states(mem, my);
        __syncthreads();
    }
    write_rows(p, mem.work, (const float *)mem.ring);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        fwd_split_mma<T, CAN>(p); \
    }

KERNEL(NAME, _ranges, few, CAN_RANGES)
KERNEL(NAME, _all, few, CAN_MMA)
#if DIM < 256
KERNEL(NAME, _ranges_many, many, CAN_RANGES)
KERNEL(NAME, _all_many, many, CAN_MMA)
#endif
