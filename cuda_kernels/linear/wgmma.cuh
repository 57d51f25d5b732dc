// SPDX-License-Identifier: MIT
// linear/wgmma.cuh: numbers as sums of some of bf16, tiles of such parts in shared memory, and the
// products of fwd_wgmma.cu by warpgroups. TYPE, DIM and COLUMNS are the image's.
//
// x = high + mid + low exactly where x is f32 and not below 2^-109: each part is what is left
// with its lower 16 bits cut off, 8 bits of 24, and has the exponents that f32 has, so nothing is
// scaled; of smaller numbers the last parts are below what bf16 holds (2^-133). One of f16 is the
// sum of two, one of bf16 is its own; so many parts have the pairs of queries and keys, too,
// the last of them rounded. The state has two where the type is bf16. Of the products
// of two such sums those are left out that are below what the last part holds; of f32 that is
// 2^-21 of the product, 2^-23 in the mean. Tensor cores cut their sums off instead of rounding
// them, so the large products of a sum come last, and no sum goes over more than a chunk: those of
// chunks are added in f32.
//
// A tile has 64 rows of 64 numbers of bf16, as products read them (device_tile); of narrower
// ones the rest is not read. Rows of more columns are panels of such tiles. The columns of K,
// and so those of Q and the rows of S, stand in another order there (column_at), so that a
// lane that holds Q as a first operand has four in a row.
#pragma once
#include "common/hopper.cuh"
#include "linear/chunk.cuh"

constexpr int PARTS = TYPE == TYPE_F32 ? 3 : TYPE == TYPE_F16 ? 2 : 1;
constexpr int STATE_PARTS = larger(PARTS, 2);
constexpr int PANELS = DIM / 64, NT = COLUMNS / 8, STEPS = CHUNK / 16;
constexpr int TILE = 64 * 8;    // 16 bytes each

typedef float4 values[PARTS][TILE];
typedef float4 keys[PARTS][PANELS][TILE];
typedef float4 states[STATE_PARTS][PANELS][TILE];

// The column that stands at a place: of sixteen, 4 i and 4 i + 1 stand at 2 i, 4 i + 2 and
// 4 i + 3 at 8 + 2 i.
DEVICE int column_at(int place)
{
    return place / 16 * 16 + place / 2 % 4 * 4 + place / 8 % 2 * 2 + place % 2;
}

// Two numbers as words of N parts, x in the lower half; the last is rounded if it is cut.
template <int N> DEVICE void split(float x, float y, uint32_t (&part)[N])
{
    #pragma unroll
    for (int i = 0; i < N; i++) {
        const uint32_t u = __float_as_uint(x), v = __float_as_uint(y);

        if (N < 3 && i == N - 1) {
            part[i] = device_pair<TYPE_BF16>(x, y);
            break;
        }
        part[i] = __byte_perm(u, v, 0x7632);
        x -= __uint_as_float(u & 0xffff0000u);
        y -= __uint_as_float(v & 0xffff0000u);
    }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// What a thread has written to shared memory is there for products. Each thread arrives for
// itself: what it wrote or read by ordinary loads and stores is ordered by its own arrival alone.
DEVICE void arrive_written(device_barrier *b)
{
    device_copies_to_products();
    device_barrier_arrive(b);
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
            uint32_t part[PARTS];

            split(from[0], from[1], part);
            #pragma unroll
            for (int x = 0; x < PARTS; x++)
                a.x[x][n][i] = part[x];
        }
}

// Calls with each pair of parts of a and of b whose product counts, the smallest first, and
// whether it is the first.
template <int A, int B, class CALL> DEVICE void each_product(const CALL &call)
{
    constexpr int LEVELS = larger(A, B);

    #pragma unroll
    for (int level = LEVELS - 1; level >= 0; level--)
        #pragma unroll
        for (int a = A - 1; a >= 0; a--)
            if (level - a >= 0 && level - a < B)
                call(a, level - a, level == LEVELS - 1 && a == A - 1);
}

// c = a b begins. B's rows lie along columns of the result (ACROSS), or along the depth.
template <bool ACROSS, int B, int N, int COUNT>
DEVICE void begin_products(const operands<COUNT> &a, const float4 *b, int tiles, float (&c)[N][4])
{
    const uint64_t tile = device_tile(device_address(b), TILE * 16);

    device_products_hold(c);
    device_products_begin();
    each_product<PARTS, B>([&](int x, int y, bool first) {
        #pragma unroll
        for (int n = 0; n < COUNT; n++) {
            const uint64_t from = tile + y * tiles * TILE +
                                  (ACROSS ? n / 4 * TILE + n % 4 * 2 : n * 16 * 8);

            if (ACROSS)
                device_products_by(c, a.x[x][n], from, !first || n > 0);
            else
                device_products_along(c, a.x[x][n], from, !first || n > 0);
        }
    });
    device_products_commit();
}

// c = K^T V of a chunk begins, 64 rows of it, and 64 columns where V has panels.
template <class VALUES>
DEVICE void begin_state(const keys &k, const VALUES &v, int panel, float (&c)[NT][4],
                        int columns = 0)
{
    constexpr int PART = sizeof v[0] / 16;
    const uint64_t a = device_tile(device_address(k[0][panel]), TILE * 16);
    const uint64_t b = device_tile(device_address(v[0]) + columns * TILE * 16, TILE * 16);

    device_products_hold(c);
    device_products_begin();
    each_product<PARTS, PARTS>([&](int x, int y, bool first) {
        #pragma unroll
        for (int n = 0; n < STEPS; n++)
            device_products_turned<TYPE_BF16>(c, a + x * PANELS * TILE + n * 16 * 8,
                                              b + y * PART + n * 16 * 8, !first || n > 0);
    });
    device_products_commit();
}

#endif
