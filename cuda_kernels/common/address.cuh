// SPDX-License-Identifier: MIT
// common/address.cuh: where row j of a view lives: strides, packed sequences, pages.
// Every kernel finds its rows here, and no main loop knows how. Strides in elements.
#pragma once
#include "common/range.cuh"

// What groups that run at a time should read again and again, so that it stays in the L2: of
// an H100's or H200's 50 MB.
constexpr int64_t L2_BYTES = 36 << 20;

// The rows of one (batch, head).
struct attn_rows {
    int64_t base;        // element 0 of row 0; paged: of row 0 of page 0
    int64_t stride_l;    // from row to row
    int64_t stride_d;    // along a row
    int64_t stride_page;
    const int32_t *table;    // of this batch; NULL: not paged
};

// Rows of q or o, and of k or v; s is the batch's attn_sequence.
#define ADDRESS_QUERIES(p, name, s, b, h) \
    address_rows((p).name##_offset, (p).name##_stride_b, (p).name##_stride_h, \
                 (p).name##_stride_l, (p).name##_stride_d, b, h, \
                 has<CAN>(p, FEAT_PACKED_Q), (s).q_first)
#define ADDRESS_KEYS(p, name, s, b, h) \
    address_pages<CAN>(p, address_rows((p).name##_offset, (p).name##_stride_b, \
                                       (p).name##_stride_h, (p).name##_stride_l, \
                                       (p).name##_stride_d, b, h, \
                                       has<CAN>(p, FEAT_PACKED_K | FEAT_PAGES), \
                                       (s).k_first), \
                       (p).name##_stride_b, b)

// `shared`: all batches lie in the one of the view, this one from row `first` on.
DEVICE attn_rows address_rows(int64_t offset, int64_t stride_b, int64_t stride_h,
                              int64_t stride_l, int64_t stride_d, int64_t b, int64_t h,
                              bool shared, int first)
{
    attn_rows r = {};

    r.base = offset + (shared ? first * stride_l : b * stride_b) + h * stride_h;
    r.stride_l = stride_l;
    r.stride_d = stride_d;
    return r;
}

template <int CAN>
DEVICE attn_rows address_pages(const attn_kparams &p, attn_rows r, int64_t stride_page,
                               int64_t b)
{
    if (has<CAN>(p, FEAT_PAGES)) {
        r.stride_page = stride_page;
        r.table = p.table + p.table_offset + b * p.table_stride_b;
    }
    return r;
}

// Element 0 of row j. A page that is not there is read as the nearest one.
template <int CAN>
DEVICE int64_t address_row(const attn_kparams &p, const attn_rows &r, int j)
{
    if (has<CAN>(p, FEAT_PAGES) && r.table) {
        const int page = r.table[j / p.page_size * p.table_stride_h];
        const int there = clamp(page, 0, p.pages - 1);

        if (page != there && p.want_status)
            atomicOr(p.status + p.status_offset, CLAMPED_BLOCK_TABLE);
        return r.base + there * r.stride_page + j % p.page_size * r.stride_l;
    }
    return r.base + j * r.stride_l;
}

// The key/value head that query head h reads.
DEVICE int address_head_kv(const attn_kparams &p, int h)
{
    return h / p.group;
}

// Where the LSE of query i goes.
template <int CAN>
DEVICE int64_t address_lse(const attn_kparams &p, const attn_sequence &s, int64_t b,
                           int64_t h, int64_t i)
{
    return p.lse_offset + (has<CAN>(p, FEAT_PACKED_Q) ? 0 : b * p.lse_stride_b) +
           h * p.lse_stride_h + (s.q_first + i) * p.lse_stride_l;
}
