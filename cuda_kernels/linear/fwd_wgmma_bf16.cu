// SPDX-License-Identifier: MIT
// linear/fwd_wgmma_bf16.cu: causal linear attention in chunks of bf16 on Hopper's tensor cores.
//
// Computes  O, den, and S and z as they come out, as written in include/attn/linear.h
// Method    as fwd_wgmma.cu, with the tensors' own bits as operands: one warpgroup copies rows of
//           Q, K and V to shared memory, some chunks ahead, and takes phi of K there; KEEPERS
//           keep the state, in the products' own sums; QUERIES have the queries of every
//           so-manieth chunk: P, Q S and P V, and write O through their rows of Q
// Grid      1-D, ceil(Dv / COLUMNS) * segments * heads * B groups, columns fastest; _sums has the
//           key/value heads
// Block     128 threads (1 + KEEPERS + QUERIES), 1-D; _sums 128 (1 + KEEPERS)
// Shared    dynamic: chunks of Q, K and V, states, ones (of K^T 1), z, barriers
// Barriers  full and empty ones in shared memory for each chunk and each state
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

#include "linear/wgmma_bf16.cuh"

// Chunks in shared memory, and on their way there; no more warpgroups have queries than there are
// states, or one could take the state before for its own.
constexpr int STAGES = DIM == 64 ? 8 : COLUMNS == 128 ? 3 : 4;
constexpr int DEPTH = COLUMNS == 128 ? 2 : STAGES - 2;
constexpr int SUM_STAGES = DIM == 64 ? 6 : 4, SUM_DEPTH = SUM_STAGES - 1, STATES = 2;
constexpr int THREADS = 128 * (1 + KEEPERS), WALKING = 128 * (1 + KEEPERS + QUERIES);

// Of threads that have queries, that keep the state, that bring.
constexpr int QUERY_REGISTERS = QUERIES == 1 ? 216 : 160;
constexpr int STATE_REGISTERS = DIM == 64 ? 120 : 112;
constexpr int BRING_REGISTERS = DIM == 64 || COLUMNS == 128 ? 72 : 80;

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
    device_barrier full[STAGES], empty[STAGES], there[STATES], read[STATES];
    int number;    // of the group
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
        bring_chunks<SUM_STAGES, SUM_DEPTH>(p, w, { w.first, chunks }, chunks, mem);
    } else {
        const int first = (warpgroup() - 1) * KEPT;
        kept_state my = {};

        #pragma unroll 1
        for (int n = 0; n < chunks; n++)
            add_chunk<SUM_STAGES>(p, n, first, mem, my);
        give_state(p, w, first / KEPT, my);
    }
}

// Found by each warpgroup for itself: what all know would be kept in the registers of all.
DEVICE chunk_work find_walk(const attn_linear_kparams &p, const shared_output &mem)
{
    device_forget();
    return find_chunks(p, p.heads_q, p.len_q, p.dv, __shfl_sync(0xffffffffu, mem.number, 0));
}

// By a warpgroup that keeps rows of the state, from panel `first` on.
DEVICE void keep_state(const attn_linear_kparams &p, int first, shared_output &mem)
{
    kept_state my = {};
    int given, chunks;

    device_wait_before();
    {
        const chunk_work w = find_walk(p, mem);

        given = find_sum(p, w).count, chunks = chunks_of(w);
        if (linear_has(p, LINEAR_STATE) && !linear_has(p, LINEAR_SCANNED) && w.segment == 0 &&
            w.h % p.group == 0)
            copy_state_in<kept_state>(p, w, first / KEPT);
    }
    #pragma unroll 1
    for (int n = 0;; n++) {    // of all that is brought, so known to be its warp's
        if (n == given)
            pass_state(p, find_walk(p, mem), first / KEPT, my);
        if (n >= given + chunks)
            break;
        if (n >= given) {
            const int i = n - given, slot = i % STATES;

            device_barrier_wait(&mem.read[slot], (i / STATES & 1) ^ 1);
            share_state(my, mem.s[slot] + first);
            if (linear_has(p, LINEAR_NORMALIZE))
                each_z(first, my, [&](float x, int row) { mem.z[slot][row] = x; });
            arrive_written(&mem.there[slot]);
        }
        add_chunk<STAGES>(p, n, first, mem, my);
    }
    put_state_out(p, find_walk(p, mem), first, my);
}

// The warp's rows of Q as first operands.
typedef uint32_t operands[DIM / 16][4];

DEVICE void load_queries(const attn_linear_kparams &p, const float4 (*tiles)[TILE], operands &q)
{
    #pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        device_matrices(q[i], matrices_at(tiles[i / 4]) ^ (i % 4 * 32));
    if (linear_has(p, LINEAR_ELU1)) {
        #pragma unroll
        for (int i = 0; i < DIM / 4; i++)
            q[i / 4][i % 4] = phi_of_pair<true>(q[i / 4][i % 4]);
    } else if (linear_has(p, LINEAR_RELU)) {
        #pragma unroll
        for (int i = 0; i < DIM / 4; i++)
            q[i / 4][i % 4] = phi_of_pair<false>(q[i / 4][i % 4]);
    }
}

// Divides rows that have numbers of 2^33 or more by 2^HUGE_ROW, so that no sum overflows, and
// says what they are multiplied by.
DEVICE void tame_queries(operands &q, float (&down)[2])
{
    uint32_t any[2] = { 0, 0 };

    #pragma unroll
    for (int i = 0; i < DIM / 4; i++)
        any[i % 2] |= ((q[i / 4][i % 4] & 0x7fff7fffu) + 0x30003000u) & 0x80008000u;
    down[0] = down[1] = 1.0f;
    if (!__any_sync(0xffffffffu, (any[0] | any[1]) != 0))
        return;
    #pragma unroll
    for (int half = 0; half < 2; half++) {
        any[half] |= __shfl_xor_sync(0xffffffffu, any[half], 1);
        any[half] |= __shfl_xor_sync(0xffffffffu, any[half], 2);
        down[half] = any[half] ? power_of_2(-HUGE_ROW) : 1.0f;
    }
    #pragma unroll
    for (int i = 0; i < DIM / 4; i++) {
        uint32_t &x = q[i / 4][i % 4];

        x = device_pair<TYPE>(f32_of_low(x) * down[i % 2], f32_of_high(x) * down[i % 2]);
    }
}

// den += q z, of a lane's columns.
DEVICE void add_products(const operands &q, const float *z, float (&den)[2])
{
    z += threadIdx.x % 4 * 2;
    #pragma unroll
    for (int i = 0; i < DIM / 4; i++) {
        const float2 y = *(const float2 *)(z + i / 2 * 8);

        #pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t x = q[i / 4][i % 4];

            if (i % 2 == half)
                den[half] += f32_of_low(x) * y.x + f32_of_high(x) * y.y;
        }
    }
}

// P = tril(Q K^T) as first operands; den += its rows, of a lane's columns.
DEVICE void mask_pairs(float (&pairs)[CHUNK / 8][4], float (&den)[2],
                       uint32_t (&weights)[CHUNK / 16][4])
{
    const int thread = device_thread() % 128, lane = thread % 32;
    const int before = thread / 32 * 16 + lane / 4 - lane % 4 * 2;

    #pragma unroll
    for (int i = 0; i < CHUNK / 8 * 4; i++) {
        float &x = pairs[i / 4][i % 4];

        x = i / 4 * 8 + i % 2 - i % 4 / 2 * 8 <= before ? x : 0.0f;
        den[i % 4 / 2] += x;
    }
    #pragma unroll
    for (int m = 0; m < CHUNK / 16; m++)
        pack(pairs[2 * m], pairs[2 * m + 1], { 1.0f, 1.0f }, weights[m]);
}

// What rows of O are multiplied by; den is written.
DEVICE void find_factors(const attn_linear_kparams &p, const chunk_work &w, int j,
                         const float (&down)[2], const float (&dens)[2], float (&factor)[2])
{
    const int lane = threadIdx.x % 32;

    #pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = j + row_of_warp() + lane / 4 + half * 8;

        factor[half] = p.scale;
        if (linear_has(p, LINEAR_NORMALIZE)) {
            float den = dens[half];

            den += __shfl_xor_sync(0xffffffffu, den, 1);
            den += __shfl_xor_sync(0xffffffffu, den, 2);
            den = p.scale * den + p.eps * down[half];
            if (p.want_den && w.column + lane % 4 == 0 && row < w.end)
                p.den[LINEAR_AT(p, den, w.b, w.h, (int64_t)row, 0)] = den / down[half];
            factor[half] = den == 0.0f ? 0.0f : factor[half] / den;
        } else {
            factor[half] *= down[half] == 1.0f ? 1.0f : power_of_2(HUGE_ROW);
        }
    }
}

// The warp's rows of O from token j on, through its own rows of Q.
DEVICE void write_rows(const attn_linear_kparams &p, const chunk_work &w, int j,
                       const float (&factor)[2], const float (&o)[NT][4], float4 (*tiles)[TILE])
{
    constexpr int ACROSS = COLUMNS / 8, STEP = 32 / ACROSS;
    const int lane = threadIdx.x % 32, row = row_of_warp() + lane / ACROSS, c = lane % ACROSS;
    const int column = w.column + c * 8;
    char *to = (char *)p.o + 2 * (LINEAR_AT(p, o, w.b, w.h, (int64_t)j + row, 0) + column);

    __syncwarp();    // lanes have read each other's part of those rows
    #pragma unroll
    for (int m = 0; m < NT / 2; m++) {
        uint32_t x[4];

        pack(o[2 * m], o[2 * m + 1], factor, x);
        device_put_matrices(matrices_at(tiles[m / 4]) ^ (m % 4 * 32), x);
    }
    __syncwarp();
    if (!p.want_o || column >= p.dv)
        return;
    #pragma unroll
    for (int i = 0; i < 16 / STEP; i++) {
        const int r = row + i * STEP;

        if (j + r < w.end)
            *(float4 *)(to + 2 * i * STEP * p.o_stride_l) =
                tiles[c / 8][r * 8 + (c % 8 ^ (r & 7))];
    }
}

// O of every QUERIES-th chunk.
DEVICE void walk_queries(const attn_linear_kparams &p, int first, shared_output &mem)
{
    const chunk_work w = find_walk(p, mem);
    const int given = find_sum(p, w).count, chunks = chunks_of(w);

    #pragma unroll 1
    for (int m = first; m < given + chunks; m += QUERIES) {    // of all that is brought
        const int n = m - given, j = w.first + n * CHUNK, stage = m % STAGES, slot = n % STATES;
        const uint64_t k = device_tile(device_address(mem.k[stage][0]), TILE * 16);
        const uint64_t v = device_tile(device_address(mem.v[stage][0]), TILE * 16);
        const uint64_t s = device_tile(device_address(mem.s[slot][0][0]), TILE * 16);
        float pairs[CHUNK / 8][4], o[NT][4], down[2], den[2] = {}, factor[2];
        uint32_t weights[CHUNK / 16][4];
        operands q;

        device_barrier_wait(&mem.full[stage], m / STAGES & 1);
        if (n < 0) {
            device_barrier_arrive(&mem.empty[stage]);
            continue;
        }
        load_queries(p, mem.q[stage], q);
        tame_queries(q, down);
        device_products_begin();
        #pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            device_products_by(pairs, q[i], k + i / 4 * TILE + i % 4 * 2, i > 0);
        device_products_commit();
        device_barrier_wait(&mem.there[slot], n / STATES & 1);
        device_products_begin();
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
        write_rows(p, w, j, factor, o, mem.q[stage]);
        device_barrier_arrive(&mem.empty[stage]);
    }
}

DEVICE void walk_segment(const attn_linear_kparams &p)
{
    SHARED_MEMORY(memory);
    shared_output &mem = *(shared_output *)memory;
    const int group = warpgroup();

    if (threadIdx.x == 0) {
        mem.number = take_number(p);
        for (int i = 0; i < STAGES; i++) {
            device_barrier_init(&mem.full[i], 128);
            device_barrier_init(&mem.empty[i], 128 * (KEEPERS + 1));
        }
        for (int i = 0; i < STATES; i++) {
            device_barrier_init(&mem.there[i], 128 * KEEPERS);
            device_barrier_init(&mem.read[i], 128);
        }
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

KERNEL(NAME, _begin, 32, flags_begin)
KERNEL(NAME, _sums, THREADS, sum_chunks)
KERNEL(NAME, _scan, SCANNING, scan_slots<kept_state>)
KERNEL(NAME, _output, WALKING, walk_segment)
