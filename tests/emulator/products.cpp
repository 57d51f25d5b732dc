// SPDX-License-Identifier: MIT
// emulator/products.cpp: what tensor cores do, and the loads for them: for a whole warp at
// once, so that each operand is widened once and columns are computed side by side. Sums take
// their terms in order, as a lane alone would.
#include "common/device.cuh"

namespace {

void widen(int type, float *to, const uint16_t *from, int n)
{
    if (type == 1)
        for (int i = 0; i < n; i++)
            to[i] = device_f32_of_f16(from[i]);
    else
        for (int i = 0; i < n; i++)
            to[i] = __uint_as_float((uint32_t)from[i] << 16);
}

void put_pair(uint16_t *to, int stride, uint32_t pair)
{
    to[0] = (uint16_t)pair;
    to[stride] = (uint16_t)(pair >> 16);
}

// The 16 x 16 of A that the registers of lane i hold, as device_multiply() of the kernels says.
void put_rows(uint16_t (&rows)[16][16], int lane, const uint32_t *a)
{
    for (int i = 0; i < 4; i++)
        put_pair(&rows[lane / 4 + i % 2 * 8][lane % 4 * 2 + i / 2 * 8], 1, a[i]);
}

struct matrices {
    uint32_t *x;
    const uint32_t *from;
    uintptr_t row;
};

void get_rows(void *const *lanes)
{
    for (int i = 0; i < 32; i++)
        for (int m = 0; m < 4; m++)
            memcpy(&((matrices *)lanes[i])->x[m],
                   (const char *)((matrices *)lanes[m * 8 + i / 4])->row + i % 4 * 4, 4);
}

void get_columns(void *const *lanes)
{
    for (int m = 0; m < 4; m++) {
        uint16_t rows[8][8];

        for (int r = 0; r < 8; r++)
            memcpy(rows[r], (const void *)((matrices *)lanes[m * 8 + r])->row, 16);
        for (int i = 0; i < 32; i++)
            ((matrices *)lanes[i])->x[m] =
                rows[i % 4 * 2][i / 4] | (uint32_t)rows[i % 4 * 2 + 1][i / 4] << 16;
    }
}

void put_matrices(void *const *lanes)
{
    for (int i = 0; i < 32; i++)
        for (int m = 0; m < 4; m++)
            memcpy((char *)((matrices *)lanes[m * 8 + i / 4])->row + i % 4 * 4,
                   &((matrices *)lanes[i])->from[m], 4);
}

struct product {
    float *c;
    const uint32_t *a;
    uint32_t b[2];
};

template <int TYPE> void multiply(void *const *lanes)
{
    uint16_t rows[16][16], columns[16][8];
    float a[16][16], b[16][8], c[16][8];

    for (int i = 0; i < 32; i++) {
        const product &p = *(product *)lanes[i];

        put_rows(rows, i, p.a);
        for (int k = 0; k < 2; k++)
            put_pair(&columns[i % 4 * 2 + k * 8][i / 4], 8, p.b[k]);
        for (int e = 0; e < 4; e++)
            c[i / 4 + e / 2 * 8][i % 4 * 2 + e % 2] = p.c[e];
    }
    widen(TYPE, a[0], rows[0], 256);
    widen(TYPE, b[0], columns[0], 128);
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 8; n++)
                c[r][n] += a[r][k] * b[k][n];
    for (int i = 0; i < 32; i++)
        for (int e = 0; e < 4; e++)
            ((product *)lanes[i])->c[e] = c[i / 4 + e / 2 * 8][i % 4 * 2 + e % 2];
}

// What the hardware takes of a word.
float tf32(uint32_t word)
{
    return __uint_as_float(word & 0xffffe000u);
}

// The hardware's sum of a row is cut off, not rounded.
float cut(double x)
{
    const float f = (float)x;
    const uint32_t u = __float_as_uint(f);

    return fabs((double)f) > fabs(x) && f - f == 0 ? __uint_as_float(u - 1) : f;
}

void multiply_tf32(void *const *lanes)
{
    double a[16][8], b[8][8], c[16][8];

    for (int i = 0; i < 32; i++) {
        const product &p = *(product *)lanes[i];

        for (int e = 0; e < 4; e++) {
            a[i / 4 + e % 2 * 8][i % 4 + e / 2 * 4] = tf32(p.a[e]);
            c[i / 4 + e / 2 * 8][i % 4 * 2 + e % 2] = p.c[e];
        }
        for (int k = 0; k < 2; k++)
            b[i % 4 + k * 4][i / 4] = tf32(p.b[k]);
    }
    for (int r = 0; r < 16; r++)
        for (int k = 0; k < 8; k++)
            for (int n = 0; n < 8; n++)
                c[r][n] += a[r][k] * b[k][n];
    for (int i = 0; i < 32; i++)
        for (int e = 0; e < 4; e++)
            ((product *)lanes[i])->c[e] = cut(c[i / 4 + e / 2 * 8][i % 4 * 2 + e % 2]);
}

struct products {
    int type, n;
    float (*c)[4];
    const uint32_t *a;
    emulated_tile of_a, of_b;
    bool added;
    int warp;    // of the warpgroup
};

enum { MOST_COLUMNS = 256 };

// 8 elements of a tile from (row, column) on, along the row; chunks are exchanged by the
// address.
void chunk_of(uint16_t *to, uint64_t tile, int row, int column)
{
    const uint64_t panel = tile >> 48 << 4, from = tile << 16 >> 12;
    const uint64_t at = from + column / 64 * panel + row / 8 * 1024 + row % 8 * 128 +
                        column % 64 * 2;

    memcpy(to, (const void *)(at ^ (at >> 7 & 7) << 4), 16);
}

// to[row][column], `rows` by `columns` from (row, 0) of the tile on, or (0, row) if it is
// turned.
void get_tile(int type, float *to, int stride, emulated_tile tile, int row, int rows, int columns)
{
    uint16_t chunk[8];
    float wide[8];

    for (int r = 0; r < (tile.turned ? columns : rows); r++)
        for (int c = 0; c < (tile.turned ? rows : columns); c += 8) {
            chunk_of(chunk, tile.at, tile.turned ? r : row + r, tile.turned ? row + c : c);
            widen(type, wide, chunk, 8);
            for (int i = 0; i < 8; i++)
                to[tile.turned ? (c + i) * stride + r : r * stride + c + i] = wide[i];
        }
}

void multiply_tiles(void *const *lanes)
{
    static float b[16][MOST_COLUMNS], c[16][MOST_COLUMNS];
    float a[16][16];
    const products &p = *(products *)lanes[0];

    if (p.a) {
        uint16_t rows[16][16];

        for (int i = 0; i < 32; i++)
            put_rows(rows, i, ((products *)lanes[i])->a);
        widen(p.type, a[0], rows[0], 256);
    } else {
        get_tile(p.type, a[0], 16, p.of_a, p.warp * 16, 16, 16);
    }
    get_tile(p.type, b[0], MOST_COLUMNS, p.of_b, 0, 16, p.n * 8);
    for (int i = 0; i < 32; i++)
        for (int e = 0; e < p.n * 4; e++)
            c[i / 4 + e % 4 / 2 * 8][e / 4 * 8 + i % 4 * 2 + e % 2] =
                p.added ? ((products *)lanes[i])->c[e / 4][e % 4] : 0.0f;
    for (int r = 0; r < 16; r++)
        for (int n = 0; n < p.n * 8; n += 8)
            for (int k = 0; k < 16; k++)
                for (int i = 0; i < 8; i++)
                    c[r][n + i] += a[r][k] * b[k][n + i];
    for (int i = 0; i < 32; i++)
        for (int e = 0; e < p.n * 4; e++)
            ((products *)lanes[i])->c[e / 4][e % 4] =
                c[i / 4 + e % 4 / 2 * 8][e / 4 * 8 + i % 4 * 2 + e % 2];
}

} // namespace

void emulated_matrices(uint32_t *x, uintptr_t row, bool turned)
{
    matrices mine = { x, NULL, row };

    emulated_together(turned ? get_columns : get_rows, &mine);
}

void emulated_put_matrices(uintptr_t row, const uint32_t *x)
{
    matrices mine = { NULL, x, row };

    emulated_together(put_matrices, &mine);
}

void emulated_multiply(int type, float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    product mine = { c, a, { b0, b1 } };

    emulated_together(type == 1 ? multiply<1> : multiply<2>, &mine);
}

void emulated_multiply_tf32(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
    product mine = { c, a, { b0, b1 } };

    emulated_together(multiply_tf32, &mine);
}

void emulated_products(int type, int n, float (*c)[4], const uint32_t *a, emulated_tile of_a,
                       emulated_tile of_b, bool added)
{
    products mine = { type, n, c, a, of_a, of_b, added, (int)threadIdx.x % 128 / 32 };

    emulated_together(multiply_tiles, &mine);
}
