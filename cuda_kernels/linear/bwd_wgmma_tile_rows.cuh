// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_tile_rows.cuh: what the warpgroups of bwd_wgmma_tiles.cu that have rows of A do
// with a chunk: read them, multiply, write Y.
#pragma once
#include "linear/bwd_wgmma_tiles.cuh"

// A warpgroup meets at a barrier by number, to which warps come whole.
DEVICE void meet_whole(int number)
{
    __syncwarp();
    device_meet<128>(number);
}

// What rows of A, a warp's of a warpgroup that has all, are multiplied by: one with huge numbers by
// a power of 2, so that no sum overflows, which is done here; else 1.
DEVICE void lower_rows(tile &rows, const own_row &mine, int meeting, float (&down)[2])
{
    const device_shared at = device_address(rows[0]);
    uint32_t huge[2] = { 0, 0 };    // bit 15 or 31

    down[0] = down[1] = 1.0f;
    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t a[4];

        device_matrices(a, mine.place(at, k));
        #pragma unroll
        for (int i = 0; i < 4; i++)    // 0x5000: 2^33
            huge[i % 2] |= (a[i] & 0x7fff7fffu) + 0x30003000u;
    }
    __syncwarp();    // as in meet_whole()
    if (!device_meet_any<128>(meeting, (huge[0] | huge[1]) & 0x80008000u))
        return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t any = huge[half] & 0x80008000u;

        any |= __shfl_xor_sync(0xffffffffu, any, 1);
        any |= __shfl_xor_sync(0xffffffffu, any, 2);
        down[half] = any ? power_of_2(-HUGE_ROW) : 1.0f;
    }
    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t a[4];

        device_matrices(a, mine.place(at, k));
        #pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = device_pair<TYPE_BF16>(number_of(a[i], 0) * down[i % 2],
                                          number_of(a[i], 1) * down[i % 2]);
        device_put_matrices(mine.place(at, k), a);
    }
    device_copies_to_products();
    meet_whole(meeting);
}

// c = A B^T begins.
DEVICE void begin_pairs(const tile &a, const tile &b, float (&c)[CHUNK / 8][4])
{
    const uint64_t rows = device_tile(device_address(a[0]), TILE * 16);
    const uint64_t from = device_tile(device_address(b[0]), TILE * 16);

    device_products_hold(c);
    device_products_begin();
    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        const int at = k / 4 * TILE + k % 4 * 2;

        device_products_in<TYPE_BF16>(c, rows + at, from + at, k > 0);
    }
    device_products_commit();
}

// Whether queries have numbers that are added to pairs.
template <scan WHICH> DEVICE bool is_added(const attn_linear_kparams &p)
{
    return WHICH != GRAD_V && linear_has(p, LINEAR_NORMALIZE);
}

// y += the state's last row, of dQ times the query's number.
template <scan WHICH>
DEVICE void read_last(const float (&last)[DIM], const float *numbers, const float (&down)[2],
                      float (&y)[DIM / 8][4])
{
    const own_place at;
    float weight[2];

    #pragma unroll
    for (int half = 0; half < 2; half++)
        weight[half] = down[half] * (WHICH == GRAD_Q ? numbers[at.row + half * 8] : 1.0f);
    #pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        const float2 x = *(const float2 *)&last[n * 8 + at.column];

        #pragma unroll
        for (int i = 0; i < 4; i++)
            y[n][i] += weight[i / 2] * (i % 2 ? x.y : x.x);
    }
}

// Pairs as first operands.
DEVICE void make_weights(const float (&c)[CHUNK / 8][4], uint32_t (&a)[STEPS][4])
{
    #pragma unroll
    for (int i = 0; i < STEPS; i++)
        pack(c[2 * i], c[2 * i + 1], a[i]);
}

// y = A S begins, S turned or not.
template <bool TURNED>
DEVICE void begin_read(const tile &a, const state_tiles &s, float (&y)[DIM / 8][4])
{
    const uint64_t rows = device_tile(device_address(a[0]), TILE * 16);
    const uint64_t from = device_tile(device_address(s[0][0]), PANELS * TILE * 16);

    device_products_hold(y);
    device_products_begin();
    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        const uint64_t at = rows + k / 4 * TILE + k % 4 * 2;

        if (TURNED)
            device_products_in<TYPE_BF16>(y, at, from + k / 4 * PANELS * TILE + k % 4 * 2, k > 0);
        else
            device_products_down(y, at, from + k * 16 * 8, k > 0);
    }
    device_products_commit();
}

// y += weights X begins.
DEVICE void begin_seen(const uint32_t (&weights)[STEPS][4], const tile &x, float (&y)[DIM / 8][4])
{
    const uint64_t from = device_tile(device_address(x[0]), TILE * 16);

    device_products_begin();
    #pragma unroll
    for (int k = 0; k < STEPS; k++)
        device_products_along(y, weights[k], from + k * 16 * 8, 1);
    device_products_commit();
}

// The rows of Y where they go, and of what phi' multiplies them; found once.
struct results {
    tensor_rows to, of;
    int width;
    bool maps;
};

template <scan WHICH>
DEVICE results results_of(const attn_linear_kparams &p, const chunk_work &w)
{
    return { y_of<WHICH>(p, w), slopes_of<WHICH>(p, w), width_of(p, WHICH),
             WHICH != GRAD_V && linear_has(p, LINEAR_ELU1 | LINEAR_RELU) };
}

// The warp's 16 rows of Y, of the chunk that begins with token j, to their places in A's tile. Of a
// normalised problem dQ is divided here, the others by their queries.
template <scan WHICH>
DEVICE void put_rows(const attn_linear_kparams &p, const results &all, int j, const own_row &mine,
                     const float (&down)[2], const float *factors, float (&y)[DIM / 8][4],
                     tile &to)
{
    const device_shared at = device_address(to[0]);
    float factor[2];

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        float scale = p.scale;

        if (linear_has(p, LINEAR_NORMALIZE))
            scale = WHICH == GRAD_Q ? factors[own_place().row + half * 8] : 1.0f;
        factor[half] = scale * (down[half] == 1.0f ? 1.0f : power_of_2(HUGE_ROW));
    }
    if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f))
        #pragma unroll
        for (int i = 0; i < DIM / 2; i++)
            y[i / 4][i % 4] *= factor[i % 4 / 2];
    if (all.maps) {
        const own_place at;

        #pragma unroll
        for (int i = 0; i < DIM / 4; i++) {
            const int row = j + at.row + i % 2 * 8, column = i / 2 * 8 + at.column;
            float (&pair)[4] = y[i / 2];

            if (row < all.to.rows && column < all.width) {
                const uint32_t x =
                    *(const uint32_t *)(all.of.from + row * all.of.bytes + column * 2);

                pair[i % 2 * 2] *= linear_slope(p, number_of(x, 0));
                pair[i % 2 * 2 + 1] *= linear_slope(p, number_of(x, 1));
            }
        }
    }
    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t words[4];

        pack(y[2 * k], y[2 * k + 1], words);
        device_put_matrices(mine.place(at, k), words);
    }
    __syncwarp();
}

// From there to the tensor, 16 bytes at a time, AT_ONCE of them.
DEVICE void write_tile(const results &all, int j, const tile &from)
{
    constexpr int PIECES = DIM / 8, AT_ONCE = 4;
    const int lane = device_thread() % 32, piece = lane % PIECES;
    const int first = device_thread() % 128 / 32 * 16 + lane / PIECES;
    const float4 *const rows = from[piece / 8] + first * 8;
    char *to = (char *)all.to.from + (int64_t)(j + first) * all.to.bytes + piece * 16;
    const int there = piece * 8 < all.width ? all.to.rows - j - first : 0;

    #pragma unroll
    for (int i = 0; i < PIECES / 2; i += AT_ONCE) {
        float4 x[AT_ONCE];

        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int down = (i + n) * (32 / PIECES);

            x[n] = rows[down * 8 + (piece % 8 ^ ((first + down) & 7))];
        }
        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++, to += 32 / PIECES * all.to.bytes)
            if ((i + n) * (32 / PIECES) < there)
                *(float4 *)to = x[n];
    }
}
