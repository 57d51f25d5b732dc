// SPDX-License-Identifier: MIT
// linear/wgmma_bf16_bring.cuh: how chunks of rows come to the tiles of fwd_wgmma_bf16.cu. The
// tensors' own bits are the operands, so rows are copied as they lie, and phi, where there is one,
// is taken of keys in place.
#pragma once
#include "linear/wgmma_bf16.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

// Rows of a tensor, from where a thread's first 16 bytes lie.
struct row_source {
    const char *from;
    int64_t bytes;    // from row to row
    bool inside;      // whether the thread's columns are the tensor's
};

// The next chunk of them: those below `rows`; the others become 0 and are not read.
template <int SPAN> DEVICE void copy_rows(row_source &x, int rows, float4 *tiles)
{
    typedef part_of_rows<SPAN> part;
    float4 *const to = tiles + part::place();

    #pragma unroll
    for (int i = 0; i < part::COUNT; i++) {
        const bool there = x.inside && part::row() + i * part::STEP < rows;

        device_copy<16>((float *)(to + i * part::STEP * 8), x.from, there);
        x.from += there ? part::STEP * x.bytes : 0;
    }
}

// Has a chunk of them, `skipped` rows on, fetched into the second cache.
template <int SPAN> DEVICE void fetch_rows(const row_source &x, int skipped, int rows)
{
    typedef part_of_rows<SPAN> part;
    const char *from = x.from + skipped * x.bytes;

    #pragma unroll
    for (int i = 0; i < part::COUNT; i++, from += part::STEP * x.bytes)
        if (part::column() % 64 == 0 && x.inside && part::row() + i * part::STEP < rows)
            device_fetch(from);    // 128 bytes
}

#define ROW_SOURCE(name, head, span, left, width)                                          \
    {                                                                                     \
        (const char *)p.name + 2 * (LINEAR_AT(p, name, w.b, head,                          \
                                              (int64_t)w.first + part_of_rows<span>::row(), \
                                              0) + (left) + part_of_rows<span>::column()), \
            2 * p.name##_stride_l, (left) + part_of_rows<span>::column() < (width)        \
    }

template <class MEM> DEVICE void copy_queries(row_source &x, int rows, MEM &mem, int stage)
{
    if constexpr (MEM::QUERIES_TOO)
        copy_rows<DIM>(x, rows, mem.q[stage][0]);
}

// By the warpgroup that brings: first the chunks of keys that are summed up, then the group's own,
// with queries, `chunks` in all; DEPTH of them are on their way.
template <int STAGES, int DEPTH, class MEM>
DEVICE void bring_chunks(const attn_linear_kparams &p, const chunk_work &w, const chunk_sum &sum,
                         int chunks, MEM &mem)
{
    const int keys_end = min(w.keys, w.end);
    row_source k = ROW_SOURCE(k, w.kvh, DIM, 0, p.d);
    row_source v = ROW_SOURCE(v, w.kvh, COLUMNS, w.column, p.dv);
    row_source q = ROW_SOURCE(q, w.h, DIM, 0, p.d);
    const char *const first_k = k.from, *const first_v = v.from;

    const auto token_of = [&](int n) {
        return n < sum.count ? sum.first + n * CHUNK : w.first + (n - sum.count) * CHUNK;
    };
    const auto copy = [&](int n) {
        const int stage = n % STAGES, j = token_of(n);

        if (n < chunks) {
            device_barrier_wait(&mem.empty[stage], (n / STAGES & 1) ^ 1);
            if (n == sum.count)
                k.from = first_k, v.from = first_v;
            copy_rows<DIM>(k, keys_end - j, mem.k[stage][0]);
            copy_rows<COLUMNS>(v, keys_end - j, mem.v[stage][0]);
            if (n >= sum.count)
                copy_queries(q, w.end - j, mem, stage);
        }
        device_commit();
    };

    k.from += (sum.first - w.first) * k.bytes;
    v.from += (sum.first - w.first) * v.bytes;
    #pragma unroll 1
    for (int n = 0; n < DEPTH; n++)
        copy(n);
    #pragma unroll 1
    for (int n = 0; n < chunks; n++) {
        const int stage = n % STAGES;

        device_copied<DEPTH - 1>();
        if (has_phi(p))    // zeros past them stay
            take_rows<DIM>(p, mem.k[stage][0],
                           part_of_rows<DIM>::column() < p.d ? keys_end - token_of(n) : 0);
        arrive_written(&mem.full[stage]);
        copy(n + DEPTH);
    }
}

// Has the first chunks that are summed up fetched, of a group that may turn out to be another's:
// they are on their way while its number is asked for.
template <int DEPTH>
DEVICE void fetch_chunks(const attn_linear_kparams &p, const chunk_work &w, const chunk_sum &sum)
{
    const row_source k = ROW_SOURCE(k, w.kvh, DIM, 0, p.d);
    const row_source v = ROW_SOURCE(v, w.kvh, COLUMNS, w.column, p.dv);

    #pragma unroll 1
    for (int n = 0; n < min(sum.count, DEPTH); n++) {
        const int j = sum.first + n * CHUNK;

        fetch_rows<DIM>(k, j - w.first, w.keys - j);
        fetch_rows<COLUMNS>(v, j - w.first, w.keys - j);
    }
}

#endif
