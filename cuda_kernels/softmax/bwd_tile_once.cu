// SPDX-License-Identifier: MIT
// softmax/bwd_tile_once.cu: gradients of softmax attention on plain CUDA cores, exact in f32, in
// one pass: five products in place of the seven of bwd_tile.cu.
//
// Computes  dK and dV, and sums of which dQ is a multiple, as in include/attn/softmax.h
// Method    as bwd_mma.cu walks: a group keeps BM keys with their values in shared memory and
//           visits the queries that see them, BN a step; dQ is added to sums in the workspace,
//           one group after the other in the order of their keys. Thread (tx, ty) holds RM x RN
//           pairs and RM x 4 RV sums of dK and of dV in registers; of dQ of a step 4 RQ x 4 RV.
//           dO of the next step comes while dK is summed up, Q while dQ is (cp.async)
// Grid      1-D, ceil(Lk / BM) * B * Hkv groups, in the order of tickets
// Block     256 threads, 1-D
// Shared    dynamic, in f32: K, V; Q, dO; weights, then gradients of scores; LSE and delta;
//           the group's work
// Barriers  three a step
// Layout    any strides, in elements; WIDE_ bits promise more (params.h). work:
//           bwd_mma_work.cuh
// Numerics  f32. Registers sum a run of RUN queries and begin anew, lest errors grow with the
//           length; runs are added up in the gradient itself, where the thread that wrote an
//           element reads it
// Features  ranges, lengths, packed sequences, sinks through common/; no softcap, terms, pages,
//           dropout
// Requires  sm_80; bwd_mma_begin.cu before, bwd_mma_finish.cu behind; D and Dv up to DIM,
//           columns past them are 0 and not read
// Tunables  BM, BN; src/plan/cuda/softmax_bwd_tile.c has the same numbers
// Oracle    src/host/softmax_bwd_reference.c
//
// Built for f32 with DIM 64 and 128: NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef DIM
#define DIM 64
#endif
#ifndef NAME
#define NAME attn_softmax_bwd_tile_once_f32_d64
#endif

#include "softmax/bwd_once.cuh"

constexpr int RUN = 256;    // queries of a run, the most that one register sums

// Brings Q, or dO, of a step.
template <typename T, int CAN>
DEVICE void fetch_queries(const attn_kparams &p, shared<T> &mem, const mma_step &at, bool is_o)
{
    const attn_range there = { at.i0 + at.lo, at.i0 + at.n };
    const mma_head &head = mem.group.head[at.h % 2];

    if (!at.there || (is_o && !(p.has & HAS_GRAD_O)))
        return;
    fetch_rows<T, T::BN, CAN>(p, is_o ? mem.o : mem.q, is_o ? p.grad_o : p.q,
                              is_o ? head.o_rows : head.q_rows, at.i0, there,
                              is_o ? p.dv : p.d,
                              is_o ? has<CAN>(p, WIDE_GRADS) : has<CAN>(p, WIDE_Q));
}

// What the queries of a step bring along. Those that do not exist have no weight.
template <typename T, int CAN>
DEVICE void take_queries(const attn_kparams &p, shared<T> &mem, const mma_step &at)
{
    if (!at.there)
        return;
    for (int x = threadIdx.x; x < T::BN; x += T::THREADS) {
        const bool there = x >= at.lo && x < at.n;

        mem.lse[x] = there ? back_lse<CAN>(p, mem.group.seq, mem.group.b, at.h, at.i0 + x)
                           : INFINITE;
        mem.delta[x] = there ? p.work[at.row + x] : 0.0f;
    }
}

// Brings the group's keys and values. What lies in keys that no query sees must not meet a 0
// in the product for dQ.
template <typename T, int CAN> DEVICE void fetch_own(const attn_kparams &p, shared<T> &mem)
{
    const back_group &group = mem.group;
    const attn_range any = range_any<CAN>(p, group.seq, 0, group.seq.queries);
    const attn_range own = { max(group.first, any.first),
                             min(group.first + group.owned, any.end) };

    fetch_rows<T, T::BM, CAN>(p, mem.k, p.k,
                              ADDRESS_KEYS(p, k, group.seq, group.b, group.owner),
                              group.first, own, p.d, has<CAN>(p, WIDE_K));
    fetch_rows<T, T::BM, CAN>(p, mem.v, p.v,
                              ADDRESS_KEYS(p, v, group.seq, group.b, group.owner),
                              group.first, own, p.dv, has<CAN>(p, WIDE_V));
}

template <typename T, int CAN> DEVICE void bwd_once(const attn_kparams &p)
{
    static_assert(sizeof(shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T> &mem = *(shared<T> *)memory;
    const back_group &group = mem.group;
    const bool given = p.has & HAS_GRAD_O;
    const bool want_q = p.has & HAS_GRAD_Q, want_k = p.has & HAS_GRAD_K;
    const bool want_v = p.has & HAS_GRAD_V;
    const int depth = (p.d + 3) / 4, depth_v = given ? (p.dv + 3) / 4 : 0;    // in chunks
    float4 dk[T::RM][T::RV] = {}, dv[T::RM][T::RV] = {};
    bool begun = false;
    int n = 0;

    if (threadIdx.x == 0) {
        find_group<T, CAN>(p, mem.group);
        find_step<T, CAN>(p, mem.group, NULL, mem.step[0]);
        find_step<T, CAN>(p, mem.group, &mem.step[0], mem.step[1]);
    }
    __syncthreads();
    if (group.owned == 0)
        return;
    if (mem.step[0].there) {
        fetch_own<T, CAN>(p, mem);
        fetch_queries<T, CAN>(p, mem, mem.step[0], false);
        fetch_queries<T, CAN>(p, mem, mem.step[0], true);
        take_queries<T, CAN>(p, mem, mem.step[0]);
    }

    const auto store = [&](bool ends) {
        if (want_k)
            store_rows<T, CAN>(p, find_place_anew<T>(), group.first, group.owned, p.grad_k,
                               ADDRESS_KEYS(p, grad_k, group.seq, group.b, group.owner), p.d,
                               ends ? p.scale : 1.0f, begun, dk);
        if (want_v)
            store_rows<T, CAN>(p, find_place_anew<T>(), group.first, group.owned, p.grad_v,
                               ADDRESS_KEYS(p, grad_v, group.seq, group.b, group.owner),
                               p.dv, 1.0f, begun, dv);
        begun = true;
    };

    #pragma unroll 1
    for (; mem.step[n % 4].there; n++) {
        const mma_step &at = mem.step[n % 4], &next = mem.step[(n + 1) % 4];
        int before = 0;

        device_arrive();    // the step is there for all, and dS of the one before was read
        if (want_q && threadIdx.x == 0)
            before = device_flag(at.flag);
        {
            float s[T::RM][T::RN] = {};

            add_pairs<T>(s, mem.k, mem.q, depth);
            find_weights<T>(p, mem, at, s);
            put_pairs<T>(mem, s);
        }
        __syncwarp();    // a row of pairs belongs to lanes of one warp
        if (want_v && given)
            add_sums<T>(dv, mem.pairs, mem.o);
        if (want_q || want_k) {
            float dp[T::RM][T::RN] = {};

            add_pairs<T>(dp, mem.v, mem.o, depth_v);
            __syncwarp();
            find_gradients<T>(mem, dp);
            put_pairs<T>(mem, dp);
        }
        if (threadIdx.x == T::THREADS - 32)
            find_step<T, CAN>(p, mem.group, &next, mem.step[(n + 2) % 4]);
        if (want_q && threadIdx.x == 0)
            take_turn(at, before, n ? &mem.step[(n - 1) % 4] : NULL);
        __syncthreads();    // dS is there for all, dO was read, the sums are this group's
        fetch_queries<T, CAN>(p, mem, next, true);
        if (want_k)
            add_sums<T>(dk, mem.pairs, mem.q);
        __syncthreads();    // Q was read
        fetch_queries<T, CAN>(p, mem, next, false);
        take_queries<T, CAN>(p, mem, next);
        if (want_q)
            add_queries<T>(mem, at);

        // runs lie on a grid, so that the bits of a row do not depend on other rows
        const int tile = at.i0 / T::BN + (has<CAN>(p, FEAT_RANGE_RIGHT) ? 1 : 0);

        if (next.there && (next.h != at.h || tile % (RUN / T::BN) == 0))
            store(false);
    }
    store(true);
    if (want_q && n) {
        __syncthreads();
        if (threadIdx.x == 0)
            end_turn(mem.step[(n - 1) % 4]);
    }
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN) \
    extern "C" __global__ __launch_bounds__(T::THREADS, 1) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        bwd_once<T, CAN>(p); \
    }

// As many queries as the shared memory has room for beside 128 keys.
using tile = once<128, DIM == 64 ? 128 : 64>;
KERNEL(NAME, _ranges, tile, CAN_RANGES)
