// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_walk.cuh: what the warpgroups of linear_bwd_wgmma do with the state and with
// results. Lanes have rows and columns of both as wgmma_walk.cuh says; four columns of a lane,
// of two tiles, are one after another in the tensor.
#pragma once
#include "linear/bwd_wgmma_bring.cuh"

// Of a warp's 16 rows of a tile, the lane's of 16 bytes, as device_matrices() and
// device_put_matrices() have the words of operand k: of column chunk 2 k or 2 k + 1. Bytes from
// the tile on.
struct own_row {
    int in_panel[4];

    __device__ __forceinline__ own_row()
    {
        const int thread = device_thread() % 128, row = thread / 32 * 16 + thread % 16;

        #pragma unroll
        for (int k = 0; k < 4; k++)
            in_panel[k] = row * 128 + ((k * 2 + thread % 32 / 16) ^ (row & 7)) * 16;
    }

    __device__ __forceinline__ device_shared in(device_shared panel, int k) const
    {
        return panel + in_panel[k % 4];
    }

    __device__ __forceinline__ device_shared place(device_shared tile, int k) const
    {
        return in(tile + k / 4 * TILE * 16, k);
    }
};

// Calls with each four numbers of the state that lie in one row, columns one after another, where
// there are such ones; with the place of the first in a slot, and how far apart they are.
// FULL: there are all.
template <scan WHICH, bool FULL, class STATE, class CALL>
DEVICE void each_that_is_there(const attn_linear_kparams &p, const chunk_work &w, STATE &my,
                               const CALL &call)
{
    constexpr int AT_ONCE = 8;
    const own_place at;
    const int first = w.column + at.column * 2, inner = inner_of(p, WHICH);
    const int width = width_of(p, WHICH);

    #pragma unroll
    for (int i = 0; i < PANELS * 2; i++) {
        auto &s = my.s[i / 2];
        const int row = i / 2 * 64 + column_at(at.row + i % 2 * 8);
        int64_t from = WHICH == GRAD_V ? (int64_t)row * p.dv + first : (int64_t)first * p.dv + row;

        #pragma unroll
        for (int n = 0; n < NT; n += 2) {
            if (FULL || (row < inner && first + n * 8 < width))
                call(s[n][i % 2 * 2], s[n][i % 2 * 2 + 1], s[n + 1][i % 2 * 2],
                     s[n + 1][i % 2 * 2 + 1], from, WHICH == GRAD_V ? 1 : p.dv);
            from += WHICH == GRAD_V ? 16 : 16 * p.dv;
            if (n % AT_ONCE == AT_ONCE - 2)
                device_forget();    // a few at a time: there are few registers
        }
    }
}

template <scan WHICH, class STATE, class CALL>
DEVICE void each_in_slot(const attn_linear_kparams &p, const chunk_work &w, STATE &my,
                         const CALL &call)
{
    if (inner_of(p, WHICH) == DIM && w.column + COLUMNS <= width_of(p, WHICH))
        each_that_is_there<WHICH, true>(p, w, my, call);    // without branches
    else
        each_that_is_there<WHICH, false>(p, w, my, call);
}

// The state that a walk begins with, from the slots up to its own.
template <scan WHICH>
DEVICE void load_first(const attn_linear_kparams &p, const chunk_work &w, group_state &my)
{
    if (!linear_has(p, LINEAR_SLOTS))
        return;
    #pragma unroll 1
    for (int slot = first_slot(p, w); slot <= last_slot(p, w); slot++) {
        const float *const from = slot_of<WHICH>(p, w, slot);

        each_in_slot<WHICH>(p, w, my, [&](float &a, float &b, float &c, float &d, int64_t i,
                                          int step) {
            if (WHICH == GRAD_V) {
                const float4 x = *(const float4 *)(from + i);

                a += x.x, b += x.y, c += x.z, d += x.w;
            } else {
                a += from[i], b += from[i + step];
                c += from[i + 2 * step], d += from[i + 3 * (int64_t)step];
            }
        });
    }
}

template <scan WHICH>
DEVICE void store_sums(const attn_linear_kparams &p, const chunk_work &w, float *to,
                       const group_state &my)
{
    each_in_slot<WHICH>(p, w, my, [&](float a, float b, float c, float d, int64_t i, int step) {
        if (WHICH == GRAD_V) {
            *(float4 *)(to + i) = make_float4(a, b, c, d);
        } else {
            to[i] = a, to[i + step] = b;
            to[i + 2 * step] = c, to[i + 3 * (int64_t)step] = d;
        }
    });
}

// Numbers of n slots, `step` apart: each becomes the sum of those up to it.
DEVICE void add_up(float4 *at, int64_t step, int n)
{
    constexpr int AT_ONCE = 8;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    for (int s = 0; s < n; s += AT_ONCE, at += AT_ONCE * step) {
        float4 x[AT_ONCE];

        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (s + i < n)
                x[i] = at[i * step];
        #pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (s + i < n) {
                sum = make_float4(sum.x + x[i].x, sum.y + x[i].y, sum.z + x[i].z, sum.w + x[i].w);
                at[i * step] = sum;
            }
    }
}

// S += B^T X of chunk n; of all columns, panel `columns` of X.
template <int STAGES, class MEM>
DEVICE void add_rows(int n, MEM &mem, group_state &my, int columns = 0)
{
    const int stage = n % STAGES;

    device_barrier_wait(&mem.full[stage], n / STAGES & 1);
    if constexpr (NORMALIZES)
        add_sums(mem.of, stage, my.z);
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++) {
        float more[NT][4];

        begin_state(mem.b[stage], mem.x[stage], panel, more, columns);
        device_products_wait<0>();
        device_products_hold(more);
        #pragma unroll
        for (int i = 0; i < NT * 4; i++)
            my.s[panel][i / 4][i % 4] += more[i / 4][i % 4];
    }
    device_barrier_arrive(&mem.empty[stage]);
}

// Four numbers of a row.
typedef uint32_t own_four[TYPE == TYPE_F32 ? 4 : 2];

// Times phi' of what they are, or are phi of.
DEVICE void slope_of(const attn_linear_kparams &p, const own_four &word, float (&y)[4])
{
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float x = TYPE == TYPE_F32 ? __uint_as_float(word[i % (sizeof word / 4)])
                                         : number_of(word[i / 2 % (sizeof word / 4)], i % 2);

        if (MAPS)
            y[i] *= linear_slope(p, x);
        else if (linear_has(p, LINEAR_ELU1))
            y[i] *= x > 1.0f ? 1.0f : x;
        else
            y[i] *= x > 0.0f ? 1.0f : 0.0f;
    }
}

DEVICE void store_four(char *to, const float (&y)[4])
{
    if (TYPE == TYPE_F32)
        *(float4 *)to = make_float4(y[0], y[1], y[2], y[3]);
    else
        *(uint2 *)to = make_uint2(device_pair<TYPE>(y[0], y[1]), device_pair<TYPE>(y[2], y[3]));
}

// What the rows of Y are multiplied by.
template <scan WHICH, class NUMBERS>
DEVICE void scale_of(const attn_linear_kparams &p, const NUMBERS &of, int stage, float (&scale)[2])
{
    scale[0] = scale[1] = p.scale;
    if constexpr (NORMALIZES)
        #pragma unroll
        for (int half = 0; half < 2; half++)
            scale[half] = WHICH == GRAD_Q ? of.factors[stage][own_place().row + half * 8] : 1.0f;
}

// The warpgroup's rows of Y, the sum of both, of the chunk that begins with token j.
template <scan WHICH>
DEVICE void write_grads(const attn_linear_kparams &p, const chunk_work &w, int j,
                        const float (&down)[2], const float (&scale)[2],
                        const float (&read)[NT][4], const float (&seen)[NT][4])
{
    const own_place at;
    const tensor_rows to = y_of<WHICH>(p, w);
    const bool maps = WHICH != GRAD_V && linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
    const int first = w.column + at.column * 2, width = width_of(p, WHICH);

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = j + at.row + half * 8;
        const float factor = scale[half] * (down[half] == 1.0f ? 1.0f : power_of_2(HUGE_ROW));
        char *const y = (char *)to.from + row * to.bytes + first * (16 / EACH);

        if (row >= to.rows)
            continue;
        const auto write = [&](int n, const own_four *slope) {
            float four[4];

            #pragma unroll
            for (int i = 0; i < 4; i++)
                four[i] = (read[n * 2 + i / 2][half * 2 + i % 2] +
                           seen[n * 2 + i / 2][half * 2 + i % 2]) * factor;
            if (slope)
                slope_of(p, *slope, four);
            store_four(y + n * 256 / EACH, four);
        };

        if (w.column + COLUMNS <= width && !maps) {
            #pragma unroll
            for (int n = 0; n < NT / 2; n++)
                write(n, nullptr);
            continue;
        }

        const tensor_rows of = slopes_of<WHICH>(p, w);
        const char *const slopes = of.from + row * of.bytes + first * (16 / EACH);
        own_four slope[NT / 2] = {};

        #pragma unroll
        for (int n = 0; n < NT / 2; n++)    // all at once
            if (maps && first + n * 16 < width)
                load_four(slopes + n * 256 / EACH, slope[n]);
        #pragma unroll
        for (int n = 0; n < NT / 2; n++)
            if (first + n * 16 < width)
                write(n, maps ? &slope[n] : nullptr);
    }
}

// dK or dV of keys that no query sees, the group's columns: zeros.
template <scan WHICH> DEVICE void write_zeros(const attn_linear_kparams &p, const chunk_work &w)
{
    constexpr int PIECES = COLUMNS / EACH;
    const bool wanted = p.has & (WHICH == GRAD_K ? LHAS_GRAD_K : LHAS_GRAD_V);
    const tensor_rows to = y_of<WHICH>(p, w);
    const int end = wanted && w.segment == 0 ? linear_length(p, w.b) : 0;

    for (int64_t i = thread_of_group(); i < (int64_t)(end - w.keys) * PIECES; i += 128) {
        const int c = w.column + (int)(i % PIECES) * EACH;

        if (c < width_of(p, WHICH))
            *(float4 *)(to.from + (w.keys + i / PIECES) * to.bytes + c * (16 / EACH)) =
                make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}
