/* SPDX-License-Identifier: MIT */
/* problem/sizes.c: the rules of sizes and layouts, which both operations have. */
#include "core/size.h"
#include "core/status.h"
#include "problem/problem.h"

#define RULE(cond, ...)                                      \
    do {                                                     \
        if (!(cond))                                         \
            return attn_fail(ATTN_ERR_INVALID, __VA_ARGS__); \
    } while (0)

static const int64_t MOST = INT32_MAX;
static const int64_t MOST_ELEMENTS = (int64_t)1 << 62;

static bool product_fits(int64_t a, int64_t b, int64_t c, int64_t d)
{
    int64_t n;
    return attn_mul(a, b, &n) && attn_mul(n, c, &n) && attn_mul(n, d, &n) &&
           n <= MOST_ELEMENTS;
}

attn_status attn_sizes_check(const attn_sizes *d)
{
    const int64_t dim_v = d->dim_v ? d->dim_v : d->dim_qk;

    RULE(d->type == ATTN_F32 || d->type == ATTN_F16 || d->type == ATTN_BF16,
         "type = %d, want ATTN_F32, ATTN_F16 or ATTN_BF16", (int)d->type);
    RULE(d->batch >= 0 && d->batch <= MOST, "batch = %lld, want 0 .. 2^31 - 1",
         (long long)d->batch);
    RULE(d->heads_q >= 0 && d->heads_q <= MOST, "heads_q = %lld, want 0 .. 2^31 - 1",
         (long long)d->heads_q);
    RULE(d->heads_kv >= 0 && d->heads_kv <= MOST, "heads_kv = %lld, want 0 .. 2^31 - 1",
         (long long)d->heads_kv);
    RULE((d->heads_q == 0) == (d->heads_kv == 0),
         "heads_kv = %lld with heads_q = %lld, want both 0 or neither",
         (long long)d->heads_kv, (long long)d->heads_q);
    RULE(d->heads_kv == 0 || d->heads_q % d->heads_kv == 0,
         "heads_q = %lld, want a multiple of heads_kv = %lld", (long long)d->heads_q,
         (long long)d->heads_kv);
    RULE(d->len_q >= 0 && d->len_q <= MOST, "len_q = %lld, want 0 .. 2^31 - 1",
         (long long)d->len_q);
    RULE(d->len_kv >= 0 && d->len_kv <= MOST, "len_kv = %lld, want 0 .. 2^31 - 1",
         (long long)d->len_kv);
    RULE(d->dim_qk >= 1 && d->dim_qk <= MOST, "dim_qk = %lld, want 1 .. 2^31 - 1",
         (long long)d->dim_qk);
    RULE(d->dim_v >= 0 && d->dim_v <= MOST,
         "dim_v = %lld, want 1 .. 2^31 - 1, or 0 for dim_qk", (long long)d->dim_v);
    RULE(product_fits(d->batch, d->heads_q, d->len_q, attn_max(d->dim_qk, dim_v)),
         "batch * heads_q * len_q * max(dim_qk, dim_v) = %lld * %lld * %lld * %lld, "
         "want <= 2^62",
         (long long)d->batch, (long long)d->heads_q, (long long)d->len_q,
         (long long)attn_max(d->dim_qk, dim_v));
    RULE(product_fits(d->batch, d->heads_kv, d->len_kv, attn_max(d->dim_qk, dim_v)),
         "batch * heads_kv * len_kv * max(dim_qk, dim_v) = %lld * %lld * %lld * %lld, "
         "want <= 2^62",
         (long long)d->batch, (long long)d->heads_kv, (long long)d->len_kv,
         (long long)attn_max(d->dim_qk, dim_v));
    return ATTN_OK;
}

attn_status attn_layouts_check(const attn_layout layout[ATTN_TENSOR_ALL], bool backward)
{
    static const char *const names[ATTN_TENSOR_ALL] = { "q",      "k",      "v",
                                                        "o",      "grad_o", "grad_q",
                                                        "grad_k", "grad_v" };

    for (int t = 0; t < (backward ? ATTN_TENSOR_ALL : ATTN_TENSOR_COUNT); t++)
        RULE((int)layout[t] >= ATTN_LAYOUT_16 && layout[t] <= ATTN_LAYOUT_ANY,
             "layout_%s = %d, want an ATTN_LAYOUT_ value", names[t], (int)layout[t]);
    return ATTN_OK;
}

attn_layout attn_layout_canonical(attn_layout layout, attn_type type)
{
    return layout == ATTN_LAYOUT_ELEMENT && type == ATTN_F32 ? ATTN_LAYOUT_4 : layout;
}
