// SPDX-License-Identifier: MIT
// linear/wgmma_walk.cuh: what the warpgroups of fwd_wgmma.cu do with a chunk.
//
// Results, and Q in registers, lie as wgmma has them: of its 16 rows a lane has rows lane / 4
// (elements 0 and 1) and that + 8 (2 and 3), columns 8 n + 2 (lane % 4) and the next in tile n.
#pragma once
#include "linear/wgmma_bring.cuh"

// Of a warpgroup; z by its first DIM threads.
struct group_state {
    static constexpr int TILES = PANELS * NT, SLOTS_AT_ONCE = 1;
    static constexpr int AT_ONCE = TYPE != TYPE_F32 && DIM > 64 ? 4 : 8;
    float s[PANELS][NT][4], z;

    // What a thread has of tile i, of 64 rows and 8 columns, or, behind them, of z: two columns of
    // two rows.
    static __device__ __forceinline__ int row(int, int i, int half)
    {
        const int thread = threadIdx.x % 128, row = thread / 32 * 16 + thread % 32 / 4 + half * 8;

        return i < TILES ? i / NT * 64 + column_at(row) : half ? DIM : thread;
    }

    static __device__ __forceinline__ int column(int i, int odd)
    {
        return i < TILES ? i % NT * 8 + threadIdx.x % 4 * 2 + odd : 0;
    }

    __device__ __forceinline__ float4 tile(int i) const
    {
        const float (&x)[4] = s[i / NT % PANELS][i % NT];

        return i < TILES ? make_float4(x[0], x[1], x[2], x[3]) : make_float4(z, 0.0f, 0.0f, 0.0f);
    }

    __device__ __forceinline__ void add(int i, const float4 &y)
    {
        float (&x)[4] = s[i / NT % PANELS][i % NT];

        if (i < TILES)
            x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
        else
            z += y.x;
    }
};

DEVICE int thread_of_group() { return device_thread() & 127; }    // found anew

// The first row and column that a thread has in a tile of 64 rows, found anew.
struct own_place {
    int row, column;

    __device__ __forceinline__ own_place()
    {
        const int thread = device_thread();

        row = thread % 128 / 32 * 16 + thread % 32 / 4;
        column = thread % 4 * 2;
    }
};

// The state, for the warpgroups with queries: rows along the depth.
DEVICE void share_state(const group_state &my, states &s)
{
    const own_place mine;
    char *const first = (char *)s[0][0] + mine.row * 128 + mine.column * 2;

    #pragma unroll
    for (int i = 0; i < PANELS * NT * 2; i++) {
        const int panel = i / (NT * 2), n = i / 2 % NT, half = i % 2;
        char *const at = first + (panel * 64 + half * 8) * 128 + (n ^ (mine.row & 7)) * 16;
        uint32_t part[STATE_PARTS];

        split(my.s[panel][n][half * 2], my.s[panel][n][half * 2 + 1], part);
        #pragma unroll
        for (int x = 0; x < STATE_PARTS; x++)
            *(uint32_t *)(at + x * PANELS * TILE * 16) = part[x];
    }
}

// The warpgroup's queries of a chunk as they come: of rows `half` and columns 16 n a lane has
// four in a row.
struct queries {
    uint32_t word[DIM / 16][2][TYPE == TYPE_F32 ? 4 : 2];
};

// Four elements.
DEVICE void load_four(const char *from, uint32_t (&to)[4])
{
    const float4 y = *(const float4 *)from;

    to[0] = __float_as_uint(y.x), to[1] = __float_as_uint(y.y);
    to[2] = __float_as_uint(y.z), to[3] = __float_as_uint(y.w);
}

DEVICE void load_four(const char *from, uint32_t (&to)[2])
{
    const uint2 y = *(const uint2 *)from;

    to[0] = y.x, to[1] = y.y;
}

// Those of the chunk that begins with token j; zeros past the tensor.
DEVICE void fetch_queries(const attn_linear_kparams &p, const chunk_work &w, int j, queries &x)
{
    const own_place at;
    const char *const from = at_element(p.q, LINEAR_AT(p, q, w.b, w.h, (int64_t)j + at.row, 0) +
                                                 at.column * 2);
    const int64_t below = 8 * p.q_stride_l * (16 / EACH);

    if (j + CHUNK <= w.end && p.d == DIM) {
        #pragma unroll
        for (int i = 0; i < DIM / 8; i++)
            load_four(from + i % 2 * below + i / 2 * 256 / EACH, x.word[i / 2][i % 2]);
        return;
    }
    #pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        auto &to = x.word[i / 2][i % 2];

        #pragma unroll
        for (int n = 0; n < (int)(sizeof to / 4); n++)
            to[n] = 0;
        if (j + at.row + i % 2 * 8 < w.end && at.column * 2 + i / 2 * 16 < p.d)
            load_four(from + i % 2 * below + i / 2 * 256 / EACH, to);
    }
}

// The same through shared memory, where a warp has its own rows: those of the chunk that begins
// with token j are asked for, and taken from there when they have come.
constexpr int QUERY_ROW = DIM / EACH;    // 16 bytes each

// Exchanged, so that lanes that read four elements of their rows find them in different banks.
DEVICE int place_of_query(int row, int c)
{
    return row * QUERY_ROW + (c ^ (TYPE == TYPE_F32 ? row % 2 * 4 : row % 4 * 2));
}

DEVICE void ask_queries(const attn_linear_kparams &p, const chunk_work &w, int j, float4 *there)
{
    constexpr int STEP = 32 / QUERY_ROW;    // rows
    const int lane = threadIdx.x % 32, c = lane % QUERY_ROW;
    const int row = threadIdx.x % 128 / 32 * 16 + lane / QUERY_ROW;
    const int rows = c * EACH < p.d ? w.end - j - row : 0;
    const char *from = at_element(p.q, LINEAR_AT(p, q, w.b, w.h, (int64_t)j + row, 0) + c * EACH);

    __syncwarp();    // the rows before have been taken
    #pragma unroll
    for (int i = 0; i < 16 / STEP; i++) {
        const bool inside = i * STEP < rows;

        device_copy<16>((float *)(there + place_of_query(row + i * STEP, c)), from, inside);
        from += inside ? STEP * p.q_stride_l * (16 / EACH) : 0;
    }
    device_commit();
}

DEVICE void await_queries(const float4 *there, queries &x)
{
    const own_place at;

    device_copied<0>();
    __syncwarp();
    #pragma unroll
    for (int i = 0; i < DIM / 8; i++) {
        const int c = at.column * 2 + i / 2 * 16, row = at.row + i % 2 * 8;

        load_four((const char *)(there + place_of_query(row, c / EACH)) + c % EACH * (16 / EACH),
                  x.word[i / 2][i % 2]);
    }
}

// phi of them, if they have one, as results lie; and of a row with huge numbers what it is to be
// multiplied by, so that no sum overflows, which is done here; else 1.
template <bool MAPS = true>
DEVICE void take_queries(const attn_linear_kparams &p, const queries &from,
                         float (&x)[DIM / 8][4], float (&down)[2])
{
    const own_place at;
    uint32_t top[2] = { 0, 0 };

    #pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++) {
        const int e = i / 4 % 2 * 2 + i % 2;
        const uint32_t word = from.word[i / 8][i % 4 / 2][TYPE == TYPE_F32 ? e : e / 2];

        x[i / 4][i % 4] = TYPE == TYPE_F32 ? __uint_as_float(word) : number_of(word, e % 2);
    }

    if (MAPS && linear_has(p, LINEAR_ELU1 | LINEAR_RELU)) {
        phi_of(p, x);
        #pragma unroll
        for (int i = 0; i < DIM / 8 * 4; i++)
            x[i / 4][i % 4] = at.column * 2 + i / 8 * 16 < p.d ? x[i / 4][i % 4] : 0.0f;
    }
    #pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++)
        top[i % 4 / 2] = max(top[i % 4 / 2], __float_as_uint(x[i / 4][i % 4]) & 0x7fffffffu);
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = max(top[half], __shfl_xor_sync(0xffffffffu, top[half], 1));
        top[half] = max(top[half], __shfl_xor_sync(0xffffffffu, top[half], 2));
        down[half] = top[half] >= 0x50000000u ? power_of_2(-HUGE_ROW) : 1.0f;    // 2^33
    }
    #pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++)
        x[i / 4][i % 4] *= down[i % 4 / 2];
}

// den += q z, of a lane's columns.
DEVICE void add_products(const float (&q)[DIM / 8][4], const float *z, float (&den)[2])
{
    z += own_place().column * 2;
    #pragma unroll
    for (int i = 0; i < DIM / 8 * 4; i++)
        den[i % 4 / 2] += q[i / 4][i % 4] * z[i / 8 * 16 + i / 4 % 2 * 2 + i % 2];
}

// P = tril(Q K^T), backwards in time the other triangle; den += its rows, of a lane's columns.
template <bool BACK = false>
DEVICE void mask_pairs(float (&pairs)[CHUNK / 8][4], float (&den)[2])
{
    const own_place at;
    const int before = at.row - at.column;

    #pragma unroll
    for (int i = 0; i < CHUNK / 8 * 4; i++) {
        float &x = pairs[i / 4][i % 4];

        const int to = i / 4 * 8 + i % 2 - i % 4 / 2 * 8;

        x = (BACK ? to >= before : to <= before) ? x : 0.0f;
        den[i % 4 / 2] += x;
    }
}

// The warpgroup's rows of O and den, of the chunk that begins with token j.
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j,
                       const float (&down)[2], const float (&dens)[2], float (&o)[NT][4])
{
    const own_place at;
    char *const to = (char *)at_element(p.o, LINEAR_AT(p, o, w.b, w.h, (int64_t)j + at.row, 0) +
                                                 w.column + at.column);

    lift_rows(p, down, o);
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = j + at.row + half * 8;
        float factor = unit_of_row(p, down[half]);

        if (linear_has(p, LINEAR_NORMALIZE)) {
            float den = dens[half];

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            den = p.sum_scale * den + p.sum_eps * down[half];
            if (p.want_den && w.column + at.column == 0 && row < p.len_q)
                p.den[LINEAR_AT(p, den, w.b, w.h, (int64_t)row, 0)] =
                    in_units(p.sum_unit, den, 1.0f / down[half]);
            factor = den == 0.0f ? 0.0f : p.sum_scale / den;
        }
        if (!p.want_o || row >= w.end)
            continue;
        const auto write = [&](int n) {
            char *const y = to + (half * 8 * p.o_stride_l + n * 8) * (16 / EACH);
            const float a = o[n][half * 2] * factor, b = o[n][half * 2 + 1] * factor;

            if (TYPE == TYPE_F32)
                *(float2 *)y = make_float2(a, b);
            else
                *(uint32_t *)y = device_pair<TYPE>(a, b);
        };

        if (w.column + COLUMNS <= p.dv) {
            #pragma unroll
            for (int n = 0; n < NT; n++)
                write(n);
            continue;
        }
        #pragma unroll
        for (int n = 0; n < NT; n++)
            if (w.column + at.column + n * 8 < p.dv)
                write(n);
    }
}
