// SPDX-License-Identifier: MIT
// softmax/fwd_split_merge.cu: softmax attention forward for few queries and many keys,
// step 2: the partial states that fwd_split.cu or fwd_split_mma.cu wrote become O and the LSE.
//
// Computes  over the pieces of a row, and then the sink as one more that has no values
//           (m = sink, l = 1, o = 0):
//             m = max m_p    l = sum exp(m_p - m) l_p    O = sum exp(m_p - m) o_p / l
// Method    the tree of split_tree.cuh, whose leaves, or what became of some of them, the
//           pieces are. A warp has four columns of a row for each of 32 / ALONG lanes. Of a
//           block of 4 ALONG pieces a lane brings four together, while those of the next
//           block are on their way, and then lanes exchange theirs. Where there are more
//           blocks than one, they climb on in each thread
// Grid      1-D, round_queries * round_heads * ceil(Dv / COLUMNS) groups, the columns
//           fastest, then the query
// Block     THREADS threads, 1-D, whose warps know nothing of each other
// Shared    none
// Barriers  none
// Layout    work: split_work.cuh; O of any strides
// Numerics  f32. Of a piece without a visible key (l = 0) nothing is taken. Both instances
//           give the same bits
// Overlaps  the end of the first step, from sm_90 on
// Features  lengths and packed queries (rows that there are not are not written), sinks
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for each TYPE (f32, f16, bf16): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_split_merge_f32
#endif

#include "common/device.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/state.cuh"
#include "softmax/split_tree.cuh"
#include "softmax/split_work.cuh"

constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

// Many pieces: many groups for each row, and room for as many as there can be. Few: a warp for
// each row, of which every thread brings all pieces together itself.
// src/plan/cuda/softmax_fwd_split.c has the same numbers.
template <int ALONG_, int WARPS_, int LEVELS_> struct shape {
    static constexpr int ALONG = ALONG_, LANES = 32 / ALONG, THREADS = 32 * WARPS_;
    static constexpr int BLOCK = TREE_WIDTH * ALONG;    // pieces
    static constexpr int COLUMNS = 4 * LANES * WARPS_;
    static constexpr int LEVELS = LEVELS_;    // above blocks, of less than 4^LEVELS of those
};
using narrow = shape<16, 4, 9>;
using wide = shape<1, 1, 2>;

// The partial states of one row; o: at the thread's columns, NULL if they are nobody's.
struct parts {
    const float *ml;    // [pieces][2]
    const float *o;     // [pieces][pitch]
    int pieces, pitch;
};

// A state at four columns.
struct node {
    attn_row row;
    float o[4];
};

DEVICE node node_at(const parts &t, int i)
{
    node x = { state_init(), {} };

    if (i < t.pieces) {
        const float2 ml = *(const float2 *)(t.ml + 2 * i);

        x.row = { ml.x, ml.y };
        if (t.o) {
            const float4 o = *(const float4 *)(t.o + (int64_t)i * t.pitch);

            x.o[0] = o.x, x.o[1] = o.y, x.o[2] = o.z, x.o[3] = o.w;
        }
    }
    return x;
}

DEVICE void join(node &before, const node &next)
{
    const tree_factors f = tree_join(before.row, next.row);

    #pragma unroll
    for (int e = 0; e < 4; e++)
        before.o[e] = tree_sum(before.o[e], next.o[e], f);
}

DEVICE node node_of(const node &x, int lane)
{
    node y;

    y.row.m = __shfl_sync(0xffffffffu, x.row.m, lane);
    y.row.l = __shfl_sync(0xffffffffu, x.row.l, lane);
    #pragma unroll
    for (int e = 0; e < 4; e++)
        y.o[e] = __shfl_sync(0xffffffffu, x.o[e], lane);
    return y;
}

// The pieces of a block that this lane begins with, which are on their way then.
struct nodes {
    node of[TREE_WIDTH];
};

template <typename T> DEVICE nodes fetch_block(const parts &t, int block)
{
    const int first = block * T::BLOCK + threadIdx.x % 32 / T::LANES * TREE_WIDTH;
    nodes x;

    #pragma unroll
    for (int i = 0; i < TREE_WIDTH; i++)
        x.of[i] = node_at(t, first + i);
    return x;
}

// What becomes of a block, in all lanes of the columns.
template <typename T> DEVICE node join_block(const nodes &of_block)
{
    const int lane = threadIdx.x % 32;
    node mine = of_block.of[0];

    #pragma unroll
    for (int i = 1; i < TREE_WIDTH; i++)
        join(mine, of_block.of[i]);
    #pragma unroll
    for (int step = T::LANES; step < 32; step *= TREE_WIDTH) {
        const int from = lane & ~((TREE_WIDTH - 1) * step);
        node x = node_of(mine, from);

        #pragma unroll
        for (int i = 1; i < TREE_WIDTH; i++)
            join(x, node_of(mine, from + i * step));
        mine = x;
    }
    return mine;
}

// What becomes of all pieces. Blocks climb through a state for each level, of those that have
// no place above it yet: a place of a block's number in fours is a level.
template <typename T> DEVICE node join_all(const parts &t)
{
    const int blocks = ceil_div(t.pieces, T::BLOCK);
    nodes next = fetch_block<T>(t, 0);
    node level[T::LEVELS] = {}, x = { state_init(), {} };

    #pragma unroll 1
    for (int b = 0; b < blocks; b++) {
        const nodes now = next;
        bool climbs = true;

        if (b + 1 < blocks)
            next = fetch_block<T>(t, b + 1);
        x = join_block<T>(now);
        if (blocks == 1)
            return x;
        #pragma unroll
        for (int i = 0, n = b; i < T::LEVELS; i++, n /= TREE_WIDTH)
            if (climbs) {
                if (n % TREE_WIDTH)
                    join(level[i], x);
                else
                    level[i] = x;
                climbs = n % TREE_WIDTH == TREE_WIDTH - 1;
                x = level[i];
            }
    }
    x = { state_init(), {} };
    #pragma unroll
    for (int i = 0, n = blocks; i < T::LEVELS; i++, n /= TREE_WIDTH)
        if (n % TREE_WIDTH) {
            node y = level[i];

            join(y, x);
            x = y;
        }
    return x;
}

template <typename T> DEVICE void merge(const attn_kparams &p)
{
    const int blocks = larger(ceil_div(p.dv, T::COLUMNS), 1), group = p.group;
    const int d0 = blockIdx.x % blocks * T::COLUMNS, at = blockIdx.x / blocks;
    const int i = at % p.round_queries, at_head = at / p.round_queries;
    const int head = p.round_head + at_head, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const int64_t row =
        ((int64_t)(at_head / group) * p.round_queries + i) * group + at_head % group;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int c = d0 + (warp * T::LANES + lane % T::LANES) * 4;    // the thread's first column
    const parts t = { work_state(p, row, 0),
                      p.want_o && c < p.dv ? work_sum(p, row, 0) + c : NULL, p.pieces,
                      work_pitch(p) };
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const float sink = state_sink<CAN>(p, h);

    device_wait_before();
    if (p.round_query + i >= seq.queries)
        return;

    const node all = join_all<T>(t);
    attn_row state = all.row;
    const float factor = state_finish_sink(&state, sink);

    if (has<CAN>(p, FEAT_LSE) && p.want_lse && threadIdx.x == 0 && d0 == 0)
        p.lse[address_lse<CAN>(p, seq, b, h, p.round_query + i)] = state_lse(state);

    if (!p.want_o)
        return;

    const attn_rows o_rows = ADDRESS_QUERIES(p, o, seq, b, h);
    const int64_t to = address_row<CAN>(p, o_rows, p.round_query + i);

    // lanes that know the same columns write them in turn
    #pragma unroll
    for (int e = 0; e < 4; e++)
        if (lane / T::LANES == e % T::ALONG && c + e < p.dv)
            // no -0: whether one takes in an empty state is not to be seen
            elem_store<TYPE>(p.o, to + (c + e) * o_rows.stride_d, (all.o[e] + 0.0f) * factor);
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T) \
    extern "C" __global__ __launch_bounds__(T::THREADS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        merge<T>(p); \
    }

KERNEL(NAME, _narrow, narrow)
KERNEL(NAME, _wide, wide)
