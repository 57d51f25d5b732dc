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

// 64 rows of a state, of a warpgroup.
struct state_rows {
    float s[DIM / 8][4];
};

DEVICE float4 *own_in_slot(float4 *slot, int panel)
{
    return slot + panel * (DIM / 8) * 128 + thread_of_group();
}

// += a slot, eight loads at a time.
DEVICE void add_state(const float4 *slot, state_rows &my)
{
    #pragma unroll
    for (int n = 0; n < DIM / 8; n++) {
        const float4 x = slot[n * 128];

        my.s[n][0] += x.x, my.s[n][1] += x.y, my.s[n][2] += x.z, my.s[n][3] += x.w;
        if (n % 8 == 7)
            device_forget();
    }
}

DEVICE void store_state(float4 *slot, const state_rows &my)
{
    #pragma unroll
    for (int n = 0; n < DIM / 8; n++)
        slot[n * 128] = make_float4(my.s[n][0], my.s[n][1], my.s[n][2], my.s[n][3]);
}

// Of a warp's 16 rows of a tile, the lane's of 16 bytes, as device_matrices() and
// device_put_matrices() have the words of operand k: of column chunk 2 k or 2 k + 1. Bytes from
// the tile on.
struct own_row {
    int in_panel[4];

    __device__ __forceinline__ own_row()
    {
        const int thread = device_thread() % 128, row = thread / 32 * 16 + thread % 16;

        #pragma unroll
        for (int k = 0; k < 4; k++)
            in_panel[k] = row * 128 + ((k * 2 + thread % 32 / 16) ^ (row & 7)) * 16;
    }

    __device__ __forceinline__ device_shared place(device_shared tile, int k) const
    {
        return tile + in_panel[k % 4] + k / 4 * TILE * 16;
    }
};

// High and low parts of the state's rows, for those who read it.
DEVICE void share_rows(const state_rows &my, state_tiles &to, int panel, const own_row &mine)
{
    const device_shared at = device_address(to[0][panel][0]);

    #pragma unroll
    for (int k = 0; k < DIM / 16; k++) {
        uint32_t high[4], low[4];

        #pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t part[2];

            split(my.s[k * 2 + i / 2][i % 2 * 2], my.s[k * 2 + i / 2][i % 2 * 2 + 1], part);
            high[i] = part[0], low[i] = part[1];
        }
        device_put_matrices(mine.place(at, k), high);
        device_put_matrices(mine.place(at, k) + PANELS * PANELS * TILE * 16, low);
    }
}

// The panel's rows of S += B^T X, of a chunk that is there.
DEVICE void add_chunk(const tile &b, const tile &x, int panel, state_rows &my)
{
    const uint64_t rows = device_tile(device_address(b[panel]), TILE * 16);
    const uint64_t columns = device_tile(device_address(x[0]), TILE * 16);

    #pragma unroll
    for (int c = 0; c < PANELS; c++) {
        float more[8][4];

        device_products_hold(more);
        device_products_begin();
        #pragma unroll
        for (int n = 0; n < STEPS; n++)
            device_products_turned<TYPE_BF16>(more, rows + n * 16 * 8,
                                              columns + c * TILE + n * 16 * 8, n > 0);
        device_products_commit();
        device_products_wait<0>();
        device_products_hold(more);
        #pragma unroll
        for (int i = 0; i < 32; i++)
            my.s[c * 8 + i / 4][i % 4] += more[i / 4][i % 4];
    }
}
