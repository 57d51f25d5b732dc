// SPDX-License-Identifier: MIT
// softmax/fwd_split.cu: softmax attention forward for few queries and many keys, step 1: a
// group folds one piece of the keys into partial states of its rows.
//
// Computes  for each row (query and head) and each piece of the keys
//             m = max s_j    l = sum exp(s_j - m)    o = sum exp(s_j - m) v_j
//           which fwd_split_merge.cu turns into O and the LSE
// Method    T. Dao et al., "Flash-Decoding" (2023). The queries of all heads that share a
//           key/value head are rows of one group, so that K and V are read once for all of
//           them. LANES lanes of a warp, a worker, have 16 bytes each of a row of K or V;
//           a worker folds KEYS keys at once: scores, summed over its lanes by shuffles,
//           then weights, which all its lanes have, then sums of values. Rows of K and V
//           go through a ring in shared memory, SLOTS - 1 of them ahead (cp.async); each
//           thread reads what it copied, so that there is no barrier before the end, where
//           workers and warps are merged
// Grid      1-D, ceil(round_queries * Hq / Hkv / ROWS) blocks * pieces * round_heads * Hkv
//           / Hq groups, the block fastest
// Block     128 threads, 1-D
// Shared    dynamic: the ring, 16 * SLOTS * KEYS * VECS bytes a thread, and the group's work
// Barriers  one, and two at the end
// Layout    any strides, in elements; CONTIG_ and WHOLE_ bits promise more (params.h).
//           work: split_work.cuh
// Numerics  f32 throughout, 16-bit types are storage. The bits of a row depend on its keys
//           and on the tunables, not on the other rows of its group, nor on B or H: keys
//           belong to workers by their place in the piece. TYPE_F32: KEYS products are
//           summed in fresh registers and added with compensation (Kahan 1965); what the
//           sums have too much is taken off at the end, so that keys that only other rows
//           see change no bit
// Features  all but dropout, through common/; _ranges know no pages, softcap or terms.
//           A weight of 0 multiplies no V where masks or biases hide keys. Sinks are the
//           merge's
// Requires  D and Dv up to DIM; columns past them are 0 and not read. cp.async from sm_80
//           on, plain copies before
// Tunables  the shapes below; src/plan/cuda/softmax_fwd_split.c has the same numbers
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for each TYPE (f32, f16, bf16) and DIM (64, 128, 256): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_split_f32_d64
#endif

#include "softmax/split_ring.cuh"

// 128 bytes of a slot a thread. More rows would want twice the registers and were slower
// than reading K and V again from the second cache.
using block = split<4, DIM == 256 && TYPE == TYPE_F32 ? 4 : 8, 3>;

// A row's state in a worker; all its lanes have the same.
template <typename T> struct rows_state {
    float m[T::ROWS], l[T::ROWS], l_rest[T::ROWS];
    float o[T::ROWS][T::E];
    float rest[TYPE == TYPE_F32 ? T::ROWS : 1][T::E];
};

// s[r][u] = q . k over the whole row, in all lanes of the worker.
template <typename T>
DEVICE void find_scores(const shared<T> &mem, int slot, const float (&q)[T::ROWS][T::E],
                        float (&s)[T::ROWS][T::KEYS])
{
    #pragma unroll
    for (int u = 0; u < T::KEYS; u++) {
        float x[T::E];

        #pragma unroll
        for (int v = 0; v < T::VECS; v++)
            expand<T>(mem.ring[slot * T::COPIES + u * T::VECS + v][threadIdx.x],
                      x + v * T::PER);
        #pragma unroll
        for (int r = 0; r < T::ROWS; r++) {
            s[r][u] = 0.0f;
            #pragma unroll
            for (int e = 0; e < T::E; e++)
                s[r][u] += q[r][e] * x[e];
        }
    }
    #pragma unroll
    for (int mask = T::LANES / 2; mask; mask /= 2) {
        #pragma unroll
        for (int r = 0; r < T::ROWS; r++) {
            #pragma unroll
            for (int u = 0; u < T::KEYS; u++)
                s[r][u] += __shfl_xor_sync(0xffffffffu, s[r][u], mask);
        }
    }
}

// What becomes of the scores of keys j, j + WORKERS, ... before the softmax.
template <typename T, int CAN>
DEVICE void change_scores(const attn_kparams &p, const shared<T> &mem, int j, bool edge,
                          float (&s)[T::ROWS][T::KEYS])
{
    #pragma unroll
    for (int r = 0; r < T::ROWS; r++) {
        const attn_score &at = mem.score[r];

        #pragma unroll
        for (int u = 0; u < T::KEYS; u++) {
            const int key = j + u * T::WORKERS;

            s[r][u] = score_value<CAN>(p, s[r][u]);
            if (has<CAN>(p, FEAT_TERMS))
                s[r][u] = score_add(s[r][u], score_term<CAN>(p, at, 0, key));
            if (edge)
                s[r][u] = key - mem.work.first < p.piece
                              ? score_masked(at, 0, key, s[r][u])
                              : -INFINITE;
        }
    }
}

// From scores to weights, in place; rows move to their new maximum, and O with them.
template <typename T>
DEVICE void fold_scores(rows_state<T> &my, float (&s)[T::ROWS][T::KEYS])
{
    #pragma unroll
    for (int r = 0; r < T::ROWS; r++) {
        attn_row row = { my.m[r], 0.0f };
        float top = -INFINITE, sum = 0.0f;

        #pragma unroll
        for (int u = 0; u < T::KEYS; u++)
            top = state_max(s[r][u], top);

        const float factor = state_fold(&row, top), reference = state_reference(row.m);

        my.m[r] = row.m;
        #pragma unroll
        for (int u = 0; u < T::KEYS; u++) {
            s[r][u] = state_weight(s[r][u], reference);
            sum += s[r][u];
        }
        if (__any_sync(0xffffffffu, factor != 1.0f)) {
            my.l[r] *= factor;
            my.l_rest[r] *= factor;
            #pragma unroll
            for (int e = 0; e < T::E; e++) {
                my.o[r][e] = rescaled(my.o[r][e], factor);
                if (TYPE == TYPE_F32)
                    my.rest[r][e] = rescaled(my.rest[r][e], factor);
            }
        }
        add_compensated<TYPE>(my.l[r], my.l_rest[r], sum);
    }
}

// o += weights times values. `hides`: a weight of 0 multiplies nothing.
template <typename T>
DEVICE void add_values(const shared<T> &mem, int slot, const float (&w)[T::ROWS][T::KEYS],
                       bool hides, rows_state<T> &my)
{
    float part[TYPE == TYPE_F32 ? T::ROWS : 1][T::E] = {};

    #pragma unroll
    for (int u = 0; u < T::KEYS; u++) {
        float x[T::E];

        #pragma unroll
        for (int v = 0; v < T::VECS; v++)
            expand<T>(mem.ring[slot * T::COPIES + u * T::VECS + v][threadIdx.x],
                      x + v * T::PER);
        #pragma unroll
        for (int r = 0; r < T::ROWS; r++) {
            if (hides && w[r][u] == 0.0f)
                continue;
            #pragma unroll
            for (int e = 0; e < T::E; e++) {
                if (TYPE == TYPE_F32)
                    part[r][e] += w[r][u] * x[e];
                else
                    my.o[r][e] += w[r][u] * x[e];
            }
        }
    }
    #pragma unroll
    for (int r = 0; r < (TYPE == TYPE_F32 ? T::ROWS : 0); r++) {
        #pragma unroll
        for (int e = 0; e < T::E; e++)
            add_compensated<TYPE>(my.o[r][e], my.rest[r][e], part[r][e]);
    }
}

// All of the piece that is this warp's: K and V of its tiles in turn, one fetched SLOTS - 1
// steps before it is used.
template <typename T, int CAN>
DEVICE void fold_piece(const attn_kparams &p, shared<T> &mem, rows_state<T> &my)
{
    constexpr int STEP = T::WARPS * T::TILE, AHEAD = T::SLOTS - 1;
    const int warp = threadIdx.x / 32, worker = threadIdx.x % 32 / T::LANES;
    const int at = mem.work.first + warp * T::TILE;    // the warp's first key
    const int first = at + max(mem.work.any.first - at, 0) / STEP * STEP;
    const int steps = 2 * max(ceil_div(mem.work.any.end - first, STEP), 0);
    float q[T::ROWS][T::E], s[T::ROWS][T::KEYS];
    int to = 0, from = 0;

    // step n: K of a tile, or V; a group of copies, though an empty one
    const auto fetch_step = [&](int n) {
        if (n < steps)
            fetch<T, CAN>(p, mem, to, n % 2 == 0, first + n / 2 * STEP + worker);
        device_commit();
        to = to + 1 < T::SLOTS ? to + 1 : 0;
    };
    // the slot of step n, which has arrived; one more is on its way
    const auto arrived = [&](int n) {
        const int slot = from;

        device_copied<AHEAD - 1>();
        fetch_step(n + AHEAD);
        from = from + 1 < T::SLOTS ? from + 1 : 0;
        return slot;
    };

    #pragma unroll 1
    for (int n = 0; n < AHEAD; n++)
        fetch_step(n);
    if (threadIdx.x < T::ROWS)
        mem.score[threadIdx.x] = find_row<T, CAN>(p, mem.work, threadIdx.x);
    load_queries<T, CAN>(p, mem, q);
    __syncthreads();    // behind find_row()
    #pragma unroll 1
    for (int n = 0; n < steps; n += 2) {
        const int j = first + n / 2 * STEP;

        find_scores(mem, arrived(n), q, s);
        change_scores<T, CAN>(p, mem, j + worker, at_edge(mem.work, j, T::TILE), s);
        fold_scores(my, s);
        add_values(mem, arrived(n + 1), s, has<CAN>(p, FEAT_HIDES), my);
    }
}

// Brings the workers of a warp together, and leaves the warp's sums in the ring.
template <typename T>
DEVICE void merge_workers(shared<T> &mem, rows_state<T> &my)
{
    static_assert(T::ROWS * DIM * T::WARPS * 4 <= sizeof mem.ring, "the sums of the warps");
    float *const sums = (float *)mem.ring;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    #pragma unroll
    for (int r = 0; r < T::ROWS; r++) {
        float m = my.m[r];

        #pragma unroll
        for (int mask = T::LANES; mask < 32; mask *= 2)
            m = state_max(__shfl_xor_sync(0xffffffffu, m, mask), m);

        const float factor = state_weight(my.m[r], state_reference(m));
        float l = (my.l[r] - my.l_rest[r]) * factor;

        #pragma unroll
        for (int mask = T::LANES; mask < 32; mask *= 2)
            l += __shfl_xor_sync(0xffffffffu, l, mask);
        if (lane == 0) {
            mem.state[warp][r] = { m, l };
        }
        #pragma unroll
        for (int e = 0; e < T::E; e++) {
            float o = my.o[r][e];

            if (TYPE == TYPE_F32)
                o -= my.rest[r][e];
            o = rescaled(o, factor);
            #pragma unroll
            for (int mask = T::LANES; mask < 32; mask *= 2)
                o += __shfl_xor_sync(0xffffffffu, o, mask);
            if (lane < T::LANES)
                sums[(warp * T::ROWS + r) * DIM + column_of<T>(e / T::PER) + e % T::PER] = o;
        }
    }
}

// Adds what the warps have, and writes the states of the piece.
template <typename T> DEVICE void write_rows(const attn_kparams &p, const shared<T> &mem)
{
    const split_work<T> &my = mem.work;
    const float *const sums = (const float *)mem.ring;
    const int64_t row0 = (int64_t)my.pair * p.round_queries * my.group + my.row;
    const int piece = my.first / p.piece;
    const bool empty = my.any.first >= my.any.end;

    for (int r = 0; r < my.rows; r++) {
        float *const state = work_state(p, row0 + r, piece);
        float *const to = work_sum(p, row0 + r, piece);
        float m = -INFINITE, l = 0.0f, factor[T::WARPS];

        #pragma unroll
        for (int w = 0; w < T::WARPS && !empty; w++)
            m = state_max(mem.state[w][r].m, m);
        #pragma unroll
        for (int w = 0; w < T::WARPS && !empty; w++) {
            factor[w] = state_weight(mem.state[w][r].m, state_reference(m));
            l += mem.state[w][r].l * factor[w];
        }
        if (threadIdx.x == 0) {
            state[0] = m;
            state[1] = l;
        }
        // all that the merge fetches, before it knows what counts
        for (int d = threadIdx.x; d < work_pitch(p) && p.want_o; d += T::THREADS) {
            float o = 0.0f;

            #pragma unroll
            for (int w = 0; w < T::WARPS && !empty; w++)
                o += rescaled(sums[(w * T::ROWS + r) * DIM + d], factor[w]);
            to[d] = o;
        }
    }
}

template <typename T, int CAN> DEVICE void fwd_split(const attn_kparams &p)
{
    static_assert(sizeof(shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T> &mem = *(shared<T> *)memory;

    device_let_next();
    if (threadIdx.x == 0)
        find_work<T, CAN>(p, mem.work);
    __syncthreads();
    if (mem.work.any.first < mem.work.any.end) {
        rows_state<T> my;

        #pragma unroll
        for (int r = 0; r < T::ROWS; r++) {
            my.m[r] = -INFINITE;
            my.l[r] = my.l_rest[r] = 0.0f;
            #pragma unroll
            for (int e = 0; e < T::E; e++) {
                my.o[r][e] = 0.0f;
                if (TYPE == TYPE_F32)
                    my.rest[r][e] = 0.0f;
            }
        }
        fold_piece<T, CAN>(p, mem, my);
        __syncthreads();
        merge_workers(mem, my);
        __syncthreads();
    }
    write_rows(p, mem);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN, BLOCKS) /* groups on a multiprocessor */ \
    extern "C" __global__ __launch_bounds__(T::THREADS, BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        fwd_split<T, CAN>(p); \
    }

// Four groups leave 128 registers a thread, one too few for 64 columns where sm_80's
// instructions are chosen.
#if __CUDA_ARCH__ >= 900
constexpr int F32_GROUPS = 4;
#else
constexpr int F32_GROUPS = DIM == 64 ? 3 : 4;
#endif

KERNEL(NAME, _ranges, block, CAN_RANGES, DIM == 256 ? 2 : TYPE == TYPE_F32 ? F32_GROUPS : 3)
KERNEL(NAME, _all, block, CAN_ALL, DIM == 256 ? 2 : 3)
