// SPDX-License-Identifier: MIT
// linear/wgmma_relay.cuh: how the groups that have the segments of a head hand on what their keys
// add to the state, for fwd_wgmma.cu and fwd_wgmma_bf16.cu: of some segments all in one launch.
//
// The group of the first segment walks at once, and hands on the state that it has when as many
// tokens are left to it as the other segments have. Those groups sum up meanwhile what the `piece`
// tokens before their own add. The first segment is longer (`lead`) by what that takes; so all end
// together, and none is idle.
//
// The workspace begins with a counter, four words long; then come slots, of each batch, key/value
// head, segment and slice of columns one: slot 0 has the state as it came in, if it did, slot
// s + 1 what the group of segment s hands on. A slot is KEPT_TILES * 128 float4 of each warpgroup
// that keeps rows of the state, as its threads have them. slots_begin() makes the counter 0 in a
// launch before, and each word of the slots NOT_THERE, which no store leaves behind: who reads
// numbers reads them until they are others, and no fence or flag stands between.
//
// A group waits for groups with lower numbers alone. Those it counts off: the device may begin
// groups in any order, but one that has a number has begun, and so have those with lower ones.
//
// Of many segments, all as long (LINEAR_SCANNED), a launch has the sums of each one's own tokens,
// scan_slots() is the next, after which slot s has the state before segment s, and nothing is
// waited for.
#pragma once
#include "linear/chunk.cuh"

constexpr int SCANNING = 256, BEGINNING = 128;    // threads of what scans, of what begins
constexpr uint32_t NOT_THERE = 0xffffffffu;       // a NaN; results of arithmetic are 0x7fffffff

DEVICE int slices_of(const attn_linear_kparams &p) { return ceil_div(p.dv, COLUMNS); }

constexpr int COUNTER = 4;    // words

// Whether groups hand states on in this launch.
DEVICE bool relays(const attn_linear_kparams &p)
{
    return has_slots(p) && !linear_has(p, LINEAR_SCANNED);
}

// The number of this group among those of the grid, by one of its threads, once.
DEVICE int take_number(const attn_linear_kparams &p)
{
    if (!relays(p))
        return (int)blockIdx.x;
    device_wait_before();
    return atomicAdd((int *)p.work, 1);
}

// What the group with a number walks over.
DEVICE chunk_work find_segment(const attn_linear_kparams &p, int number)
{
    chunk_work w = find_chunks(p, p.heads_q, p.len_q, p.dv, number);
    const int longer = p.lead - p.piece;

    if (w.segment > 0)
        w.first += longer;
    if (p.piece)
        w.end = (int)min((unsigned)p.len_q, (w.segment + 1u) * p.piece + longer);
    return w;
}

DEVICE chunk_sum find_sum(const attn_linear_kparams &p, const chunk_work &w)
{
    const int first = max(w.first - p.piece, CHUNK);    // of the first segment one is walked first

    if (w.segment == 0 || linear_has(p, LINEAR_SCANNED))
        return { w.first, 0 };
    return { first, ceil_div(max(min(w.first, w.keys) - first, 0), CHUNK) };
}

// Before which chunk of all that are brought a group hands on its state: one of the first segment
// has walked until there, the others have summed up. -1: none is behind it, or another head of
// queries that share the keys does it.
DEVICE int chunk_of_handing(const attn_linear_kparams &p, const chunk_work &w,
                            const chunk_sum &sum)
{
    if (w.segment == p.pieces - 1 || w.h % p.group != 0 || linear_has(p, LINEAR_SCANNED))
        return -1;
    return w.segment ? sum.count : max((p.lead - p.piece) / CHUNK, 1);
}

// The number of a slot.
DEVICE int64_t number_of_slot(const attn_linear_kparams &p, const chunk_work &w, int slot,
                              int slice)
{
    return (((int64_t)w.b * p.heads_kv + w.kvh) * p.slots + slot) * slices_of(p) + slice;
}

DEVICE float4 *part_of_slot(const attn_linear_kparams &p, int64_t number, int keeper)
{
    return (float4 *)(p.work + COUNTER) +
           (number * KEEPERS + keeper) * KEPT_TILES * 128 + device_thread() % 128;
}

// Slots become the sums of those up to them, in their order; groups of the segments share the
// numbers of a slot.
template <class STATE> DEVICE void scan_slots(const attn_linear_kparams &p)
{
    constexpr int FLOATS = KEEPERS * KEPT_TILES * 512, AT_ONCE = 32;
    const chunk_work w = find_chunks(p, p.heads_kv, p.len_q, p.dv);
    const int64_t number = number_of_slot(p, w, 0, w.column / COLUMNS);
    const int64_t apart = (int64_t)slices_of(p) * FLOATS;
    const int warp = threadIdx.x / 32;

    device_let_next();
    device_wait_before();
    for (int i = (warp * p.pieces + w.segment) * 32 + (int)threadIdx.x % 32; i < FLOATS;
         i += p.pieces * SCANNING) {
        float *const at = p.work + COUNTER + number * FLOATS + i;
        float sum = 0.0f;

        if (i / 512 % KEPT_TILES >= STATE::TILES && !linear_has(p, LINEAR_NORMALIZE))
            continue;    // z's
        for (int s = 0; s < p.slots; s += AT_ONCE) {
            float x[AT_ONCE];

            #pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
                x[n] = s + n < p.slots && (s + n || linear_has(p, LINEAR_STATE))
                           ? at[(s + n) * apart]
                           : 0.0f;
            #pragma unroll
            for (int n = 0; n < AT_ONCE; n++) {
                sum += x[n];
                if (s + n < p.slots)
                    at[(s + n) * apart] = sum;
            }
        }
    }
}

// Of one slot by each group; the counter by the first.
DEVICE void slots_begin(const attn_linear_kparams &p)
{
    const float none = __uint_as_float(NOT_THERE);
    float4 *const to =
        (float4 *)(p.work + COUNTER) + (int64_t)blockIdx.x * KEEPERS * KEPT_TILES * 128;

    device_let_next();
    if (blockIdx.x == 0 && threadIdx.x < COUNTER)
        ((int *)p.work)[threadIdx.x] = 0;
    if (!linear_has(p, LINEAR_STATE) && blockIdx.x / slices_of(p) % p.slots == 0)
        return;    // nothing comes there
    for (int i = threadIdx.x; i < KEEPERS * KEPT_TILES * 128; i += BEGINNING)
        to[i] = make_float4(none, none, none, none);
}

DEVICE float but_that(float x)
{
    return __float_as_uint(x) == NOT_THERE ? __uint_as_float(0x7fffffffu) : x;
}

// Numbers to a slot.
DEVICE void tell(float4 *to, const float4 &x)
{
    device_set_words(to, make_float4(but_that(x.x), but_that(x.y), but_that(x.z), but_that(x.w)));
}

DEVICE bool is_there(const float4 &x)
{
    return __float_as_uint(x.x) != NOT_THERE && __float_as_uint(x.y) != NOT_THERE &&
           __float_as_uint(x.z) != NOT_THERE && __float_as_uint(x.w) != NOT_THERE;
}

// Reads tiles from a slot, or as many numbers apart, once they are there; by whole warps.
template <int N> DEVICE void read_tiles(const float4 *from, bool waits, float4 (&x)[N])
{
    bool there;

    do {
        there = true;
        #pragma unroll
        for (int i = 0; i < N; i++)
            x[i] = device_words(from + i * 128);
        #pragma unroll
        for (int i = 0; i < N; i++)
            there &= is_there(x[i]);
    } while (waits && __any_sync(0xffffffffu, !there));
}

// Tiles that count: those of z only where there is one.
template <class STATE> DEVICE int tiles_of(const attn_linear_kparams &p)
{
    return linear_has(p, LINEAR_NORMALIZE) ? KEPT_TILES : STATE::TILES;
}

// To slot 0: the state as it came in, and z.
template <class STATE>
DEVICE void copy_state_in(const attn_linear_kparams &p, const chunk_work &w, int keeper)
{
    const int64_t number = number_of_slot(p, w, 0, w.column / COLUMNS);
    float4 *const to = part_of_slot(p, number, keeper);

    #pragma unroll 1
    for (int i = 0; i < KEPT_TILES; i++) {
        float x[4];

        #pragma unroll
        for (int n = 0; n < 4; n++) {
            const int row = STATE::row(keeper, i, n / 2);
            const int column = w.column + STATE::column(i, n % 2);
            const float *const from =
                i < STATE::TILES ? p.state_in + LINEAR_AT(p, state_in, w.b, w.kvh, (int64_t)row,
                                                          (int64_t)column)
                                 : p.z_in + LINEAR_AT(p, z_in, w.b, w.kvh, (int64_t)row, 0);

            x[n] = row < p.d && (i < STATE::TILES ? column < p.dv : linear_has(p, LINEAR_NORMALIZE))
                       ? *from
                       : 0.0f;
        }
        tell(to + i * 128, make_float4(x[0], x[1], x[2], x[3]));
    }
}

// To the slot behind the group's own: what it has.
template <class STATE>
DEVICE void give_state(const attn_linear_kparams &p, const chunk_work &w, int keeper,
                       const STATE &my)
{
    const int64_t number = number_of_slot(p, w, w.segment + 1, w.column / COLUMNS);
    const int tiles = tiles_of<STATE>(p);
    float4 *const to = part_of_slot(p, number, keeper);

    #pragma unroll
    for (int i = 0; i < KEPT_TILES; i++)
        if (i < tiles)
            tell(to + i * 128, my.tile(i));
}

// The slots whose sum is the state that a segment begins with.
struct slots_before {
    int first, count;
};

DEVICE slots_before find_slots_before(const attn_linear_kparams &p, const chunk_work &w)
{
    if (linear_has(p, LINEAR_SCANNED))
        return { w.segment, 1 };
    if (w.segment == 0)
        return { 0, linear_has(p, LINEAR_STATE) };
    return { 1, w.segment };
}

// What was handed on, to what the group has summed up: the state that its segment begins with.
template <class STATE>
DEVICE void take_state(const attn_linear_kparams &p, const chunk_work &w, int keeper, STATE &my)
{
    constexpr int AT_ONCE = STATE::TILES < STATE::AT_ONCE ? STATE::TILES : STATE::AT_ONCE;
    const bool waits = !linear_has(p, LINEAR_SCANNED);
    const slots_before before = find_slots_before(p, w);
    const int64_t number = number_of_slot(p, w, before.first, w.column / COLUMNS);
    const int apart = slices_of(p) * KEEPERS * KEPT_TILES * 128;
    const float4 *from = part_of_slot(p, number, keeper);

    #pragma unroll 1
    for (int n = 0; n < before.count; n++, from += apart) {
        #pragma unroll
        for (int i = 0; i < STATE::TILES; i += AT_ONCE) {
            float4 x[AT_ONCE];

            read_tiles(from + i * 128, waits, x);
            #pragma unroll
            for (int m = 0; m < AT_ONCE; m++)
                my.add(i + m, x[m]);
        }
        #pragma unroll
        for (int i = STATE::TILES; i < KEPT_TILES; i++)
            if (linear_has(p, LINEAR_NORMALIZE)) {
                float4 x[1];

                read_tiles(from + i * 128, waits, x);
                my.add(i, x[0]);
            }
    }
}

// Whether the group writes z as it comes out. z_out may be z_in: it waits until all slices
// of columns have read that.
template <class STATE>
DEVICE bool writes_z(const attn_linear_kparams &p, const chunk_work &w, int keeper)
{
    if (!p.want_z || !linear_has(p, LINEAR_NORMALIZE) || w.column + COLUMNS < p.dv)
        return false;
    if (linear_has(p, LINEAR_STATE) && !linear_has(p, LINEAR_SCANNED))
        for (int slice = 0; slice < slices_of(p); slice++) {
            float4 x[KEPT_TILES - STATE::TILES];

            read_tiles(part_of_slot(p, number_of_slot(p, w, 0, slice), keeper) +
                           STATE::TILES * 128, true, x);
        }
    return true;
}
