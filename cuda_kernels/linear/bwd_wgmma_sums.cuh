// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_sums.cuh: the sums of linear_bwd_wgmma by all columns (f32, DIM 128): what a
// segment's rows add to the state, each row taken apart once. A warpgroup brings B, another X;
// two keep 64 columns of the state each.
#pragma once
#include "linear/bwd_wgmma_walk.cuh"

typedef rows_of_chunk<TYPE, 64, 32> piece;

// By a warpgroup: rows of B, or of X, the next chunk's on their way while one's are taken apart.
template <bool BACK>
DEVICE void bring_whole(const chunk_work &w, const tensor_rows &all, int width, keys *tiles,
                        shared_whole &mem)
{
    const int chunks = chunks_of(w);
    constexpr int PIECES = 4;
    piece x[PIECES];

    const auto inside = [&](int i) { return i / 2 * 64 + piece::column() < width; };
    const auto rows_of = [&](int i, int n) { return all.rows - chunk_at<BACK>(w, n) - i % 2 * 32; };
    const auto fetch = [&](int i, int n) {
        const int row = chunk_at<BACK>(w, n) + i % 2 * 32 + piece::row();

        if (n < chunks)
            x[i].fetch(all.from + row * all.bytes +
                           (i / 2 * 64 + piece::column()) * (16 / EACH),
                       all.bytes, rows_of(i, n), inside(i));
    };

    #pragma unroll
    for (int i = 0; i < PIECES; i++)
        fetch(i, 0);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int stage = n % WHOLE_STAGES;

        device_barrier_wait(&mem.empty[stage], (n / WHOLE_STAGES & 1) ^ 1);
        #pragma unroll
        for (int i = 0; i < PIECES; i++) {
            x[i].template put<true, true>(tiles[stage][0][i / 2] + i % 2 * 32 * 8, PANELS);
            device_forget();
            if (i == PIECES - 1)
                arrive_written(&mem.full[stage]);
            fetch(i, n + 1);
            device_forget();
        }
    }
}

template <scan WHICH> DEVICE void sum_whole(const attn_linear_kparams &p, int group)
{
    constexpr bool BACK = !is_backwards(WHICH);    // as sum_heads()
    SHARED_MEMORY(memory);
    shared_whole &mem = *(shared_whole *)memory;
    chunk_work w = find_scan<WHICH, false>(p, p.heads_kv, group, COLUMNS);
    const int part = (int)threadIdx.x / 128;

    if (WHICH == GRAD_Q)
        w.end = max(keys_of(w), w.first);
    device_let_next();
    if (threadIdx.x == 0)
        for (int i = 0; i < WHOLE_STAGES; i++) {
            device_barrier_init(&mem.full[i], 256);
            device_barrier_init(&mem.empty[i], 256);
        }
    device_barriers_ready();
    wait_for_phi(p);
    if (w.segment == p.pieces - 1)
        w.end = w.first;    // the last needs no slot, slot 0 is zero
    if (part == 0) {
        device_leave_registers<WHOLE_REGISTERS[1]>();
        bring_whole<BACK>(w, b_of<WHICH>(p, w, 0), inner_of(p, WHICH), mem.b, mem);
    } else if (part == 1) {
        device_leave_registers<WHOLE_REGISTERS[1]>();
        bring_whole<BACK>(w, x_of<WHICH>(p, w, 0), width_of(p, WHICH), mem.x, mem);
    } else {
        device_take_registers<WHOLE_REGISTERS[0]>();

        const int slot = w.segment == p.pieces - 1 ? 0 : w.segment + 1, own = part - 2;
        group_state my = {};

        #pragma unroll 1
        for (int n = 0; n < chunks_of(w); n++)
            add_rows<WHOLE_STAGES>(n, mem, my, own);
        w.column = own * COLUMNS;
        device_wait_before();    // where the slots of dQ were
        store_sums<WHICH>(p, w, slot_of<WHICH>(p, w, slot), my);
    }
}
