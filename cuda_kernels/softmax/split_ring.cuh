// SPDX-License-Identifier: MIT
// softmax/split_ring.cuh: the shape of fwd_split.cu, its ring in shared memory, and how rows
// of Q, K and V come to a thread. TYPE and DIM are the image's.
#pragma once
#include "softmax/split.cuh"

// A worker is the lanes that share a row of K or V, 16 bytes of it each, and has keys, a
// maximum and sums of its own.
template <int ROWS_, int KEYS_, int SLOTS_> struct split {
    static constexpr int ROWS = ROWS_;        // of a group
    static constexpr int KEYS = KEYS_;        // that a worker folds at once
    static constexpr int SLOTS = SLOTS_;      // of the ring, each for KEYS rows of K or V
    static constexpr int WARPS = 4, THREADS = 32 * WARPS;
    static constexpr int BYTES_EACH = elem_bytes<TYPE>();
    static constexpr int PER = 16 / BYTES_EACH;    // elements of 16 bytes
    static constexpr int VECS = larger(DIM / (32 * PER), 1);
    static constexpr int LANES = DIM / (VECS * PER), WORKERS = 32 / LANES;
    static constexpr int E = VECS * PER;      // elements of a row that a lane has
    static constexpr int TILE = KEYS * WORKERS;    // keys of a warp at once
    static constexpr int COPIES = KEYS * VECS;     // of 16 bytes, a thread and slot

    // as the planner counts them; 1024 for the group's work
    static constexpr int BYTES = 16 * SLOTS * COPIES * THREADS + 1024;
};

template <typename T> struct shared {
    // a thread reads what it copied itself, so that no barrier stands in the loop; at the
    // end the sums of the warps
    float4 ring[T::SLOTS * T::COPIES][T::THREADS];
    split_work<T> work;
    attn_score score[T::ROWS];
    attn_row state[T::WARPS][T::ROWS];    // at the end
};

// Element 0 of piece v of a lane's row.
template <typename T> DEVICE int column_of(int v)
{
    return (v * T::LANES + threadIdx.x % T::LANES) * T::PER;
}

// The elements of 16 bytes.
template <typename T> DEVICE void expand(float4 raw, float *x)
{
    if (TYPE == TYPE_F32) {
        x[0] = raw.x;
        x[1] = raw.y;
        x[2] = raw.z;
        x[3] = raw.w;
        return;
    }

    const float word[4] = { raw.x, raw.y, raw.z, raw.w };

    #pragma unroll
    for (int i = 0; i < T::PER / 2; i++) {
        const uint32_t u = __float_as_uint(word[i]);

        x[2 * i] = TYPE == TYPE_F16 ? device_f32_of_f16((uint16_t)u) : f32_of_bf16(u);
        x[2 * i + 1] = TYPE == TYPE_F16 ? device_f32_of_f16((uint16_t)(u >> 16))
                                        : __uint_as_float(u & 0xffff0000u);
    }
}

// This thread's part of the rows of K or V that its worker folds at once, which begin with
// key j: into a slot of the ring. Keys that nobody sees become 0 and are not read. Code
// that is seldom run stays small: all of it has to pass through the instruction cache once
// a group.
template <typename T, int CAN>
DEVICE void fetch(const attn_kparams &p, shared<T> &mem, int slot, bool of_k, int j)
{
    const bool whole = has<CAN>(p, of_k ? WHOLE_K : WHOLE_V);
    const int depth = of_k ? p.d : p.dv;
    const char *const x = (const char *)(of_k ? p.k : p.v);
    const attn_rows rows = of_k ? mem.work.k_rows : mem.work.v_rows;
    const attn_range any = mem.work.any;    // copies end what is known of shared memory

    #pragma unroll 1
    for (int i = 0; i < (whole ? 0 : T::COPIES); i++) {
        const int key = j + i / T::VECS * T::WORKERS;
        const bool seen = key >= any.first && key < any.end;
        const int64_t row = address_row<CAN>(p, rows, clamp(key, any.first, any.end - 1));

        mem.ring[slot * T::COPIES + i][threadIdx.x] = gather(
            x, row, rows.stride_d, column_of<T>(i % T::VECS), seen ? depth : 0);
    }
    if (!whole)
        return;
    #pragma unroll
    for (int i = 0; i < T::COPIES; i++) {
        const int key = j + i / T::VECS * T::WORKERS, c = column_of<T>(i % T::VECS);
        const bool seen = key >= any.first && key < any.end;
        const int64_t row = address_row<CAN>(p, rows, clamp(key, any.first, any.end - 1));

        device_copy<16>((float *)&mem.ring[slot * T::COPIES + i][threadIdx.x],
                        x + (row + c) * T::BYTES_EACH, seen && c < depth);
    }
}

template <typename T, int CAN>
DEVICE void load_queries(const attn_kparams &p, const shared<T> &mem,
                         float (&q)[T::ROWS][T::E])
{
    #pragma unroll
    for (int r = 0; r < T::ROWS; r++) {
        const int there = min(r, mem.work.rows - 1);
        const attn_rows rows = ADDRESS_QUERIES(p, q, mem.work.seq, mem.work.b,
                                               head_of(p, mem.work, there));
        const int64_t row =
            address_row<CAN & ~FEAT_PAGES>(p, rows, query_of(p, mem.work, there));

        #pragma unroll
        for (int v = 0; v < T::VECS; v++)
            expand<T>(gather(p.q, row, rows.stride_d, column_of<T>(v),
                             r < mem.work.rows ? p.d : 0),
                      q[r] + v * T::PER);
    }
}
