// SPDX-License-Identifier: MIT
// linear/fwd_wgmma_bf16.cu: causal linear attention in chunks of bf16 on Hopper's tensor cores.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    as fwd_wgmma.cu, with the tensors' own bits as operands: one warpgroup copies rows of
//           Q, K and V to shared memory, some chunks ahead, and takes phi of K there; KEEPERS
//           keep the state, in the products' own sums; QUERIES have the queries of every
//           so-manieth chunk: P, Q S and P V, and write O through their rows of Q. With segments
//           those add up the states before while the segment's own keys are summed up
//           (wgmma_before.cuh)
// Grid      1-D, ceil(Dv / COLUMNS) * segments * heads * B groups, columns fastest; _sums has the
//           key/value heads
// Block     128 threads (1 + KEEPERS + QUERIES), 1-D; _sums 128 (1 + KEEPERS)
// Shared    dynamic: chunks of Q, K and V, states, ones (of K^T 1), z, barriers
// Barriers  for each chunk in shared memory one that its copies arrive at, one by which its keeper
//           tells that it can be read, with the state before it, one by which it is given back;
//           for each state one of those
// Layout    rows of Q, K, V and O 16 bytes at a time. work: wgmma_relay.cuh
// Numerics  S and z f32; S and P rounded to bf16 where they are operands, den f32. Rows of q with
//           huge numbers are divided by a power of 2 meanwhile. What is not finite in a row of v
//           may spread to queries of its chunk that do not see it. The bits of a head depend on
//           the segments, which follow from B and the heads, and on nothing else
// Instances _output, with _begin before it if there are segments or a state; _sums, _scan, _output
//           of many segments
// Requires  sm_90a; causal; D and Dv multiples of 8, D up to DIM
// Tunables  STAGES, SUM_STAGES, STATES, KEEPERS, QUERIES; src/plan/cuda/linear_fwd_wgmma.c, too
// Oracle    src/host/linear_fwd_reference.c
//
// Built for DIM (64, 128) and WIDTH (32, 64; 128 where DIM is), the columns of a group: NAME is
// the image's.
#include "common/params.h"

#ifndef DIM
#define DIM 64
#endif
#ifndef WIDTH
#define WIDTH 64
#endif
#ifndef NAME
#define NAME attn_linear_fwd_wgmma_bf16_d64_c64
#endif
#undef TYPE
#define TYPE TYPE_BF16

constexpr int COLUMNS = WIDTH;
constexpr int KEEPERS = COLUMNS == 128 ? 2 : 1, QUERIES = COLUMNS == 128 ? 1 : 2;
constexpr bool KEEPERS_MAP = KEEPERS > QUERIES;    // take phi of Q

#include "linear/wgmma_before.cuh"
#include "linear/wgmma_bf16_bring.cuh"
#include "linear/wgmma_bf16_rows.cuh"

// Chunks in shared memory, and on their way there; no more warpgroups have queries than there are
// states, or one could take the state before for its own.
constexpr int STAGES = DIM == 64 ? 8 : COLUMNS == 128 ? 3 : 4;
constexpr int DEPTH = COLUMNS == 128 ? 2 : STAGES - 2;
constexpr int SUM_STAGES = DIM == 64 ? 6 : 4, STATES = 2;
constexpr int THREADS = 128 * (1 + KEEPERS), WALKING = 128 * (1 + KEEPERS + QUERIES);

// Of threads that have queries, that keep the state, that bring.
constexpr int QUERY_REGISTERS = QUERIES == 1 ? 208 : DIM == 64 ? 152 : 144;
constexpr int STATE_REGISTERS = DIM == 64 ? 120 : COLUMNS == 128 ? 112 : 128;
constexpr int BRING_REGISTERS = DIM == 64 ? 88 : COLUMNS == 128 ? 80 : 96;

struct shared_sums {
    static constexpr bool QUERIES_TOO = false;
    keys k[SUM_STAGES];
    values v[SUM_STAGES];
    ones one;
    device_barrier full[SUM_STAGES], empty[SUM_STAGES];
};

struct shared_output {
    static constexpr bool QUERIES_TOO = true;
    keys q[STAGES], k[STAGES];
    values v[STAGES];
    states s[STATES];
    ones one;
    float z[STATES][DIM];
    device_barrier full[STAGES], taken[STAGES], empty[STAGES], read[STATES];
    device_barrier summed;          // the segment's keys
    device_barrier added, clear;    // the state that it begins with
    int number;                     // of the group
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// The number of this thread's warpgroup, known to be its warp's.
DEVICE int warpgroup() { return (int)__shfl_sync(0xffffffffu, threadIdx.x / 128, 0); }

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
            copy_state_in<kept_state>(p, w, (int)threadIdx.x / 128 - 1);
        return;
    }
    if (threadIdx.x == 0)
        for (int i = 0; i < SUM_STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 128 * KEEPERS);
        }
    fill_ones(mem.one, THREADS);
    device_barriers_ready();
    if (threadIdx.x < 128) {
        bring_chunks<SUM_STAGES, SUM_STAGES - 1>(p, w, { w.first, chunks }, chunks, mem);
    } else {
        const int first = (warpgroup() - 1) * KEPT;
        kept_state my = {};

        #pragma unroll 1
        for (int n = 0; n < chunks; n++)
            add_chunk<SUM_STAGES>(p, n, first, 1, mem, my);
        give_state(p, w, first / KEPT, my);
    }
}

// Found by each warpgroup for itself: what all know would be kept in the registers of all.
DEVICE chunk_work find_walk(const attn_linear_kparams &p, const shared_output &mem)
{
    device_forget();
    return find_segment(p, __shfl_sync(0xffffffffu, mem.number, 0));
}

// Chunks that are summed up first; known to be its warp's, else descriptors of products were in
// vector registers.
DEVICE int find_given(const attn_linear_kparams &p, const chunk_work &w)
{
    return (int)__shfl_sync(0xffffffffu, find_sum(p, w).count, 0);
}

// By a warpgroup that keeps rows of the state, from panel `first` on.
DEVICE void keep_state(const attn_linear_kparams &p, int first, shared_output &mem)
{
    kept_state my = {};
    const chunk_work w = find_walk(p, mem);
    const int given = find_given(p, w), end = given + chunks_of(w);
    const int handing = chunk_of_handing(p, w, find_sum(p, w));

    if (relays(p) && linear_has(p, LINEAR_STATE) && w.segment == 0 && w.h % p.group == 0)
        copy_state_in<kept_state>(p, w, first / KEPT);
    #pragma unroll 1
    for (int n = 0;; n++) {    // of all that is brought, so known to be its warp's
        if (n == handing)
            give_state(p, w, first / KEPT, my);
        if (n == given) {
            device_barrier_arrive(&mem.summed);
            if (linear_has(p, LINEAR_SCANNED)) {
                device_wait_before();
                take_state(p, w, first / KEPT, my);
            } else if (find_slots_before(p, w).count) {
                take_before(first, mem, my);
            }
        }
        if (n >= end)
            break;
        if (n >= given) {
            const int i = n - given, slot = i % STATES, stage = n % STAGES;

            if (KEEPERS_MAP && has_phi(p)) {
                device_barrier_wait(&mem.full[stage], n / STAGES & 1);
                #pragma unroll
                for (int panel = first; panel < first + KEPT; panel++)
                    take_rows<64>(p, mem.q[stage][panel], CHUNK);
            }
            device_barrier_wait(&mem.read[slot], (i / STATES & 1) ^ 1);
            share_state(my, mem.s[slot] + first);
            if (linear_has(p, LINEAR_NORMALIZE))
                each_z(first, my, [&](float x, int row) { mem.z[slot][row] = x; });
            arrive_written(&mem.taken[stage]);
        }
        // one keeper arrives for those with queries, which sum up none
        add_chunk<STAGES>(p, n, first, n < given && first == 0 ? 2 : 1, mem, my);
    }
    put_state_out(p, find_walk(p, mem), first, my);
}

// O of every QUERIES-th chunk.
DEVICE void walk_queries(const attn_linear_kparams &p, int first, shared_output &mem)
{
    const chunk_work w = find_walk(p, mem);
    const int given = find_given(p, w), chunks = chunks_of(w);

    if (!linear_has(p, LINEAR_SCANNED))
        add_before(p, w, first, mem);
    device_barrier_wait(&mem.summed, 0);    // what was brought for that is another's
    #pragma unroll 1
    for (int n = first; n < chunks; n += QUERIES) {
        const int m = given + n, j = w.first + n * CHUNK, stage = m % STAGES, slot = n % STATES;
        const uint64_t k = device_tile(device_address(mem.k[stage][0]), TILE * 16);
        const uint64_t v = device_tile(device_address(mem.v[stage][0]), TILE * 16);
        const uint64_t s = device_tile(device_address(mem.s[slot][0][0]), TILE * 16);
        float pairs[CHUNK / 8][4], o[NT][4], down[2], den[2] = {}, factor[2];
        uint32_t weights[CHUNK / 16][4];
        operands q;

        device_barrier_wait(&mem.full[stage], m / STAGES & 1);
        if (KEEPERS_MAP && has_phi(p))
            device_barrier_wait(&mem.taken[stage], n / STAGES & 1);
        load_queries(mem.q[stage], q);
        if (!KEEPERS_MAP)
            map_queries(p, q);
        tame_queries(q, down);
        device_barrier_wait(&mem.taken[stage], n / STAGES & 1);
        device_products_begin();
        #pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            device_products_by(pairs, q[i], k + i / 4 * TILE + i % 4 * 2, i > 0);
        device_products_commit();
        #pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            device_products_along(o, q[i], s + i / 4 * PANELS_V * TILE + i % 4 * 16 * 8, i > 0);
        device_products_commit();
        if (linear_has(p, LINEAR_NORMALIZE))
            add_products(q, mem.z[slot], den);
        device_products_wait<1>();
        device_products_hold(pairs);
        mask_pairs(pairs, den, weights);
        device_products_begin();
        #pragma unroll
        for (int i = 0; i < CHUNK / 16; i++)
            device_products_along(o, weights[i], v + i * 16 * 8, 1);
        device_products_commit();
        find_factors(p, w, j, down, den, factor);
        device_products_wait<0>();
        device_products_hold(o);
        device_barrier_arrive(&mem.read[slot]);
        lift_rows(p, down, o);
        write_rows(p, w, j, factor, o, mem.q[stage]);
        device_barrier_arrive(&mem.empty[stage]);
    }
}

DEVICE void walk_segment(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;
    const int group = warpgroup();

    if (threadIdx.x == 128)
        mem.number = take_number(p);
    if (group == 0 && relays(p)) {
        const chunk_work w = find_segment(p, (int)blockIdx.x);

        fetch_chunks<DEPTH>(p, w, find_sum(p, w));
    }
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.taken[i], 128 * KEEPERS);
            device_barrier_init(&mem.empty[i], 128 * (KEEPERS + 1));
        }
        for (int i = 0; i < STATES; i++) {
            device_barrier_init(&mem.read[i], 128);
        }
        device_barrier_init(&mem.summed, 128 * KEEPERS);
        device_barrier_init(&mem.added, 128 * QUERIES);
        device_barrier_init(&mem.clear, 128 * KEEPERS);
    }
    fill_ones(mem.one, WALKING);
    device_barriers_ready();
    if (group == 0) {
        const chunk_work w = find_walk(p, mem);
        const chunk_sum sum = find_sum(p, w);

        device_leave_registers<BRING_REGISTERS>();
        bring_chunks<STAGES, DEPTH>(p, w, sum, sum.count + chunks_of(w), mem);
    } else if (group <= KEEPERS) {
        device_leave_registers<STATE_REGISTERS>();
        keep_state(p, (group - 1) * KEPT, mem);
    } else {
        device_take_registers<QUERY_REGISTERS>();
        walk_queries(p, group - 1 - KEEPERS, mem);
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
KERNEL(NAME, _scan, SCANNING, scan_slots<kept_state>)
KERNEL(NAME, _output, WALKING, walk_segment)
