// SPDX-License-Identifier: MIT
// linear/wgmma_bf16.cuh: tiles of bf16 in shared memory as products read them, how chunks of rows
// come there, and the state that products are added to. DIM, COLUMNS and KEEPERS, the warpgroups
// that have rows of the state, are the image's.
//
// A tile has 64 rows of 64 numbers (device_tile), of which those past the columns of a group are
// not read. The tensors' own bits are the operands, so rows are copied there as they lie, and
// phi, where there is one, is taken of them in place.
#pragma once
#include "common/hopper.cuh"
#include "linear/chunk.cuh"
#include "linear/phi16.cuh"

constexpr int PANELS = DIM / 64, PANELS_V = ceil_div(COLUMNS, 64), NT = COLUMNS / 8;
constexpr int KEPT = PANELS / KEEPERS;    // panels of the state that a warpgroup has
constexpr int TILE = 64 * 8;              // 16 bytes each

typedef float4 keys[PANELS][TILE];
typedef float4 values[PANELS_V][TILE];
typedef float4 states[PANELS][PANELS_V][TILE];

// A warpgroup's rows of the state; z by its first 64 KEPT threads.
struct kept_state {
    float s[KEPT][NT][4], z;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

DEVICE int thread_of_group() { return (int)threadIdx.x % 128; }

DEVICE int chunks_of(const chunk_work &w) { return ceil_div(w.end - w.first, CHUNK); }

// What a thread has written to shared memory is there for products. Each thread arrives for
// itself: what it wrote or read by ordinary loads and stores is ordered by its own arrival alone.
DEVICE void arrive_written(device_barrier *b)
{
    device_copies_to_products();
    device_barrier_arrive(b);
}

// A thread's part of a chunk's rows of SPAN elements: 16 bytes of every STEP-th row, which lie
// in the same place of eight rows.
template <int SPAN> struct part_of_rows {
    static constexpr int ACROSS = SPAN / 8, STEP = 128 / ACROSS, COUNT = CHUNK / STEP;

    static __device__ __forceinline__ int row() { return thread_of_group() / ACROSS; }
    static __device__ __forceinline__ int column() { return thread_of_group() % ACROSS * 8; }
    static __device__ __forceinline__ int place()
    {
        const int c = column() / 8;

        return c / 8 * TILE + row() * 8 + (c % 8 ^ (row() & 7));
    }
};

// Rows of a tensor, from where a thread's first 16 bytes lie.
struct row_source {
    const char *from;
    int64_t bytes;    // from row to row
    bool inside;      // whether the thread's columns are the tensor's
};

// The next chunk of them: those below `rows`; the others become 0 and are not read.
template <int SPAN> DEVICE void copy_rows(row_source &x, int rows, float4 *tiles)
{
    typedef part_of_rows<SPAN> part;
    float4 *const to = tiles + part::place();

    #pragma unroll
    for (int i = 0; i < part::COUNT; i++) {
        const bool there = x.inside && part::row() + i * part::STEP < rows;

        device_copy<16>((float *)(to + i * part::STEP * 8), x.from, there);
        x.from += there ? part::STEP * x.bytes : 0;
    }
}

template <bool ELU1> DEVICE void take_phi(float4 &x)
{
    x.x = __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(x.x)));
    x.y = __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(x.y)));
    x.z = __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(x.z)));
    x.w = __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(x.w)));
}

DEVICE void add_numbers(const float4 &x, float (&all)[8])
{
    const float word[4] = { x.x, x.y, x.z, x.w };

    #pragma unroll
    for (int i = 0; i < 4; i++) {
        all[2 * i] += f32_of_low(__float_as_uint(word[i]));
        all[2 * i + 1] += f32_of_high(__float_as_uint(word[i]));
    }
}

// phi of the keys that this thread has copied, those below `rows`: zeros past them stay; and the
// sums of the warp's, if they are wanted.
DEVICE void take_keys(const attn_linear_kparams &p, float4 *tiles, int rows, float (&sums)[4][DIM])
{
    typedef part_of_rows<DIM> part;
    float4 *const at = tiles + part::place();
    const int here = part::column() < p.d ? rows - part::row() : 0;
    float all[8] = {};

    #pragma unroll 4
    for (int i = 0; i < part::COUNT; i++) {
        float4 x = at[i * part::STEP * 8];

        if (linear_has(p, LINEAR_ELU1))
            take_phi<true>(x);
        else if (linear_has(p, LINEAR_RELU))
            take_phi<false>(x);
        if (i * part::STEP < here) {
            at[i * part::STEP * 8] = x;
            add_numbers(x, all);
        }
    }
    if (!linear_has(p, LINEAR_NORMALIZE))
        return;
    #pragma unroll
    for (int apart = part::ACROSS; apart < 32; apart *= 2)    // a warp has some rows at a time
        #pragma unroll
        for (int n = 0; n < 8; n++)
            all[n] += __shfl_xor_sync(0xffffffffu, all[n], apart);
    if (threadIdx.x % 32 < part::ACROSS)
        #pragma unroll
        for (int n = 0; n < 8; n++)
            sums[thread_of_group() / 32][part::column() + n] = all[n];
}

#define ROW_SOURCE(name, head, span, left, width)                                          \
    {                                                                                     \
        (const char *)p.name + 2 * (LINEAR_AT(p, name, w.b, head,                          \
                                              (int64_t)w.first + part_of_rows<span>::row(), \
                                              0) + (left) + part_of_rows<span>::column()), \
            2 * p.name##_stride_l, (left) + part_of_rows<span>::column() < (width)        \
    }

DEVICE void copy_queries(row_source &x, int rows, float4 *q) { copy_rows<DIM>(x, rows, q); }

// A stage without queries.
DEVICE void copy_queries(row_source &, int, int) {}

// By the warpgroup that brings: DEPTH chunks are on their way.
template <int STAGES, int DEPTH, class MEM, class QUERIES_AT>
DEVICE void bring_chunks(const attn_linear_kparams &p, const chunk_work &w, MEM &mem,
                         const QUERIES_AT &queries_at)
{
    const int chunks = chunks_of(w), keys_end = min(w.keys, w.end);
    const bool takes = linear_has(p, LINEAR_ELU1 | LINEAR_RELU | LINEAR_NORMALIZE);
    row_source k = ROW_SOURCE(k, w.kvh, DIM, 0, p.d);
    row_source v = ROW_SOURCE(v, w.kvh, COLUMNS, w.column, p.dv);
    row_source q = ROW_SOURCE(q, w.h, DIM, 0, p.d);

    const auto copy = [&](int n) {
        const int stage = n % STAGES, j = w.first + n * CHUNK;

        if (n < chunks) {
            device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
            copy_rows<DIM>(k, keys_end - j, mem.k[stage][0]);
            copy_rows<COLUMNS>(v, keys_end - j, mem.v[stage][0]);
            copy_queries(q, w.end - j, queries_at(stage));
        }
        device_commit();
    };

    #pragma unroll 1
    for (int n = 0; n < DEPTH; n++)
        copy(n);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int stage = n % STAGES;

        device_copied<DEPTH - 1>();
        if (takes)
            take_keys(p, mem.k[stage][0], keys_end - w.first - n * CHUNK, mem.sums[stage]);
        arrive_written(&mem.full[stage]);
        copy(n + DEPTH);
    }
}

// The first row of 16 that a warp has of a warpgroup's 64, and what a lane has there of results.
DEVICE int row_of_warp() { return thread_of_group() / 32 * 16; }

// Where a lane finds or puts its part of 8 x 8 matrices of the warp's rows of a tile: of columns
// 16 m and on at this ^ 32 m (device_matrices, device_put_matrices).
DEVICE device_shared matrices_at(const float4 *tile)
{
    const int lane = threadIdx.x % 32, row = row_of_warp() + lane % 16;

    return device_address(tile + row * 8) + (((lane / 16) ^ (row & 7)) * 16);
}

// Two column tiles of results as a first operand, or as four matrices; their rows times `factor`.
DEVICE void pack(const float (&left)[4], const float (&right)[4], const float (&factor)[2],
                 uint32_t (&x)[4])
{
    x[0] = device_pair<TYPE>(left[0] * factor[0], left[1] * factor[0]);
    x[1] = device_pair<TYPE>(left[2] * factor[1], left[3] * factor[1]);
    x[2] = device_pair<TYPE>(right[0] * factor[0], right[1] * factor[0]);
    x[3] = device_pair<TYPE>(right[2] * factor[1], right[3] * factor[1]);
}

// The state in the type, for the warpgroups with queries.
DEVICE void share_state(const kept_state &my, float4 (*s)[PANELS_V][TILE])
{
    #pragma unroll
    for (int panel = 0; panel < KEPT; panel++)
        #pragma unroll
        for (int m = 0; m < NT / 2; m++) {
            uint32_t x[4];

            pack(my.s[panel][2 * m], my.s[panel][2 * m + 1], { 1.0f, 1.0f }, x);
            device_put_matrices(matrices_at(s[panel][m / 4]) ^ (m % 4 * 32), x);
        }
}

// S += K^T V of a chunk, from panel `first` of K on, and z.
template <int STAGES, class MEM>
DEVICE void add_chunk(const attn_linear_kparams &p, int n, int first, MEM &mem, kept_state &my)
{
    const int stage = n % STAGES, t = thread_of_group();
    const uint64_t v = device_tile(device_address(mem.v[stage][0]), TILE * 16);

    device_barrier_wait(&mem.full[stage], n / STAGES & 1);
    #pragma unroll
    for (int panel = 0; panel < KEPT; panel++)
        device_products_hold(my.s[panel]);
    device_products_begin();
    #pragma unroll
    for (int panel = 0; panel < KEPT; panel++) {
        const uint64_t k = device_tile(device_address(mem.k[stage][first + panel]), TILE * 16);

        #pragma unroll
        for (int i = 0; i < CHUNK / 16; i++)
            device_products_turned<TYPE_BF16>(my.s[panel], k + i * 16 * 8, v + i * 16 * 8, 1);
    }
    device_products_commit();
    if (linear_has(p, LINEAR_NORMALIZE) && t < 64 * KEPT) {
        const auto &sums = mem.sums[stage];
        const int e = first * 64 + t;

        my.z += sums[0][e] + sums[1][e] + (sums[2][e] + sums[3][e]);
    }
    device_products_wait<0>();
    #pragma unroll
    for (int panel = 0; panel < KEPT; panel++)
        device_products_hold(my.s[panel]);
    device_barrier_arrive(&mem.empty[stage]);
}

// Calls with pairs of numbers of the state, their row, and the first one's column in the tensor,
// where there is such a pair: 8 divides Dv.
template <class STATE, class CALL>
DEVICE void each_pair(const attn_linear_kparams &p, const chunk_work &w, int first, STATE &my,
                      const CALL &call)
{
    const int lane = threadIdx.x % 32, row = first * 64 + row_of_warp() + lane / 4;
    const int column = w.column + lane % 4 * 2;

    #pragma unroll
    for (int i = 0; i < KEPT * NT * 2; i++) {
        const int panel = i / (NT * 2), n = i / 2 % NT, half = i % 2;
        const int r = row + panel * 64 + half * 8, c = column + n * 8;

        if (r < p.d && c < p.dv)
            call(my.s[panel][n][half * 2], my.s[panel][n][half * 2 + 1], r, c);
    }
}

// Whether a thread has a row of z.
DEVICE bool has_z(const attn_linear_kparams &p, int first)
{
    return linear_has(p, LINEAR_NORMALIZE) && thread_of_group() < 64 * KEPT &&
           first * 64 + thread_of_group() < p.d;
}

DEVICE void add_slot(const attn_linear_kparams &p, const chunk_work &w, int first,
                     const float *slot, kept_state &my)
{
    each_pair(p, w, first, my, [&](float &x, float &y, int row, int column) {
        const float2 from = *(const float2 *)(slot + (int64_t)row * p.dv + column);

        x += from.x;
        y += from.y;
    });
    if (has_z(p, first))
        my.z += slot[(int64_t)p.d * p.dv + first * 64 + thread_of_group()];
}

DEVICE void store_slot(const attn_linear_kparams &p, const chunk_work &w, int first, float *slot,
                       const kept_state &my)
{
    each_pair(p, w, first, my, [&](float x, float y, int row, int column) {
        *(float2 *)(slot + (int64_t)row * p.dv + column) = make_float2(x, y);
    });
    if (has_z(p, first) && w.column == 0)
        slot[(int64_t)p.d * p.dv + first * 64 + thread_of_group()] = my.z;
}

// S and z as they come out.
DEVICE void put_state_out(const attn_linear_kparams &p, const chunk_work &w, int first,
                          const kept_state &my)
{
    if (!writes_state(p, w))
        return;
    if (p.want_state)
        each_pair(p, w, first, my, [&](float x, float y, int row, int column) {
            float *const to = p.state_out + LINEAR_AT(p, state_out, w.b, w.kvh, (int64_t)row,
                                                      (int64_t)column);

            to[0] = x;
            to[p.state_out_stride_d] = y;
        });
    if (p.want_z && has_z(p, first) && w.column == 0)
        p.z_out[LINEAR_AT(p, z_out, w.b, w.kvh, (int64_t)(first * 64 + thread_of_group()), 0)] =
            my.z;
}

#endif
