// SPDX-License-Identifier: MIT
// softmax/bwd_tile.cu: gradients of softmax attention on plain CUDA cores, exact in f32: a
// group computes the dQ of a tile of queries, or the dK and dV of a tile of keys.
//
// Computes  _queries: dQ, _keys: dK and dV, those that are there, as in
//           include/attn/softmax.h
// Method    FlashAttention-2 (Dao 2023) in passes that share no output, so that nothing is
//           added atomically: each computes the weights again from the LSE. Thread (tx, ty)
//           holds RM x RN pairs and RM x 4 RV sums of each gradient in registers (RM =
//           BM / TY, RN = BN / TX, RV = DIM / 4 TX). Rows go through two slots in shared
//           memory in turn, for scores in chunks of DC columns, for sums in chunks of JC
//           rows: one is filled (cp.async) while the other is computed on. A row of pairs
//           belongs to lanes of one warp, so weights need no barrier. A group of keys visits
//           the queries of all heads that read them, head by head
// Grid      1-D, _queries: ceil(Lq / BM) * Hq * B groups, _keys: ceil(Lk / BM) * Hkv * B,
//           tiles fastest; first those that visit most under a causal rule
// Block     TX * TY threads, 1-D
// Shared    dynamic, in f32: BM * (BN + 8)                            weights, gradients
//             + 2 * max((BM + BN) * (DC + 4), JC * DIM)               chunks of rows
//             + 2 * max(BM, BN) + BN                                  LSE, delta; marks
// Barriers  one a chunk; one more where masks or biases hide rows
// Layout    any strides, in elements; WIDE_ bits promise more (params.h)
// Numerics  f32. Steps lie on a grid: the bits of a row depend on what it visits, not on B or
//           H, or on what else is asked for. TYPE_F32: registers sum a run of RUN rows and
//           begin anew, lest errors grow with the length; runs are added up in the gradient
//           itself, where the thread that wrote an element reads it
// Features  all but pages, through common/; the instances _ranges know no softcap, terms or
//           dropout. Rows that a mask or a bias of -inf hides from all rows of the group are
//           taken as 0: none of these marked them
// Requires  delta in the workspace (bwd_delta.cu); D and Dv up to DIM, columns past them are
//           0 and not read. cp.async from sm_80 on, plain copies before
// Tunables  the tiles below; src/plan/cuda/softmax_bwd_tile.c has the same numbers
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
#define NAME attn_softmax_bwd_tile_f32_d64
#endif

#include "softmax/bwd_pairs.cuh"
#include "softmax/bwd_store.cuh"

// An 8 x 8 tile of pairs needs 16 loads from shared memory for 256 multiply-adds; beside 64
// sums of both dK and dV there are registers for 8 x 4.
#if DIM == 64
using large = pairs<128, 64, 8, 16, 32, 64, 2>;
using large_keys = pairs<128, 32, 8, 16, 64, 32, 2>;
#elif DIM == 128
using large = pairs<128, 128, 16, 16, 32, 64, 1>;
using large_keys = pairs<128, 64, 16, 16, 64, 64, 1>;
#else
using large = pairs<64, 128, 16, 16, 32, 32, 1>;
using large_keys = pairs<64, 64, 16, 16, 64, 32, 1>;
#endif
using small = pairs<32, 64, 16, 8, 32, 2048 / DIM, 1>;

constexpr int RUN = 256;    // f32: rows of a run, the most that one register sums

// The step after `before`, or the first one. By one thread.
template <typename T, int CAN, bool KEYS>
DEVICE void find_step(const attn_kparams &p, const shared<T> &mem, const back_step *before,
                      int h, back_step &at)
{
    const int start = mem.range.first / T::BN * T::BN;
    const bool goes_on = before && !before->last;
    const int first = goes_on ? before->first + T::BN : start;

    at.h = before ? before->h + before->last : h;
    at.first = first;
    at.lo = max(mem.range.first - first, 0);
    at.n = min(mem.range.end - first, T::BN);
    at.i0 = KEYS ? first : mem.first;
    at.j0 = KEYS ? mem.first : first;
    at.queries = KEYS ? at.n : mem.owned;
    at.keys = KEYS ? mem.owned : at.n;
    at.last = first + T::BN >= mem.range.end;

    const attn_range all = range_all<CAN>(p, mem.seq, at.i0, at.queries);

    at.masked = mem.owned < T::BM || at.n < T::BN || at.lo || at.j0 < all.first ||
                at.j0 + at.keys > all.end;
    if (goes_on && !KEYS)
        at.score = before->score;
    else
        at.score = score_run<CAN>(p, mem.seq, mem.b, at.h, at.i0, at.queries);
    at.q_rows = ADDRESS_QUERIES(p, q, mem.seq, mem.b, at.h);
    at.o_rows = ADDRESS_QUERIES(p, grad_o, mem.seq, mem.b, at.h);
}

// What this group is to do. By one thread.
template <typename T, int CAN, bool KEYS>
DEVICE void find_work(const attn_kparams &p, shared<T> &mem)
{
    const int tiles = ceil_div(KEYS ? p.len_kv : p.len_q, T::BM);
    const int heads = KEYS ? p.heads_kv : p.heads_q;
    const int tile = blockIdx.x % tiles, head = blockIdx.x / tiles;
    const int owner = head % heads, head_kv = KEYS ? owner : address_head_kv(p, owner);
    const int64_t b = head / heads;
    const int first =
        (!KEYS && has<CAN>(p, FEAT_RANGE_RIGHT) ? tiles - 1 - tile : tile) * T::BM;
    const attn_sequence seq = range_sequence<CAN>(p, b);
    const int owned = clamp((KEYS ? seq.keys : seq.queries) - first, 0, T::BM);

    mem.seq = seq;
    mem.range = KEYS ? range_queries<CAN>(p, seq, first, owned)
                     : range_any<CAN>(p, seq, first, owned);
    mem.k_rows = ADDRESS_KEYS(p, k, seq, b, head_kv);
    mem.v_rows = ADDRESS_KEYS(p, v, seq, b, head_kv);
    mem.b = b;
    mem.owner = owner;
    mem.first = first;
    mem.owned = owned;
    find_step<T, CAN, KEYS>(p, mem, NULL, KEYS ? owner * p.group : owner, mem.step[0]);
}

// A gradient that nothing adds to.
template <typename T, int CAN>
DEVICE void store_nothing(int n, void *to, const attn_rows &rows, int first, int depth)
{
    for (int e = threadIdx.x; e < n * depth; e += T::THREADS)
        elem_store<TYPE>(to, rows.base + (first + e / depth) * rows.stride_l +
                                 e % depth * rows.stride_d, 0.0f);
}

// Zeros rows of a chunk that have no mark.
template <typename T>
DEVICE void hide_rows(const shared<T> &mem, float *slot, int x, int now)
{
    for (int e = threadIdx.x; e < T::JC * T::VP; e += T::THREADS)
        if (mem.mark[x + e / T::VP] != now)
            slot[e] = 0.0f;
    __syncthreads();
}

template <typename T, int CAN, bool KEYS> DEVICE void bwd_tile(const attn_kparams &p)
{
    static_assert(sizeof(shared<T>) <= T::BYTES, "the planner's budget");
    SHARED_MEMORY(memory);
    shared<T> &mem = *(shared<T> *)memory;
    float4 a[T::RM][T::RV] = {}, b[T::RM][T::RV] = {};    // of dQ or dK, of dV
    const bool want_a = !KEYS || p.has & HAS_GRAD_K;
    const bool want_b = KEYS && p.has & HAS_GRAD_V;
    const bool weighs = want_b && p.has & HAS_GRAD_O;
    const int depth_a = p.d, depth_b = p.has & HAS_GRAD_O ? p.dv : 0;

    if (threadIdx.x == 0)
        find_work<T, CAN, KEYS>(p, mem);
    for (int i = threadIdx.x; i < T::BN; i += T::THREADS)
        mem.mark[i] = 0;
    __syncthreads();

    const auto rows_a = [&] {
        return KEYS ? ADDRESS_KEYS(p, grad_k, mem.seq, mem.b, mem.owner)
                    : ADDRESS_QUERIES(p, grad_q, mem.seq, mem.b, mem.owner);
    };
    const auto rows_b = [&] { return ADDRESS_KEYS(p, grad_v, mem.seq, mem.b, mem.owner); };
    void *const to_a = KEYS ? p.grad_k : p.grad_q;

    if (mem.owned == 0)
        return;
    if (mem.range.end <= mem.range.first) {
        if (want_a)
            store_nothing<T, CAN>(mem.owned, to_a, rows_a(), mem.first, p.d);
        if (want_b)
            store_nothing<T, CAN>(mem.owned, p.grad_v, rows_b(), mem.first, p.dv);
        return;
    }

    // What is brought next: chunk `next` of the step that `odd` says.
    int slot = 0, next = 0;
    bool odd = false, more = true, begun = false;
    const auto fetch = [&] {
        const back_step &at = mem.step[odd];
        const int chunks = ceil_div(at.n, T::JC);
        const int scores = ceil_div(depth_a, T::DC), values = weighs ? chunks : 0;
        const int grads = want_a ? ceil_div(depth_b, T::DC) : 0;
        const int n = scores + values + grads + (want_a ? chunks : 0);
        int x = next;
        float *const to = mem.slot[slot ^ 1];

        if (!more)
            return;
        if (x < scores || (x >= scores + values && x < scores + values + grads)) {
            const bool second = x >= scores;

            if (second)
                x -= scores + values;
            stage_depth<T, CAN, KEYS>(p, mem, at, to, x * T::DC, second);
        } else {
            const bool second = x < scores + values;

            x -= second ? scores : scores + values + grads;
            stage_rows<T, CAN, KEYS>(p, mem, at, to, x * T::JC, second);
        }
        if (++next < n)
            return;
        next = 0;
        more = !at.last || (KEYS && (at.h + 1) % p.group != 0);
        odd = !odd;
    };
    // the slot of the chunk that has arrived for all; the next one is on its way
    const auto arrived = [&] {
        device_arrive();
        slot ^= 1;
        fetch();
        return mem.slot[slot];
    };

    const auto add_rows = [&](float4 (&sum)[T::RM][T::RV], const float *rows, int x) {
        const place<T> my = find_place_anew<T>();

        add_values<T>(sum, mem.weight + my.ty * T::WP + x, rows + my.tx * 4);
    };

    fetch();
    #pragma unroll 1
    for (int step = 0;; step++) {
        const back_step &at = mem.step[step & 1];
        const bool hides = has<CAN>(p, FEAT_HIDES);
        const bool ends = at.last && !(KEYS && (at.h + 1) % p.group != 0);
        const int now = step + 1;
        float s[T::RM][T::RN] = {};

        take_queries<T, CAN, KEYS>(p, mem, at);
        #pragma unroll 1
        for (int d = 0; d < depth_a; d += T::DC) {
            const float *const rows = arrived();

            if (d == 0 && threadIdx.x == 0 && !ends)
                find_step<T, CAN, KEYS>(p, mem, &at, 0, mem.step[(step + 1) & 1]);
            add_depth<T>(s, find_place_anew<T>(), rows, d, depth_a);
        }
        find_weights<T, CAN, KEYS>(p, find_place_anew<T>(), mem, at, s);
        if (hides)
            mark_rows<T>(find_place_anew<T>(), mem, now);

        const uint32_t kept = find_kept<T, CAN, KEYS>(p, find_place_anew<T>(), mem, at);

        if (has<CAN>(p, FEAT_DROPOUT) && weighs)
            drop_weights<T>(p, find_place_anew<T>(), mem, kept);
        __syncwarp();
        #pragma unroll 1
        for (int x = 0; x < at.n && weighs; x += T::JC) {
            float *const rows = arrived();

            if (hides)
                hide_rows(mem, rows, x, now);
            add_rows(b, rows, x);
        }
        if (want_a) {
            float dp[T::RM][T::RN] = {};

            #pragma unroll 1
            for (int d = 0; d < depth_b; d += T::DC)
                add_depth<T>(dp, find_place_anew<T>(), arrived(), d, depth_b);
            __syncwarp();
            if (has<CAN>(p, FEAT_DROPOUT) && weighs)    // those that were dropped, again
                find_weights<T, CAN, KEYS>(p, find_place_anew<T>(), mem, at, s);
            find_gradients<T, CAN, KEYS, true>(p, find_place_anew<T>(), mem, s, dp, kept);
            put_pairs<T>(find_place_anew<T>(), mem, dp);
            __syncwarp();
            #pragma unroll 1
            for (int x = 0; x < at.n; x += T::JC) {
                float *const rows = arrived();

                if (hides)
                    hide_rows(mem, rows, x, now);
                add_rows(a, rows, x);
            }
        }

        if (ends || (TYPE == TYPE_F32 && (at.last || (at.first / T::BN + 1) %
                                                             (RUN / T::BN) == 0))) {
            if (want_a)
                store_rows<T, CAN>(p, find_place_anew<T>(), mem.first, mem.owned, to_a, rows_a(),
                                   p.d, ends ? p.scale : 1.0f, begun, a);
            if (want_b)
                store_rows<T, CAN>(p, find_place_anew<T>(), mem.first, mem.owned, p.grad_v,
                                   rows_b(), p.dv, 1.0f, begun, b);
            begun = true;
        }
        if (ends)
            break;
    }
}

#define JOIN(a, b) a##b
#define KERNEL(name, part, T, CAN, KEYS) \
    extern "C" __global__ __launch_bounds__(T::THREADS, T::BLOCKS) void JOIN(name, part)( \
        const __grid_constant__ attn_kparams p) \
    { \
        bwd_tile<T, CAN, KEYS>(p); \
    }

KERNEL(NAME, _queries_ranges, large, CAN_RANGES, false)
KERNEL(NAME, _queries_all, small, CAN_ALL & ~FEAT_PAGES, false)
KERNEL(NAME, _keys_ranges, large_keys, CAN_RANGES, true)
KERNEL(NAME, _keys_all, small, CAN_ALL & ~FEAT_PAGES, true)
