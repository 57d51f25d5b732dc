// SPDX-License-Identifier: MIT
// linear/fwd_wgmma.cu: causal linear attention in chunks on Hopper's tensor cores.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    as fwd_chunk_tf32.cu, chunk by chunk, with products of warpgroups (wgmma): a number
//           of f32 is a sum of two of f16 (wgmma_halves.cuh), one of f16 of two of bf16
//           (wgmma.cuh). Two warpgroups, of f16 one, bring K and V and take them apart
//           (wgmma_stage.cuh), one keeps the state, the others (QUERIES of them) have the queries
//           of every so-manieth chunk: of their products those with the state alone wait for the
//           chunk before. With segments a group first sums up what its keys add to the state, for
//           those behind (wgmma_relay.cuh)
// Grid      1-D, as there
// Block     128 threads of each of those, 1-D; _sums those that bring, that keep
// Shared    dynamic: parts of chunks of K and V, of states; chunks of K, V, Q and O on their way;
//           z; sums of K by warps; powers of two; barriers
// Barriers  full and empty ones in shared memory for each chunk and each state
// Layout    rows of Q, K and V 16 bytes at a time, of O whole (f32, D 64), 8 or 4. work:
//           wgmma_relay.cuh
// Numerics  wgmma.cuh, of f32 halves.cuh: errors are small beside |q| |k| |v| of the pairs and
//           |q| |S| that a query sees, |x| the largest number of a row, and of S. S and z f32. Of
//           f16 rows of q with huge numbers are divided by a power of 2 meanwhile. An infinity of
//           f32 or f16 counts as NaN; what is not finite in a row of v may spread to queries of its
//           chunk that do not see it. The bits of a head depend on the segments and, of f32, the
//           columns of a group, which follow from B and the heads, and on nothing else
// Instances _output, with _begin before it if there are segments or a state; _sums, _scan, _output
//           of many segments
// Requires  sm_90a; causal; rows of 16-byte pieces, D up to DIM
// Tunables  STAGES, UNITS, STATES, QUERIES, BRINGING; src/plan/cuda/linear_fwd_wgmma.c has the same
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
constexpr bool HALVES = TYPE == TYPE_F32;

#include "linear/wgmma.cuh"

constexpr int KEEPERS = 1, KEPT_TILES = PANELS * NT + 1;    // of the state, and z

#include "linear/wgmma_relay.cuh"

// Chunks of K and V in shared memory, and units of them on their way there (wgmma_stage.cuh);
// states; warpgroups with queries.
constexpr bool LARGE = TYPE == TYPE_F32 && DIM > 64;
constexpr int STAGES = 2, UNITS = LARGE ? 3 : 4;
constexpr int SUM_UNITS = LARGE ? 4 : 8;
constexpr int STATES = 1, QUERIES = LARGE ? 1 : 2;
constexpr bool OUT_STAGED = HALVES && !LARGE;    // O leaves through shared memory
constexpr int TURNS = larger(STATES, QUERIES);    // a warpgroup waits for its own states alone
constexpr int BRINGING = HALVES ? 256 : 128;    // threads
constexpr int THREADS = BRINGING + 128, WALKING = THREADS + 128 * QUERIES;
constexpr int UNIT_BYTES = CHUNK * 64 * elem_bytes<TYPE>();

// Of threads that have queries, that keep the state, that bring.
constexpr int QUERY_REGISTERS = LARGE ? 200 : DIM > 64 ? 168 : HALVES ? 128 : 160;
constexpr int STATE_REGISTERS = LARGE ? 128 : DIM > 64 ? 112 : HALVES ? 88 : 96;
constexpr int BRING_REGISTERS = LARGE ? 88 : DIM > 64 ? 64 : HALVES ? 64 : 96;

struct shared_sums {
    keys k[STAGES];
    values v[STAGES];
    float4 unit[SUM_UNITS][UNIT_BYTES / 16];
    float sums[STAGES][BRINGING / 32][DIM];    // of K's rows, by warps
    chunk_scales of[HALVES ? STAGES : 1];
    device_barrier full[STAGES], empty[STAGES];
};

struct shared_output {
    keys k[STAGES];
    values v[STAGES];
    states s[STATES];
    float4 unit[UNITS][UNIT_BYTES / 16];
    float4 q[QUERIES][CHUNK * DIM * elem_bytes<TYPE>() / 16];
    float out[OUT_STAGED ? QUERIES : 1][OUT_STAGED ? CHUNK * (COLUMNS + 8) : 4];
    float z[STATES][DIM], sums[STAGES][BRINGING / 32][DIM];
    chunk_scales of[HALVES ? STAGES : 1];
    float factor[STATES];    // of products with the state
    uint32_t tops[2][4];     // of the state, by warps
    device_barrier full[STAGES], empty[STAGES], there[TURNS], read[STATES];
    int number;    // of the group
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "linear/wgmma_stage.cuh"
#include "linear/wgmma_walk.cuh"
#include "linear/wgmma_state.cuh"
#include "linear/wgmma_halves.cuh"

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
        if (linear_has(p, LINEAR_STATE) && threadIdx.x >= BRINGING)
            copy_state_in<group_state>(p, w, 0);
        return;
    }
    if (threadIdx.x == 0)
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], BRINGING);
            device_barrier_init(&mem.empty[i], 128);
        }
    device_barriers_ready();
    if (threadIdx.x < BRINGING) {
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
    return find_chunks(p, p.heads_q, p.len_q, p.dv, __shfl_sync(0xffffffffu, mem.number, 0));
}

// By the warpgroup that keeps the state.
DEVICE void keep_state(const attn_linear_kparams &p, shared_output &mem)
{
    group_state my = {};
    int given, chunks;

    device_wait_before();
    {
        const chunk_work w = find_walk(p, mem);

        given = find_sum(p, w).count, chunks = chunks_of(w);
        if (linear_has(p, LINEAR_STATE) && !linear_has(p, LINEAR_SCANNED) && w.segment == 0 &&
            w.h % p.group == 0)
            copy_state_in<group_state>(p, w, 0);
    }
    #pragma unroll 1
    for (int n = 0;; n++) {    // of all that is brought, so known to be its warp's
        if (n == given)
            pass_state(p, find_walk(p, mem), 0, my);
        if (n >= given + chunks)
            break;
        if (n >= given) {
            const int i = n - given, slot = i % STATES;

            if constexpr (HALVES) {
                float factor;
                const float up = scale_of_state(my, mem.tops[i % 2], factor);

                device_barrier_wait(&mem.read[slot], (i / STATES & 1) ^ 1);
                share_state(my, mem.s[slot], up);
                if (thread_of_group() == 0)
                    mem.factor[slot] = factor;
            } else {
                device_barrier_wait(&mem.read[slot], (i / STATES & 1) ^ 1);
                share_state(my, mem.s[slot]);
            }
            if (thread_of_group() < DIM)
                mem.z[slot][thread_of_group()] =
                    HALVES ? my.z * power_of_2(-OUT_OF_PAIRS) : my.z;
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
    const int group = (int)__shfl_sync(0xffffffffu, threadIdx.x / 128, 0);
    const int first = QUERIES > 1 ? group - THREADS / 128 : 0;
    const int skipped = ceil_div(max(given - first, 0), QUERIES) * QUERIES;
    float4 *const staged = mem.q[first];
    queries coming;

    ask_queries(p, w, w.first + (first + skipped - given) * CHUNK, staged);
    #pragma unroll 1
    for (int m = first; m < chunks; m += QUERIES) {    // of all that is brought
        const int n = m - given, j = w.first + n * CHUNK, stage = m % STAGES;
        const int slot = n % STATES, turn = n % TURNS;
        float pairs[CHUNK / 8][4], read[NT][4], down[2], den[2] = {}, of_read = 1.0f;
        operands<STEPS> weights;

        if (n < 0) {
            device_barrier_wait(&mem.full[stage], m / STAGES & 1);
            device_barrier_arrive(&mem.empty[stage]);
            continue;
        }
        {
            operands<DIM / 16> q;
            float raw[DIM / 8][4];

            await_queries(staged, coming);
            ask_queries(p, w, j + QUERIES * CHUNK, staged);
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
            if constexpr (HALVES) {
                device_products_wait<1>();
                device_products_hold(pairs);
                weigh_pairs(p, mem.of[stage], pairs, den);
                make_operands(pairs, weights);
                device_products_wait<0>();
                device_products_hold(read);
                of_read = mem.factor[slot];
            } else {
                device_products_wait<0>();
                device_products_hold(pairs);
                device_products_hold(read);
                mask_pairs(pairs, den);
                make_operands(pairs, weights);
            }
            device_barrier_arrive(&mem.read[slot]);
        }
        if (HALVES && mem.of[stage].wide) {
            if constexpr (HALVES)
                add_wide(p, w, j, mem.of[stage], weights, of_read, read);
            device_barrier_arrive(&mem.empty[stage]);
        } else {
            float seen[NT][4], of_seen = 1.0f;

            begin_products<false, PARTS>(weights, mem.v[stage][0], 1, seen);
            device_products_wait<0>();
            device_products_hold(seen);
            if (HALVES)
                of_seen = mem.of[stage].unit * power_of_2(LIFT);
            device_barrier_arrive(&mem.empty[stage]);
            #pragma unroll
            for (int i = 0; i < NT * 4; i++)
                read[i / 4][i % 4] = read[i / 4][i % 4] * of_read + seen[i / 4][i % 4] * of_seen;
        }
        device_products_hold(read);
        if (OUT_STAGED) {
            device_bulk_wait_read();    // the rows before
            __syncwarp();
        }
        write_rows<OUT_STAGED>(p, w, j, down, den, read, mem.out[OUT_STAGED ? first : 0]);
    }
    if (OUT_STAGED)
        device_bulk_wait<0>();
}

DEVICE void walk_segment(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;

    if (threadIdx.x == 0) {
        mem.number = take_number(p);
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], BRINGING);
            device_barrier_init(&mem.empty[i], 256);
        }
        for (int i = 0; i < TURNS; i++)
            device_barrier_init(&mem.there[i], 128);
        for (int i = 0; i < STATES; i++)
            device_barrier_init(&mem.read[i], 128);
    }
    device_barriers_ready();
    if (threadIdx.x < BRINGING) {
        const chunk_work w = find_walk(p, mem);
        const chunk_sum sum = find_sum(p, w);

        device_leave_registers<BRING_REGISTERS>();
        bring_chunks<STAGES, UNITS>(p, w, sum, sum.count + chunks_of(w), mem);
    } else if (threadIdx.x < THREADS) {
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
