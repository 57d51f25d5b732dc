// SPDX-License-Identifier: MIT
// linear/fwd_wgmma.cu: causal linear attention in chunks on Hopper's tensor cores.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    as fwd_chunk_tf32.cu, chunk by chunk, with products of warpgroups (wgmma) of bf16:
//           each number is a sum of some of those (wgmma.cuh). One warpgroup brings K and V and
//           takes them apart, one keeps the state, the others (QUERIES of them) have the queries
//           of every so-manieth chunk: of their products those with the state alone wait for the
//           chunk before
// Grid      1-D, as there
// Block     384 threads, 1-D, or 512 where two warpgroups have queries; _sums 256: that brings,
//           that keeps
// Shared    dynamic: parts of chunks of K and V, of states; z; sums of K by warps; barriers
// Barriers  full and empty ones in shared memory for each chunk and each state
// Layout    rows of K and V 16 bytes at a time, of Q 16 or 8, of O 8 or 4. work: chunk.cuh
// Numerics  wgmma.cuh; S and z f32. Rows of q with huge numbers are divided by a power of 2
//           meanwhile. An infinity of f32 or f16 counts as NaN; what is not finite in a row of v
//           may spread to queries of its chunk that do not see it. The bits of a head depend on
//           the segments, which follow from B and the heads, and on nothing else
// Instances _sums, _output
// Requires  sm_90a; causal; rows of 16-byte pieces, D up to DIM
// Tunables  STAGES, DEPTH, STATES, QUERIES; src/plan/cuda/linear_fwd_wgmma.c has the same
//           numbers
// Oracle    src/host/linear_fwd_reference.c
//
// Built for each type, DIM (64, 128) and WIDTH (32, 64), the columns of a group: NAME is the
// image's.
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

// Chunks of K and V in shared memory, and on their way there; states; warpgroups with queries.
constexpr bool LARGE = TYPE == TYPE_F32 && DIM > 64;
constexpr int STAGES = LARGE ? 2 : TYPE == TYPE_BF16 ? 4 : 3, SUM_STAGES = TYPE == TYPE_F32 ? 2 : 3;
constexpr int DEPTH = TYPE == TYPE_BF16   ? (DIM == 64 ? 3 : COLUMNS == 64 ? 2 : 1)
                      : TYPE == TYPE_F16 ? (DIM == 64 ? 2 : 1)
                                         : 1;
constexpr int SUM_DEPTH = TYPE == TYPE_F32 || DIM > 64 ? 2 : 4;
constexpr int STATES = LARGE ? 1 : 2, QUERIES = COLUMNS == 32 && !LARGE ? 2 : 1;

// When the next queries are asked for, by the registers that are left: at once; when Q has been
// multiplied, beside the products with V; or before those, and then no products run beside the
// work on pairs.
enum moment { AT_ONCE, LAST, BETWEEN };
constexpr moment ASKS = TYPE == TYPE_BF16 || (TYPE == TYPE_F16 && (DIM == 64 || QUERIES == 1))
                            ? AT_ONCE
                        : QUERIES == 2 || (LARGE && COLUMNS == 64) ? BETWEEN
                                                                   : LAST;
constexpr int THREADS = 256, WALKING = 128 * (2 + QUERIES);

// Of threads that have queries, that keep the state, that bring.
constexpr bool SMALL = TYPE == TYPE_BF16 && DIM == 64;
constexpr int QUERY_REGISTERS = QUERIES == 1 ? 240 : SMALL ? 152 : 168;
constexpr int STATE_REGISTERS = QUERIES == 1 ? 136 : SMALL ? 80 : 88;
constexpr int BRING_REGISTERS = QUERIES == 1 || SMALL ? 128 : 88;

struct shared_sums {
    keys k[SUM_STAGES];
    values v[SUM_STAGES];
    float sums[SUM_STAGES][4][DIM];    // of K's rows, by warps
    device_barrier full[SUM_STAGES], empty[SUM_STAGES];
};

struct shared_output {
    keys k[STAGES];
    values v[STAGES];
    states s[STATES];
    float z[STATES][DIM], sums[STAGES][4][DIM];
    device_barrier full[STAGES], empty[STAGES], there[STATES], read[STATES];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "linear/wgmma_walk.cuh"

DEVICE void sum_chunks(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_sums &mem = *(shared_sums *)memory;
    chunk_work w = find_chunks(p, p.heads_kv, p.len_q, p.dv);

    w.end = max(min(w.end, w.keys), w.first);
    device_let_next();
    if (w.segment == p.pieces - 1) {    // the last needs no slot
        copy_state_in(p, w, THREADS);
        return;
    }
    if (threadIdx.x == 0)
        for (int i = 0; i < SUM_STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 128);
        }
    device_barriers_ready();
    if (threadIdx.x < 128) {
        bring_chunks<SUM_STAGES, SUM_DEPTH>(p, w, mem);
    } else {
        group_state my = {};

        #pragma unroll 1
        for (int n = 0; n < chunks_of(w); n++)
            add_chunk<SUM_STAGES>(p, n, mem, my);
        store_slot(p, w, find_slot(p, w, w.segment + 1), my);
    }
}

// Found by each warpgroup for itself: what all know would be kept in the registers of all.
DEVICE chunk_work find_walk(const attn_linear_kparams &p)
{
    device_forget();
    return find_chunks(p, p.heads_q, p.len_q, p.dv);
}

// By the warpgroup that keeps the state.
DEVICE void keep_state(const attn_linear_kparams &p, shared_output &mem)
{
    const chunk_work w = find_walk(p);
    const int chunks = chunks_of(w);
    group_state my = {};

    device_wait_before();
    if (has_slots(p))
        #pragma unroll 1
        for (int slot = first_slot(p, w); slot <= last_slot(p, w); slot++)
            add_slot(p, w, find_slot(p, w, slot), my);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int slot = n % STATES;

        device_barrier_wait(&mem.read[slot], (n / STATES & 1) ^ 1);
        share_state(my, mem.s[slot]);
        if (thread_of_group() < DIM)
            mem.z[slot][thread_of_group()] = my.z;
        arrive_written(&mem.there[slot]);
        add_chunk<STAGES>(p, n, mem, my);
    }
    put_state_out(p, w, my);
}

// O of every QUERIES-th chunk.
DEVICE void walk_queries(const attn_linear_kparams &p, shared_output &mem)
{
    const chunk_work w = find_walk(p);
    const int chunks = chunks_of(w);
    const int first = QUERIES > 1 ? (int)__shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 2 : 0;
    queries coming;

    fetch_queries(p, w, w.first + first * CHUNK, coming);
    #pragma unroll 1
    for (int n = first; n < chunks; n += QUERIES) {
        const int j = w.first + n * CHUNK, stage = n % STAGES, slot = n % STATES;
        float pairs[CHUNK / 8][4], read[NT][4], seen[NT][4], down[2], den[2] = {};
        operands<STEPS> weights;

        {
            operands<DIM / 16> q;
            float raw[DIM / 8][4];

            take_queries(p, coming, raw, down);
            if (linear_has(p, LINEAR_NORMALIZE)) {
                device_barrier_wait(&mem.there[slot], n / STATES & 1);
                add_products(raw, mem.z[slot], den);
            }
            make_operands(raw, q);
            if (ASKS == AT_ONCE)
                fetch_queries(p, w, j + QUERIES * CHUNK, coming);
            device_barrier_wait(&mem.full[stage], n / STAGES & 1);
            begin_products<true, PARTS>(q, mem.k[stage][0][0], PANELS, pairs);
            device_barrier_wait(&mem.there[slot], n / STATES & 1);
            begin_products<false, STATE_PARTS>(q, mem.s[slot][0][0], PANELS, read);
            device_products_wait<(ASKS == BETWEEN ? 0 : 1)>();
            device_products_hold(pairs);
            if (ASKS == BETWEEN)
                fetch_queries(p, w, j + QUERIES * CHUNK, coming);
            mask_pairs(pairs, den);
            make_operands(pairs, weights);
        }
        begin_products<false, PARTS>(weights, mem.v[stage][0], 1, seen);
        if (ASKS == LAST) {
            device_products_wait<1>();
            device_products_hold(read);
            fetch_queries(p, w, j + QUERIES * CHUNK, coming);
        }
        device_products_wait<0>();
        device_products_hold(read);
        device_products_hold(seen);
        device_barrier_arrive(&mem.empty[stage]);
        device_barrier_arrive(&mem.read[slot]);
        write_rows(p, w, j, down, den, read, seen);
    }
}

DEVICE void walk_segment(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 256);
        }
        for (int i = 0; i < STATES; i++) {
            device_barrier_init(&mem.there[i], 128);
            device_barrier_init(&mem.read[i], 128);
        }
    }
    device_barriers_ready();
    if (threadIdx.x < 128) {
        device_leave_registers<BRING_REGISTERS>();
        bring_chunks<STAGES, DEPTH>(p, find_walk(p), mem);
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

KERNEL(NAME, _sums, THREADS, sum_chunks)
KERNEL(NAME, _output, WALKING, walk_segment)
