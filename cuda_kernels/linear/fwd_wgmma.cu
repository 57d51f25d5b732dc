// SPDX-License-Identifier: MIT
// linear/fwd_wgmma.cu: causal linear attention in chunks on Hopper's tensor cores.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    as fwd_chunk_tf32.cu, chunk by chunk, with products of warpgroups (wgmma) of bf16:
//           each number is a sum of some of those (wgmma.cuh). One warpgroup brings K and V and
//           takes them apart (wgmma_stage.cuh, or where there is no room for that
//           wgmma_bring.cuh), one keeps the state, the others (QUERIES of them) have the queries
//           of every so-manieth chunk: of their products those with the state alone wait for the
//           chunk before. With segments a group first sums up what the keys before its own add to
//           the state, for itself and those behind (wgmma_relay.cuh)
// Grid      1-D, as there
// Block     384 threads, 1-D, or 512 where two warpgroups have queries; _sums 256: that brings,
//           that keeps
// Shared    dynamic: parts of chunks of K and V, of states; chunks of K, V and Q on their way; z;
//           sums of K by warps; barriers
// Barriers  full and empty ones in shared memory for each chunk and each state
// Layout    rows of Q, K and V 16 bytes at a time, of O 8 or 4. work: wgmma_relay.cuh
// Numerics  wgmma.cuh; S and z f32. Rows of q with huge numbers are divided by a power of 2
//           meanwhile. An infinity of f32 or f16 counts as NaN; what is not finite in a row of v
//           may spread to queries of its chunk that do not see it. The bits of a head depend on
//           the segments, which follow from B and the heads, and on nothing else
// Instances _output, with _begin before it if there are segments or a state; _sums, _scan, _output
//           of many segments
// Requires  sm_90a; causal; rows of 16-byte pieces, D up to DIM
// Tunables  STAGES, UNITS, STATES, QUERIES; src/plan/cuda/linear_fwd_wgmma.c has the same
//           numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for f32 and f16 (bf16 has fwd_wgmma_bf16.cu), DIM (64, 128) and WIDTH (32, 64), the columns
// of a group: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef WIDTH
#define WIDTH 32
#endif
#ifndef NAME
#define NAME attn_linear_fwd_wgmma_f32_d64_c32
#endif

constexpr int COLUMNS = WIDTH;

#include "linear/wgmma.cuh"

constexpr int KEEPERS = 1, KEPT_TILES = PANELS * NT + 1;    // of the state, and z

#include "linear/wgmma_relay.cuh"

// Chunks of K and V in shared memory, and units of them on their way there (wgmma_stage.cuh);
// states; warpgroups with queries, which come through shared memory where there is room.
constexpr bool LARGE = TYPE == TYPE_F32 && DIM > 64, STAGED = !LARGE;
constexpr int STAGES = 2, UNITS = LARGE ? 1 : 4, SUM_UNITS = LARGE ? 4 : 8;
constexpr int STATES = 1, QUERIES = LARGE ? 1 : 2;
constexpr int TURNS = larger(STATES, QUERIES);    // a warpgroup waits for its own states alone
constexpr int THREADS = 256, WALKING = 128 * (2 + QUERIES);
constexpr int UNIT_BYTES = CHUNK * 64 * elem_bytes<TYPE>();

// Of threads that have queries, that keep the state, that bring.
constexpr int QUERY_REGISTERS = LARGE ? 240 : DIM > 64 ? 168 : 176;
constexpr int STATE_REGISTERS = LARGE ? 136 : DIM > 64 ? 112 : 88;
constexpr int BRING_REGISTERS = LARGE ? 128 : DIM > 64 ? 64 : 72;

struct shared_sums {
    keys k[STAGES];
    values v[STAGES];
    float4 unit[SUM_UNITS][UNIT_BYTES / 16];
    float sums[STAGES][4][DIM];    // of K's rows, by warps
    device_barrier full[STAGES], empty[STAGES];
};

struct shared_output {
    keys k[STAGES];
    values v[STAGES];
    states s[STATES];
    float4 unit[UNITS][LARGE ? 1 : UNIT_BYTES / 16];
    float4 q[QUERIES][STAGED ? CHUNK * DIM * elem_bytes<TYPE>() / 16 : 1];
    float z[STATES][DIM], sums[STAGES][4][DIM];
    device_barrier full[STAGES], empty[STAGES], there[TURNS], read[STATES];
    int number;    // of the group
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "linear/wgmma_stage.cuh"
#include "linear/wgmma_walk.cuh"
#include "linear/wgmma_state.cuh"

DEVICE void sum_chunks(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_sums &mem = *(shared_sums *)memory;
    chunk_work w = find_chunks(p, p.heads_kv, p.len_q, p.dv);
    int chunks;

    w.end = max(min(w.end, w.keys), w.first);
    chunks = chunks_of(w);
    device_let_next();
    if (w.segment == p.pieces - 1) {    // the last adds to none, and there is time
        if (linear_has(p, LINEAR_STATE) && threadIdx.x >= 128)
            copy_state_in<group_state>(p, w, (int)threadIdx.x / 128 - 1);
        return;
    }
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 128);
        }
    device_barriers_ready();
    if (threadIdx.x < 128) {
        bring_chunks<STAGES, SUM_UNITS>(p, w, { w.first, chunks }, chunks, mem);
    } else {
        group_state my = {};

        #pragma unroll 1
        for (int n = 0; n < chunks; n++)
            add_chunk<STAGES>(p, n, mem, my);
        give_state(p, w, 0, my);
    }
}

// Found by each warpgroup for itself: what all know would be kept in the registers of all.
DEVICE chunk_work find_walk(const attn_linear_kparams &p, const shared_output &mem)
{
    device_forget();
    return find_segment(p, __shfl_sync(0xffffffffu, mem.number, 0));
}

// By the warpgroup that keeps the state.
DEVICE void keep_state(const attn_linear_kparams &p, shared_output &mem)
{
    group_state my = {};
    int next = 0, given = 0;

    device_wait_before();
    {
        const chunk_work w = find_walk(p, mem);

        if (linear_has(p, LINEAR_STATE) && !linear_has(p, LINEAR_SCANNED) && w.segment == 0 &&
            w.h % p.group == 0)
            copy_state_in<group_state>(p, w, 0);
    }
    #pragma unroll 1
    for (int n = 0;; n++) {    // of all that is brought, so known to be its warp's
        if (n == next) {    // found anew each time, not kept in registers
            const chunk_work w = find_walk(p, mem);
            const chunk_sum sum = find_sum(p, w);
            const int handing = chunk_of_handing(p, w, sum), end = sum.count + chunks_of(w);

            given = sum.count;
            if (n == handing)
                give_state(p, w, 0, my);
            if (n == given)
                take_state(p, w, 0, my);
            if (n >= end)
                break;
            next = n < given ? given : n < handing ? handing : end;
        }
        if (n >= given) {
            const int i = n - given, slot = i % STATES;

            device_barrier_wait(&mem.read[slot], (i / STATES & 1) ^ 1);
            share_state(my, mem.s[slot]);
            if (thread_of_group() < DIM)
                mem.z[slot][thread_of_group()] = my.z;
            arrive_written(&mem.there[i % TURNS]);
        }
        add_chunk<STAGES>(p, n, mem, my);
    }
    put_state_out(p, find_walk(p, mem), my);
}

// O of every QUERIES-th chunk.
DEVICE void walk_queries(const attn_linear_kparams &p, shared_output &mem)
{
    const chunk_work w = find_walk(p, mem);
    const int given = find_sum(p, w).count, chunks = given + chunks_of(w);
    const int first = QUERIES > 1 ? (int)__shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 2 : 0;
    float4 *const staged = mem.q[first];
    queries coming;
    const auto ask = [&](int j) {
        if (STAGED)
            ask_queries(p, w, j, staged);
        else
            fetch_queries(p, w, j, coming);
    };

    ask(w.first + (first + ceil_div(max(given - first, 0), QUERIES) * QUERIES - given) * CHUNK);
    #pragma unroll 1
    for (int m = first; m < chunks; m += QUERIES) {    // of all that is brought
        const int n = m - given, j = w.first + n * CHUNK, stage = m % STAGES;
        const int slot = n % STATES, turn = n % TURNS;
        float pairs[CHUNK / 8][4], read[NT][4], seen[NT][4], down[2], den[2] = {};
        operands<STEPS> weights;

        if (n < 0) {
            device_barrier_wait(&mem.full[stage], m / STAGES & 1);
            device_barrier_arrive(&mem.empty[stage]);
            continue;
        }
        {
            operands<DIM / 16> q;
            float raw[DIM / 8][4];

            if (STAGED) {
                await_queries(staged, coming);
                ask(j + QUERIES * CHUNK);
            }
            take_queries(p, coming, raw, down);
            if (linear_has(p, LINEAR_NORMALIZE)) {
                device_barrier_wait(&mem.there[turn], n / TURNS & 1);
                add_products(raw, mem.z[slot], den);
            }
            make_operands(raw, q);
            device_barrier_wait(&mem.full[stage], m / STAGES & 1);
            begin_products<true, PARTS>(q, mem.k[stage][0][0], PANELS, pairs);
            device_barrier_wait(&mem.there[turn], n / TURNS & 1);
            begin_products<false, STATE_PARTS>(q, mem.s[slot][0][0], PANELS, read);
            device_products_wait<0>();
            device_products_hold(pairs);
            if (!STAGED)
                ask(j + QUERIES * CHUNK);
            device_products_hold(read);
            device_barrier_arrive(&mem.read[slot]);
            mask_pairs(pairs, den);
            make_operands(pairs, weights);
        }
        begin_products<false, PARTS>(weights, mem.v[stage][0], 1, seen);
        device_products_wait<0>();
        device_products_hold(seen);
        device_barrier_arrive(&mem.empty[stage]);
        #pragma unroll
        for (int i = 0; i < NT * 4; i++)
            read[i / 4][i % 4] += seen[i / 4][i % 4];
        device_products_hold(read);
        write_rows(p, w, j, down, den, read);
    }
}

DEVICE void walk_segment(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;

    if (threadIdx.x == 0) {
        mem.number = take_number(p);
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 256);
        }
        for (int i = 0; i < TURNS; i++)
            device_barrier_init(&mem.there[i], 128);
        for (int i = 0; i < STATES; i++)
            device_barrier_init(&mem.read[i], 128);
    }
    device_barriers_ready();
    if (threadIdx.x < 128) {
        const chunk_work w = find_walk(p, mem);
        const chunk_sum sum = find_sum(p, w);
        const int chunks = sum.count + chunks_of(w);

        device_leave_registers<BRING_REGISTERS>();
        if constexpr (LARGE)
            bring_registers<STAGES, 1>(p, w, sum, chunks, mem);
        else
            bring_chunks<STAGES, UNITS>(p, w, sum, chunks, mem);
    } else if (threadIdx.x < 256) {
        device_leave_registers<STATE_REGISTERS>();
        keep_state(p, mem);
    } else {
        device_take_registers<QUERY_REGISTERS>();
        walk_queries(p, mem);
    }
}

#define KERNEL_BODY(call) call(p)
#elif defined(__CUDA_ARCH__)
#error "sm_90a alone has these instructions"
#else    // the compiler's pass for the host
#define KERNEL_BODY(call)
#endif

#define JOIN(a, b) a##b
#define KERNEL(name, part, threads, call)                                         \
    extern "C" __global__ __launch_bounds__(threads, 1) void JOIN(name, part)(    \
        const __grid_constant__ attn_linear_kparams p)                            \
    {                                                                             \
        KERNEL_BODY(call);                                                        \
    }

KERNEL(NAME, _begin, BEGINNING, slots_begin)
KERNEL(NAME, _sums, THREADS, sum_chunks)
KERNEL(NAME, _scan, SCANNING, scan_slots<group_state>)
KERNEL(NAME, _output, WALKING, walk_segment)
