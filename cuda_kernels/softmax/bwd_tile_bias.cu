// SPDX-License-Identifier: MIT
// softmax/bwd_tile_bias.cu: the gradient of the bias on plain CUDA cores.
//
// Computes  dBias = dS before the softcap, summed over the dimensions in which the bias was
//           broadcast
// Method    a group has a tile of BM x BN elements of dBias to itself and visits every pair
//           that they were added to: in a dimension that dBias has, its tile of it; in
//           one that was broadcast, all of it, in order. Thread (tx, ty) holds RM x RN sums;
//           where queries or keys were broadcast, those meet in shared memory at the end
// Grid      1-D, ceil(keys of dBias / BN) * ceil(its queries / BM) * its heads * its
//           batches groups, keys fastest
// Block     TX * TY threads, 1-D
// Shared    as bwd_tile.cu
// Barriers  one a chunk, two more a step
// Numerics  f32, sums compensated (Kahan 1965), in an order of their own. What no pair adds
//           to is exactly 0
// Features, Layout, Requires: as bwd_tile.cu
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for each TYPE (f32, f16, bf16) and DIM (64, 128, 256): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_tile_bias_f32_d64
#endif

#include "softmax/bwd_pairs.cuh"

using T = pairs<32, 64, 16, 8, 32, 2048 / DIM, 1>;    // as small in bwd_tile.cu
constexpr int CAN = CAN_ALL & ~FEAT_PAGES;

// The elements of dBias that a group has, and what it visits for them.
struct output {
    bool has_b, has_h, has_i, has_j;    // dimensions that dBias has
    int i, j;
    int64_t h, b;
    int n_j, n_i, n_h, n_b;             // tiles of pairs, heads, batches
};

DEVICE output find_output(const attn_kparams &p)
{
    const int tiles_j = ceil_div(p.grad_bias_size_d, T::BN);
    const int tiles_i = ceil_div(p.grad_bias_size_l, T::BM);
    const int id = blockIdx.x;
    output x;

    x.has_b = p.grad_bias_size_b == p.batch;
    x.has_h = p.grad_bias_size_h == p.heads_q;
    x.has_i = p.grad_bias_size_l == p.len_q;
    x.has_j = p.grad_bias_size_d == p.len_kv;
    x.j = id % tiles_j * T::BN;
    x.i = id / tiles_j % tiles_i * T::BM;
    x.h = id / tiles_j / tiles_i % p.grad_bias_size_h;
    x.b = id / tiles_j / tiles_i / p.grad_bias_size_h;
    x.n_j = x.has_j ? 1 : ceil_div(p.len_kv, T::BN);
    x.n_i = x.has_i ? 1 : ceil_div(p.len_q, T::BM);
    x.n_h = x.has_h ? 1 : p.heads_q;
    x.n_b = x.has_b ? 1 : p.batch;
    return x;
}

// Tile `step` of pairs. By one thread.
DEVICE void find_step(const attn_kparams &p, shared<T> &mem, const output &to, int64_t step)
{
    const int64_t above = step / to.n_j, heads = above / to.n_i;
    const int j0 = to.has_j ? to.j : (int)(step % to.n_j) * T::BN;
    const int i0 = to.has_i ? to.i : (int)(above % to.n_i) * T::BM;
    const int h = (int)(to.has_h ? to.h : heads % to.n_h);
    const int64_t b = to.has_b ? to.b : heads / to.n_h;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const int queries = clamp(seq.queries - i0, 0, T::BM);
    const attn_range any = range_any<CAN>(p, seq, i0, queries);
    back_step &at = mem.step[0];

    mem.seq = seq;
    mem.b = b;
    mem.k_rows = ADDRESS_KEYS(p, k, seq, b, address_head_kv(p, h));
    mem.v_rows = ADDRESS_KEYS(p, v, seq, b, address_head_kv(p, h));
    at.q_rows = ADDRESS_QUERIES(p, q, seq, b, h);
    at.o_rows = ADDRESS_QUERIES(p, grad_o, seq, b, h);
    at.score = score_run<CAN>(p, seq, b, h, i0, queries);
    at.h = h;
    at.i0 = i0;
    at.j0 = j0;
    at.lo = max(any.first - j0, 0);
    at.n = min(any.end - j0, T::BN);
    at.queries = queries;
    at.keys = at.n;
    at.masked = 1;
}

// What the group's threads found, added up where queries or keys were broadcast.
DEVICE void store(const attn_kparams &p, const shared<T> &mem, const output &to)
{
    for (int e = threadIdx.x; e < (to.has_i ? T::BM : 1) * (to.has_j ? T::BN : 1);
         e += T::THREADS) {
        const int i = to.has_j ? e / T::BN : e, j = to.has_j ? e % T::BN : 0;
        float total = 0.0f, rest = 0.0f;

        for (int x = to.has_i ? i : 0; x < (to.has_i ? i + 1 : T::BM); x++)
            for (int y = to.has_j ? j : 0; y < (to.has_j ? j + 1 : T::BN); y++)
                total = back_add(total, mem.weight[x * T::WP + y], &rest);
        if (to.i + i < p.grad_bias_size_l && to.j + j < p.grad_bias_size_d)
            p.grad_bias[p.grad_bias_offset + to.b * p.grad_bias_stride_b +
                        to.h * p.grad_bias_stride_h + (to.i + i) * p.grad_bias_stride_l +
                        (to.j + j) * p.grad_bias_stride_d] = total - rest;
    }
}

// s = <rows of queries, rows of keys>, by chunks of depth.
DEVICE void find_products(const attn_kparams &p, shared<T> &mem, const place<T> &my,
                          int depth, bool values, float (&s)[T::RM][T::RN])
{
    const back_step &at = mem.step[0];

    #pragma unroll 1
    for (int d = 0, slot = 0; d < depth; d += T::DC, slot ^= 1) {
        if (d == 0)
            stage_depth<T, CAN, false>(p, mem, at, mem.slot[0], 0, values);
        device_arrive();
        if (d + T::DC < depth)
            stage_depth<T, CAN, false>(p, mem, at, mem.slot[slot ^ 1], d + T::DC, values);
        add_depth<T>(s, my, mem.slot[slot], d, depth);
    }
    __syncthreads();    // the slots have been read
}

extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void NAME(
    const __grid_constant__ attn_kparams p)
{
    static_assert(sizeof(shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T> &mem = *(shared<T> *)memory;
    const place<T> my = find_place<T>();
    const output to = find_output(p);
    const int64_t steps = (int64_t)to.n_b * to.n_h * to.n_i * to.n_j;
    float sum[T::RM][T::RN] = {}, extra[T::RM][T::RN] = {};

    #pragma unroll 1
    for (int64_t step = 0; step < steps; step++) {
        const back_step &at = mem.step[0];
        float s[T::RM][T::RN] = {}, ds[T::RM][T::RN] = {};

        __syncthreads();    // the step before has been read
        if (threadIdx.x == 0)
            find_step(p, mem, to, step);
        __syncthreads();
        if (at.n <= at.lo)
            continue;
        take_queries<T, CAN, false>(p, mem, at);
        find_products(p, mem, my, p.d, false, s);
        find_products(p, mem, my, p.has & HAS_GRAD_O ? p.dv : 0, true, ds);
        find_weights<T, CAN, false>(p, my, mem, at, s);
        __syncwarp();
        find_gradients<T, CAN, false, false>(p, my, mem, s, ds,
                                             find_kept<T, CAN, false>(p, my, mem, at));
        #pragma unroll
        for (int r = 0; r < T::RM; r++) {
            #pragma unroll
            for (int c = 0; c < T::RN; c++)
                sum[r][c] = back_add(sum[r][c], ds[r][c], &extra[r][c]);
        }
    }
    #pragma unroll
    for (int r = 0; r < T::RM; r++) {
        #pragma unroll
        for (int c = 0; c < T::RN; c++)
            sum[r][c] -= extra[r][c];
    }
    put_pairs<T>(my, mem, sum);
    __syncthreads();
    store(p, mem, to);
}
