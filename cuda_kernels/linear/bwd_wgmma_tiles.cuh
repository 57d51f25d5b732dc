// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_tiles.cuh: what the warpgroups of bwd_wgmma_tiles.cu do. A scan (bwd_wgmma.cuh)
// has tiles B and X, whose product is what a chunk adds to the state, and A:
//
//     scan    A    B    X    Y
//     GRAD_Q  dO   v    k    dQ
//     GRAD_V  k    q    dO   dV
//     GRAD_K  v    q    dO   dK    pairs with X, sums of B, the state turned
//
// A tile has the chunk's 64 rows of bf16 as they are in the tensor, phi applied: panels of 64
// columns, chunks of 16 bytes exchanged as products read them (device_tile). Results lie as
// wgmma has them: of a warp's 16 rows a lane has rows lane / 4 (elements 0 and 1) and that + 8
// (2 and 3), columns 8 n + 2 (lane % 4) and the next.
#pragma once
#include "linear/bwd_wgmma_walk.cuh"

// Where a ring of STAGES is, and the parity of its phase.
template <int STAGES> struct ring {
    int stage = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void move_on(int n = 1)
    {
        stage += n;
        if (stage >= STAGES) {
            stage -= STAGES;
            parity ^= 1;
        }
    }
};

// Segments of a head, and tokens of one, 0: all.
DEVICE int pieces_of(const attn_linear_kparams &p, bool back)
{
    return back ? p.pieces : p.pieces_q;
}

// A group's part: a segment of a head.
template <bool BACK> DEVICE chunk_work find_segment(const attn_linear_kparams &p, int unit)
{
    const int pieces = pieces_of(p, BACK), piece = BACK ? p.piece : p.piece_q;
    chunk_work w;

    w.column = 0;
    w.segment = unit % pieces;
    unit /= pieces;
    w.b = unit / p.heads_q;
    w.h = w.kvh = unit % p.heads_q;
    w.first = (BACK ? pieces - 1 - w.segment : w.segment) * piece;
    w.end = min(p.len_q, w.first + piece);
    w.keys = linear_keys(p, w.b);
    return w;
}

// Units of scans: segments of all heads.
DEVICE int units_of(const attn_linear_kparams &p, bool back)
{
    return pieces_of(p, back) * p.heads_q * p.batch;
}

// 16 bytes of a slot: a state, and its last row, by threads.
DEVICE int slot_pieces(const attn_linear_kparams &p)
{
    return DIM * DIM / 4 + (linear_has(p, LINEAR_NORMALIZE) ? 64 : 0);
}

// States of segments, those of dK and dV first: slot s is what segment s adds, or, scanned, the sum
// up to it.
DEVICE float4 *tiles_slot(const attn_linear_kparams &p, const chunk_work &w, bool back, int slot)
{
    const int64_t head = (int64_t)w.b * p.heads_q + w.h;

    return (float4 *)(p.work + p.slots_at) +
           ((back ? 0 : units_of(p, true)) + head * pieces_of(p, back) + slot) * slot_pieces(p);
}

// The step before this one has written numbers of rows (bwd_chunk_begin.cu).
DEVICE void wait_for_numbers(const attn_linear_kparams &p)
{
    if (linear_has(p, LINEAR_NORMALIZE))
        device_wait_before();
}

// Of the head's queries, from the first: what multiplies them, and, ADDED, what is added to pairs.
template <bool ADDED>
DEVICE const float *numbers_of(const attn_linear_kparams &p, const chunk_work &w)
{
    const int64_t heads = (int64_t)p.batch * p.heads_q, head = (int64_t)w.b * p.heads_q + w.h;

    return p.work + (ADDED ? heads + head : head) * p.len_q;
}

// The tensor of tile N.
template <bool BACK, bool KEYS, int N>
DEVICE tensor_rows tile_rows(const attn_linear_kparams &p, const chunk_work &w)
{
    if (N == 0)
        return BACK ? queries_at(p, w, 0) : values_at(p, w);
    if (N == 1)
        return BACK ? grads_at(p, w, 0) : keys_at(p, w);
    if (!BACK)
        return grads_at(p, w, 0);
    return (N == 2) == KEYS ? keys_at(p, w) : values_at(p, w);
}

// Whether it is of q or k, which phi applies to and which are D wide.
template <bool BACK, bool KEYS, int N> DEVICE constexpr bool is_mapped()
{
    return N == 0 ? BACK : N == 1 ? !BACK : BACK && (N == 2) == KEYS;
}

// By the warpgroup that brings: a thread has 16 bytes of each row, of every STEP-th row. COUNT
// tiles, of which the third is of K (KEYS), else of V, and a fourth is the other. Of the chunks
// that are on their way the oldest but LAG is waited for.
template <bool BACK, bool KEYS, int COUNT, int STAGES, int LAG, class MEM> struct bringer {
    static constexpr int ACROSS = DIM / 8, STEP = 128 / ACROSS, ROWS = CHUNK / STEP;
    static constexpr int AT_ONCE = 32 / ACROSS;    // rows of a warp
    const attn_linear_kparams &p;
    const chunk_work &w;
    MEM &mem;

    static __device__ __forceinline__ int row() { return (int)threadIdx.x % 128 / ACROSS; }
    static __device__ __forceinline__ int column() { return (int)threadIdx.x % ACROSS * 8; }

    // This thread's place in a tile; rows STEP on are STEP * 8 pieces on.
    __device__ __forceinline__ float4 *place(int stage, int n) const
    {
        return mem.at[stage][n][column() / 64] + row() * 8 + (column() / 8 % 8 ^ (row() & 7));
    }

    template <int N> __device__ __forceinline__ int width() const
    {
        return is_mapped<BACK, KEYS, N>() ? p.d : p.dv;
    }

    template <int N> __device__ __forceinline__ void copy(int stage, int j) const
    {
        if constexpr (N < COUNT) {
            const tensor_rows all = tile_rows<BACK, KEYS, N>(p, w);
            const int rows = column() < width<N>() ? all.rows - j - row() : 0;
            const char *from = all.from + (int64_t)(j + row()) * all.bytes + column() * 2;
            float4 *const to = place(stage, N);

            #pragma unroll
            for (int i = 0; i < ROWS; i++, from += STEP * all.bytes)
                device_copy_part(to + i * STEP * 8, from, i * STEP < rows ? 16 : 0);
        }
    }

    template <int N>
    __device__ __forceinline__ void map(int stage, int j, float factor = 1.0f) const
    {
        if constexpr (N < COUNT && is_mapped<BACK, KEYS, N>()) {
            const tensor_rows all = tile_rows<BACK, KEYS, N>(p, w);
            const int rows = column() < p.d ? all.rows - j - row() : 0;
            float4 *const to = place(stage, N);

            if (BACK && N == 0 && linear_has(p, LINEAR_NORMALIZE))
                return divide(rows, factor, to);
            if (!linear_has(p, LINEAR_ELU1 | LINEAR_RELU))
                return;
            #pragma unroll 1
            for (int i = 0; i < ROWS; i++)
                if (i * STEP < rows)
                    phi_of(p, to[i * STEP * 8]);
        }
    }

    // What divides the queries of the chunk from token j on: of 16 rows of the warp's, a lane each.
    __device__ __forceinline__ float find_factor(int j) const
    {
        const int lane = threadIdx.x % 32, l = j + row() - lane / ACROSS + lane % AT_ONCE +
                                               lane % 16 / AT_ONCE * STEP;

        return BACK && linear_has(p, LINEAR_NORMALIZE) && l >= w.first && l < w.end
                   ? numbers_of<false>(p, w)[l]
                   : 0.0f;
    }

    // Rows of queries: phi of them over what the normaliser is, rounded once.
    __device__ __forceinline__ void divide(int rows, float own, float4 *to) const
    {
        const int lane = threadIdx.x % 32;

        #pragma unroll 1
        for (int i = 0; i < ROWS; i++) {
            const float factor = __shfl_sync(0xffffffffu, own, i * AT_ONCE + lane / ACROSS);
            float all[1][EACH];

            if (i * STEP >= rows)
                continue;
            unpack(to[i * STEP * 8], all[0]);
            phi_of(p, all);
            #pragma unroll
            for (int n = 0; n < EACH; n++)
                all[0][n] *= factor;
            to[i * STEP * 8] = pack_row(all[0]);
        }
    }

    // Numbers of the chunk's queries.
    __device__ __forceinline__ void copy_numbers(int stage, int j) const
    {
        const int i = threadIdx.x % CHUNK;
        const bool there = j + i < p.len_q;

        if (!linear_has(p, LINEAR_NORMALIZE))
            return;
        if (threadIdx.x < CHUNK)
            device_copy<4>(mem.c[stage] + i, numbers_of<true>(p, w) + (there ? j + i : 0), there);
        else if constexpr (!BACK && COUNT > 2)
            device_copy<4>(mem.factors[stage] + i, numbers_of<false>(p, w) + (there ? j + i : 0),
                           there);
    }

    __device__ __forceinline__ void run(bool turned) const
    {
        const int chunks = chunks_of(w);
        const auto first_of = [&](int n) {
            return w.first + (turned ? chunks - 1 - n : n) * CHUNK;
        };
        ring<STAGES> to, ready;
        float factor = find_factor(first_of(0));

        #pragma unroll 1
        for (int n = 0; n < chunks + LAG; n++) {
            if (n >= LAG) {
                device_copied<LAG - 1>();
                if (linear_has(p, LINEAR_ELU1 | LINEAR_RELU | LINEAR_NORMALIZE)) {
                    const int j = first_of(n - LAG);
                    const float now = factor;

                    factor = find_factor(first_of(n - LAG + 1));    // a chunk ahead
                    map<0>(ready.stage, j, now);
                    map<1>(ready.stage, j);
                    map<2>(ready.stage, j);
                    map<3>(ready.stage, j);
                }
                arrive_written(&mem.full[ready.stage]);
                ready.move_on();
            }
            if (n < chunks) {
                const int j = first_of(n);

                device_barrier_wait(&mem.empty[to.stage], to.parity ^ 1);
                copy<0>(to.stage, j);
                copy<1>(to.stage, j);
                copy<2>(to.stage, j);
                copy<3>(to.stage, j);
                copy_numbers(to.stage, j);
                to.move_on();
            }
            device_commit();
        }
    }
};

// A state, of a warpgroup: panels of 64 rows; of its last row, which is the normaliser's, two
// columns, of one of LAST_PARTS parts of all tokens.
constexpr int LAST_PARTS = 256 / DIM;

struct kept_state {
    float s[PANELS][DIM / 8][4], last[2];
};

DEVICE float4 *own_in_slot(float4 *slot) { return slot + thread_of_group(); }

DEVICE float2 *last_in_slot(float4 *own)
{
    return (float2 *)(own - thread_of_group() + DIM * DIM / 4) + thread_of_group();
}

// += the slots of the segments before, eight loads at a time.
DEVICE void add_states(const attn_linear_kparams &p, const chunk_work &w, bool back,
                       kept_state &my)
{
    const int first = linear_has(p, LINEAR_SCANNED) ? max(w.segment - 1, 0) : 0;
    float4 *slot = own_in_slot(tiles_slot(p, w, back, first));

    #pragma unroll 1
    for (int n = w.segment - first; n > 0; n--, slot += slot_pieces(p))
        #pragma unroll
        for (int i = 0; i < PANELS * DIM / 8; i++) {
            const float4 x = slot[i * 128];
            float (&s)[4] = my.s[i / (DIM / 8)][i % (DIM / 8)];

            s[0] += x.x, s[1] += x.y, s[2] += x.z, s[3] += x.w;
            if (i % 8 == 7)
                device_forget();
        }
    if (!linear_has(p, LINEAR_NORMALIZE))
        return;
    slot = own_in_slot(tiles_slot(p, w, back, first));
    for (int n = w.segment - first; n > 0; n--, slot += slot_pieces(p)) {
        const float2 x = *last_in_slot(slot);

        my.last[0] += x.x, my.last[1] += x.y;
    }
}

DEVICE void store_state(const attn_linear_kparams &p, float4 *slot, const kept_state &my)
{
    if (linear_has(p, LINEAR_NORMALIZE))
        *last_in_slot(slot) = make_float2(my.last[0], my.last[1]);
    #pragma unroll
    for (int i = 0; i < PANELS * DIM / 8; i++) {
        const float (&s)[4] = my.s[i / (DIM / 8)][i % (DIM / 8)];

        slot[i * 128] = make_float4(s[0], s[1], s[2], s[3]);
    }
}

// 16 rows and columns of results, as operands lie.
DEVICE void pack(const float (&left)[4], const float (&right)[4], uint32_t (&x)[4])
{
    x[0] = device_pair<TYPE_BF16>(left[0], left[1]);
    x[1] = device_pair<TYPE_BF16>(left[2], left[3]);
    x[2] = device_pair<TYPE_BF16>(right[0], right[1]);
    x[3] = device_pair<TYPE_BF16>(right[2], right[3]);
}

// The state, for those who read it.
DEVICE void share_rows(const kept_state &my, state_tiles &to, const own_row &mine)
{
    #pragma unroll
    for (int i = 0; i < PANELS * DIM / 16; i++) {
        const int panel = i / (DIM / 16), k = i % (DIM / 16);
        uint32_t x[4];

        pack(my.s[panel][2 * k], my.s[panel][2 * k + 1], x);
        device_put_matrices(mine.in(device_address(to[k / 4][panel]), k), x);
    }
}

// What a chunk adds to the last row: its keys, or, backwards, its queries times numbers.
template <bool BACK>
DEVICE void add_last(const attn_linear_kparams &p, const tile &rows, const float *numbers,
                     kept_state &my)
{
    constexpr int ROWS = CHUNK / LAST_PARTS, TOGETHER = 8 / LAST_PARTS;
    const int pair = thread_of_group() / LAST_PARTS, part = thread_of_group() % LAST_PARTS;
    const uint32_t *const from = (const uint32_t *)rows[pair / 32] + pair % 4;

    if (!linear_has(p, LINEAR_NORMALIZE))
        return;
    #pragma unroll 8
    for (int i = 0; i < ROWS; i++) {
        const int row = i / TOGETHER * 8 + part * TOGETHER + i % TOGETHER;
        const uint32_t x = from[(row * 8 + (pair % 32 / 4 ^ (row & 7))) * 4];
        const float weight = BACK ? numbers[row] : 1.0f;

        my.last[0] += weight * number_of(x, 0);
        my.last[1] += weight * number_of(x, 1);
    }
}

DEVICE void share_last(const attn_linear_kparams &p, const kept_state &my, float (&to)[DIM])
{
    float x[2] = { my.last[0], my.last[1] };

    if (!linear_has(p, LINEAR_NORMALIZE))
        return;
    #pragma unroll
    for (int apart = 1; apart < LAST_PARTS; apart *= 2)
        #pragma unroll
        for (int i = 0; i < 2; i++)
            x[i] += __shfl_xor_sync(0xffffffffu, x[i], apart);
    if (thread_of_group() % LAST_PARTS == 0)
        ((float2 *)to)[thread_of_group() / LAST_PARTS] = make_float2(x[0], x[1]);
}

// S += B^T X, of a chunk that is there.
DEVICE void add_chunk(const tile &b, const tile &x, kept_state &my)
{
    const uint64_t rows = device_tile(device_address(b[0]), TILE * 16);
    const uint64_t columns = device_tile(device_address(x[0]), TILE * 16);

    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        device_products_hold(my.s[panel]);
    device_products_begin();
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        #pragma unroll
        for (int n = 0; n < STEPS; n++)
            device_products_turned<TYPE_BF16>(my.s[panel], rows + panel * TILE + n * 16 * 8,
                                              columns + n * 16 * 8, 1);
    device_products_commit();
    device_products_wait<0>();
    #pragma unroll
    for (int panel = 0; panel < PANELS; panel++)
        device_products_hold(my.s[panel]);
}
