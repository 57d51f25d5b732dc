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

// States of segments, those of dK and dV first: slot s is what segment s adds, or, scanned, the sum
// up to it.
DEVICE float4 *tiles_slot(const attn_linear_kparams &p, const chunk_work &w, bool back, int slot)
{
    const int64_t head = (int64_t)w.b * p.heads_q + w.h;

    return (float4 *)p.work +
           ((back ? 0 : units_of(p, true)) + head * pieces_of(p, back) + slot) * (DIM * DIM / 4);
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

    template <int N> __device__ __forceinline__ void map(int stage, int j) const
    {
        if constexpr (N < COUNT && is_mapped<BACK, KEYS, N>()) {
            const tensor_rows all = tile_rows<BACK, KEYS, N>(p, w);
            const int rows = column() < p.d ? all.rows - j - row() : 0;
            float4 *const to = place(stage, N);

            #pragma unroll 1
            for (int i = 0; i < ROWS; i++)
                if (i * STEP < rows)
                    phi_of(p, to[i * STEP * 8]);
        }
    }

    __device__ __forceinline__ void run(bool turned) const
    {
        const int chunks = chunks_of(w);
        const auto first_of = [&](int n) {
            return w.first + (turned ? chunks - 1 - n : n) * CHUNK;
        };
        ring<STAGES> to, ready;

        #pragma unroll 1
        for (int n = 0; n < chunks + LAG; n++) {
            if (n >= LAG) {
                device_copied<LAG - 1>();
                if (linear_has(p, LINEAR_ELU1 | LINEAR_RELU)) {
                    const int j = first_of(n - LAG);

                    map<0>(ready.stage, j);
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
                to.move_on();
            }
            device_commit();
        }
    }
};

// A state, of a warpgroup: panels of 64 rows.
struct kept_state {
    float s[PANELS][DIM / 8][4];
};

DEVICE float4 *own_in_slot(float4 *slot) { return slot + thread_of_group(); }

// += the slots of the segments before, eight loads at a time.
DEVICE void add_states(const attn_linear_kparams &p, const chunk_work &w, bool back,
                       kept_state &my)
{
    const int first = linear_has(p, LINEAR_SCANNED) ? max(w.segment - 1, 0) : 0;
    const float4 *slot = own_in_slot(tiles_slot(p, w, back, first));

    #pragma unroll 1
    for (int n = w.segment - first; n > 0; n--, slot += DIM * DIM / 4)
        #pragma unroll
        for (int i = 0; i < PANELS * DIM / 8; i++) {
            const float4 x = slot[i * 128];
            float (&s)[4] = my.s[i / (DIM / 8)][i % (DIM / 8)];

            s[0] += x.x, s[1] += x.y, s[2] += x.z, s[3] += x.w;
            if (i % 8 == 7)
                device_forget();
        }
}

DEVICE void store_state(float4 *slot, const kept_state &my)
{
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
