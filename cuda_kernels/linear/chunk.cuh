// SPDX-License-Identifier: MIT
// linear/chunk.cuh: what the steps of linear_fwd_chunk share, and linear_fwd_wgmma with them: which
// tokens and columns a group has, and where the states of segments lie.
//
// The workspace has, of each batch and key/value head, slots of D * Dv floats S and D floats
// z. After the first step (_sums) slot 0 holds the state as it came in, slot s what the keys
// of segment s - 1 add to it; after fwd_scan.cu slot s the sum of those up to it. In the
// causal form that is the state before segment s, and the last segment needs no slot; in the
// full form the last slot is the state that every query reads.
//
// COLUMNS, the columns of a group, is defined before.
#pragma once
#include "linear/linear.cuh"

constexpr int CHUNK = 64;    // tokens of a chunk

constexpr int HUGE_ROW = 64;    // what a row of huge numbers is divided by, as an exponent

DEVICE float power_of_2(int exponent) { return __int_as_float((127 + exponent) << 23); }

// Without a normaliser the forward's rows of O get `sum_unit` at last, and what Q was divided by
// (`down` is not 1): a small unit takes that along, before a large one rows are lifted.
DEVICE float unit_of_row(const attn_linear_kparams &p, float down)
{
    if (down == 1.0f || fabsf(p.sum_unit) > 1.0f)
        return p.sum_unit;
    return p.sum_unit * power_of_2(HUGE_ROW);
}

template <int N>
DEVICE void lift_rows(const attn_linear_kparams &p, const float (&down)[2], float (&o)[N][4])
{
    if (linear_has(p, LINEAR_NORMALIZE) || !(fabsf(p.sum_unit) > 1.0f))
        return;
    #pragma unroll
    for (int i = 0; i < N * 4; i++)
        o[i / 4][i % 4] *= down[i % 4 / 2] == 1.0f ? 1.0f : power_of_2(HUGE_ROW);
}

struct chunk_work {
    int b, h, kvh;
    int column;          // the first
    int segment;
    int first, end;      // tokens
    int keys;            // of the batch
};

// Element (r, c) of a state lies at r * pitch_r + c * pitch_c.
struct state_place {
    int rows, columns;
    int64_t pitch_r, pitch_c;
};

// Floats of a slot: S, then z.
DEVICE int64_t slot_floats(const attn_linear_kparams &p) { return (int64_t)p.d * (p.dv + 1); }

// Groups run over `width` columns, segments of `len` tokens, heads, batches, columns fastest.
DEVICE chunk_work find_chunks(const attn_linear_kparams &p, int heads, int len, int width,
                              int group)
{
    const int slices = ceil_div(width, COLUMNS), unit = group / slices;
    const int head = unit / p.pieces;
    chunk_work w;

    w.column = group % slices * COLUMNS;
    w.segment = unit % p.pieces;
    w.b = head / heads;
    w.h = head % heads;
    w.kvh = heads == p.heads_kv ? w.h : w.h / p.group;
    w.first = p.piece ? w.segment * p.piece : 0;
    w.end = p.piece ? (int)min((unsigned)len, (unsigned)w.first + p.piece) : len;
    w.keys = linear_keys(p, w.b);
    return w;
}

DEVICE chunk_work find_chunks(const attn_linear_kparams &p, int heads, int len, int width)
{
    return find_chunks(p, heads, len, width, (int)blockIdx.x);
}

DEVICE float *find_slot(const attn_linear_kparams &p, const chunk_work &w, int slot)
{
    return p.work + p.slots_at +
           (((int64_t)w.b * p.heads_kv + w.kvh) * p.slots + slot) * slot_floats(p);
}

// Slot 0, the group's columns: the state as it came in, or zeros.
DEVICE void copy_state_in(const attn_linear_kparams &p, const chunk_work &w, int threads)
{
    const bool given = linear_has(p, LINEAR_STATE);
    const int columns = min(COLUMNS, p.dv - w.column);
    float *const to = find_slot(p, w, 0);

    for (int i = threadIdx.x; i < p.d * columns; i += threads) {
        const int e = i / columns, c = w.column + i % columns;

        to[(int64_t)e * p.dv + c] =
            given ? p.state_in[LINEAR_AT(p, state_in, w.b, w.kvh, (int64_t)e, (int64_t)c)]
                  : 0.0f;
    }
    for (int e = threadIdx.x; e < p.d && w.column == 0; e += threads)
        to[(int64_t)p.d * p.dv + e] =
            given && linear_has(p, LINEAR_NORMALIZE)
                ? p.z_in[LINEAR_AT(p, z_in, w.b, w.kvh, (int64_t)e, 0)]
                : 0.0f;
}

DEVICE bool is_causal(const attn_linear_kparams &p) { return linear_has(p, LINEAR_CAUSAL); }

// Whether there are slots; else the state before the only segment is zero.
DEVICE bool has_slots(const attn_linear_kparams &p)
{
    return p.pieces > 1 || !is_causal(p) || linear_has(p, LINEAR_STATE);
}

// The slots whose sum is the state that a group begins with.
DEVICE int last_slot(const attn_linear_kparams &p, const chunk_work &w)
{
    return is_causal(p) ? w.segment : p.slots - 1;
}

DEVICE int first_slot(const attn_linear_kparams &p, const chunk_work &w)
{
    return linear_has(p, LINEAR_SCANNED) ? last_slot(p, w) : 0;
}

// Tokens that the first steps cut into segments.
DEVICE int tokens_of_sums(const attn_linear_kparams &p)
{
    return is_causal(p) ? p.len_q : p.len_kv;
}

// Chunks of keys that a group sums up before its own chunks, and the first token of them.
struct chunk_sum {
    int first, count;
};

// Whether the group writes the state as it comes out.
DEVICE bool writes_state(const attn_linear_kparams &p, const chunk_work &w)
{
    return w.segment == p.pieces - 1 && w.h % p.group == 0;
}
