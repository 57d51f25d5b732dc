/* SPDX-License-Identifier: MIT */
/* api/indices.c: what integer tensors in host memory hold: lengths, boundaries, pages.
 * In device memory nobody looks ahead of the launch: there the kernels clamp. */
#include "api/context.h"
#include "core/size.h"
#include "core/status.h"

#define RULE(cond, ...)                                      \
    do {                                                     \
        if (!(cond))                                         \
            return attn_fail(ATTN_ERR_INVALID, __VA_ARGS__); \
    } while (0)

static int64_t at(const attn_tensor *t, int64_t i, int64_t k)
{
    return ((const int32_t *)t->data)[t->offset + i * t->stride[0] + k * t->stride[1]];
}

/* Lengths of batches, each within what its batch has. */
static attn_status check_lens(const char *name, const attn_tensor *lens, int64_t b,
                              int64_t most)
{
    const int64_t n = at(lens, b, 0);

    RULE(n >= 0 && n <= most, "%s[%lld] = %lld, want 0 .. %lld", name, (long long)b,
         (long long)n, (long long)most);
    return ATTN_OK;
}

/* Where batch b begins and ends; the length goes to *n. */
static attn_status check_cu(const char *name, const attn_tensor *cu, int64_t b,
                            int64_t tokens, int64_t most, int64_t *n)
{
    const int64_t first = at(cu, b, 0), end = at(cu, b + 1, 0);

    RULE(first >= 0 && first <= tokens, "%s[%lld] = %lld, want 0 .. %lld tokens", name,
         (long long)b, (long long)first, (long long)tokens);
    RULE(end >= first, "%s[%lld] = %lld after %lld, want ascending boundaries", name,
         (long long)(b + 1), (long long)end, (long long)first);
    RULE(end <= tokens, "%s[%lld] = %lld, want at most the %lld tokens", name,
         (long long)(b + 1), (long long)end, (long long)tokens);
    RULE(end - first <= most, "%s: sequence %lld has %lld tokens, planned are %lld", name,
         (long long)b, (long long)(end - first), (long long)most);
    *n = end - first;
    return ATTN_OK;
}

/* Entries past those that the batch's keys need may hold anything. */
static attn_status check_pages(const attn_problem *p, const attn_tensor *table, int64_t b,
                               int64_t keys, int64_t pages)
{
    for (int64_t k = 0; k < attn_ceil_div(keys, p->page_size); k++) {
        const int64_t page = at(table, b, k);
        RULE(pages > 0, "k has no pages, but batch %lld has %lld keys", (long long)b,
             (long long)keys);
        RULE(page >= 0 && page < pages,
             "block_table[%lld, %lld] = %lld, want a page 0 .. "
             "%lld of k and v",
             (long long)b, (long long)k, (long long)page, (long long)pages - 1);
    }
    return ATTN_OK;
}

static attn_status check_batch(const attn_problem *p, const attn_args *a,
                               const attn_extent *e, int64_t b)
{
    int64_t queries = e->len_q, keys = e->len_kv;
    attn_status st;

    if (p->features & ATTN_FEAT_PACKED_Q &&
        (st = check_cu("cu_q", &a->cu_q, b, e->tokens_q, p->lq, &queries)) != ATTN_OK)
        return st;
    if (p->features & ATTN_FEAT_PACKED_K &&
        (st = check_cu("cu_k", &a->cu_k, b, e->tokens_k, p->lk, &keys)) != ATTN_OK)
        return st;
    if (p->features & ATTN_FEAT_LENS_Q &&
        (st = check_lens("lens_q", &a->lens_q, b, queries)) != ATTN_OK)
        return st;
    if (p->features & ATTN_FEAT_LENS_KV) {
        if ((st = check_lens("lens_kv", &a->lens_kv, b, keys)) != ATTN_OK)
            return st;
        keys = at(&a->lens_kv, b, 0);
    }
    if (p->features & ATTN_FEAT_PAGES)
        return check_pages(p, &a->block_table, b, keys, e->pages);
    return ATTN_OK;
}

attn_status attn_args_check_indices(const attn_problem *p, const attn_args *args,
                                    const attn_extent *extent)
{
    attn_status st = ATTN_OK;

    for (int64_t b = 0; b < p->b && st == ATTN_OK; b++)
        st = check_batch(p, args, extent, b);
    return st;
}
