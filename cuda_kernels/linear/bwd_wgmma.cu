// SPDX-License-Identifier: MIT
// linear/bwd_wgmma.cu: gradients of causal linear attention in chunks on Hopper's tensor cores.
//
// Computes  dQ, dK and dV, as written in include/attn/linear.h
// Method    bwd_wgmma.cuh: three scans, each as fwd_wgmma.cu walks its chunks; or that of dQ and
//           one, _kv, of dV and dK, which have one state and the same tiles: a warpgroup has the
//           rows of keys, another those of values
// Grid      1-D, as bwd_chunk_tf32.cu; _kv: columns of Dv, all in one group
// Block     384 threads, 1-D, or 512 where two warpgroups have rows of A, and _kv; one brings, one
//           keeps the state. _sums 384: two bring, one keeps
// Shared    dynamic: parts of chunks of B and X, of states; barriers
// Barriers  full and empty ones in shared memory for each chunk and each state
// Layout    rows of B and X 16 bytes at a time, of A and Y 16 or 8. work: slots (chunk.cuh)
// Numerics  as fwd_wgmma.cu. The bits of a head depend on the segments, which follow from B and
//           the heads, and on nothing else
// Instances _q_sums, _k_sums (of dK and dV), _q, _k, _v; _kv of DIM 64 and WIDTH 64
// Requires  sm_90a; causal, no normaliser and no states that come or go; rows of 16-byte pieces, D
//           and Dv up to DIM; dK and dV of DIM 128: a query head for each of keys
// Tunables  STAGES, DEPTH, STATES, ROWS, SUM_BRINGS; src/plan/cuda/linear_bwd_wgmma.c has the
//           same numbers
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each TYPE and DIM (64, 128); WIDTH (32, 64): the columns of a group. NAME is the
// image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef WIDTH
#define WIDTH 64
#endif
#ifndef NAME
#define NAME attn_linear_bwd_wgmma_f32_d64_c64
#endif

constexpr int COLUMNS = WIDTH;

#include "linear/wgmma.cuh"

// Chunks of B and X in shared memory, and on their way there; states; warpgroups that have rows
// of A, each of every ROWS-th chunk. Sums: warpgroups that bring.
constexpr bool LARGE = TYPE == TYPE_F32 && DIM > 64;
constexpr int STAGES = LARGE ? 2 : TYPE == TYPE_BF16 ? 4 : 3, SUM_STAGES = TYPE == TYPE_F32 ? 2 : 3;
constexpr int DEPTH = DIM > 64 || TYPE == TYPE_F32 ? 1
                      : TYPE == TYPE_BF16          ? 3
                                                   : (COLUMNS == 32 ? 2 : 1);
constexpr int SUM_DEPTH = TYPE == TYPE_F32 || DIM > 64 ? 1 : 2, SUM_BRINGS = 2;
constexpr int STATES = LARGE ? 1 : 2, ROWS = DIM > 64 && TYPE != TYPE_BF16 ? 1 : 2;

// When the next rows of A are asked for, by the registers that are left: at once; when A has been
// multiplied, beside the products with X; or before those, and then no products run beside the
// work on pairs.
enum moment { AT_ONCE, LAST, BETWEEN };
constexpr moment ASKS = TYPE == TYPE_F32 || (TYPE == TYPE_BF16 && DIM > 64) ? BETWEEN
                        : TYPE == TYPE_F16 && DIM == 64 && COLUMNS == 64    ? LAST
                                                                            : AT_ONCE;
constexpr int THREADS = 128 * (SUM_BRINGS + 1), WALKING = 128 * (2 + ROWS);

// Of threads that have rows of A, that keep the state, that bring.
constexpr int REGISTERS[3] = {
    ROWS == 1 ? 240 : DIM > 64 ? 136 : TYPE == TYPE_BF16 ? 152 : TYPE == TYPE_F16 ? 168 : 160,
    ROWS == 1 ? 136 : DIM > 64 ? 120 : TYPE == TYPE_BF16 ? 80 : 88,
    ROWS == 1 ? 128 : DIM > 64 ? 120 : TYPE == TYPE_BF16 ? 128 : TYPE == TYPE_F16 ? 88 : 104,
};

// Those of a launch are multiples of 8 a thread; who waits for more than there are waits forever.
static_assert(128 * (ROWS * REGISTERS[0] + REGISTERS[1] + REGISTERS[2]) <=
                  65536 / WALKING / 8 * 8 * WALKING, "registers of the warpgroups");

#define BOTH (DIM == 64 && WIDTH == 64)    // dV and dK in one walk

struct shared_sums {
    keys b[SUM_STAGES];
    values x[SUM_STAGES];
    device_barrier full[SUM_STAGES], empty[SUM_STAGES];
};

struct shared_walk {
    keys b[STAGES];
    values x[STAGES];
    states s[STATES];
    device_barrier full[STAGES], empty[STAGES], there[STATES], read[STATES];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "linear/bwd_wgmma_walk.cuh"

// What the rows of a segment add to the state: of B and X, of GRAD_Q from its end, backwards to
// it: what the walk reads first was read last.
template <scan WHICH, bool GROUPED> DEVICE void sum_heads(const attn_linear_kparams &p)
{
    constexpr bool BACK = !is_backwards(WHICH);
    SHARED_MEMORY(memory);
    shared_sums &mem = *(shared_sums *)memory;
    chunk_work w = find_scan<WHICH, GROUPED>(p, p.heads_kv);

    if (WHICH == GRAD_Q)
        w.end = max(keys_of(w), w.first);
    device_let_next();
    if (threadIdx.x == 0)
        for (int i = 0; i < SUM_STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 128);
        }
    device_barriers_ready();
    if (w.segment == p.pieces - 1)
        w.end = w.first;    // the last needs no slot, slot 0 is zero
    if (threadIdx.x < THREADS - 128) {
        bring_scan<WHICH, GROUPED, BACK, SUM_STAGES, SUM_DEPTH, SUM_BRINGS>(
            p, w, mem, SUM_BRINGS > 1 ? threadIdx.x / 128 : 0);
    } else {
        const int slot = w.segment == p.pieces - 1 ? 0 : w.segment + 1;
        group_state my = {};

        #pragma unroll 1
        for (int n = 0; n < chunks_of(w) * heads_of<GROUPED>(p); n++)
            add_rows<SUM_STAGES>(n, mem, my);
        device_wait_before();    // where the slots of dQ were
        store_sums<WHICH>(p, w, find_slot(p, w, slot), my);
    }
}

// Whether heads of queries share one of keys, and backwards each warpgroup has several of them;
// of DIM over 64 there are no registers for the code of both.
template <scan WHICH> DEVICE bool is_grouped(const attn_linear_kparams &p)
{
    return DIM == 64 && is_backwards(WHICH) && p.group > 1;
}

template <scan WHICH> DEVICE void sum_scan(const attn_linear_kparams &p)
{
    if (is_grouped<WHICH>(p))
        sum_heads<WHICH, true>(p);
    else
        sum_heads<WHICH, false>(p);
}

// Found by each warpgroup for itself: what all know would be kept in the registers of all.
template <scan WHICH, bool GROUPED> DEVICE chunk_work find_walk(const attn_linear_kparams &p)
{
    device_forget();
    return find_scan<WHICH, GROUPED>(p, is_backwards(WHICH) ? p.heads_kv : p.heads_q);
}

// By the warpgroup that keeps the state.
template <scan WHICH, bool GROUPED>
DEVICE void keep_state(const attn_linear_kparams &p, shared_walk &mem)
{
    const chunk_work w = find_walk<WHICH, GROUPED>(p);
    const int chunks = chunks_of(w), heads = heads_of<GROUPED>(p);
    group_state my = {};

    device_wait_before();
    load_first<WHICH>(p, w, my);
    #pragma unroll 1
    for (int c = 0, n = 0; c < chunks; c++) {
        const int slot = c % STATES;

        device_barrier_wait(&mem.read[slot], (c / STATES & 1) ^ 1);
        share_state(my, mem.s[slot]);
        arrive_written(&mem.there[slot]);
        #pragma unroll 1
        for (const int end = n + heads; n < end; n++)
            add_rows<STAGES>(n, mem, my);
    }
}

// Y of every EVERY-th chunk from `first` on. TURNED: the tiles and the state are those of the
// scan of dV, and this one is that of dK.
template <scan WHICH, bool TURNED, int EVERY>
DEVICE void walk_rows(const attn_linear_kparams &p, shared_walk &mem, int first)
{
    constexpr bool BACK = is_backwards(WHICH);
    const chunk_work w = find_walk<WHICH, false>(p);
    const int chunks = chunks_of(w);
    queries coming;

    fetch_reads<WHICH>(p, w, chunk_at<BACK>(w, first), coming);
    #pragma unroll 1
    for (int n = first; n < chunks; n += EVERY) {
        const int j = chunk_at<BACK>(w, n), next = j + (BACK ? -EVERY : EVERY) * CHUNK;
        const int stage = n % STAGES, slot = n % STATES;
        const float4 *const b = TURNED ? mem.x[stage][0] : mem.b[stage][0][0];
        const float4 *const x = TURNED ? mem.b[stage][0][0] : mem.x[stage][0];
        float pairs[CHUNK / 8][4], read[NT][4], seen[NT][4], down[2], none[2] = {};
        operands<STEPS> weights;

        {
            operands<DIM / 16> a;
            float raw[DIM / 8][4];

            take_queries<WHICH == GRAD_V>(p, coming, raw, down);
            make_operands(raw, a);
            if (ASKS == AT_ONCE)
                fetch_reads<WHICH>(p, w, next, coming);
            device_barrier_wait(&mem.full[stage], n / STAGES & 1);
            begin_products<true, PARTS>(a, b, PANELS, pairs);
            device_barrier_wait(&mem.there[slot], n / STATES & 1);
            begin_products<TURNED, STATE_PARTS>(a, mem.s[slot][0][0], PANELS, read);
            device_products_wait<(ASKS == BETWEEN ? 0 : 1)>();
            device_products_hold(pairs);
            if (ASKS == BETWEEN)
                fetch_reads<WHICH>(p, w, next, coming);
            mask_pairs<BACK>(pairs, none);
            make_operands(pairs, weights);
        }
        begin_products<false, PARTS>(weights, x, 1, seen);
        if (ASKS == LAST) {
            device_products_wait<1>();
            device_products_hold(read);
            fetch_reads<WHICH>(p, w, next, coming);
        }
        device_products_wait<0>();
        device_products_hold(read);
        device_products_hold(seen);
        device_barrier_arrive(&mem.empty[stage]);
        device_barrier_arrive(&mem.read[slot]);
        write_grads<WHICH>(p, w, j, down, read, seen);
    }
    if (BACK && first == 0)
        write_zeros<WHICH>(p, w);
}

// The same where heads of queries share one of keys: all of a chunk's, one after another.
template <scan WHICH, bool TURNED, int EVERY>
DEVICE void walk_group(const attn_linear_kparams &p, shared_walk &mem, int first)
{
    const chunk_work w = find_walk<WHICH, true>(p);
    const int chunks = chunks_of(w), heads = p.group;

    #pragma unroll 1
    for (int c = first; c < chunks; c += EVERY) {
        const int j = chunk_at<true>(w, c), slot = c % STATES;
        float sum[NT][4], down[2];

        #pragma unroll 1
        for (int g = 0; g < heads; g++) {
            const int n = c * heads + g, stage = n % STAGES;
            const float4 *const b = TURNED ? mem.x[stage][0] : mem.b[stage][0][0];
            const float4 *const x = TURNED ? mem.b[stage][0][0] : mem.x[stage][0];
            float pairs[CHUNK / 8][4], seen[NT][4], none[2] = {};
            operands<STEPS> weights;

            {
                operands<DIM / 16> a;
                float raw[DIM / 8][4];
                queries rows;

                fetch_reads<WHICH>(p, w, j, rows);
                take_queries<WHICH == GRAD_V>(p, rows, raw, down);
                make_operands(raw, a);
                device_barrier_wait(&mem.full[stage], n / STAGES & 1);
                begin_products<true, PARTS>(a, b, PANELS, pairs);
                device_products_wait<0>();
                device_products_hold(pairs);
                if (g == 0) {
                    device_barrier_wait(&mem.there[slot], c / STATES & 1);
                    begin_products<TURNED, STATE_PARTS>(a, mem.s[slot][0][0], PANELS, sum);
                    device_products_wait<0>();
                    device_products_hold(sum);
                    device_barrier_arrive(&mem.read[slot]);
                }
            }
            mask_pairs<true>(pairs, none);
            make_operands(pairs, weights);
            begin_products<false, PARTS>(weights, x, 1, seen);
            device_products_wait<0>();
            device_products_hold(seen);
            device_barrier_arrive(&mem.empty[stage]);
            #pragma unroll
            for (int i = 0; i < NT * 4; i++)
                sum[i / 4][i % 4] += seen[i / 4][i % 4];
        }

        const float zeros[NT][4] = {};

        write_grads<WHICH>(p, w, j, down, sum, zeros);
    }
    if (first == 0)
        write_zeros<WHICH>(p, w);
}

// Barriers; `readers` warpgroups have rows of each chunk.
DEVICE void begin_walk(shared_walk &mem, int readers)
{
    device_let_next();
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 128 * (readers + 1));
        }
        for (int i = 0; i < STATES; i++) {
            device_barrier_init(&mem.there[i], 128);
            device_barrier_init(&mem.read[i], 128 * readers);
        }
    }
    device_barriers_ready();
}

template <scan WHICH> DEVICE void bring(const attn_linear_kparams &p, shared_walk &mem)
{
    constexpr bool BACK = is_backwards(WHICH);

    if (is_grouped<WHICH>(p))
        bring_scan<WHICH, true, BACK, STAGES, DEPTH, 1>(p, find_walk<WHICH, true>(p), mem, 0);
    else
        bring_scan<WHICH, false, BACK, STAGES, DEPTH, 1>(p, find_walk<WHICH, false>(p), mem, 0);
}

template <scan WHICH> DEVICE void keep(const attn_linear_kparams &p, shared_walk &mem)
{
    if (is_grouped<WHICH>(p))
        keep_state<WHICH, true>(p, mem);
    else
        keep_state<WHICH, false>(p, mem);
}

template <scan WHICH, bool TURNED, int EVERY>
DEVICE void walk(const attn_linear_kparams &p, shared_walk &mem, int first)
{
    if (is_grouped<WHICH>(p))
        walk_group<WHICH, TURNED, EVERY>(p, mem, first);
    else
        walk_rows<WHICH, TURNED, EVERY>(p, mem, first);
}

template <scan WHICH> DEVICE void walk_scan(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_walk &mem = *(shared_walk *)memory;

    begin_walk(mem, 1);
    if (threadIdx.x < 128) {
        device_leave_registers<REGISTERS[2]>();
        bring<WHICH>(p, mem);
    } else if (threadIdx.x < 256) {
        device_leave_registers<REGISTERS[1]>();
        keep<WHICH>(p, mem);
    } else {
        device_take_registers<REGISTERS[0]>();
        walk<WHICH, false, ROWS>(
            p, mem, ROWS > 1 ? (int)__shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 2 : 0);
    }
}

#if BOTH
// dV and dK.
DEVICE void walk_both(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_walk &mem = *(shared_walk *)memory;

    begin_walk(mem, 2);
    if (threadIdx.x < 128) {
        device_leave_registers<REGISTERS[2]>();
        bring<GRAD_V>(p, mem);
    } else if (threadIdx.x < 256) {
        device_leave_registers<REGISTERS[1]>();
        keep<GRAD_V>(p, mem);
    } else if (threadIdx.x < 384) {
        device_take_registers<REGISTERS[0]>();
        walk<GRAD_V, false, 1>(p, mem, 0);
    } else {
        device_take_registers<REGISTERS[0]>();
        walk<GRAD_K, true, 1>(p, mem, 0);
    }
}
#endif

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

KERNEL(NAME, _q_sums, THREADS, sum_scan<GRAD_Q>)
KERNEL(NAME, _k_sums, THREADS, sum_scan<GRAD_V>)
KERNEL(NAME, _q, WALKING, walk_scan<GRAD_Q>)
KERNEL(NAME, _k, WALKING, walk_scan<GRAD_K>)
KERNEL(NAME, _v, WALKING, walk_scan<GRAD_V>)
#if BOTH
KERNEL(NAME, _kv, WALKING, walk_both)
#endif
