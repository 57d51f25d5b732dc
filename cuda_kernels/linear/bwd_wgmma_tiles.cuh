// SPDX-License-Identifier: MIT
// linear/bwd_wgmma_tiles.cuh: what the warpgroups of bwd_wgmma_tiles.cu do. A scan (bwd_wgmma.cuh)
// has tiles B and X, whose product is what a chunk adds to the state, and A:
//
//     scan    A    B    X    Y
//     GRAD_Q  dO   v    k    dQ
//     GRAD_V  k    q    dO   dV
//     GRAD_K  v    q    dO   dK    pairs with X, sums of B, the state turned
//
// A tile has the chunk's 64 rows of bf16 as they are in the tensor, q and k as bwd_phi.cu has made
// them: panels of 64
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

// Steps before have written numbers of rows (bwd_chunk_begin.cu), and q and k (bwd_phi.cu).
DEVICE void wait_for_rows(const attn_linear_kparams &p)
{
    if (linear_has(p, LINEAR_NORMALIZE | LINEAR_ELU1 | LINEAR_RELU))
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

// The same as sums of two numbers: the bits that bf16 has, and the rounded rest.
DEVICE void pack_parts(const float (&left)[4], const float (&right)[4], uint32_t (&x)[4],
                       uint32_t (&rest)[4])
{
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float(&from)[4] = i < 2 ? left : right;
        uint32_t part[2];

        split(from[i % 2 * 2], from[i % 2 * 2 + 1], part);
        x[i] = part[0];
        rest[i] = part[1];
    }
}

// The state for those who read it: of its two parts the first, the other or both.
enum shared_part { FIRST_PART, REST, BOTH_PARTS };

template <shared_part WHAT>
DEVICE void share_rows(const kept_state &my, state_tiles *to, const own_row &mine)
{
    #pragma unroll
    for (int i = 0; i < PANELS * DIM / 16; i++) {
        const int panel = i / (DIM / 16), k = i % (DIM / 16);
        const float(&left)[4] = my.s[panel][2 * k], (&right)[4] = my.s[panel][2 * k + 1];
        uint32_t x[4], rest[4];

        pack_parts(left, right, x, rest);
        if (WHAT != REST)
            device_put_matrices(mine.in(device_address(to[0][k / 4][panel]), k), x);
        if (WHAT == REST || WHAT == BOTH_PARTS)
            device_put_matrices(mine.in(device_address(to[WHAT == BOTH_PARTS][k / 4][panel]), k),
                                rest);
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
