// SPDX-License-Identifier: MIT
// linear/wgmma.cuh: f32 numbers as sums of three of bf16, tiles of such parts in shared memory,
// and the products of fwd_wgmma.cu by warpgroups. DIM and COLUMNS are the image's.
//
// x = high + mid + low exactly: each part is what is left with its lower 16 bits cut off, 8 bits
// of 24, and has the exponents that f32 has, so nothing is scaled. Of the nine products of two
// such sums six are taken; the others are below 2^-21 of the product, 2^-23 in the mean. Tensor
// cores cut their sums off instead of rounding them, so the large products of a sum come last,
// and no sum goes over more than a chunk: those of chunks are added in f32.
//
// A tile has 64 rows of 64 numbers of bf16, as products read them (device_tile); of narrower
// ones the rest is not read. Rows of more columns are panels of such tiles.
#pragma once
#include "common/hopper.cuh"
#include "linear/chunk.cuh"

constexpr int PARTS = 3, PANELS = DIM / 64, NT = COLUMNS / 8, STEPS = CHUNK / 16;
constexpr int TILE = 64 * 8;    // 16 bytes each

typedef float4 parts[PARTS][TILE];
typedef float4 panels[PARTS][PANELS][TILE];

// Parts i of six products, the smallest first: 2 0, 1 1, 0 2, 1 0, 0 1, 0 0.
constexpr int PRODUCTS_OF_PARTS = 6;
DEVICE constexpr int first_part(int i) { return 0x001012 >> 4 * i & 15; }
DEVICE constexpr int second_part(int i) { return 0x010210 >> 4 * i & 15; }

// Two numbers as words of the parts, x in the lower half.
DEVICE void split(float x, float y, uint32_t &high, uint32_t &mid, uint32_t &low)
{
    const auto rest = [](float a) { return a - __uint_as_float(__float_as_uint(a) & 0xffff0000u); };

    high = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
    x = rest(x), y = rest(y);
    mid = __byte_perm(__float_as_uint(x), __float_as_uint(y), 0x7632);
    low = __byte_perm(__float_as_uint(rest(x)), __float_as_uint(rest(y)), 0x7632);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// By a warp.
DEVICE void arrive(device_barrier *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        device_barrier_arrive(b);
}

DEVICE void arrive_written(device_barrier *b)
{
    device_copies_to_products();
    arrive(b);
}

// Rows as first operands in registers: 16 columns of each.
template <int N> struct operands {
    uint32_t x[PARTS][N][4];
};

// From rows as results have them: column tiles 2 n and 2 n + 1 are operand n.
template <int N> DEVICE void make_operands(const float (&c)[2 * N][4], operands<N> &a)
{
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *const from = &c[2 * n + i / 2][i % 2 * 2];

            split(from[0], from[1], a.x[0][n][i], a.x[1][n][i], a.x[2][n][i]);
        }
}

// c = a b begins. B's rows lie along columns of the result (ACROSS), or along the depth.
template <bool ACROSS, int N, int COUNT>
DEVICE void begin_products(const operands<COUNT> &a, const float4 *b, int part_tiles,
                           float (&c)[N][4])
{
    const uint64_t tile = device_tile(device_address(b), TILE * 16);

    device_products_hold(c);
    device_products_begin();
    #pragma unroll
    for (int i = 0; i < PRODUCTS_OF_PARTS; i++)
        #pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const uint64_t from = tile + second_part(i) * part_tiles * TILE +
                                  (ACROSS ? n / 4 * TILE + n % 4 * 2 : n * 16 * 8);

            if (ACROSS)
                device_products_by(c, a.x[first_part(i)][n], from, i + n > 0);
            else
                device_products_along(c, a.x[first_part(i)][n], from, i + n > 0);
        }
    device_products_commit();
}

// c = K^T V of a chunk begins, 64 rows of it.
DEVICE void begin_state(const panels &k, const parts &v, int panel, float (&c)[NT][4])
{
    const uint64_t a = device_tile(device_address(k[0][panel]), TILE * 16);
    const uint64_t b = device_tile(device_address(v[0]), TILE * 16);

    device_products_hold(c);
    device_products_begin();
    #pragma unroll
    for (int i = 0; i < PRODUCTS_OF_PARTS; i++)
        #pragma unroll
        for (int n = 0; n < STEPS; n++)
            device_products_turned<TYPE_BF16>(c, a + first_part(i) * PANELS * TILE + n * 16 * 8,
                                              b + second_part(i) * TILE + n * 16 * 8, i + n > 0);
    device_products_commit();
}

#endif
