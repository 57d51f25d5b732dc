// SPDX-License-Identifier: MIT
// softmax/fwd_split_merge.cu: softmax attention forward for few queries and many keys,
// step 2: the partial states that fwd_split.cu wrote become O and the LSE.
//
// Computes  over the pieces of a row, with the sink as one more that has no values (m =
//           sink, l = 1, o = 0):
//             m = max m_p    l = sum exp(m_p - m) l_p    O = sum exp(m_p - m) o_p / l
// Method    each warp takes every WARPS-th piece, each lane four columns of it; the warps'
//           sums are added through shared memory
// Grid      1-D, round_queries * round_heads groups, the query fastest
// Block     32 * WARPS threads, 1-D
// Shared    dynamic: 16 * 32 * WARPS bytes, a sum of each warp for 128 columns
// Barriers  two for each 128 columns
// Layout    work: split_work.cuh; O of any strides
// Numerics  f32; TYPE_F32: the sums over pieces are compensated (Kahan 1965). The o of a
//           piece without a visible key (l = 0) was not written and is not read
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

constexpr int WARPS = 8, CAN = CAN_ALL & ~FEAT_PAGES;

// The partial states of one row.
struct parts {
    const float *ml;    // [pieces][2]
    const float *o;     // [pieces][pitch]
    int pieces, pitch;
};

DEVICE float warp_max(float x)
{
    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        x = state_max(__shfl_xor_sync(0xffffffffu, x, mask), x);
    return x;
}

DEVICE float warp_sum(float x)
{
    #pragma unroll
    for (int mask = 16; mask; mask /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, mask);
    return x;
}

// m and l of the whole row; it comes in with the sink. Each warp finds them for itself.
DEVICE void merge_row(const parts &t, attn_row &row)
{
    const int lane = threadIdx.x % 32;
    const float sink = row.m;
    float m = sink, sum = 0.0f, rest = 0.0f;

    for (int i = lane; i < t.pieces; i += 32)
        m = state_max(t.ml[2 * i], m);
    row.m = warp_max(m);
    for (int i = lane; i < t.pieces; i += 32) {
        const float w = state_weight(t.ml[2 * i], state_reference(row.m));

        add_compensated<TYPE>(sum, rest, rescaled(t.ml[2 * i + 1], w));
    }
    row.l = row.l * state_weight(sink, state_reference(row.m)) + warp_sum(sum);
}

// This warp's pieces of columns d .. d + 3.
DEVICE float4 sum_columns(const parts &t, float reference, int d)
{
    float sum[4] = {}, rest[4] = {};

    #pragma unroll 4
    for (int i = threadIdx.x / 32; i < t.pieces; i += WARPS) {
        const float w = state_weight(t.ml[2 * i], reference);

        if (t.ml[2 * i + 1] == 0.0f)
            continue;

        const float4 o = *(const float4 *)(t.o + (int64_t)i * t.pitch + d);

        add_compensated<TYPE>(sum[0], rest[0], rescaled(o.x, w));
        add_compensated<TYPE>(sum[1], rest[1], rescaled(o.y, w));
        add_compensated<TYPE>(sum[2], rest[2], rescaled(o.z, w));
        add_compensated<TYPE>(sum[3], rest[3], rescaled(o.w, w));
    }
    return make_float4(sum[0], sum[1], sum[2], sum[3]);
}

extern "C" __global__ __launch_bounds__(32 * WARPS) void NAME(
    const __grid_constant__ attn_kparams p)
{
    SHARED_MEMORY(memory);
    float *const sums = (float *)memory;    // [WARPS][128]
    const int group = p.heads_q / p.heads_kv;
    const int i = blockIdx.x % p.round_queries, at_head = blockIdx.x / p.round_queries;
    const int head = p.round_head + at_head, h = head % p.heads_q;
    const int64_t b = head / p.heads_q;
    const int64_t row =
        ((int64_t)(at_head / group) * p.round_queries + i) * group + at_head % group;
    const int lane = threadIdx.x % 32;
    const parts t = { work_state(p, row, 0), work_sum(p, row, 0), p.pieces, work_pitch(p) };
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const attn_rows o_rows = ADDRESS_QUERIES(p, o, seq, b, h);
    const int64_t to = address_row<CAN>(p, o_rows, p.round_query + i);
    attn_row state = state_sink<CAN>(p, h);

    if (p.round_query + i >= seq.queries)
        return;
    merge_row(t, state);
    if (has<CAN>(p, FEAT_LSE) && p.want_lse && threadIdx.x == 0)
        p.lse[address_lse<CAN>(p, seq, b, h, p.round_query + i)] = state_lse(state);
    for (int d0 = 0; d0 < p.dv && p.want_o; d0 += 128) {
        const int d = d0 + 4 * lane;

        if (d < t.pitch)
            ((float4 *)sums)[threadIdx.x] = sum_columns(t, state_reference(state.m), d);
        __syncthreads();
        for (int c = threadIdx.x; c < min(128, p.dv - d0); c += 32 * WARPS) {
            float sum = 0.0f;

            #pragma unroll
            for (int w = 0; w < WARPS; w++)
                sum += sums[w * 128 + c];
            elem_store<TYPE>(p.o, to + (d0 + c) * o_rows.stride_d,
                             sum * state_finish(state));
        }
        __syncthreads();
    }
}
