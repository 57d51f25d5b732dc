// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_tile_rows.cuh: what the warpgroups of bwd_wgmma_tiles.cu that have rows of A do
// with a chunk: read them, multiply, write Y.
#pragma once
#include "linear/bwd_wgmma_tile_bring.cuh"

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

// y = A S begins, S turned or not, the sum of PARTS; MORE: y += A S.
template <bool TURNED, int PARTS, bool MORE>
DEVICE void begin_read(const tile &a, const state_tiles *s, float (&y)[DIM / 8][4])
{
    const uint64_t rows = device_tile(device_address(a[0]), TILE * 16);

    if (!MORE)
        device_products_hold(y);
    device_products_begin();
    #pragma unroll
    for (int part = PARTS - 1; part >= 0; part--) {
        const uint64_t from = device_tile(device_address(s[part][0][0]), PANELS * TILE * 16);

        #pragma unroll
        for (int k = 0; k < DIM / 16; k++) {
            const uint64_t at = rows + k / 4 * TILE + k % 4 * 2;
            const bool adds = MORE || part < PARTS - 1 || k > 0;

            if (TURNED)
                device_products_in<TYPE_BF16>(y, at, from + k / 4 * PANELS * TILE + k % 4 * 2,
                                              adds);
            else
                device_products_down(y, at, from + k * 16 * 8, adds);
        }
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
    char *to;
    const char *of;
    int rows;
};

template <scan WHICH>
DEVICE results results_of(const attn_linear_kparams &p, const chunk_work &w)
{
    const tensor_rows to = y_of<WHICH>(p, w);

    return { (char *)to.from, slopes_of<WHICH>(p, w).from, to.rows };
}

// Bytes from row to row of either.
template <scan WHICH> DEVICE int64_t pitch_of(const attn_linear_kparams &p)
{
    return 2 * (WHICH == GRAD_Q   ? p.grad_q_stride_l
                : WHICH == GRAD_K ? p.grad_k_stride_l
                                  : p.grad_v_stride_l);
}

template <scan WHICH> DEVICE int64_t slopes_pitch_of(const attn_linear_kparams &p)
{
    return 2 * (WHICH == GRAD_Q ? p.of_q_stride_l : p.of_k_stride_l);
}

template <scan WHICH> DEVICE bool has_slopes(const attn_linear_kparams &p)
{
    return WHICH != GRAD_V && linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
}

// What phi' is taken of, of the elements of Y that a lane has, two a word: where there are
// registers, fetched some time before they are used; else by way of A's tile.
constexpr bool HOLDS_SLOPES = DIM == 64;

typedef uint32_t own_slopes[HOLDS_SLOPES ? DIM / 16 : 1][4];

// Those of the chunk that begins with token j.
template <scan WHICH>
DEVICE void fetch_slopes(const attn_linear_kparams &p, const results &all, int j, own_slopes &x)
{
    const own_place at;

    if (!has_slopes<WHICH>(p))
        return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = j + at.row + half * 8;
        const char *const from = all.of + row * slopes_pitch_of<WHICH>(p) + at.column * 2;
        const int width = row < all.rows ? width_of(p, WHICH) : 0;

        #pragma unroll
        for (int n = 0; n < DIM / 8; n++)
            x[n / 2 % (sizeof x / 16)][n % 2 * 2 + half] =
                n * 8 < width ? *(const uint32_t *)(from + n * 16) : 0;
    }
}

// The same to the warp's own rows of A's tile, which all have read.
template <scan WHICH>
DEVICE void bring_slopes(const attn_linear_kparams &p, const results &all, int j, tile &to)
{
    constexpr int PIECES = DIM / 8;
    const int lane = device_thread() % 32, piece = lane % PIECES;
    const int first = device_thread() % 128 / 32 * 16 + lane / PIECES;
    const int64_t pitch = slopes_pitch_of<WHICH>(p);
    const int there = piece * 8 < width_of(p, WHICH) ? all.rows - j - first : 0;
    const char *from = all.of + (j + first) * pitch + piece * 16;
    float4 *const rows = to[piece / 8] + first * 8;

    if (!has_slopes<WHICH>(p))
        return;
    #pragma unroll
    for (int i = 0; i < PIECES / 2; i++, from += 32 / PIECES * pitch) {
        const int down = i * (32 / PIECES);

        if (down < there)
            device_copy_part(rows + down * 8 + (piece % 8 ^ ((first + down) & 7)), from, 16);
    }
    device_commit();
    device_copied<0>();
    __syncwarp();
}

enum phi_kind { PHI_NONE, PHI_RELU, PHI_ELU1 };

// y of 16 columns times phi'.
template <phi_kind PHI>
DEVICE void apply_slopes(const uint32_t (&x)[4], float (&left)[4], float (&right)[4])
{
    #pragma unroll
    for (int i = 0; i < 8; i++) {
        const float of = number_of(x[i / 2], i % 2);
        const float below =
            PHI == PHI_ELU1 ? device_exp2(of * 1.44269504088896340736f) : 0.0f;

        (i < 4 ? left : right)[i % 4] *= of > 0.0f ? 1.0f : below;
    }
}

// The warp's 16 rows of Y, times phi', to their places in A's tile.
template <phi_kind PHI>
DEVICE void put_rows(const own_row &mine, const own_slopes &slopes, float (&y)[DIM / 8][4],
                     tile &to)
{
    const device_shared at = device_address(to[0]);

    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t words[4];

        if (PHI != PHI_NONE && HOLDS_SLOPES)
            apply_slopes<PHI>(slopes[k % (sizeof slopes / 16)], y[2 * k], y[2 * k + 1]);
        if (PHI != PHI_NONE && !HOLDS_SLOPES) {
            device_matrices(words, mine.place(at, k));
            apply_slopes<PHI>(words, y[2 * k], y[2 * k + 1]);
        }
        pack(y[2 * k], y[2 * k + 1], words);
        device_put_matrices(mine.place(at, k), words);
    }
    __syncwarp();
}

// Of a normalised problem dQ is divided here, the others by their queries.
template <scan WHICH>
DEVICE void put_rows(const attn_linear_kparams &p, const own_row &mine, const float (&down)[2],
                     const float *factors, const own_slopes &slopes, float (&y)[DIM / 8][4],
                     tile &to)
{
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
    if (!has_slopes<WHICH>(p))
        put_rows<PHI_NONE>(mine, slopes, y, to);
    else if (linear_has(p, LINEAR_ELU1))
        put_rows<PHI_ELU1>(mine, slopes, y, to);
    else
        put_rows<PHI_RELU>(mine, slopes, y, to);
}

// From there to the tensor, 16 bytes at a time, AT_ONCE of them.
template <scan WHICH>
DEVICE void write_tile(const attn_linear_kparams &p, const results &all, int j, const tile &from)
{
    constexpr int PIECES = DIM / 8, AT_ONCE = 4;
    const int lane = device_thread() % 32, piece = lane % PIECES;
    const int first = device_thread() % 128 / 32 * 16 + lane / PIECES;
    const float4 *const rows = from[piece / 8] + first * 8;
    const int64_t pitch = pitch_of<WHICH>(p);
    const int there = piece * 8 < width_of(p, WHICH) ? all.rows - j - first : 0;
    char *to = all.to + (j + first) * pitch + piece * 16;

    #pragma unroll
    for (int i = 0; i < PIECES / 2; i += AT_ONCE) {
        float4 x[AT_ONCE];

        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            const int down = (i + n) * (32 / PIECES);

            x[n] = rows[down * 8 + (piece % 8 ^ ((first + down) & 7))];
        }
        #pragma unroll
        for (int n = 0; n < AT_ONCE; n++, to += 32 / PIECES * pitch)
            if ((i + n) * (32 / PIECES) < there)
                *(float4 *)to = x[n];
    }
}
