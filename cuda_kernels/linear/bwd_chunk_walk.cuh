// SPDX-License-Identifier: MIT
// linear/bwd_chunk_walk.cuh: the ways over the chunks of linear_bwd_chunk's scans, and the
// state's last row, whatever multiplies the others. STAGES, and load_pair and take_rows of the
// type, are defined before.
#pragma once

struct shared_adds {
    float4 b[STAGES][CHUNK * CHUNKS], x[STAGES][CHUNK * CHUNKS_V];
    float c[STAGES][CHUNK];
};

constexpr int PAIRS = COLUMNS / WARPS / 2;    // of columns, of a warp

// z or r: two columns of a lane, the same in every PAIRS-th lane.
struct last_row {
    float x[2];
};

DEVICE int column_of_last()
{
    return (device_thread() / 32 * PAIRS + device_thread() % PAIRS) * 2;
}

// Whether a scan has that row.
DEVICE bool has_last(const attn_linear_kparams &p, scan which)
{
    return which != GRAD_V && linear_has(p, LINEAR_NORMALIZE);
}

// Adds what a chunk adds to it: sums of X, or of c X.
template <scan WHICH> DEVICE void fold_last(const float4 *x, const float *c, last_row &z)
{
    float sum[2] = { 0.0f, 0.0f };

    #pragma unroll 4
    for (int i = 0; i < CHUNK * PAIRS / 32; i++) {
        const int row = i * (32 / PAIRS) + device_thread() % 32 / PAIRS;
        const float2 y = load_pair(x, row, column_of_last());
        const float weight = WHICH == GRAD_Q ? 1.0f : c[row];

        sum[0] += weight * y.x;
        sum[1] += weight * y.y;
    }
    #pragma unroll
    for (int i = 0; i < 2; i++) {
        #pragma unroll
        for (int mask = PAIRS; mask < 32; mask *= 2)
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], mask);
        z.x[i] += sum[i];
    }
}

// What stands for 2^-e of it, for all warps.
DEVICE void share_last(const last_row &z, int e, float *to)
{
    #pragma unroll
    for (int i = 0; i < 2; i++)
        if (device_thread() % 32 < PAIRS)
            to[column_of_last() + i] = z.x[i] * power_of_2(-e);
}

// The state that a walk begins with, from the slots up to its own.
DEVICE void load_first(const attn_linear_kparams &p, const chunk_work &w, scan which,
                       warp_state &my, last_row &z)
{
    my = {};
    z = {};
    if (!linear_has(p, LINEAR_SLOTS))
        return;
    #pragma unroll SLOTS
    for (int slot = first_slot(p, w); slot <= last_slot(p, w); slot++) {
        const float *const from = find_slot(p, w, slot);

        add_state(from, place_of_slot(p, which), w.column, nullptr, my);
        #pragma unroll
        for (int i = 0; i < 2; i++) {
            const int e = w.column + column_of_last() + i;

            if (has_last(p, which) && e < p.d)
                z.x[i] += from[(int64_t)p.d * p.dv + e];
        }
    }
}

// The state, which is 2^e times what it stands for, to s and z, if they are wanted.
DEVICE void put_state(const attn_linear_kparams &p, const chunk_work &w, float *s,
                      const state_place &at, float *to_z, int64_t pitch, int e, warp_state &my,
                      const last_row &z)
{
    if (TYPE == TYPE_F16 && e)
        scale_state(my, power_of_2(-e));
    store_state(s, at, w.column, nullptr, 0, my);
    #pragma unroll
    for (int i = 0; i < 2; i++)
        if (to_z && device_thread() % 32 < PAIRS && w.column + column_of_last() + i < p.d)
            to_z[(w.column + column_of_last() + i) * pitch] = z.x[i] * power_of_2(-e);
}

// The state from 2^e times to 2^to times what it stands for.
DEVICE void turn_state(int &e, int to, warp_state &my, last_row &z)
{
    if (TYPE != TYPE_F16 || e == to)
        return;
    scale_state(my, power_of_2(to - e));
    z.x[0] *= power_of_2(to - e);
    z.x[1] *= power_of_2(to - e);
    e = to;
}

// A part of the rows of a chunk is there, for all threads, as they are multiplied; the exponent
// that q was lifted by, for later parts `e`. B and, with the first part, X are there if it `adds`.
template <scan WHICH>
DEVICE int await_chunk(const attn_linear_kparams &p, const chunk_work &w, int h, int j, int part,
                       float4 *a, float4 *b, float4 *x, bool adds, int e)
{
    constexpr bool LIFTS = TYPE == TYPE_F16;
    const bool factors = has_rows(p) || p.scale != 1.0f;
    const bool maps = linear_has(p, LINEAR_ELU1 | LINEAR_RELU);
    const bool first = part == 0;
    const int to = WHICH != GRAD_Q && adds && first ? find_exponent(p, w, h, j, e) : e;
    const int depth = inner_of(p, WHICH) - part * PART;
    numbers<CHUNKS> wide = {};
    numbers<CHUNKS_V> thin = {};

    if (WHICH == GRAD_V ? adds && factors : LIFTS)
        wide = take_numbers<CHUNKS>(p, w, h, WHICH == GRAD_V ? ROW_FACTOR : ROW_LIFT, j);
    if (first && (WHICH == GRAD_V ? LIFTS : WHICH == GRAD_K && factors))
        thin = take_numbers<CHUNKS_V>(p, w, h, WHICH == GRAD_V ? ROW_LIFT : ROW_FACTOR, j);
    device_copied<0>();
    if (WHICH == GRAD_Q && LIFTS && a)
        take_rows<CHUNKS>(p, a, p.len_q - j, depth, false, wide, 1.0f);
    if (WHICH == GRAD_V && maps)
        take_rows<CHUNKS>(p, a, w.keys - j, depth, true, numbers<CHUNKS>{}, 0.0f);
    if (adds && first && WHICH == GRAD_Q && maps)
        take_rows<CHUNKS_V>(p, x, w.keys - j, p.d - w.column, true, numbers<CHUNKS_V>{}, 0.0f);
    if (adds && WHICH == GRAD_K) {
        if (LIFTS)
            take_rows<CHUNKS>(p, b, p.len_q - j, depth, false, wide, 1.0f);
        if (first && (maps || factors))
            take_rows<CHUNKS_V>(p, x, p.len_q - j, p.d - w.column, maps, thin,
                                factors ? power_of_2(to) : 0.0f);
    }
    if (adds && WHICH == GRAD_V) {
        if (maps || factors)
            take_rows<CHUNKS>(p, b, p.len_q - j, depth, maps, wide,
                              factors ? power_of_2(to) : 0.0f);
        if (first && LIFTS)
            take_rows<CHUNKS_V>(p, x, p.len_q - j, p.dv - w.column, false, thin, 1.0f);
    }
    __syncthreads();
    return to;
}

// Whether the chunk from token j on has rows that a walk adds.
DEVICE bool adds_at(const attn_linear_kparams &p, const chunk_work &w, scan which, int j)
{
    return is_causal(p) && j < rows_that_add(p, w, which);
}

// A part of a walk's step n, the chunk from token j on and query head g of the group, to place
// `at`; with the first part, what has none.
template <scan WHICH, class MEM>
DEVICE void fetch_step(const attn_linear_kparams &p, const chunk_work &w, MEM &mem, int n, int j,
                       int g, int part, int at)
{
    fetch_reads<WHICH>(p, w, mem.a[at], j, part);
    if (adds_at(p, w, WHICH, j)) {
        fetch_adds<WHICH>(p, w, w.h + g, mem.b[at], j, part);
        if (part == 0)
            fetch_columns<WHICH>(p, w, w.h + g, mem.x[n % STAGES], j);
    }
    if (WHICH != GRAD_V && part == 0)
        fetch_c(p, w, w.h + g, mem.c[n % STAGES], j);
}

// What the rows of a segment add to the state, GRAD_Q from its end, GRAD_K to it: what the walk
// reads first was read last. FOLD adds a part of a chunk.
template <scan WHICH, class FOLD>
DEVICE void sum_scan(const attn_linear_kparams &p, const FOLD &fold)
{
    SHARED_MEMORY(memory);
    shared_adds &mem = *(shared_adds *)memory;
    const int len = is_causal(p) || WHICH == GRAD_K ? p.len_q : p.len_kv;
    const int heads = WHICH == GRAD_Q ? 1 : p.group;
    const chunk_work w = find_scan(p, WHICH, p.heads_kv, len);
    const int end = min(w.end, rows_that_add(p, w, WHICH));
    const int chunks = max(ceil_div(end - w.first, CHUNK), 0);
    const bool last = is_causal(p) && w.segment == p.pieces - 1;
    const int steps = last ? 0 : chunks * heads, parts = parts_of(inner_of(p, WHICH));
    warp_state my = {};
    last_row z = {};
    int e = 0;

    device_let_next();
    if (WHICH == GRAD_K)
        device_wait_before();    // for numbers of rows, and where the slots of dQ were
    if (w.segment == (is_causal(p) ? p.pieces - 1 : 0))
        copy_first_state(p, w, WHICH);

    int j = w.first + (WHICH == GRAD_Q ? chunks - 1 : 0) * CHUNK, g = 0;
    const auto fetch = [&](int n, int j, int g, int part, int at) {
        if (n < steps) {
            fetch_adds<WHICH>(p, w, w.h + g, mem.b[at], j, part);
            if (part == 0)
                fetch_columns<WHICH>(p, w, w.h + g, mem.x[n % STAGES], j);
            if (WHICH == GRAD_K && part == 0)
                fetch_c(p, w, w.h + g, mem.c[n % STAGES], j);
        }
        device_commit();
    };

    fetch(0, j, 0, 0, 0);
    #pragma unroll 1
    for (int n = 0; n < steps; n++) {
        const int next_g = g + 1 < heads ? g + 1 : 0, of_x = n % STAGES;
        const int next_j = next_g ? j : j + (WHICH == GRAD_Q ? -CHUNK : CHUNK);

        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int at = (n * parts + part) % STAGES;
            const bool done = PARTS == 1 || part + 1 >= parts;
            const int to = await_chunk<WHICH>(p, w, w.h + g, j, part, nullptr, mem.b[at],
                                              mem.x[of_x], true, e);

            if (STAGES > 1 && done)
                fetch(n + 1, next_j, next_g, 0, (at + 1) % STAGES);
            else if (STAGES > 1)
                fetch(n, j, g, part + 1, (at + 1) % STAGES);
            turn_state(e, to, my, z);
            fold(mem.b[at], mem.x[of_x], part, my);
            if (done)
                break;
        }
        if (has_last(p, WHICH))
            fold_last<WHICH>(mem.x[of_x], mem.c[of_x], z);
        if (STAGES == 1) {
            __syncthreads();
            fetch(n + 1, next_j, next_g, 0, 0);
        }
        j = next_j;
        g = next_g;
    }
    if (WHICH == GRAD_Q)
        device_wait_before();    // who waits for this step, waits for those before
    if (last)
        return;

    float *const slot = find_slot(p, w, w.segment + 1);

    put_state(p, w, slot, place_of_slot(p, WHICH), slot + (int64_t)p.d * p.dv, 1, e, my, z);
}

// dS_in and dz_in.
DEVICE void put_state_in(const attn_linear_kparams &p, const chunk_work &w, int e,
                         warp_state &my, const last_row &z)
{
    if (w.segment != (is_causal(p) ? p.pieces - 1 : 0))
        return;
    put_state(p, w,
              p.has & LHAS_GRAD_STATE_IN
                  ? p.grad_state_in + LINEAR_AT(p, grad_state_in, w.b, w.kvh, 0, 0)
                  : nullptr,
              { p.dv, p.d, p.grad_state_in_stride_d, p.grad_state_in_stride_l },
              p.has & LHAS_GRAD_Z_IN ? p.grad_z_in + LINEAR_AT(p, grad_z_in, w.b, w.kvh, 0, 0)
                                     : nullptr,
              p.grad_z_in_stride_l, e, my, z);
}
