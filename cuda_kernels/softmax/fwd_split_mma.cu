// SPDX-License-Identifier: MIT
// softmax/fwd_split_mma.cu: softmax attention forward for few queries and many keys on
// tensor cores, step 1: as fwd_split.cu, for 16-bit types.
//
// Computes  for each row (query and head) and each piece of the keys
//             m = max s_j    l = sum exp(s_j - m)    o = sum exp(s_j - m) v_j
//           which fwd_split_merge.cu turns into O and the LSE
// Method    T. Dao et al., "Flash-Decoding" (2023). The queries of all heads that share a
//           key/value head are the columns of mma.m16n8k16, eight or two times eight of them.
//           Of a tile of 64 keys each of four warps takes 16: S^T = K Q^T, a maximum, and
//           weights held against that, which it leaves for all. Behind a barrier each warp
//           has a quarter of the columns of O: O^T = V^T P^T of the 16 keys of each warp,
//           brought together as a leaf of split_tree.cuh, and leaves climb the tree in
//           registers, so that warps do not meet at the end and pieces may be long. K and V
//           of the tiles in turn go through a ring of the group in shared memory (cp.async):
//           the next are asked for behind the barrier, when all have used this tile's K, and
//           V of the tile before
//           A group has a share of the keys: one piece or, in turn, several, whose states
//           it writes apart, so that all groups may be there at once. That of the only piece
//           writes O and the LSE itself
// Grid      1-D, ceil(round_queries * Hq / Hkv / ROWS) blocks * shares * round_heads * Hkv
//           / Hq groups, the block fastest
// Block     128 threads, 1-D
// Shared    dynamic: the ring, SLOTS * 64 * DIM elements, and weights of two tiles. Q comes by
//           way of the ring. Chunks of 16 bytes of a row are exchanged by the row's number
//           (xor), so that eight rows lie in different banks
// Barriers  one before the first tile, and one a tile
// Layout    any strides, in elements; CONTIG_ and WHOLE_ bits promise more (params.h).
//           work: split_work.cuh
// Numerics  products and sums f32, weights rounded to the type before they meet V, times
//           2^10 in f16. The bits of a row depend on its keys and their places alone, not
//           on the other rows of its group, nor on the pieces, and so on B or H, as long as
//           these are no longer than what the tree has LEVELS for
// Features  all but bias, mask and dropout, through common/: a weight of 0 multiplies V, which may
//           hold anything behind those. The instances _ranges know no pages, softcap or
//           ALiBi, and _plain nothing but the LSE. Sinks are the merge's
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
#include "softmax/split_write.cuh"

constexpr int CAN_MMA = CAN_ALL & ~FEAT_HIDES;

// Nothing hidden, and rows whole (WHOLE_Q, _K, _V): what is not asked for is not there, since all
// code, also that of one jump past it, is time at the begin, and some in each tile.
constexpr int CAN_PLAIN = FEAT_LSE;
template <int CAN> DEVICE bool whole_rows(const attn_kparams &p, int which)
{
    return CAN == CAN_PLAIN || has<CAN>(p, which);
}

template <int ROWS_, int SLOTS_, int BLOCKS_> struct split {
    static constexpr int ROWS = ROWS_;        // of a group: 8 or 16
    static constexpr int SLOTS = SLOTS_;      // of the ring, each for a tile of K or V
    static constexpr int BLOCKS = BLOCKS_;    // groups on a multiprocessor
    static constexpr int TILE = 64;           // keys, a leaf of the tree
    static constexpr int WARPS = 4, THREADS = 32 * WARPS;
    static constexpr int KEYS = TILE / WARPS; // of a warp: rows of the first operand
    static constexpr int CHUNKS = DIM / 8;    // of 16 bytes, of a row
    static constexpr int HALVES = ROWS / 8;   // columns of the second operand come by eight
    static constexpr int PANELS = DIM / 16 / WARPS;    // of O, of a warp, 16 columns each
    static constexpr bool SEVERAL = HALVES == 1 && DIM < 256;    // pieces of a group: registers
    static constexpr int LEVELS = HALVES > 1 ? 3 : 4;    // of the tree, for their registers

    // as the planner counts them. 13 KiB for the group's work are more than it is, lest a third
    // group comes to a multiprocessor of 228 KiB: with as many rows on their way it is slower
    static constexpr int BYTES = 2 * SLOTS * TILE * DIM + (DIM < 256 ? 13312 : 3072);
};

// 64 KiB of slots: enough bytes on their way, and more of them take longer to come. Next counts
// that the code stays small, since every group has to pull it through the instruction cache. Of
// 256 columns there are no registers for 16 rows.
using few = split<8, DIM < 256 ? 512 / DIM : 3, 2>;
#if DIM < 256
using many = split<16, 512 / DIM, 2>;
#endif

// What the scores of a row depend on.
struct split_row {
    attn_range seen;
    float slope;
    int64_t position;
};

template <typename T> struct shared {
    float4 ring[T::SLOTS][T::TILE * T::CHUNKS];
    split_weights<T> weights[2];
    split_row row[T::ROWS];
};

// Brings rows j .. j + TILE - 1 of K or V, a warp KEYS of them. Keys that nobody sees become 0
// and are not read. Called from one place, and what is seldom run is a loop: all code has to
// pass through the instruction cache.
template <typename T, int CAN>
DEVICE void fetch(const attn_kparams &p, const split_work<T> &work, float4 *slot, bool of_k,
                  int j)
{
    constexpr int AT_ONCE = 32 / T::CHUNKS, COPIES = T::KEYS / AT_ONCE;
    const bool whole = whole_rows<CAN>(p, of_k ? WHOLE_K : WHOLE_V);
    const int lane = threadIdx.x % 32, chunk = lane % T::CHUNKS;
    const int r0 = threadIdx.x / 32 * T::KEYS + lane / T::CHUNKS;
    const uint16_t *const x = (const uint16_t *)(of_k ? p.k : p.v);
    attn_rows rows = work.k_rows;
    const int depth = of_k ? p.d : p.dv;
    const int first = work.any.first - j, end = chunk * 8 < depth ? work.any.end - j : first;

    if (!of_k)
        rows = work.v_rows;

    const int64_t step = AT_ONCE * rows.stride_l;
    int64_t row = rows.base + (j + r0) * rows.stride_l;

    if (!whole) {
        #pragma unroll 1
        for (int i = 0; i < COPIES; i++) {
            const int r = i * AT_ONCE + r0;
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

// Brings Q to a slot that is not yet in use, by all warps.
template <typename T, int CAN>
DEVICE void fetch_queries(const attn_kparams &p, const split_work<T> &work, float4 *slot)
{
    static_assert(T::ROWS <= T::TILE, "a slot has room for Q");
    const bool whole = whole_rows<CAN>(p, WHOLE_Q);

    #pragma unroll 1
    for (int at = threadIdx.x; at < T::ROWS * T::CHUNKS; at += T::THREADS) {
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

// Q^T as the second operand: of each 16 columns of Q, row lane / 4 of a half, columns
// 2 (lane % 4) + 0, 1, 8, 9.
template <typename T>
DEVICE void take_queries(const float4 *slot, uint32_t (&q)[T::HALVES][DIM / 32][4])
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++) {
        const int r = half * 8 + lane % 8;

        #pragma unroll
        for (int k = 0; k < DIM / 32; k++)
            device_matrices(q[half][k], slot + r * T::CHUNKS + ((4 * k + lane / 8) ^ (r & 7)));
    }
}

// By a thread for each row.
template <typename T, int CAN>
DEVICE void find_rows(const attn_kparams &p, const split_work<T> &work, split_row *rows)
{
    if (threadIdx.x >= T::ROWS)
        return;

    const attn_score at = find_row<T, CAN>(p, work, threadIdx.x);

    rows[threadIdx.x] = { score_span(at, 0), at.slope, at.position };
}

// S^T = K Q^T of the warp's keys, in two sums each, so that products do not wait for all
// before them.
template <typename T>
DEVICE void find_scores(const float4 *slot, const uint32_t (&q)[T::HALVES][DIM / 32][4],
                        float (&s)[T::HALVES][4])
{
    const int lane = threadIdx.x % 32, r = threadIdx.x / 32 * T::KEYS + lane % 16;
    float other[T::HALVES][4];

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++)
        #pragma unroll
        for (int e = 0; e < 4; e++)
            s[half][e] = other[half][e] = 0.0f;
    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t a[4];

        device_matrices(a, slot + r * T::CHUNKS + ((2 * k + lane / 16) ^ (r & 7)));
        #pragma unroll
        for (int half = 0; half < T::HALVES; half++)
            device_multiply<TYPE>(k % 2 ? other[half] : s[half], a, q[half][k / 2][k % 2 * 2],
                                  q[half][k / 2][k % 2 * 2 + 1]);
    }
    #pragma unroll
    for (int half = 0; half < T::HALVES; half++)
        #pragma unroll
        for (int e = 0; e < 4; e++)
            s[half][e] += other[half][e];
}

// What becomes of the scores of the warp's keys, j .., before the softmax.
template <typename T, int CAN>
DEVICE void change_scores(const attn_kparams &p, const split_row *rows, int j, bool edge,
                          float (&s)[T::HALVES][4])
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < T::HALVES; half++)
        #pragma unroll
        for (int e = 0; e < 4; e++) {
            const split_row &row = rows[half * 8 + lane % 4 * 2 + e % 2];
            const int key = j + e / 2 * 8 + lane / 4;
            float &x = s[half][e];

            x = score_value<CAN>(p, x);
            if (has<CAN>(p, FEAT_TERMS)) {
                attn_score at = {};

                at.slope = row.slope;
                at.position = row.position;
                x = score_add(x, score_term<CAN>(p, at, 0, key));
            }
            if (edge)
                x = key >= row.seen.first && key < row.seen.end ? x : -INFINITE;
        }
}

// The group's keys: K and V of its tiles in turn, in as many slots as there are. All warps are
// behind the barrier of a tile when its K, and V of the tile before, have been used, and give
// their slots away.
template <typename T, int CAN>
DEVICE rows_state<T> fold_keys(const attn_kparams &p, const split_work<T> &work,
                               shared<T> &mem, int &piece)
{
    const int before = (work.any.first - work.first) / T::TILE;    // tiles that nobody sees
    const int apart =    // leaves of a piece, more than there are if it is the group's only one
        T::SEVERAL && p.share > p.piece ? p.piece / T::TILE : INT32_MAX;
    const int first = work.first + before * T::TILE;
    const int tiles = ceil_div(work.any.end - first, T::TILE);
    uint32_t q[T::HALVES][DIM / 32][4];
    climb<T> my;
    int next = 0, to = 0, from = 0;    // copies that were begun, and places in the ring
    int leaves = before % apart;       // of the piece so far

    piece = before / apart;
    #pragma unroll
    for (int i = 0; i < T::LEVELS; i++)
        make_empty(my.level[i]);
    #pragma unroll 1
    for (int n = -1; n < tiles; n++) {
        split_weights<T> &weights = mem.weights[n & 1];

        if (n >= 0) {
            const int j = first + n * T::TILE + threadIdx.x / 32 * T::KEYS;
            float s[T::HALVES][4];

            device_copied<T::SLOTS - 2>();    // K: what this warp uses it has copied itself
            __syncwarp();
            find_scores<T>(mem.ring[from], q, s);
            change_scores<T, CAN>(p, mem.row, j, at_edge(work, j, T::KEYS), s);
            leave_weights(s, weights);
            from = from + 1 < T::SLOTS ? from + 1 : 0;
            device_copied<T::SLOTS - 3>();
            __syncthreads();
        }
        #pragma unroll 1
        for (; next <= 2 * n + T::SLOTS; next++) {
            if (next < 2 * tiles)
                fetch<T, CAN>(p, work, mem.ring[to], next % 2 == 0,
                              first + next / 2 * T::TILE);
            if (next == 0)
                fetch_queries<T, CAN>(p, work, mem.ring[T::SLOTS - 1]);
            device_commit();    // of each, though it be empty
            to = to + 1 < T::SLOTS ? to + 1 : 0;
        }
        if (n < 0) {
            find_rows<T, CAN>(p, work, mem.row);
            device_copied<T::SLOTS - 2>();
            __syncthreads();
            take_queries<T>(mem.ring[T::SLOTS - 1], q);
            continue;
        }

        rows_state<T> leaf;

        make_leaf(mem.ring[from], weights, leaf);
        from = from + 1 < T::SLOTS ? from + 1 : 0;
        add_leaf(my, leaves++, leaf);
        if (T::SEVERAL && leaves == apart && n + 1 < tiles) {
            write_states(p, work, join_levels(my, leaves), piece++);
            leaves = 0;
        }
    }
    return join_levels(my, leaves);
}

template <typename T, int CAN> DEVICE void fwd_split_mma(const attn_kparams &p)
{
    static_assert(sizeof(shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T> &mem = *(shared<T> *)memory;
    split_work<T> work;
    rows_state<T> last;
    int piece = 0;    // that it is of, among the group's

    device_let_next();
    find_work<T, CAN>(p, work);
    make_empty(last);
    if (work.any.first < work.any.end)
        last = fold_keys<T, CAN>(p, work, mem, piece);
    if (p.ends) {
        write_rows<T, CAN>(p, work, last);
        return;
    }
    write_states(p, work, last, piece);
    write_nothing(p, work, piece);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        fwd_split_mma<T, CAN>(p); \
    }

KERNEL(NAME, _plain, few, CAN_PLAIN)
KERNEL(NAME, _ranges, few, CAN_RANGES)
KERNEL(NAME, _all, few, CAN_MMA)
#if DIM < 256
KERNEL(NAME, _ranges_many, many, CAN_RANGES)
KERNEL(NAME, _all_many, many, CAN_MMA)
#endif
