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
//           once with a maximum and sums of its own: S = Q K^T, weights, O^T += V^T P^T,
//           where the registers that hold S are the second operand next. Rows of K and V go
//           through a ring in shared memory that is the warp's own, SLOTS - 1 tiles ahead
//           (cp.async), and come from there by ldmatrix. LEAF keys are a leaf of
//           split_tree.cuh; a warp brings up to LEAVES of them together, the group those of
//           its warps, which meet at the end only
// Grid      1-D, ceil(round_queries * Hq / Hkv / ROWS) blocks * pieces * round_heads * Hkv
//           / Hq groups, the block fastest
// Block     128 threads, 1-D
// Shared    dynamic: the ring, SLOTS * TILE * DIM elements a warp, and the group's work. Q
//           comes by way of the ring, sums of the warps at the end too.
//           Chunks of 16 bytes of a row are exchanged by the row's number (xor), so that
//           eight rows lie in different banks
// Barriers  two, and one at the end
// Layout    any strides, in elements; CONTIG_ and WHOLE_ bits promise more (params.h).
//           work: split_work.cuh
// Numerics  products and sums f32, weights rounded to the type before they meet V, times
//           2^11 in f16. The bits of a row depend on its keys and their places alone, not
//           on the other rows of its group, nor on the pieces, and so on B or H, as long as
//           leaves have LEAF keys: until the caller wants longer pieces than a group has
//           leaves for
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
#include "softmax/split_state.cuh"

constexpr int CAN_MMA = CAN_ALL & ~FEAT_HIDES;
constexpr int LEAF = DIM == 256 ? 128 : 64;    // keys

template <int ROWS_, int TILE_, int SLOTS_, int BLOCKS_> struct split {
    static constexpr int ROWS = ROWS_;        // of a group: 8 or 16
    static constexpr int TILE = TILE_;        // keys that a warp folds at once
    static constexpr int SLOTS = SLOTS_;      // of the ring, each for a tile of K or V
    static constexpr int BLOCKS = BLOCKS_;    // groups on a multiprocessor
    static constexpr int WARPS = TREE_WIDTH, THREADS = 32 * WARPS;
    static constexpr int CHUNKS = DIM / 8;    // of 16 bytes, of a row
    static constexpr int HALVES = ROWS / 8;   // of the 16-row operand
    static constexpr int PITCH = DIM + 4;     // of sums, so that rows begin in other banks

    static constexpr bool CLIMBS = DIM < 256;    // there are registers for it
    static constexpr int LEAVES = CLIMBS ? TREE_WIDTH : 1;    // of a warp, at most

    // as the planner counts them; 2048 for the group's work
    static constexpr int BYTES = 2 * WARPS * SLOTS * TILE * DIM + 2048;
};

// 8 KiB of a slot a warp: the bytes on their way are what counts, and next that the code
// stays small, since every group has to pull it through the instruction cache. Of 256
// columns there are no registers for 16 rows.
using few = split<8, 4096 / DIM, 3, 2>;
#if DIM < 256
using many = split<16, 4096 / DIM, 3, 2>;
#endif

template <typename T> struct shared {
    // at the end the sums of the warps, each in its own part
    float4 ring[T::WARPS][T::SLOTS][T::TILE * T::CHUNKS];
    split_work<T> work;
};

// Brings rows j .. j + TILE - 1 of K or V, by this warp. Keys that nobody sees become 0 and
// are not read. Called from one place, and what is seldom run is a loop: all code has to pass
// through the instruction cache.
template <typename T, int CAN>
DEVICE void fetch(const attn_kparams &p, const split_work<T> &work, float4 *slot, bool of_k,
                  int j)
{
    constexpr int AT_ONCE = 32 / T::CHUNKS, COPIES = T::TILE / AT_ONCE;
    const bool whole = of_k ? has<CAN>(p, WHOLE_K) : has<CAN>(p, WHOLE_V);
    const int lane = threadIdx.x % 32, r0 = lane / T::CHUNKS, chunk = lane % T::CHUNKS;
    const uint16_t *const x = (const uint16_t *)(of_k ? p.k : p.v);
    const attn_rows &rows = of_k ? work.k_rows : work.v_rows;
    const int depth = of_k ? p.d : p.dv;
    const int first = work.any.first - j, end = chunk * 8 < depth ? work.any.end - j : first;
    const int64_t step = AT_ONCE * rows.stride_l;
    int64_t row = rows.base + (j + r0) * rows.stride_l;

    if (!whole) {
        #pragma unroll 1
        for (int r = r0; r < T::TILE; r += AT_ONCE) {
            const bool seen = r >= first && r < end;
            const int there = clamp(j + r, work.any.first, work.any.end - 1);

            slot[r * T::CHUNKS + (chunk ^ (r & 7))] =
                gather(x, address_row<CAN>(p, rows, there), rows.stride_d, chunk * 8,
                       seen ? depth : 0);
        }
        return;
    }
    #pragma unroll
    for (int i = 0; i < COPIES; i++) {
        const int r = i * AT_ONCE + r0;

        if (has<CAN>(p, FEAT_PAGES))
            row = address_row<CAN>(p, rows, clamp(j + r, work.any.first, work.any.end - 1));
        device_copy<16>((float *)(slot + r * T::CHUNKS + (chunk ^ (r & 7))),
                        x + row + chunk * 8, r >= first && r < end);
        row += step;
    }
}

// Brings Q to a slot that is not yet in use.
template <typename T, int CAN>
DEVICE void fetch_queries(const attn_kparams &p, const split_work<T> &work, float4 *slot)
{
    static_assert(T::ROWS <= T::TILE, "a slot has room for Q");
    const bool whole = has<CAN>(p, WHOLE_Q);

    #pragma unroll 1
    for (int at = threadIdx.x % 32; at < T::ROWS * T::CHUNKS; at += 32) {
        const int r = at / T::CHUNKS, chunk = at % T::CHUNKS, there = min(r, work.rows - 1);
        const attn_rows rows =
            ADDRESS_QUERIES(p, q, work.seq, work.b, head_of(p, work, there));
        const int64_t row = address_row<CAN & ~FEAT_PAGES>(p, rows, query_of(p, work, there));
        const int depth = r < work.rows ? p.d : 0;
        float4 *const to = slot + r * T::CHUNKS + (chunk ^ (r & 7));

        if (whole)
            device_copy<16>((float *)to, (const uint16_t *)p.q + row + chunk * 8,
                            chunk * 8 < depth);
        else
            *to = gather(p.q, row, rows.stride_d, chunk * 8, depth);
    }
}

// Q as the first operand: of each 16 columns, rows lane / 4 and that + 8, columns
// 2 (lane % 4) + 0, 1, 8, 9.
template <typename T>
DEVICE void take_queries(const float4 *slot, uint32_t (&q)[DIM / 16][4])
{
    const int lane = threadIdx.x % 32;
    // without a second half its rows are the first again, and not used
    const int r = lane % 8 + (T::HALVES > 1 ? lane / 8 % 2 * 8 : 0);

    #pragma unroll
    for (int n = 0; n < DIM / 16; n++) {
        device_matrices(q[n], slot + r * T::CHUNKS + ((2 * n + lane / 16) ^ (r & 7)));
        if (T::HALVES == 1)
            q[n][1] = q[n][3] = 0;
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
                x = score_masked(at, 0, key, x);
        }
    }
}

// The warp's keys of the group: K and V of its tiles in turn, one fetched SLOTS - 1 steps
// before it is used.
template <typename T, int CAN>
DEVICE rows_state<T> fold_keys(const attn_kparams &p, shared<T> &mem)
{
    constexpr int AHEAD = T::SLOTS - 1;
    const int warp = threadIdx.x / 32, keys = p.piece / T::WARPS;
    const int at = mem.work.first + warp * keys;    // the warp's first key
    const int first = at + max(mem.work.any.first - at, 0) / T::TILE * T::TILE;
    const int end = (int)min((int64_t)at + keys, (int64_t)mem.work.any.end);
    const int steps = 2 * max(ceil_div(end - first, T::TILE), 0);
    // longer where the caller wants pieces of so many keys
    const int length = max(keys / T::LEAVES, LEAF);
    int left = length - (first - at) % length;
    uint32_t q[DIM / 16][4];
    float s[T::TILE / 8][4];
    climb<T> my;
    int to = 0, from = 0;

    make_empty(my.leaf);
    make_empty(my.whole);
    // step n is K of a tile, or V; its copies are a group, though an empty one
    #pragma unroll 1
    for (int n = -AHEAD; n < steps; n++) {
        const int next = n + AHEAD, j = first + n / 2 * T::TILE;

        if (n >= 0) {
            device_copied<AHEAD - 1>();
            __syncwarp();
        }
        if (n == 0) {
            take_queries<T>(mem.ring[warp][AHEAD], q);
            __syncwarp();
        }
        if (next < steps)
            fetch<T, CAN>(p, mem.work, mem.ring[warp][to], next % 2 == 0,
                          first + next / 2 * T::TILE);
        if (n == -AHEAD)
            fetch_queries<T, CAN>(p, mem.work, mem.ring[warp][AHEAD]);
        device_commit();
        to = to + 1 < T::SLOTS ? to + 1 : 0;
        if (n == -1) {
            find_rows<T, CAN>(p, mem.work);
            __syncthreads();
        }
        if (n < 0)
            continue;

        const float4 *const slot = mem.ring[warp][from];

        from = from + 1 < T::SLOTS ? from + 1 : 0;
        if (n % 2 == 0) {
            find_scores<T>(slot, q, s);
            change_scores<T, CAN>(p, mem, j, at_edge(mem.work, j, T::TILE), s);
            fold_scores(my.leaf, s);
            continue;
        }
        add_values(slot, s, my.leaf);
        left -= T::TILE;
        if (left == 0 || n + 1 == steps) {
            end_leaf(my);
            left = length;
        }
    }
    return T::CLIMBS ? my.whole : my.leaf;
}

// Leaves the warp's states, for those of the group, in its part of the ring.
template <typename T> DEVICE void leave_states(shared<T> &mem, const rows_state<T> &my)
{
    static_assert(T::ROWS * T::PITCH * 4 <= sizeof mem.ring[0], "the sums of a warp");
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *const sums = (float *)mem.ring[warp];

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        if (lane % 4 == 0)
            mem.work.state[warp][lane / 4 + half * 8] = my.row[half];
        #pragma unroll
        for (int n = 0; n < DIM / 16; n++)
            #pragma unroll
            for (int e = 0; e < 4; e++)
                sums[(half * 8 + lane % 4 * 2 + e % 2) * T::PITCH + n * 16 + e / 2 * 8 +
                     lane / 4] = my.o[half][n][e];
    }
}

// Brings the warps together, and writes the states of the group's keys: four columns of a row
// a thread.
template <typename T> DEVICE void write_states(const attn_kparams &p, const shared<T> &mem)
{
    const split_work<T> &my = mem.work;
    const int64_t row0 = (int64_t)my.pair * p.round_queries * my.group + my.row;
    const int quads = p.want_o ? max(work_pitch(p) / 4, 1) : 1, piece = my.first / p.piece;
    const bool empty = my.any.first >= my.any.end;

    #pragma unroll 1
    for (int i = threadIdx.x; i < my.rows * quads; i += T::THREADS) {
        const int r = i / quads, d = i % quads * 4;
        attn_row row = state_init();
        float o[4] = {};

        #pragma unroll
        for (int w = 0; w < (empty ? 0 : T::WARPS); w++) {
            const tree_factors f = tree_join(row, my.state[w][r]);
            const float4 x = *(const float4 *)((const float *)mem.ring[w] + r * T::PITCH + d);

            o[0] = tree_sum(o[0], x.x, f);
            o[1] = tree_sum(o[1], x.y, f);
            o[2] = tree_sum(o[2], x.z, f);
            o[3] = tree_sum(o[3], x.w, f);
        }
        if (d == 0)
            *(float2 *)work_state(p, row0 + r, piece) =
                make_float2(row.m, unlifted<TYPE>(row.l));
        if (p.want_o && p.dv)
            *(float4 *)(work_sum(p, row0 + r, piece) + d) =
                make_float4(unlifted<TYPE>(o[0]), unlifted<TYPE>(o[1]), unlifted<TYPE>(o[2]),
                            unlifted<TYPE>(o[3]));
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
        leave_states(mem, fold_keys<T, CAN>(p, mem));
        __syncthreads();
    }
    write_states(p, mem);
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
