// SPDX-License-Identifier: MIT
// softmax/fwd_split_merge.cu: softmax attention forward for few queries and many keys,
// step 2: the partial states that fwd_split.cu wrote become O and the LSE.
//
// Computes  over the pieces of a row, and then the sink as one more that has no values
//           (m = sink, l = 1, o = 0):
//             m = max m_p    l = sum exp(m_p - m) l_p    O = sum exp(m_p - m) o_p / l
// Method    a group has a row, and COLUMNS of its columns. The pieces belong to SLICES
//           slices, every SLICES-th to the same, and a thread has four columns of EACH
//           slices. The first pieces' columns are on their way while the group finds out
//           what they weigh: what takes time here is waiting
// Grid      1-D, round_queries * round_heads * ceil(Dv / COLUMNS) groups, the columns
//           fastest, then the query
// Block     THREADS threads, 1-D
// Shared    dynamic: 4 * SLICES * COLUMNS bytes, and 8 a warp
// Barriers  three
// Layout    work: split_work.cuh; O of any strides
// Numerics  f32; TYPE_F32: the sums over pieces are compensated (Kahan 1965). Of a piece
//           without a visible key (l = 0) nothing is taken. Both instances give the same
//           bits: slices are summed one by one, then together
// Overlaps  the end of fwd_split.cu, from sm_90 on
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
#include "softmax/split_work.cuh"
#include "softmax/sums.cuh"

constexpr int THREADS = 128, WARPS = THREADS / 32;    // src/plan/cuda/softmax_fwd_split.c
constexpr int SLICES = 16;
constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

// Few rows: many groups for each. Many rows: fewer threads that have more to wait for.
template <int COLUMNS_, int EARLY_> struct shape {
    static constexpr int COLUMNS = COLUMNS_, LANES = COLUMNS / 4;
    static constexpr int SPREAD = THREADS / LANES;    // threads along the slices
    static constexpr int EACH = SLICES / SPREAD;
    static constexpr int EARLY = EARLY_;    // pieces of a slice that are fetched first
};
using narrow = shape<32, 4>;
using wide = shape<128, 1>;

// The partial states of one row.
struct parts {
    const float *ml;    // [pieces][2]
    const float *o;     // [pieces][pitch], at the thread's columns
    int pieces, pitch;
};

// Over all threads of the group; `room` for WARPS floats.
template <bool MAX> DEVICE float over_group(float x, float *room)
{
    #pragma unroll
    for (int mask = 16; mask; mask /= 2) {
        const float y = __shfl_xor_sync(0xffffffffu, x, mask);

        x = MAX ? state_max(y, x) : x + y;
    }
    if (threadIdx.x % 32 == 0)
        room[threadIdx.x / 32] = x;
    __syncthreads();
    x = room[0];
    #pragma unroll
    for (int w = 1; w < WARPS; w++)
        x = MAX ? state_max(room[w], x) : x + room[w];
    return x;
}

// What piece i weighs against the largest score of the row.
DEVICE float weight(float m, float l, float reference)
{
    return l == 0.0f ? 0.0f : state_weight(m, reference);
}

// m and l of the whole row, without the sink.
DEVICE attn_row merge_row(const parts &t, float *room)
{
    attn_row row = state_init();
    float m = row.m, sum = 0.0f, rest = 0.0f;

    for (int i = threadIdx.x; i < t.pieces; i += THREADS)
        m = state_max(t.ml[2 * i], m);
    row.m = over_group<true>(m, room);
    for (int i = threadIdx.x; i < t.pieces; i += THREADS) {
        const float l = t.ml[2 * i + 1];

        add_compensated<TYPE>(sum, rest,
                              l * weight(t.ml[2 * i], l, state_reference(row.m)));
    }
    row.l = over_group<false>(sum, room + WARPS);
    return row;
}

// Four columns of a slice.
struct columns {
    float sum[4], rest[4];
};

// A piece's state at four columns.
struct state_at {
    float m, l;
    float4 o;
};

DEVICE state_at piece_at(const parts &t, int i)
{
    return { t.ml[2 * i], t.ml[2 * i + 1], *(const float4 *)(t.o + (int64_t)i * t.pitch) };
}

DEVICE void add_piece(columns &x, const state_at &piece, float reference)
{
    const float w = weight(piece.m, piece.l, reference);

    add_compensated<TYPE>(x.sum[0], x.rest[0], rescaled(piece.o.x, w));
    add_compensated<TYPE>(x.sum[1], x.rest[1], rescaled(piece.o.y, w));
    add_compensated<TYPE>(x.sum[2], x.rest[2], rescaled(piece.o.z, w));
    add_compensated<TYPE>(x.sum[3], x.rest[3], rescaled(piece.o.w, w));
}

template <typename T> DEVICE void merge(const attn_kparams &p)
{
    SHARED_MEMORY(memory);
    float *const sums = (float *)memory, *const room = sums + SLICES * T::COLUMNS;
    const int blocks = larger(ceil_div(p.dv, T::COLUMNS), 1), group = p.group;
    const int d0 = blockIdx.x % blocks * T::COLUMNS, at = blockIdx.x / blocks;
    const int i = at % p.round_queries, at_head = at / p.round_queries;
    const int head = p.round_head + at_head, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const int64_t row =
        ((int64_t)(at_head / group) * p.round_queries + i) * group + at_head % group;
    const int c = threadIdx.x % T::LANES * 4, first = threadIdx.x / T::LANES;
    const parts t = { work_state(p, row, 0), work_sum(p, row, 0) + d0 + c, p.pieces,
                      work_pitch(p) };
    const int pieces = p.want_o && d0 + c < t.pitch ? t.pieces : 0;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const float sink = state_sink<CAN>(p, h);
    state_at early[T::EACH][T::EARLY];
    columns mine[T::EACH] = {};

    device_wait_before();
    if (p.round_query + i >= seq.queries)
        return;
    #pragma unroll
    for (int e = 0; e < T::EACH * T::EARLY; e++) {
        const int piece = first + e / T::EARLY * T::SPREAD + e % T::EARLY * SLICES;

        if (piece < pieces)
            early[e / T::EARLY][e % T::EARLY] = piece_at(t, piece);
    }

    attn_row state = merge_row(t, room);
    const float reference = state_reference(state.m);
    const float factor = state_finish_sink(&state, sink);

    if (has<CAN>(p, FEAT_LSE) && p.want_lse && threadIdx.x == 0 && d0 == 0)
        p.lse[address_lse<CAN>(p, seq, b, h, p.round_query + i)] = state_lse(state);
    #pragma unroll
    for (int e = 0; e < T::EACH; e++) {
        const int slice = first + e * T::SPREAD;

        #pragma unroll
        for (int n = 0; n < T::EARLY; n++)
            if (slice + n * SLICES < pieces)
                add_piece(mine[e], early[e][n], reference);
        #pragma unroll 4
        for (int piece = slice + T::EARLY * SLICES; piece < pieces; piece += SLICES)
            add_piece(mine[e], piece_at(t, piece), reference);
        *(float4 *)(sums + slice * T::COLUMNS + c) = make_float4(
            mine[e].sum[0], mine[e].sum[1], mine[e].sum[2], mine[e].sum[3]);
    }
    __syncthreads();
    if (threadIdx.x < T::COLUMNS && d0 + (int)threadIdx.x < p.dv && p.want_o) {
        const attn_rows o_rows = ADDRESS_QUERIES(p, o, seq, b, h);
        const int64_t to = address_row<CAN>(p, o_rows, p.round_query + i);
        float total = 0.0f, rest = 0.0f;

        #pragma unroll
        for (int s = 0; s < SLICES; s++)
            add_compensated<TYPE>(total, rest, sums[s * T::COLUMNS + threadIdx.x]);
        elem_store<TYPE>(p.o, to + (d0 + (int)threadIdx.x) * o_rows.stride_d,
                         total * factor);
    }
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, BLOCKS) /* groups on a multiprocessor */ \
    extern "C" __global__ __launch_bounds__(THREADS, BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        merge<T>(p); \
    }

KERNEL(NAME, _narrow, narrow, 8)
KERNEL(NAME, _wide, wide, 7)
