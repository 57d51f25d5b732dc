// SPDX-License-Identifier: MIT
// softmax/fwd_split_merge.cu: softmax attention forward for few queries and many keys,
// step 2: the partial states that fwd_split.cu wrote become O and the LSE.
//
// Computes  over the pieces of a row, with the sink as one more that has no values (m =
//           sink, l = 1, o = 0):
//             m = max m_p    l = sum exp(m_p - m) l_p    O = sum exp(m_p - m) o_p / l
// Method    a group has the row, and COLUMNS of its columns; a thread has four columns of
//           every SLICES-th piece. The first pieces' columns are on their way while the
//           group finds out what they weigh: what takes time here is waiting
// Grid      1-D, round_queries * round_heads * ceil(Dv / COLUMNS) groups, the columns
//           fastest, then the query
// Block     THREADS threads, 1-D
// Shared    dynamic: a weight of each piece, and 16 bytes a thread
// Barriers  four
// Layout    work: split_work.cuh; O of any strides
// Numerics  f32; TYPE_F32: the sums over pieces are compensated (Kahan 1965). Of a piece
//           without a visible key (l = 0) nothing is taken
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
constexpr int COLUMNS = 32, LANES = COLUMNS / 4, SLICES = THREADS / LANES;
constexpr int EARLY = 4;    // pieces of a thread that are fetched first
constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

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

// m and l of the whole row, which comes in with the sink, and what each piece weighs.
DEVICE void merge_row(const parts &t, attn_row &row, float *weights, float *room)
{
    const float sink = row.m;
    float m = sink, sum = 0.0f, rest = 0.0f;

    for (int i = threadIdx.x; i < t.pieces; i += THREADS)
        m = state_max(t.ml[2 * i], m);
    row.m = over_group<true>(m, room);
    for (int i = threadIdx.x; i < t.pieces; i += THREADS) {
        const float l = t.ml[2 * i + 1];
        const float w = l == 0.0f ? 0.0f : state_weight(t.ml[2 * i], state_reference(row.m));

        weights[i] = w;
        add_compensated<TYPE>(sum, rest, rescaled(l, w));
    }
    row.l = row.l * state_weight(sink, state_reference(row.m)) +
            over_group<false>(sum, room + WARPS);
}

DEVICE void add_piece(float (&sum)[4], float (&rest)[4], float4 o, float w)
{
    add_compensated<TYPE>(sum[0], rest[0], rescaled(o.x, w));
    add_compensated<TYPE>(sum[1], rest[1], rescaled(o.y, w));
    add_compensated<TYPE>(sum[2], rest[2], rescaled(o.z, w));
    add_compensated<TYPE>(sum[3], rest[3], rescaled(o.w, w));
}

extern "C" __global__ __launch_bounds__(THREADS) void NAME(
    const __grid_constant__ attn_kparams p)
{
    SHARED_MEMORY(memory);
    float *const room = (float *)(memory + THREADS), *const weights = room + 2 * WARPS;
    const int blocks = larger(ceil_div(p.dv, COLUMNS), 1), group = p.heads_q / p.heads_kv;
    const int d0 = blockIdx.x % blocks * COLUMNS, at = blockIdx.x / blocks;
    const int i = at % p.round_queries, at_head = at / p.round_queries;
    const int head = p.round_head + at_head, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const int64_t row =
        ((int64_t)(at_head / group) * p.round_queries + i) * group + at_head % group;
    const int d = d0 + threadIdx.x % LANES * 4, slice = threadIdx.x / LANES;
    const parts t = { work_state(p, row, 0), work_sum(p, row, 0) + d, p.pieces,
                      work_pitch(p) };
    const bool mine = p.want_o && d < t.pitch;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    attn_row state = state_sink<CAN>(p, h);
    float4 early[EARLY];
    float sum[4] = {}, rest[4] = {};

    device_wait_before();
    #pragma unroll
    for (int n = 0; n < EARLY; n++) {
        const int piece = slice + n * SLICES;

        early[n] = mine && piece < t.pieces
                       ? *(const float4 *)(t.o + (int64_t)piece * t.pitch)
                       : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (p.round_query + i >= seq.queries)
        return;
    merge_row(t, state, weights, room);
    if (has<CAN>(p, FEAT_LSE) && p.want_lse && threadIdx.x == 0 && d0 == 0)
        p.lse[address_lse<CAN>(p, seq, b, h, p.round_query + i)] = state_lse(state);
    #pragma unroll
    for (int n = 0; n < EARLY; n++)
        if (slice + n * SLICES < t.pieces)
            add_piece(sum, rest, early[n], weights[slice + n * SLICES]);
    #pragma unroll 4
    for (int piece = slice + EARLY * SLICES; piece < (mine ? t.pieces : 0); piece += SLICES)
        add_piece(sum, rest, *(const float4 *)(t.o + (int64_t)piece * t.pitch),
                  weights[piece]);
    memory[threadIdx.x] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    __syncthreads();
    if (threadIdx.x < COLUMNS && d0 + (int)threadIdx.x < p.dv && p.want_o) {
        const attn_rows o_rows = ADDRESS_QUERIES(p, o, seq, b, h);
        const int64_t to = address_row<CAN>(p, o_rows, p.round_query + i);
        float total = 0.0f, extra = 0.0f;

        #pragma unroll
        for (int s = 0; s < SLICES; s++)
            add_compensated<TYPE>(total, extra,
                                  ((const float *)memory)[s * COLUMNS + threadIdx.x]);
        elem_store<TYPE>(p.o, to + (d0 + (int)threadIdx.x) * o_rows.stride_d,
                         total * state_finish(state));
    }
}
