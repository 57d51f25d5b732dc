// SPDX-License-Identifier: MIT
// linear/wgmma_relay.cuh: how the groups that have the segments of a head hand on what their keys
// add to the state, for fwd_wgmma.cu and fwd_wgmma_bf16.cu: of some segments all in one launch.
//
// The workspace begins with a counter, four words long, and flags, WARPS of each slot, which
// flags_begin() makes 0 in a launch before; then come slots, of each batch, key/value head,
// segment and slice of columns one: slot 0 has the state as it came in, if it did, slot s + 1 what
// segment s adds (of two segments half of it). A slot is KEPT_TILES * 128
// float4 of each warpgroup that keeps rows of the state, as its threads have them; a warp that has
// stored its part raises its own flag, and reads but what warps in its place have stored. A group
// waits for groups with lower numbers alone. Those it counts off: the device may begin groups in
// any order, but one that has a number has begun, and so have those with lower ones.
//
// Of many segments (LINEAR_SCANNED) a launch has the sums, scan_slots() is the next, after which
// slot s has the state before segment s, and the flags are not read.
#pragma once
#include "linear/chunk.cuh"

constexpr int WARPS = 4 * KEEPERS, SCANNING = 256;    // threads of what scans

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

// The number of a slot.
DEVICE int64_t number_of_slot(const attn_linear_kparams &p, const chunk_work &w, int slot,
                              int slice)
{
    return (((int64_t)w.b * p.heads_kv + w.kvh) * p.slots + slot) * slices_of(p) + slice;
}

// The flag of a warp that keeps rows of the state, `keeper` being its warpgroup's number.
DEVICE int *flag_of_slot(const attn_linear_kparams &p, int64_t number, int keeper)
{
    return (int *)p.work + COUNTER + number * WARPS + keeper * 4 + threadIdx.x % 128 / 32;
}

// Of the counter and the flags.
DEVICE int64_t floats_of_flags(const attn_linear_kparams &p)
{
    return COUNTER + (int64_t)p.batch * p.heads_kv * p.slots * slices_of(p) * WARPS;
}

DEVICE float4 *part_of_slot(const attn_linear_kparams &p, int64_t number, int keeper)
{
    return (float4 *)(p.work + floats_of_flags(p)) +
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
        float *const at = p.work + floats_of_flags(p) + number * FLOATS + i;
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
DEVICE void flags_begin(const attn_linear_kparams &p)
{
    device_let_next();
    if (threadIdx.x < WARPS)
        ((int *)p.work)[COUNTER + (int64_t)blockIdx.x * WARPS + threadIdx.x] = 0;
    if (blockIdx.x == 0 && threadIdx.x < COUNTER)
        ((int *)p.work)[threadIdx.x] = 0;
}

// The warp's part of a slot is there.
DEVICE void raise_flag(int *flag)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        device_set_flag_release(flag, 1);
}

// Waits until `count` flags are up, `apart` from each other.
DEVICE void await_flags(const int *flag, int64_t apart, int count)
{
    for (int i = threadIdx.x % 32; i < count; i += 32)
        while (!device_flag_acquire(flag + i * apart))
            ;
    __syncwarp();
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
        to[i * 128] = make_float4(x[0], x[1], x[2], x[3]);
    }
    raise_flag(flag_of_slot(p, number, keeper));
}

// To the slot behind the group's own: what its keys add.
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
            to[i * 128] = my.tile(i);
    raise_flag(flag_of_slot(p, number, keeper));
}

// Gives what summed up keys add, which `my` has, and takes the state that a segment begins with.
template <class STATE>
DEVICE void pass_state(const attn_linear_kparams &p, const chunk_work &w, int keeper, STATE &my)
{
    constexpr int AT_ONCE = STATE::TILES < STATE::AT_ONCE ? STATE::TILES : STATE::AT_ONCE;
    const bool scanned = linear_has(p, LINEAR_SCANNED);
    const int first = scanned ? w.segment : linear_has(p, LINEAR_STATE) ? 0 : 1;
    const int count = w.segment + 1 - first, tiles = tiles_of<STATE>(p);
    const int64_t number = number_of_slot(p, w, first, w.column / COLUMNS);
    const int apart = slices_of(p) * KEEPERS * KEPT_TILES * 128;
    const float4 *from;

    if (gives_state(p, w))
        give_state(p, w, keeper, my);
    if (!shares_sum(p) || w.segment == 0)
        my = {};
    if (!scanned)
        await_flags(flag_of_slot(p, number, keeper), (int64_t)slices_of(p) * WARPS, count);
    from = part_of_slot(p, number, keeper);
    #pragma unroll (STATE::SLOTS_AT_ONCE)
    for (int n = 0; n < count; n++, from += apart) {
        #pragma unroll
        for (int i = 0; i < STATE::TILES; i += AT_ONCE) {
            float4 x[AT_ONCE];

            #pragma unroll
            for (int m = 0; m < AT_ONCE; m++)
                x[m] = from[(i + m) * 128];
            #pragma unroll
            for (int m = 0; m < AT_ONCE; m++)
                my.add(i + m, x[m]);
        }
        #pragma unroll
        for (int i = STATE::TILES; i < KEPT_TILES; i++)
            if (i < tiles)
                my.add(i, from[i * 128]);
    }
}

// Whether the group writes z as it comes out. z_out may be z_in: it waits until all slices
// of columns have read that.
DEVICE bool writes_z(const attn_linear_kparams &p, const chunk_work &w, int keeper)
{
    if (!p.want_z || !linear_has(p, LINEAR_NORMALIZE) || w.column + COLUMNS < p.dv)
        return false;
    if (linear_has(p, LINEAR_STATE) && !linear_has(p, LINEAR_SCANNED))
        await_flags(flag_of_slot(p, number_of_slot(p, w, 0, 0), keeper), WARPS, slices_of(p));
    return true;
}
