// SPDX-License-Identifier: MIT
// softmax/fwd_naive.cu: the plainest way: every step a kernel of its own, every score in
// memory. What fused kernels are measured against.
//
// Computes  O = softmax(score(Q K^T)) V and its LSE, as in include/attn/softmax.h:
//             product   s_ij = <q_i, k_j> for the keys in range of query i, 0 for others
//             copy      the second array of scores from the first; softmax_fwd_naive_copy
//                       only, whose other steps leave the first ones alone
//             scale     s_ij = scale * s_ij, then softcap * tanh(s_ij / softcap)
//             mask      s_ij = s_ij + bias_ij - slope * |p_i - j|, and -inf where key j is
//                       hidden from query i: by mask, causal, window or length
//             softmax   s_ij = exp(s_ij - m_i) / l_i over the keys in range of query i,
//                       with the sink in m_i and l_i; and LSE_i
//             output    o_id = sum_j s_ij v_jd over the keys in range of query i
// Method    none; rounds over heads and queries keep the scores within bounds
// Grid      1-D. product, copy, scale, mask: ceil(Lk / BLOCK) * queries * heads groups of
//           the round, keys fastest; output: queries * heads, queries fastest; softmax:
//           ceil(queries / BLOCK) * heads, queries fastest
// Block     BLOCK threads, 1-D: a key each; in softmax a row; in output every BLOCK-th
//           element of the row
// Shared    none
// Layout    any strides, in elements. work: [heads of the round][queries of the round]
//           [len_kv] in the computing type; with COPY two such arrays
// Numerics  sums in f32, over keys in spans of SPAN. Scores and weights are rounded to the
//           computing type at every step, so in f16 a large one becomes infinite. A row
//           without visible keys: weights 0, O = 0, LSE = -inf or the sink
// Features  all but dropout, through common/
// Requires  nothing. No row of K outside the query's range is read, and no row of V whose
//           weight is 0: it may hold anything
// Tunables  BLOCK, BLOCKS; src/plan/naive.h has the first, too
// Oracle    src/host/softmax_fwd_reference.c
//
// Built for each TYPE (f32, f16, bf16): NAME is the image's.
#include "common/params.h"

#ifndef TYPE
#define TYPE TYPE_F32
#endif
#ifndef NAME
#define NAME attn_softmax_fwd_naive_f32
#endif

#include "common/device.cuh"
#include "common/types.cuh"
#include "common/range.cuh"
#include "common/address.cuh"
#include "common/score.cuh"
#include "common/state.cuh"

constexpr int BLOCK = 64, SPAN = 256;
constexpr int BLOCKS = 16;    // on a multiprocessor: for more, registers would be spilled
constexpr int CAN = CAN_ALL | COPY;

// One query of one (batch, head); i counts from the batch's first.
struct query {
    int n;    // its place among the round's heads
    int i, h;
    int64_t b;
    attn_sequence s;
    attn_range range;    // the keys that it sees, but for masks
};

DEVICE query find_query(const attn_kparams &p, int n, int i)
{
    query q = { n, i, (p.round_head + n) % p.heads_q, (p.round_head + n) / p.heads_q };

    q.s = range_sequence<CAN>(p, q.b);
    q.range = range_any<CAN>(p, q.s, i, 1);
    return q;
}

// The query of a group that has one, or a piece of its keys.
DEVICE query query_of_group(const attn_kparams &p)
{
    const int row = blockIdx.x / p.pieces;

    return find_query(p, row / p.round_queries, p.round_query + row % p.round_queries);
}

// The key of this thread, a group having BLOCK neighbouring ones.
DEVICE int key_of_thread(const attn_kparams &p)
{
    return (int)(blockIdx.x % p.pieces * BLOCK + threadIdx.x);
}

// Element of key 0 in the scores of a query; array 0 or 1.
DEVICE int64_t score_row(const attn_kparams &p, const query &q, int array)
{
    const int64_t rows = (int64_t)p.round_heads * p.round_queries;
    const int64_t row = (int64_t)q.n * p.round_queries + (q.i - p.round_query);

    return (array * rows + row) * p.len_kv;
}

// Where the steps after the product find the scores.
DEVICE int64_t score_row(const attn_kparams &p, const query &q)
{
    return score_row(p, q, has<CAN>(p, COPY) ? 1 : 0);
}

#define JOIN(a, b) a##b
#define KERNEL(name, step) \
    extern "C" __global__ __launch_bounds__(BLOCK, BLOCKS) void JOIN(name, step)( \
        const __grid_constant__ attn_kparams p)

KERNEL(NAME, _product)
{
    const query me = query_of_group(p);
    const attn_rows q_rows = ADDRESS_QUERIES(p, q, me.s, me.b, me.h);
    const attn_rows k_rows = ADDRESS_KEYS(p, k, me.s, me.b, address_head_kv(p, me.h));
    const int j = key_of_thread(p);
    float sum = 0.0f;

    if (me.i >= me.s.queries || j >= p.len_kv)
        return;
    if (j >= me.range.first && j < me.range.end) {
        const int64_t q_row = address_row<CAN & ~FEAT_PAGES>(p, q_rows, me.i);
        const int64_t k_row = address_row<CAN>(p, k_rows, j);

        for (int d = 0; d < p.d; d++)
            sum += elem_load<TYPE>(p.q, q_row + d * q_rows.stride_d) *
                   elem_load<TYPE>(p.k, k_row + d * k_rows.stride_d);
    }
    elem_store<TYPE>(p.work, score_row(p, me, 0) + j, sum);
}

KERNEL(NAME, _copy)
{
    const query me = query_of_group(p);
    const int j = key_of_thread(p);

    if (me.i < me.s.queries && j < p.len_kv)
        elem_store<TYPE>(p.work, score_row(p, me, 1) + j,
                         elem_load<TYPE>(p.work, score_row(p, me, 0) + j));
}

KERNEL(NAME, _scale)
{
    const query me = query_of_group(p);
    const int j = key_of_thread(p);

    if (me.i < me.s.queries && j < p.len_kv) {
        const int64_t e = score_row(p, me) + j;

        elem_store<TYPE>(p.work, e, score_value<CAN>(p, elem_load<TYPE>(p.work, e)));
    }
}

KERNEL(NAME, _mask)
{
    const query me = query_of_group(p);
    const attn_score at = score_run<CAN>(p, me.s, me.b, me.h, me.i, 1);
    const int j = key_of_thread(p);

    if (me.i < me.s.queries && j < p.len_kv) {
        const int64_t e = score_row(p, me) + j;
        float s = elem_load<TYPE>(p.work, e);

        if (has<CAN>(p, FEAT_TERMS) && j >= me.range.first && j < me.range.end)
            s = score_add(s, score_term<CAN>(p, at, 0, j));
        elem_store<TYPE>(p.work, e, score_masked(at, 0, j, s));
    }
}

// Weights of keys out of range are not written, and nobody reads them.
KERNEL(NAME, _softmax)
{
    const int tiles = ceil_div(p.round_queries, BLOCK);
    const int x = (int)(blockIdx.x % tiles * BLOCK + threadIdx.x);
    const query me = find_query(p, blockIdx.x / tiles, p.round_query + x);
    const int64_t row0 = score_row(p, me);
    attn_row row = state_init();
    float top = -INFINITE;

    if (x >= p.round_queries || me.i >= me.s.queries)
        return;
    for (int j = me.range.first; j < me.range.end; j++)
        top = state_max(elem_load<TYPE>(p.work, row0 + j), top);
    state_fold(&row, top);

    const float reference = state_reference(row.m);

    for (int j0 = me.range.first, j1; j0 < me.range.end; j0 = j1) {
        float sum = 0.0f;

        j1 = j0 + min(SPAN, me.range.end - j0);
        for (int j = j0; j < j1; j++)
            sum += state_weight(elem_load<TYPE>(p.work, row0 + j), reference);
        row.l += sum;
    }

    const float factor = state_finish_sink(&row, state_sink<CAN>(p, me.h));

    for (int j = me.range.first; j < me.range.end; j++)
        elem_store<TYPE>(
            p.work, row0 + j,
            factor * state_weight(elem_load<TYPE>(p.work, row0 + j), reference));
    if (has<CAN>(p, FEAT_LSE) && p.want_lse)
        p.lse[address_lse<CAN>(p, me.s, me.b, me.h, me.i)] = state_lse(row);
}

KERNEL(NAME, _output)
{
    const query me = query_of_group(p);
    const attn_rows v_rows = ADDRESS_KEYS(p, v, me.s, me.b, address_head_kv(p, me.h));
    const attn_rows o_rows = ADDRESS_QUERIES(p, o, me.s, me.b, me.h);
    const int64_t o_row = address_row<CAN & ~FEAT_PAGES>(p, o_rows, me.i);
    const int64_t weights = score_row(p, me);

    if (!p.want_o || me.i >= me.s.queries)
        return;
    for (int d = threadIdx.x; d < p.dv; d += BLOCK) {
        float total = 0.0f;

        for (int j0 = me.range.first, j1; j0 < me.range.end; j0 = j1) {
            float sum = 0.0f;

            j1 = j0 + min(SPAN, me.range.end - j0);
            for (int j = j0; j < j1; j++) {
                const float w = elem_load<TYPE>(p.work, weights + j);

                if (w != 0.0f)
                    sum += w * elem_load<TYPE>(p.v, address_row<CAN>(p, v_rows, j) +
                                                        d * v_rows.stride_d);
            }
            total += sum;
        }
        elem_store<TYPE>(p.o, o_row + d * o_rows.stride_d, total);
    }
}
