// SPDX-License-Identifier: MIT
// softmax/bring.cuh: how a loading warpgroup brings rows to where wgmma reads them: panels of
// 64 columns, by the copy engine where a tensor map says how they lie, by chunks of 16 bytes
// where none can. TYPE and DIM are the image's.
#pragma once
#include "softmax/mma.cuh"
#include "common/hopper.cuh"

// Where rows of a view come from, 16 bytes at a time, where no map brings them.
struct source {
    const void *x;
    attn_rows rows;
    attn_range range;    // rows outside become 0 and are not read
    int depth;           // columns from here on likewise
};

// Where a view stands in its map: the row that is its row 0, and what lies around it.
struct place_in_map {
    int first, head, batch;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Begins to bring a box of a map, rows from `row` on, into a tile. By one thread, which arrives
// once at the barrier.
template <int HEIGHT, int CHUNKS>
DEVICE void begin_box(float4 *to, const attn_map *map, int row, const place_in_map &at,
                      device_barrier *full)
{
    constexpr int PANELS = ceil_div(CHUNKS, 8);

    device_barrier_expect(full, PANELS * HEIGHT * 128);
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        device_copy_box(to + panel * HEIGHT * 8, map, panel * 64, at.first + row, at.head,
                        at.batch, full);
}

// The same by the first of so many threads, which arrives for the others too.
template <int HEIGHT, int CHUNKS, int THREADS>
DEVICE void bring_box(float4 *to, const attn_map *map, int row, const place_in_map &at,
                      device_barrier *full)
{
    if (device_thread() % THREADS == 0) {
        begin_box<HEIGHT, CHUNKS>(to, map, row, at, full);
        device_barrier_arrive(full, THREADS - 1);
    }
}

// Brings rows j .. j + HEIGHT - 1 into a tile where no map can, by so many threads, each of which
// arrives. TOGETHER: rows of a thread whose addresses are found side by side; 4 take 40 registers.
template <int HEIGHT, int CHUNKS, int TOGETHER, int THREADS>
DEVICE void bring_rows(float4 *to, const source &from, int j, device_barrier *full)
{
    constexpr int PASS = THREADS / CHUNKS;    // rows at once
    constexpr int64_t BYTES = elem_bytes<TYPE>();
    const int me = device_thread() % THREADS, r = me / CHUNKS, c = me % CHUNKS;

    static_assert(THREADS % CHUNKS == 0 && HEIGHT % PASS == 0, "passes are whole");

    // passes from, end are of rows and columns that are there; of others nothing is read
    const int first = from.range.first - j - r;
    const int end = c * PER < from.depth ? from.range.end - j - r : first;
    const char *row = (const char *)from.x +
                      (from.rows.base + (j + r) * from.rows.stride_l + c * PER) * BYTES;
    const int64_t pass = PASS * from.rows.stride_l * BYTES;

    #pragma unroll TOGETHER
    for (int i = 0; i < HEIGHT; i += PASS, row += pass) {
        float4 *const at = to + c / 8 * HEIGHT * 8 + (r + i) * 8 + ((c ^ (r + i)) & 7);

        device_copy<16>((float *)at, row, i >= first && i < end);
    }
    device_commit();
    // products read what the copy engine wrote, or else what was handed over to it
    device_copied<0>();
    device_copies_to_products();
    device_barrier_arrive(full);
}

#endif
