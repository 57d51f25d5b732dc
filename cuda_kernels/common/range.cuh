// SPDX-License-Identifier: MIT
// common/range.cuh: which queries and keys a batch has, and which keys a run of queries
// visits: lengths, packed boundaries, causal, window. Exact: a key outside [first, end)
// is seen by none of the queries, and its row is never read. Key j is visible to query i
// when j < keys and
//
//     position(i) - left <= j <= position(i) + right,   position(i) = i + position(0)
//
// What the integer tensors hold is clamped to the buffers, and reported.
#pragma once
#include "common/types.cuh"

// One batch.
struct attn_sequence {
    int queries, keys;
    int q_first, k_first;    // packed: where its tokens begin, else 0
    int64_t position;        // of query 0
};

struct attn_range {
    int first, end;    // keys [first, end); none if end <= first
};

// All threads of a group find the same; one of them says so.
DEVICE void range_report(const attn_kparams &p, int bits)
{
    if (bits && p.want_status && threadIdx.x == 0)
        atomicOr(p.status + p.status_offset, bits);
}

// Tokens cu[at] .. cu[at + step] - 1 of `tokens`, `most` of them at most.
DEVICE int range_packed(const attn_kparams &p, const int32_t *cu, int64_t at, int64_t step,
                        int tokens, int most, int bit, int *first)
{
    const int begin = cu[at], end = cu[at + step];

    *first = clamp(begin, 0, tokens);

    const int n = min(clamp(end, *first, tokens) - *first, most);

    range_report(p, begin != *first || end != *first + n ? bit : 0);
    return n;
}

DEVICE int range_length(const attn_kparams &p, int n, int most, int bit)
{
    const int clamped = clamp(n, 0, most);

    range_report(p, n != clamped ? bit : 0);
    return clamped;
}

template <int CAN>
DEVICE attn_sequence range_sequence(const attn_kparams &p, int64_t b)
{
    attn_sequence s = { p.len_q, p.len_kv, 0, 0, p.offset };

    if (has<CAN>(p, FEAT_PACKED_Q))
        s.queries = range_packed(p, p.cu_q, p.cu_q_offset + b * p.cu_q_stride_b,
                                 p.cu_q_stride_b, p.tokens_q, p.len_q, CLAMPED_CU_Q,
                                 &s.q_first);
    if (has<CAN>(p, FEAT_PACKED_K))
        s.keys = range_packed(p, p.cu_k, p.cu_k_offset + b * p.cu_k_stride_b,
                              p.cu_k_stride_b, p.tokens_k, p.len_kv, CLAMPED_CU_K,
                              &s.k_first);
    if (has<CAN>(p, FEAT_LENS_Q))
        s.queries = range_length(p, p.lens_q[p.lens_q_offset + b * p.lens_q_stride_b],
                                 s.queries, CLAMPED_LENS_Q);
    if (has<CAN>(p, FEAT_LENS_KV))
        s.keys = range_length(p, p.lens_kv[p.lens_kv_offset + b * p.lens_kv_stride_b],
                              s.keys, CLAMPED_LENS_KV);
    if (has<CAN>(p, FEAT_PAGES) && p.pages == 0)
        s.keys = range_length(p, s.keys, 0, CLAMPED_BLOCK_TABLE);
    if (has<CAN>(p, FEAT_ALIGN_BR))
        s.position = (int64_t)s.keys - s.queries;
    if (has<CAN>(p, FEAT_OFFSETS))
        s.position = p.offsets[p.offsets_offset + b * p.offsets_stride_b];
    return s;
}

// Leftmost key of query i and one past its rightmost, before clamping.
template <int CAN>
DEVICE int64_t range_left(const attn_kparams &p, const attn_sequence &s, int i)
{
    return has<CAN>(p, FEAT_RANGE_LEFT) ? i + s.position - p.left : 0;
}

template <int CAN>
DEVICE int64_t range_right(const attn_kparams &p, const attn_sequence &s, int i)
{
    return has<CAN>(p, FEAT_RANGE_RIGHT) ? i + s.position + p.right + 1 : s.keys;
}

// The keys that at least one of the queries i .. i + n - 1 sees, but for masks.
// Neighbouring queries see neighbouring ranges, so the union has no hole.
template <int CAN>
DEVICE attn_range range_any(const attn_kparams &p, const attn_sequence &s, int i, int n)
{
    const int64_t keys = s.keys;
    attn_range r;

    r.first = (int)clamp(range_left<CAN>(p, s, i), (int64_t)0, keys);
    r.end = r.first;
    if (n > 0)
        r.end = (int)clamp(range_right<CAN>(p, s, i + n - 1), (int64_t)0, keys);
    return r;
}

// The keys that all of them see: their scores need no test of the range.
template <int CAN>
DEVICE attn_range range_all(const attn_kparams &p, const attn_sequence &s, int i, int n)
{
    const int64_t keys = s.keys;
    attn_range r;

    r.first = (int)clamp(range_left<CAN>(p, s, i + n - 1), (int64_t)0, keys);
    r.end = (int)clamp(range_right<CAN>(p, s, i), (int64_t)0, keys);
    return r;
}

// The queries that see at least one of the keys j .. j + n - 1, but for masks.
template <int CAN>
DEVICE attn_range range_queries(const attn_kparams &p, const attn_sequence &s, int j, int n)
{
    const int64_t most = s.queries, at = j - s.position;
    attn_range r = { 0, 0 };

    if (n > 0) {
        if (has<CAN>(p, FEAT_RANGE_RIGHT))
            r.first = (int)clamp(at - p.right, (int64_t)0, most);
        r.end = s.queries;
        if (has<CAN>(p, FEAT_RANGE_LEFT))
            r.end = (int)clamp(at + n + p.left, (int64_t)0, most);
    }
    return r;
}
