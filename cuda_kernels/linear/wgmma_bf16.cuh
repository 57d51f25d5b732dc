// SPDX-License-Identifier: MIT
// linear/wgmma_bf16.cuh: tiles of bf16 in shared memory as products read them, where chunks of rows
// lie there, and the state that products are added to. DIM, COLUMNS and KEEPERS, the warpgroups
// that have rows of the state, are the image's.
//
// A tile has 64 rows of 64 numbers (device_tile), of which those past the columns of a group are
// not read. The tensors' own bits are the operands (wgmma_bf16_bring.cuh); phi, where there is
// one, is taken in place.
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

typedef float4 ones[16 * 8];    // 16 rows of a tile, each number 1

constexpr int KEPT_TILES = KEPT * (NT + 1);    // of 64 x 8, with z's

// A warpgroup's rows of the state; z in each of eight columns.
struct kept_state {
    static constexpr int TILES = KEPT * NT, AT_ONCE = KEPT > 1 ? 4 : 8;
    static constexpr int SLOTS_AT_ONCE = TILES > 8 ? 1 : 2;
    float s[KEPT][NT][4], z[KEPT][1][4];

    // What a thread has of tile i, or, behind them, of z: two columns of two rows.
    static __device__ __forceinline__ int row(int keeper, int i, int half)
    {
        const int panel = i < TILES ? i / NT : i - TILES, thread = threadIdx.x % 128;

        return (keeper * KEPT + panel) * 64 + thread / 32 * 16 + thread % 32 / 4 + half * 8;
    }

    static __device__ __forceinline__ int column(int i, int odd)
    {
        return i < TILES ? i % NT * 8 + threadIdx.x % 4 * 2 + odd : 0;
    }

    __device__ __forceinline__ float4 tile(int i) const
    {
        const float (&x)[4] = i < TILES ? s[i / NT % KEPT][i % NT] : z[i % KEPT][0];

        return make_float4(x[0], x[1], x[2], x[3]);
    }

    __device__ __forceinline__ void add(int i, const float4 &y)
    {
        float (&x)[4] = i < TILES ? s[i / NT % KEPT][i % NT] : z[i % KEPT][0];

        x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
    }
};

#include "linear/wgmma_relay.cuh"

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

// By all threads of a group, before the barriers are ready.
DEVICE void fill_ones(ones &one, int threads)
{
    const float two = __uint_as_float(0x3f803f80u);

    for (int i = threadIdx.x; i < 16 * 8; i += threads)
        one[i] = make_float4(two, two, two, two);
    device_copies_to_products();
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

template <bool ELU1> DEVICE void take_phi(float4 &x)
{
    x.x = __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(x.x)));
    x.y = __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(x.y)));
    x.z = __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(x.z)));
    x.w = __uint_as_float(phi_of_pair<ELU1>(__float_as_uint(x.w)));
}

// phi in place, of a thread's part of a chunk's rows of SPAN elements, those below `rows`.
template <int SPAN>
DEVICE void take_rows(const attn_linear_kparams &p, float4 *tiles, int rows)
{
    typedef part_of_rows<SPAN> part;
    float4 *const at = tiles + part::place();
    const int here = rows - part::row();

    #pragma unroll 1
    for (int from = 0; from < part::COUNT; from += 4) {    // without branches between
        float4 x[4];

        #pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = at[(from + i) * part::STEP * 8];
        if (linear_has(p, LINEAR_ELU1))
            #pragma unroll
            for (int i = 0; i < 4; i++)
                take_phi<true>(x[i]);
        else
            #pragma unroll
            for (int i = 0; i < 4; i++)
                take_phi<false>(x[i]);
        #pragma unroll
        for (int i = 0; i < 4; i++)
            if ((from + i) * part::STEP < here)
                at[(from + i) * part::STEP * 8] = x[i];
    }
}

DEVICE bool has_phi(const attn_linear_kparams &p)
{
    return linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
}

// c += K^T x of a chunk, from panel `first` of K on; x has its rows along the depth, STEP from
// sixteen to the next.
template <int STEP, int N>
DEVICE void add_products_of(const keys &k, int first, uint64_t x, float (&c)[KEPT][N][4])
{
    #pragma unroll
    for (int panel = 0; panel < KEPT; panel++)
        device_products_hold(c[panel]);
    device_products_begin();
    #pragma unroll
    for (int panel = 0; panel < KEPT; panel++) {
        const uint64_t rows = device_tile(device_address(k[first + panel]), TILE * 16);

        #pragma unroll
        for (int i = 0; i < CHUNK / 16; i++)
            device_products_turned<TYPE_BF16>(c[panel], rows + i * 16 * 8, x + i * STEP, 1);
    }
    device_products_commit();
    device_products_wait<0>();
    #pragma unroll
    for (int panel = 0; panel < KEPT; panel++)
        device_products_hold(c[panel]);
}

// By a keeper, from panel `first` on: S += K^T V of a chunk that is brought, and z += K^T 1.
// Arrives for others, too: `times` in all.
template <int STAGES, class MEM>
DEVICE void add_chunk(const attn_linear_kparams &p, int n, int first, int times, MEM &mem,
                      kept_state &my)
{
    const int stage = n % STAGES;

    device_barrier_wait(&mem.full[stage], n / STAGES & 1);
    add_products_of<16 * 8>(mem.k[stage], first,
                            device_tile(device_address(mem.v[stage][0]), TILE * 16), my.s);
    if (linear_has(p, LINEAR_NORMALIZE))
        add_products_of<0>(mem.k[stage], first, device_tile(device_address(mem.one), TILE * 16),
                           my.z);
    device_barrier_arrive(&mem.empty[stage], times);
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

// Calls with each number of z that a thread answers for, and its row.
template <class STATE, class CALL> DEVICE void each_z(int first, STATE &my, const CALL &call)
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int i = 0; i < KEPT * 2; i++)
        if (lane % 4 == 0)
            call(my.z[i / 2][0][i % 2 * 2],
                 (first + i / 2) * 64 + row_of_warp() + lane / 4 + i % 2 * 8);
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
    if (!writes_z<kept_state>(p, w, first / KEPT))
        return;
    each_z(first, my, [&](float x, int row) {
        if (row < p.d)
            p.z_out[LINEAR_AT(p, z_out, w.b, w.kvh, (int64_t)row, 0)] = x;
    });
}

#endif
