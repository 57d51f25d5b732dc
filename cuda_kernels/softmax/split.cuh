// SPDX-License-Identifier: MIT
// softmax/split.cuh: what fwd_split.cu and fwd_split_mma.cu share: the group's block of rows
// and share of the keys, and what scores of a row depend on. TYPE and DIM are the image's.
//
// A shape T has ROWS (of a group).
#pragma once
#include "common/device.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/score.cuh"
#include "common/state.cuh"
#include "softmax/gather.cuh"
#include "softmax/split_work.cuh"
#include "softmax/sums.cuh"

// The group's work.
template <typename T> struct split_work {
    attn_sequence seq;
    attn_range any, all;
    attn_rows k_rows, v_rows;
    int64_t b;
    int pair;         // batch and key/value head, of the round
    int row, rows;    // the first, and how many there are
    int h, group;     // query heads h .. h + group - 1
    int first;        // key 0 of the group's
};

// Row r of the group's is query query_of() of head head_of(), as the heads' queries lie one
// after another. No division for a single query.
template <typename T>
DEVICE int query_of(const attn_kparams &p, const split_work<T> &my, int r)
{
    return p.round_query + (p.round_queries > 1 ? (my.row + r) / my.group : 0);
}

template <typename T>
DEVICE int head_of(const attn_kparams &p, const split_work<T> &my, int r)
{
    return my.h + (p.round_queries > 1 ? (my.row + r) % my.group : my.row + r);
}

// As range_sequence(), past which there is one jump where a batch has no lengths of its own.
template <int CAN> DEVICE attn_sequence find_sequence(const attn_kparams &p, int64_t b)
{
    constexpr int LENGTHS = FEAT_PACKED_Q | FEAT_PACKED_K | FEAT_LENS_Q | FEAT_LENS_KV |
                            FEAT_OFFSETS | FEAT_PAGES;

    return has<CAN>(p, LENGTHS) ? range_sequence<CAN>(p, b)
                                : range_sequence<CAN & ~LENGTHS>(p, b);
}

// What this group is to do. Ranges are past one jump where all is seen: what comes before the
// first fetch is time without a byte on its way.
template <typename T, int CAN> DEVICE void find_work(const attn_kparams &p, split_work<T> &my)
{
    const int group = p.group, blocks = ceil_div(p.round_queries * group, T::ROWS);
    int block = 0, share = 0, pair = blockIdx.x;

    if (blocks > 1) {
        block = pair % blocks;
        pair /= blocks;
    }
    if (p.shares > 1) {
        share = pair % p.shares;
        pair /= p.shares;
    }

    const int first = p.round_head ? p.round_head / group : 0;    // the round's first pair
    const int64_t b = p.batch > 1 ? (first + pair) / p.heads_kv : 0;
    const int kv = first + pair - (int)b * p.heads_kv;
    const attn_sequence seq = find_sequence<CAN>(p, b);
    const int queries = clamp(seq.queries - p.round_query, 0, p.round_queries);

    my.seq = seq;
    my.b = b;
    my.pair = pair;
    my.h = kv * group;
    my.group = group;
    my.row = block * T::ROWS;
    my.rows = clamp(queries * group - my.row, 0, T::ROWS);
    my.first = share * p.share;

    const int i = query_of(p, my, 0);
    const int n = my.rows ? query_of(p, my, my.rows - 1) - i + 1 : 0;

    my.any = my.all = { 0, seq.keys };
    if (n <= 0)
        my.any.end = 0;
    if (has<CAN>(p, FEAT_RANGE_LEFT | FEAT_RANGE_RIGHT)) {
        my.any = range_any<CAN>(p, seq, i, n);
        my.all = range_all<CAN>(p, seq, i, n);
    }
    my.any.first = max(my.any.first, my.first);
    my.any.end = min(my.any.end, my.first + min(p.share, max(seq.keys - my.first, 0)));
    my.k_rows = ADDRESS_KEYS(p, k, seq, b, kv);
    my.v_rows = ADDRESS_KEYS(p, v, seq, b, kv);
}

// What the scores of row r depend on; of one past the last, as of that.
template <typename T, int CAN>
DEVICE attn_score find_row(const attn_kparams &p, const split_work<T> &my, int r)
{
    const int there = min(r, my.rows - 1);

    return score_run<CAN>(p, my.seq, my.b, head_of(p, my, there), query_of(p, my, there), 1);
}

// Whether some of keys j .. j + n - 1 are not all rows' or not the group's.
template <typename T> DEVICE bool at_edge(const split_work<T> &my, int j, int n)
{
    return j < max(my.all.first, my.any.first) || min(my.all.end, my.any.end) - j < n;
}
