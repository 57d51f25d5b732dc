// SPDX-License-Identifier: MIT
// linear/bwd_wgmma.cu: gradients of causal linear attention in chunks on Hopper's tensor cores.
//
// Computes  dQ, dK and dV, as written in include/attn/linear.h
// Method    bwd_wgmma.cuh: three scans, each as fwd_wgmma.cu walks its chunks; or that of dQ and
//           one, _kv, of dV and dK, which have one state and the same tiles: a warpgroup has the
//           rows of keys, another those of values. The normaliser: bwd_wgmma_numbers.cuh
// Grid      1-D, as bwd_chunk_tf32.cu; _kv: columns of Dv, all in one group; _sums, _all: groups of
//           dQ and of dK and dV, one after another (sum_all(), walk_all()), _scan those of _sums
// Block     384 threads, 1-D, or 512 where two warpgroups have rows of A, and _kv; one brings, one
//           keeps the state. _sums 384: two bring, one keeps; of all columns 512: two keep
// Shared    dynamic: parts of chunks of B and X, of states; barriers
// Barriers  full and empty ones in shared memory for each chunk and each state
// Layout    rows of B and X 16 bytes at a time, of A and Y 16 or 8. work: slots (chunk.cuh)
// Numerics  as fwd_wgmma.cu. The bits of a head depend on the segments, which follow from B and
//           the heads, and on nothing else
// Instances _q_sums, _k_sums (of dK and dV), _q, _k, _v; _kv of DIM 64 and WIDTH 64. Of f32 _sums,
//           _scan, and with _kv _all: those of all scans
// Requires  sm_90a; causal, no states that come or go; rows of 16-byte pieces, D
//           and Dv up to DIM; dK and dV of DIM 128: a query head for each of keys
// Tunables  STAGES, DEPTH, STATES, ROWS, SUM_BRINGS; src/plan/cuda/linear_bwd_wgmma.c has the
//           same numbers
// Oracle    src/host/linear_bwd_reference.c
//
// Built for each TYPE and DIM (64, 128); WIDTH (32, 64): the columns of a group; NORMALIZED 1, f32
// of DIM 64: of normalised problems alone, since others lose 4 % by it. NAME is the image's.
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
#ifndef NORMALIZED
#define NORMALIZED 0
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
[[maybe_unused]] constexpr int SCANNING = 256;

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

// Of normalised problems, of chunks: what is added to the pairs of a
// query, what divides it, and what the normaliser's row of the state grows by, by warps.
constexpr bool NORMALIZES = NORMALIZED;
template <bool THERE, int STAGES> struct shared_numbers {};
template <int STAGES> struct shared_numbers<true, STAGES> {
    float c[STAGES][CHUNK], factors[STAGES][CHUNK], sums[STAGES][4][DIM];
};

struct shared_sums {
    keys b[SUM_STAGES];
    values x[SUM_STAGES];
    shared_numbers<NORMALIZES, SUM_STAGES> of;
    device_barrier full[SUM_STAGES], empty[SUM_STAGES];
};

// Sums by all columns (bwd_wgmma_sums.cuh).
[[maybe_unused]] constexpr int WHOLE_STAGES = 2, WHOLE_THREADS = 512;
// Of threads that keep the state, that bring.
[[maybe_unused]] constexpr int WHOLE_REGISTERS[2] = { 144, 112 };

struct shared_whole {
    keys b[WHOLE_STAGES], x[WHOLE_STAGES];
    device_barrier full[WHOLE_STAGES], empty[WHOLE_STAGES];
};

struct shared_walk {
    keys b[STAGES];
    values x[STAGES];
    states s[STATES];
    shared_numbers<NORMALIZES, STAGES> of;
    float z[STATES][NORMALIZES ? DIM : 2];
    device_barrier full[STAGES], empty[STAGES], there[STATES], read[STATES];
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

#include "linear/bwd_wgmma_rows.cuh"
#include "linear/bwd_wgmma_sums.cuh"

// What the rows of a segment add to the state: of B and X, of GRAD_Q from its end, backwards to
// it: what the walk reads first was read last.
template <scan WHICH, bool GROUPED>
DEVICE void sum_heads(const attn_linear_kparams &p, int group)
{
    constexpr bool BACK = !is_backwards(WHICH);
    SHARED_MEMORY(memory);
    shared_sums &mem = *(shared_sums *)memory;
    chunk_work w = find_scan<WHICH, GROUPED>(p, p.heads_kv, group, width_of(p, WHICH));

    if (WHICH == GRAD_Q)
        w.end = max(keys_of(w), w.first);
    device_let_next();
    if (threadIdx.x == 0)
        for (int i = 0; i < SUM_STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 128);
        }
    device_barriers_ready();
    wait_for_phi(p);
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
        store_sums<WHICH>(p, w, slot_of<WHICH>(p, w, slot), my);
        if (has_z<WHICH>(p, w) && (WHICH != GRAD_V || w.column == 0))
            *z_in_slot<WHICH>(p, w, slot) = my.z;
    }
}

template <scan WHICH> DEVICE void sum_scan(const attn_linear_kparams &p)
{
    if (is_grouped<WHICH>(p))
        sum_heads<WHICH, true>(p, (int)blockIdx.x);
    else
        sum_heads<WHICH, false>(p, (int)blockIdx.x);
}

// GROUPS: heads may be grouped (is_grouped()), the scan has all groups of the launch. Else it has
// those from some on, and group is the number there.
template <scan WHICH, bool GROUPS>
DEVICE void bring(const attn_linear_kparams &p, shared_walk &mem, int group)
{
    constexpr bool BACK = is_backwards(WHICH);

    if (GROUPS && is_grouped<WHICH>(p))
        bring_scan<WHICH, true, BACK, STAGES, DEPTH, 1>(p, find_walk<WHICH, true>(p, group), mem,
                                                        0);
    else
        bring_scan<WHICH, false, BACK, STAGES, DEPTH, 1>(p, find_walk<WHICH, false>(p, group),
                                                         mem, 0);
}

template <scan WHICH, bool GROUPS>
DEVICE void keep(const attn_linear_kparams &p, shared_walk &mem, int group)
{
    if (GROUPS && is_grouped<WHICH>(p))
        keep_state<WHICH, true>(p, mem, group);
    else
        keep_state<WHICH, false>(p, mem, group);
}

// Of query heads of their own.
template <scan WHICH>
DEVICE void walk_scan(const attn_linear_kparams &p, int group)
{
    SHARED_MEMORY(memory);
    shared_walk &mem = *(shared_walk *)memory;

    begin_walk(p, mem, 1);
    if (threadIdx.x < 128) {
        device_leave_registers<REGISTERS[2]>();
        bring<WHICH, false>(p, mem, group);
    } else if (threadIdx.x < 256) {
        device_leave_registers<REGISTERS[1]>();
        keep<WHICH, false>(p, mem, group);
    } else {
        device_take_registers<REGISTERS[0]>();
        walk_rows<WHICH, false, ROWS>(
            p, mem, group,
            ROWS > 1 ? (int)__shfl_sync(0xffffffffu, threadIdx.x / 128, 0) - 2 : 0);
    }
}

template <scan WHICH> DEVICE void walk_alone(const attn_linear_kparams &p)
{
    walk_scan<WHICH>(p, (int)blockIdx.x);
}

#if BOTH
template <scan WHICH, bool TURNED, bool GROUPS>
DEVICE void walk(const attn_linear_kparams &p, shared_walk &mem, int group)
{
    if (GROUPS && is_grouped<WHICH>(p))
        walk_group<WHICH, TURNED>(p, mem);
    else
        walk_rows<WHICH, TURNED, 1>(p, mem, group, 0);
}

// dV and dK, which may share a head of keys.
template <bool GROUPS> DEVICE void walk_both(const attn_linear_kparams &p, int group)
{
    SHARED_MEMORY(memory);
    shared_walk &mem = *(shared_walk *)memory;

    begin_walk(p, mem, 2);
    if (threadIdx.x < 128) {
        device_leave_registers<REGISTERS[2]>();
        bring<GRAD_V, GROUPS>(p, mem, group);
    } else if (threadIdx.x < 256) {
        device_leave_registers<REGISTERS[1]>();
        keep<GRAD_V, GROUPS>(p, mem, group);
    } else if (threadIdx.x < 384) {
        device_take_registers<REGISTERS[0]>();
        walk<GRAD_V, false, GROUPS>(p, mem, group);
    } else {
        device_take_registers<REGISTERS[0]>();
        walk<GRAD_K, true, GROUPS>(p, mem, group);
    }
}

DEVICE void walk_both_alone(const attn_linear_kparams &p) { walk_both<true>(p, (int)blockIdx.x); }
#endif

#ifdef TYPE_IS_F32
#if DIM == 64
// The groups of a scan beside others.
template <scan WHICH> DEVICE int groups_of(const attn_linear_kparams &p)
{
    return ceil_div(width_of(p, WHICH), COLUMNS) * p.pieces * p.heads_q * p.batch;
}
#endif

// All sums in one launch: those of dQ, then of dK and dV; and all walks, which take longest first.
// A query head for each of keys; groups without work end at once.
DEVICE void sum_all(const attn_linear_kparams &p)
{
#if DIM == 64
    const int group = blockIdx.x, behind = group - groups_of<GRAD_Q>(p);

    if (behind < 0)
        sum_heads<GRAD_Q, false>(p, group);
    else if (behind < groups_of<GRAD_V>(p))
        sum_heads<GRAD_V, false>(p, behind);
#else
    const int group = blockIdx.x, behind = group - p.pieces * p.heads_q * p.batch;

    if (behind < 0)
        sum_whole<GRAD_Q>(p, group);
    else
        sum_whole<GRAD_V>(p, behind);
#endif
}

#if BOTH
DEVICE void walk_all(const attn_linear_kparams &p)
{
    const int group = blockIdx.x, behind = group - groups_of<GRAD_V>(p);

    if (behind < 0 && p.has & (LHAS_GRAD_K | LHAS_GRAD_V))
        walk_both<false>(p, group);
    else if (behind >= 0 && p.grad_q && behind < groups_of<GRAD_Q>(p))
        walk_scan<GRAD_Q>(p, behind);
}
#endif

// A slot becomes the sum of those up to it, of all scans.
DEVICE void scan_all(const attn_linear_kparams &p)
{
    const int64_t slot = slot_floats(p) / 4;
    const int64_t used = NORMALIZES ? slot : (int64_t)p.d * p.dv / 4;
    float4 *const all = (float4 *)(p.work + p.slots_at) + blockIdx.x / p.pieces * p.slots * slot;

    device_let_next();
    device_wait_before();
    for (int e = (int)(blockIdx.x % p.pieces) * SCANNING + (int)threadIdx.x; e < used;
         e += p.pieces * SCANNING)
        add_up(all + e, slot, p.slots);
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
KERNEL(NAME, _q, WALKING, walk_alone<GRAD_Q>)
KERNEL(NAME, _k, WALKING, walk_alone<GRAD_K>)
KERNEL(NAME, _v, WALKING, walk_alone<GRAD_V>)
#if BOTH
KERNEL(NAME, _kv, WALKING, walk_both_alone)
#endif
#ifdef TYPE_IS_F32
KERNEL(NAME, _sums, (DIM == 64 ? THREADS : WHOLE_THREADS), sum_all)
KERNEL(NAME, _scan, SCANNING, scan_all)
#if BOTH
KERNEL(NAME, _all, WALKING, walk_all)
#endif
#endif
