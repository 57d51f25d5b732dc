// SPDX-License-Identifier: MIT
// softmax/tile_feed.cuh: how chunks of K and V come into the slots of fwd_tile.cu. TYPE is the
// image's.
//
// Of chunks whose rows and columns are all there a thread's part is found once: in f32 it
// goes by cp.async, 16 bits are fetched to registers and turned to f32 behind the products that
// hide how long that takes. Other chunks go element by element or four by four (stage.cuh).
#pragma once
#include "softmax/tile.cuh"

// A thread's part of a chunk: where its first element lies, the bytes from row to row, and
// where it goes in a slot.
struct feed_part {
    const char *from;
    int64_t row;
    int to;
};

// What comes next: of the step of keys from j on, of which `left` are there, columns `at` +
// width of K if `at` is negative, else values from j + `at` on.
template <typename T> struct feed {
    static constexpr int HELD =
        TYPE == TYPE_F32 ? 1 : larger(T::BN * T::DC, T::JC * DIM) / T::THREADS / 4;

    int j, left, at, width;
    int whole_k;              // columns of K up to here fill their chunks; -width: none
    int whole_v;              // 1: all chunks of V have all columns
    bool rows;                // the step has all rows
    feed_part k, v;           // of what comes next
    uint2 held[HELD];
    int what;                 // is held: nothing, or part of K, or of V
};

enum { NOTHING, PART_OF_K, PART_OF_V };

// Rows of K go to columns: its elements lie side by side in global memory, and keys TX apart
// in a slot. A warp's lanes are 4 keys and 8 columns in f32, 32 bytes of each key; 16 keys and
// twice four columns in 16 bits. Either way they write to 32 banks, since KP % 32 is 4.
template <typename T> struct turned {
    static constexpr int COLUMNS = TYPE == TYPE_F32 ? 8 : T::DC;    // of all threads
    static constexpr int PASS = TYPE == TYPE_F32 ? T::THREADS / 8 : T::THREADS * 4 / T::DC;

    static_assert(T::KP % 32 == 4 && 4 * T::TX % PASS == 0 && T::BN % PASS == 0 &&
                      T::DC % COLUMNS == 0,
                  "passes are whole");
};

// Which key is i places further, in a slot, than one of the first PASS.
template <typename T> DEVICE int turned_key(int i)
{
    return i / (4 * T::TX) * (4 * T::TX) + i % (4 * T::TX) / 4;
}

template <typename T> DEVICE feed_part part_of_k(const attn_kparams &p, const attn_rows &rows)
{
    const unsigned me = device_thread(), lane = me % 32, warp = me / 32;
    const int place = TYPE == TYPE_F32 ? warp * 4 + lane % 4 : warp / (T::DC / 8) * 16 + lane % 16;
    const int c = TYPE == TYPE_F32 ? lane / 4 : warp % (T::DC / 8) * 8 + lane / 16 * 4;
    const int r = place / 4 + place % 4 * T::TX;
    constexpr int BYTES = elem_bytes<TYPE>();

    return { (const char *)p.k + BYTES * (rows.base + r * rows.stride_l + c),
             BYTES * rows.stride_l, c * T::KP + place };
}

template <typename T> DEVICE feed_part part_of_v(const attn_kparams &p, const attn_rows &rows)
{
    const unsigned me = device_thread();
    const int r = me / (DIM / 4), c = me % (DIM / 4) * 4;
    constexpr int BYTES = elem_bytes<TYPE>();

    return { (const char *)p.v + BYTES * (rows.base + r * rows.stride_l + c),
             BYTES * rows.stride_l, r * T::VP + c };
}

template <typename T, int CAN>
DEVICE feed<T> find_feed(const attn_kparams &p, const shared<T> &mem, int j)
{
    feed<T> next;

    next.j = j;
    next.left = mem.any.end - j;
    next.width = ceil_div(p.d, T::DC) * T::DC;
    next.at = -next.width;
    next.whole_k = has<CAN>(p, TYPE == TYPE_F32 ? CONTIG_K : WIDE_K) ? p.d - next.width
                                                                     : -next.width;
    next.whole_v = held(has<CAN>(p, WIDE_V) && p.dv == DIM);
    next.rows = !has<CAN>(p, FEAT_PAGES) && next.left >= T::BN && mem.any.first <= j;
    next.k = part_of_k<T>(p, mem.k_rows);
    next.v = part_of_v<T>(p, mem.v_rows);
    next.k.from += j * next.k.row;
    next.v.from += j * next.v.row;
    next.what = NOTHING;
    return next;
}

template <typename T> DEVICE void stage_whole_k(float *slot, feed<T> &next)
{
    using to = turned<T>;
    float *const put = slot + next.k.to;

    #pragma unroll
    for (int i = 0; i < T::BN; i += to::PASS) {
        const char *const row = next.k.from + turned_key<T>(i) * next.k.row;

        if constexpr (TYPE != TYPE_F32) {
            next.held[i / to::PASS] = *(const uint2 *)row;
        } else {
            #pragma unroll
            for (int c = 0; c < T::DC; c += to::COLUMNS)
                device_copy<4>(put + i + c * T::KP, row + 4 * c, true);
        }
    }
    next.what = PART_OF_K;
}

template <typename T> DEVICE void stage_whole_v(float *slot, feed<T> &next)
{
    constexpr int PASS = T::THREADS / (DIM / 4);
    const char *row = next.v.from;

    static_assert(T::JC % PASS == 0, "passes are whole");
    #pragma unroll
    for (int i = 0; i < T::JC; i += PASS, row += PASS * next.v.row)
        if (TYPE == TYPE_F32)
            device_copy<16>(slot + next.v.to + i * T::VP, row, true);
        else
            next.held[i / PASS] = *(const uint2 *)row;
    next.what = PART_OF_V;
}

// Begins to bring what comes next, if there is more, to the slot of a chunk.
template <typename T, int CAN>
DEVICE void stage_next(const attn_kparams &p, shared<T> &mem, feed<T> &next, unsigned chunk)
{
    float *const slot = mem.slot[chunk % SLOTS];

    next.what = NOTHING;
    if (next.left <= 0)
        return;
    if (next.at < 0) {
        if (next.rows && next.at + T::DC <= next.whole_k)
            stage_whole_k(slot, next);
        else
            stage_turned<T::BN, T::DC, T::KP, T::THREADS, CAN, T::TX>(
                p, slot, p.k, mem.k_rows, next.j, mem.any.first - next.j, next.left,
                next.at + next.width, p.d, has<CAN>(p, CONTIG_K));
        next.at += T::DC;
        next.k.from += T::DC * elem_bytes<TYPE>();
        return;
    }
    if (next.rows && next.whole_v)
        stage_whole_v(slot, next);
    else
        stage<T::JC, DIM, T::VP, T::THREADS, CAN>(
            p, slot, p.v, mem.v_rows, next.j + next.at, mem.any.first - next.j - next.at,
            next.left - next.at, 0, p.dv, has<CAN>(p, WIDE_V), has<CAN>(p, CONTIG_V));
    next.at += T::JC;
    next.v.from += T::JC * next.v.row;
    if (next.at >= min(T::BN, next.left)) {
        next.at = -next.width;
        next.j += T::BN;
        next.left -= T::BN;
        next.rows = !has<CAN>(p, FEAT_PAGES) && next.left >= T::BN;
        next.k.from += T::BN * next.k.row - next.width * elem_bytes<TYPE>();
    }
}

// Ends that: what was fetched to registers goes to the slot.
template <typename T> DEVICE void stage_rest(shared<T> &mem, const feed<T> &next, unsigned chunk)
{
    float *const slot = mem.slot[chunk % SLOTS];

    if (TYPE == TYPE_F32)
        return;
    if (next.what == PART_OF_K) {
        constexpr int PASS = turned<T>::PASS;

        #pragma unroll
        for (int i = 0; i < T::BN; i += PASS) {
            const float4 x = elem_load4<TYPE>(&next.held[i / PASS], 0);
            float *const to = slot + next.k.to + i;

            to[0] = x.x;
            to[T::KP] = x.y;
            to[2 * T::KP] = x.z;
            to[3 * T::KP] = x.w;
        }
    } else if (next.what == PART_OF_V) {
        constexpr int PASS = T::THREADS / (DIM / 4);

        #pragma unroll
        for (int i = 0; i < T::JC; i += PASS)
            *(float4 *)(slot + next.v.to + i * T::VP) = elem_load4<TYPE>(&next.held[i / PASS], 0);
    }
}
