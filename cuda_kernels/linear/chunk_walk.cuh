// SPDX-License-Identifier: MIT
// linear/chunk_walk.cuh: the ways over a segment's chunks, whatever multiplies them. STAGES and
// SUM_STAGES, the chunks in shared memory of a walk and of sums, or parts of them, and what
// chunk_mma.cuh or chunk_tf32.cuh has, are defined before. All but one of them are on their way.
#pragma once

struct shared_sums {
    float4 k[SUM_STAGES][CHUNK * CHUNKS], v[SUM_STAGES][CHUNK * CHUNKS_V];
};

// Whether the chunk from token j on has keys to add.
DEVICE bool adds_at(const attn_linear_kparams &p, const chunk_work &w, int j)
{
    return is_causal(p) && j < w.keys;
}

// A part of chunk n of a segment's, if it has one: Q, and the keys that are added; with the
// first part, V. `at` is the place of the others.
template <class MEM>
DEVICE void fetch_chunk(const attn_linear_kparams &p, const chunk_work &w, MEM &mem, int n,
                        int part, int at)
{
    const int j = w.first + n * CHUNK;

    if (j < w.end) {
        fetch_q(p, w, mem.q[at], j, part);
        if (adds_at(p, w, j)) {
            fetch_k(p, w, mem.k[at], j, part);
            if (part == 0)
                fetch_v(p, w, mem.v[n % STAGES], j);
        }
    }
    device_commit();
}

// The first chunks of a walk.
template <class MEM>
DEVICE void fetch_first(const attn_linear_kparams &p, const chunk_work &w, MEM &mem)
{
    #pragma unroll 1
    for (int n = 0; n < max(STAGES - 1, 1); n++)
        fetch_chunk(p, w, mem, n, 0, n);
}

// A part of the chunk that begins with token j is there, phi taken, for all threads.
template <class MEM>
DEVICE void await_chunk(const attn_linear_kparams &p, const chunk_work &w, MEM &mem, int at,
                        int j, int part)
{
    device_copied<(STAGES > 1 ? STAGES - 2 : 0)>();
    take_phi(p, mem.q[at], j, p.len_q, part);
    if (adds_at(p, w, j))
        take_phi(p, mem.k[at], j, w.keys, part);
    __syncthreads();
}

DEVICE state_place place_of_slot(const attn_linear_kparams &p)
{
    return { p.d, p.dv, p.dv, 1 };
}

// z of a slot; NULL without one.
DEVICE float *z_of_slot(const attn_linear_kparams &p, float *slot)
{
    return linear_has(p, LINEAR_NORMALIZE) ? slot + (int64_t)p.d * p.dv : nullptr;
}

// The state before a segment, from the slots up to its own.
DEVICE void load_state(const attn_linear_kparams &p, const chunk_work &w, warp_state &my)
{
    my = {};
    if (!has_slots(p))
        return;
    #pragma unroll SLOTS
    for (int slot = first_slot(p, w); slot <= last_slot(p, w); slot++) {
        float *const from = find_slot(p, w, slot);

        add_state(from, place_of_slot(p), w.column, z_of_slot(p, from), my);
    }
}

// S and z as they come out.
DEVICE void put_state_out(const attn_linear_kparams &p, const chunk_work &w,
                          const warp_state &my)
{
    if (!writes_state(p, w))
        return;
    store_state(p.want_state ? p.state_out + LINEAR_AT(p, state_out, w.b, w.kvh, 0, 0)
                             : nullptr,
                { p.d, p.dv, p.state_out_stride_l, p.state_out_stride_d }, w.column,
                p.want_z ? p.z_out + LINEAR_AT(p, z_out, w.b, w.kvh, 0, 0) : nullptr,
                p.z_out_stride_l, my);
}

// What the keys of a segment add to the state, from its end to its beginning: what the last
// step reads first was read last, and may still be in the second cache. FOLD adds a part of a
// chunk.
template <class FOLD> DEVICE void sum_segment(const attn_linear_kparams &p, const FOLD &fold)
{
    SHARED_MEMORY(memory);
    shared_sums &mem = *(shared_sums *)memory;
    const chunk_work w = find_chunks(p, p.heads_kv, tokens_of_sums(p), p.dv);
    const int end = min(w.end, w.keys), chunks = max(ceil_div(end - w.first, CHUNK), 0);
    const int parts = parts_of(p.d);
    warp_state my = {};

    device_let_next();
    if (w.segment == (is_causal(p) ? p.pieces - 1 : 0))
        copy_state_in(p, w, THREADS);
    if (is_causal(p) && w.segment == p.pieces - 1)
        return;

    const auto fetch = [&](int i) {    // part i of all
        const int n = i / parts, j = w.first + (chunks - 1 - n) * CHUNK;

        if (n < chunks) {
            fetch_k(p, w, mem.k[i % SUM_STAGES], j, i % parts);
            if (i % parts == 0)
                fetch_v(p, w, mem.v[n % SUM_STAGES], j);
        }
        device_commit();
    };

    #pragma unroll 1
    for (int i = 0; i < SUM_STAGES - 1; i++)
        fetch(i);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        #pragma unroll
        for (int part = 0; part < PARTS; part++) {
            const int i = n * parts + part, at = i % SUM_STAGES;

            if (part && part >= parts)
                break;
            device_copied<SUM_STAGES - 2>();
            take_phi(p, mem.k[at], w.first + (chunks - 1 - n) * CHUNK, w.keys, part);
            __syncthreads();
            fetch(i + SUM_STAGES - 1);
            fold(mem.k[at], mem.v[n % SUM_STAGES], part, my);
        }
    }

    float *const slot = find_slot(p, w, w.segment + 1);

    store_state(slot, place_of_slot(p), w.column, z_of_slot(p, slot), 1, my);
}
