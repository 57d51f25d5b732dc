// SPDX-License-Identifier: MIT
// linear/wgmma_once.cuh: segments of fwd_wgmma_bf16.cu that read K and V once, behind its walk,
// which is theirs, too: it begins with no state, O of each chunk is kept, and once the states
// before are known, Q times their sum is added, by all warpgroups in turn, on O's way out. Q comes
// again then, from the second cache. O is kept rounded, in shared memory, in place of Q; of the
// last chunks in place of K, and Q stays.
#pragma once
#include "linear/wgmma_before.cuh"
#include "linear/wgmma_bf16_rows.cuh"

constexpr int ONCE = 16;           // chunks of a segment
constexpr int ONCE_STAGES = 4;     // of K and V
constexpr int ONCE_STATES = 3;     // so that the last sum does not wait for queries
constexpr int GROUPS = 4;          // warpgroups
static_assert(GROUPS == ONCE_STAGES, "of each warpgroup's last chunk Q stays");

struct shared_once {
    static constexpr int STAGES = ONCE_STAGES, OF_QUERIES = ONCE, STATES = ONCE_STATES;
    static constexpr bool READS_ONCE = true;
    keys q[ONCE];    // then O
    keys k[ONCE_STAGES];
    values v[ONCE_STAGES];    // then Q again
    states s[STATES];
    ones one;
    float z[STATES][DIM], den[ONCE][CHUNK];
    device_barrier full[ONCE_STAGES], taken[ONCE_STAGES], empty[ONCE_STAGES], read[STATES];
    device_barrier walked, added;    // all warpgroups meet
    int number;                      // of the group
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Where O of chunk n is kept, and Q stays.
DEVICE bool keeps_queries(int n, int chunks) { return n + ONCE_STAGES >= chunks; }

DEVICE float4 (*rows_kept(int n, int chunks, shared_once &mem))[TILE]
{
    return keeps_queries(n, chunks) ? mem.k[n % ONCE_STAGES] : mem.q[n];
}

// O of chunk n as far as the segment's own keys go, and den.
DEVICE void keep_rows(const attn_linear_kparams &p, int n, int chunks, const float (&o)[NT][4],
                      const float (&dens)[2], shared_once &mem)
{
    if (keeps_queries(n, chunks))    // the keeper has read K
        device_barrier_wait(&mem.empty[n % ONCE_STAGES], n / ONCE_STAGES & 1);
    put_rows({ 1.0f, 1.0f }, o, rows_kept(n, chunks, mem));
    if (linear_has(p, LINEAR_NORMALIZE))
        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const int lane = threadIdx.x % 32;
            float den = dens[half];

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            if (lane % 4 == 0)
                mem.den[n][row_of_warp() + lane / 4 + half * 8] = den;
        }
}

// What a keeper has of the last segment's keys, for put_tile_out().
DEVICE void stash_state(int first, const kept_state &my, shared_once &mem)
{
    float4 *const to = mem.v[0][0] + first * NT * 128 + thread_of_group();

    #pragma unroll
    for (int i = 0; i < KEPT * NT; i++)
        to[i * 128] = my.tile(i);
    each_z(first, my, [&](float x, int row) { mem.z[1][row] = x; });
}

// S as it comes out, of tile i: the sum before, and what a keeper has stashed.
DEVICE void put_tile_out(const attn_linear_kparams &p, const chunk_work &w, int i,
                         const float (&sum)[4], const shared_once &mem)
{
    const float4 x = mem.v[0][0][i * 128 + thread_of_group()];
    const float own[4] = { x.x, x.y, x.z, x.w };
    const int lane = threadIdx.x % 32, column = w.column + i % NT * 8 + lane % 4 * 2;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = i / NT * 64 + row_of_warp() + lane / 4 + half * 8;

        if (row < p.d && column < p.dv) {
            float *const to = p.state_out + LINEAR_AT(p, state_out, w.b, w.kvh, (int64_t)row,
                                                      (int64_t)column);

            to[0] = sum[half * 2] + own[half * 2];
            to[p.state_out_stride_d] = sum[half * 2 + 1] + own[half * 2 + 1];
        }
    }
}

// Has the warp's rows of Q, of the chunk from token j on, copied to a tile.
DEVICE void copy_again(const attn_linear_kparams &p, const chunk_work &w, int j,
                       float4 (*tiles)[TILE])
{
    constexpr int ACROSS = DIM / 8, STEP = 32 / ACROSS;
    const int lane = threadIdx.x % 32, row = row_of_warp() + lane / ACROSS, c = lane % ACROSS;
    const char *const first = (const char *)p.q + 2 * LINEAR_AT(p, q, w.b, w.h, (int64_t)j, 0);
    const char *const from = first + 2 * (row * p.q_stride_l + c * 8);

    #pragma unroll
    for (int i = 0; i < 16 / STEP; i++) {
        const int r = row + i * STEP;
        const bool there = c * 8 < p.d && j + r < w.end;

        device_copy<16>((float *)&tiles[c / 8][r * 8 + (c % 8 ^ (r & 7))],
                        there ? from + 2 * i * STEP * p.q_stride_l : first, there);
    }
}

// The warp's rows of O as they are kept.
DEVICE void take_kept(const float4 (*tiles)[TILE], float (&o)[NT][4])
{
    #pragma unroll
    for (int m = 0; m < NT / 2; m++) {
        uint32_t x[4];

        device_matrices(x, matrices_at(tiles[m / 4]) ^ (m % 4 * 32));
        #pragma unroll
        for (int i = 0; i < 4; i++) {
            o[2 * m + i / 2][i % 2 * 2] = f32_of_low(x[i]);
            o[2 * m + i / 2][i % 2 * 2 + 1] = f32_of_high(x[i]);
        }
    }
}

// The states before, by all warpgroups: rounded, for products, to mem.s[0].
DEVICE void share_before(const attn_linear_kparams &p, const chunk_work &w, int group,
                         shared_once &mem)
{
    constexpr int ADDED = TILES / GROUPS;
    const bool out = writes_state(p, w) && p.want_state;

    add_before<GROUPS, ADDED, 5>(
        p, w, group, mem, [&](int i, const float (&sum)[ADDED][4]) {
            #pragma unroll
            for (int m = 0; m < ADDED; m += 2) {
                const int pair = (i % NT + m) / 2;
                uint32_t x[4];

                pack(sum[m], sum[m + 1], { 1.0f, 1.0f }, x);
                device_put_matrices(matrices_at(mem.s[0][i / NT][pair / 4]) ^ (pair % 4 * 32), x);
            }
            if (out)
                #pragma unroll
                for (int m = 0; m < ADDED; m++)
                    put_tile_out(p, w, i + m, sum[m], mem);
        });
    device_copies_to_products();
}

// By a warpgroup when its part of the walk is done: O of every GROUPS-th chunk.
DEVICE void correct_chunks(const attn_linear_kparams &p, int group, const chunk_work &w,
                           shared_once &mem)
{
    const int chunks = (int)__shfl_sync(0xffffffffu, chunks_of(w), 0);
    const bool stashed = writes_state(p, w);    // where Q comes
    const int count = ceil_div(chunks - group, GROUPS), last = group + (count - 1) * GROUPS;
    const uint64_t s = device_tile(device_address(mem.s[0][0][0]), TILE * 16);

    // The last chunk comes first, then the others in their order.
    const auto tile = [&](int i) { return i % 2 ? mem.v[group] : mem.q[last]; };
    const auto copy = [&](int i) {
        if (i < count)
            copy_again(p, w, w.first + (group + (i - 1) * GROUPS) * CHUNK, tile(i));
        device_commit();
    };

    if (!stashed)
        copy(1);
    share_before(p, w, group, mem);
    device_barrier_meet(&mem.added);
    if (stashed) {
        if (group == 0 && writes_z<kept_state>(p, w, 0))
            for (int row = thread_of_group(); row < p.d; row += 128)
                p.z_out[LINEAR_AT(p, z_out, w.b, w.kvh, (int64_t)row, 0)] =
                    mem.z[0][row] + mem.z[1][row];
        copy(1);
    }
    #pragma unroll 1
    for (int i = 0; i < count; i++) {
        const int n = i ? group + (i - 1) * GROUPS : last;
        const int j = w.first + n * CHUNK, lane = threadIdx.x % 32;
        float4 (*const rows)[TILE] = rows_kept(n, chunks, mem);
        float o[NT][4], down[2], den[2] = {}, factor[2];
        operands q;

        if (i)
            device_copied<1>();
        __syncwarp();
        load_queries(tile(i), q);
        take_kept(rows, o);
        __syncwarp();
        copy(i + 2);
        map_queries(p, q);
        tame_queries(q, down);
        device_products_hold(o);
        device_products_begin();
        #pragma unroll
        for (int m = 0; m < DIM / 16; m++)
            device_products_along(o, q[m], s + m / 4 * PANELS_V * TILE + m % 4 * 16 * 8, 1);
        device_products_commit();
        if (linear_has(p, LINEAR_NORMALIZE)) {
            #pragma unroll
            for (int half = 0; half < 2; half++)
                if (lane % 4 == 0)
                    den[half] = mem.den[n][row_of_warp() + lane / 4 + half * 8];
            add_products(q, mem.z[0], den);
        }
        find_factors(p, w, j, down, den, factor);
        device_products_wait<0>();
        device_products_hold(o);
        write_rows(p, w, j, factor, o, rows);
    }
}

// By a warpgroup that keeps rows of the state, which begins at zero; its end is given.
DEVICE void keep_sums(const attn_linear_kparams &p, int first, shared_once &mem)
{
    kept_state my = {};
    const chunk_work w = find_walk(p, mem);
    const int chunks = (int)__shfl_sync(0xffffffffu, chunks_of(w), 0);

    if (linear_has(p, LINEAR_STATE) && w.segment == 0 && w.h % p.group == 0)
        copy_state_in<kept_state>(p, w, first / KEPT);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int slot = n % ONCE_STATES, stage = n % ONCE_STAGES;

        device_barrier_wait(&mem.read[slot], (n / ONCE_STATES & 1) ^ 1);
        share_state(my, mem.s[slot] + first);
        if (linear_has(p, LINEAR_NORMALIZE))
            each_z(first, my, [&](float x, int row) { mem.z[slot][row] = x; });
        arrive_written(&mem.taken[stage]);
        add_chunk<ONCE_STAGES>(p, n, first, 1, mem, my);
    }
    if (gives_state(p, w))
        give_state(p, w, first / KEPT, my);
    device_take_registers<128>();
    device_barrier_meet(&mem.walked);
    if (writes_state(p, w)) {
        stash_state(first, my, mem);
        device_barrier_meet(&mem.walked);
    }
}

// Has a warpgroup that does not keep the state meet those that do, when its part of the walk is
// done.
DEVICE void meet_keepers(const attn_linear_kparams &p, const chunk_work &w, shared_once &mem)
{
    device_barrier_meet(&mem.walked);
    if (writes_state(p, w))
        device_barrier_meet(&mem.walked);
}

DEVICE void walk_once(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_once &mem = *(shared_once *)memory;
    const int group = warpgroup();

    if (threadIdx.x == 128)
        mem.number = take_number(p);
    if (group == 0) {
        const chunk_work w = find_chunks(p, p.heads_q, p.len_q, p.dv);

        fetch_chunks<ONCE_STAGES - 1>(p, w, { w.first, chunks_of(w) });
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < ONCE_STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.taken[i], 128 * KEEPERS);
            device_barrier_init(&mem.empty[i], 128 * (KEEPERS + 1));
        }
        for (int i = 0; i < ONCE_STATES; i++)
            device_barrier_init(&mem.read[i], 128);
        device_barrier_init(&mem.walked, 128 * GROUPS);
        device_barrier_init(&mem.added, 128 * GROUPS);
    }
    fill_ones(mem.one, WALKING);
    device_barriers_ready();
    if (group == 0) {
        const chunk_work w = find_walk(p, mem);

        device_leave_registers<BRING_REGISTERS>();
        bring_chunks<ONCE_STAGES, ONCE_STAGES - 1>(p, w, { w.first, 0 }, chunks_of(w), mem);
        device_take_registers<128>();
        meet_keepers(p, w, mem);
    } else if (group <= KEEPERS) {
        device_leave_registers<STATE_REGISTERS>();
        keep_sums(p, (group - 1) * KEPT, mem);
    } else {
        const chunk_work w = find_walk(p, mem);

        device_take_registers<QUERY_REGISTERS>();
        walk_chunks(p, w, 0, group - 1 - KEEPERS, mem);
        device_leave_registers<128>();
        meet_keepers(p, w, mem);
    }
    correct_chunks(p, group, find_walk(p, mem), mem);
}

#endif
