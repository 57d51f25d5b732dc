// SPDX-License-Identifier: MIT
// linear/bwd_halves.cuh: tiles and products of f32 numbers as sums of two of f16 (halves.cuh),
// where the image has those of three of bf16 (wgmma.cuh), too: half as many products, and a third
// less shared memory. Who scales numbers undoes it in f32.
#pragma once
#include "linear/wgmma.cuh"

typedef float4 half_values[2][TILE];
typedef float4 half_keys[2][PANELS][TILE];

// The exponent of a number that is not negative: of 0 too one that scales by a usual number.
DEVICE int exponent_of_top(float top)
{
    return top == 0.0f ? HALF_TOP : (int)(__float_as_uint(top) >> 23) - 127;
}

// Multiplied by this, a number of that exponent is as above.
DEVICE float scale_to_top(int exponent) { return power_of_2(HALF_TOP - exponent); }

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Rows as first operands, as `operands`.
template <int N> struct half_operands {
    uint32_t x[2][N][4];
};

// Of rows that are multiplied by `by`.
template <int N>
DEVICE void make_halves(const float (&c)[2 * N][4], const float (&by)[2], half_operands<N> &a)
{
    #pragma unroll
    for (int n = 0; n < N; n++)
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *const from = &c[2 * n + i / 2][i % 2 * 2];
            uint32_t part[2];

            split_halves(from[0] * by[i % 2], from[1] * by[i % 2], part);
            a.x[0][n][i] = part[0], a.x[1][n][i] = part[1];
        }
}

// As begin_products().
template <bool ACROSS, int N, int COUNT>
DEVICE void begin_halves(const half_operands<COUNT> &a, const float4 *b, int tiles,
                         float (&c)[N][4])
{
    const uint64_t tile = device_tile(device_address(b), TILE * 16);

    device_products_hold(c);
    device_products_begin();
    each_product<2, 2>([&](int x, int y, bool first) {
        #pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const uint64_t from = tile + y * tiles * TILE +
                                  (ACROSS ? n / 4 * TILE + n % 4 * 2 : n * 16 * 8);

            if (ACROSS)
                device_products_by<TYPE_F16>(c, a.x[x][n], from, !first || n > 0);
            else
                device_products_along<TYPE_F16>(c, a.x[x][n], from, !first || n > 0);
        }
    });
    device_products_commit();
}

// As begin_state().
template <class VALUES>
DEVICE void begin_state_halves(const half_keys &k, const VALUES &v, int panel, float (&c)[NT][4],
                               int columns = 0)
{
    constexpr int PART = sizeof v[0] / 16;
    const uint64_t a = device_tile(device_address(k[0][panel]), TILE * 16);
    const uint64_t b = device_tile(device_address(v[0]) + columns * TILE * 16, TILE * 16);

    device_products_hold(c);
    device_products_begin();
    each_product<2, 2>([&](int x, int y, bool first) {
        #pragma unroll
        for (int n = 0; n < STEPS; n++)
            device_products_turned<TYPE_F16>(c, a + x * PANELS * TILE + n * 16 * 8,
                                             b + y * PART + n * 16 * 8, !first || n > 0);
    });
    device_products_commit();
}

#endif
