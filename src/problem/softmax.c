/* SPDX-License-Identifier: MIT */
/* problem/softmax.c: the rules of attn_softmax_desc, and the problem it names. */
#include "problem/problem.h"

#include <math.h>
#include <string.h>

#include "core/size.h"
#include "core/status.h"

/* One line per rule, in the order of the fields, worded as the header words it.
 * Nothing behind attn_softmax_desc_read() checks a descriptor again. */
#define RULE(cond, ...)                                      \
    do {                                                     \
        if (!(cond))                                         \
            return attn_fail(ATTN_ERR_INVALID, __VA_ARGS__); \
    } while (0)

enum {
    KNOWN_USE = ATTN_USE_CAUSAL | ATTN_USE_ALIGN | ATTN_USE_OFFSET | ATTN_USE_WINDOW |
                ATTN_USE_SCALE | ATTN_USE_LENS_KV | ATTN_USE_LSE | ATTN_USE_LAYOUT |
                ATTN_USE_SOFTCAP | ATTN_USE_BIAS | ATTN_USE_MASK | ATTN_USE_ALIBI |
                ATTN_USE_SINKS | ATTN_USE_LENS_Q | ATTN_USE_OFFSETS | ATTN_USE_PACKED_Q |
                ATTN_USE_PACKED_K | ATTN_USE_PAGES | ATTN_USE_GRAD | ATTN_USE_ALLOW_TF32 |
                ATTN_USE_DROPOUT,
    KNOWN_GRAD = ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V | ATTN_GRAD_BIAS | ATTN_GRAD_SINKS
};

static const int64_t MOST = INT32_MAX;

static attn_status check_position(const attn_softmax_desc *d)
{
    const bool br = (d->use & ATTN_USE_ALIGN) && d->align == ATTN_ALIGN_BOTTOM_RIGHT;

    if (d->use & ATTN_USE_ALIGN)
        RULE(d->align == ATTN_ALIGN_TOP_LEFT || d->align == ATTN_ALIGN_BOTTOM_RIGHT,
             "align = %d, want ATTN_ALIGN_TOP_LEFT or ATTN_ALIGN_BOTTOM_RIGHT",
             (int)d->align);
    if (d->use & ATTN_USE_OFFSET) {
        RULE(!br, "offset = %lld beside align = ATTN_ALIGN_BOTTOM_RIGHT, want one of them",
             (long long)d->offset);
        RULE(d->offset >= INT32_MIN && d->offset <= INT32_MAX,
             "offset = %lld, want -2^31 .. 2^31 - 1", (long long)d->offset);
    }
    if (d->use & ATTN_USE_OFFSETS) {
        RULE(!br, "offsets beside align = ATTN_ALIGN_BOTTOM_RIGHT, want one of them");
        RULE(!(d->use & ATTN_USE_OFFSET), "offsets beside offset = %lld, want one of them",
             (long long)d->offset);
    }
    if (d->use & ATTN_USE_WINDOW) {
        RULE(d->window_left >= -1 && d->window_left <= MOST,
             "window_left = %lld, want 0 .. 2^31 - 1, or -1 for unbounded",
             (long long)d->window_left);
        RULE(d->window_right >= -1 && d->window_right <= MOST,
             "window_right = %lld, want 0 .. 2^31 - 1, or -1 for unbounded",
             (long long)d->window_right);
    }
    return ATTN_OK;
}

static attn_status check_layouts(const attn_softmax_desc *d)
{
    const attn_layout all[ATTN_TENSOR_ALL] = { d->layout_q,      d->layout_k,
                                               d->layout_v,      d->layout_o,
                                               d->layout_grad_o, d->layout_grad_q,
                                               d->layout_grad_k, d->layout_grad_v };

    return attn_layouts_check(all, d->use & ATTN_USE_GRAD);
}

static attn_status check_grad(const attn_softmax_desc *d)
{
    RULE(d->grad, "grad = 0 beside ATTN_USE_GRAD, want at least one ATTN_GRAD_ bit");
    RULE(!(d->grad & ~(uint32_t)KNOWN_GRAD), "grad = 0x%x has bits that mean nothing: 0x%x",
         (unsigned)d->grad, (unsigned)(d->grad & ~(uint32_t)KNOWN_GRAD));
    RULE(!(d->grad & ATTN_GRAD_BIAS) || d->use & ATTN_USE_BIAS,
         "grad has ATTN_GRAD_BIAS, but use is without ATTN_USE_BIAS: there is no bias");
    RULE(!(d->grad & ATTN_GRAD_SINKS) || d->use & ATTN_USE_SINKS,
         "grad has ATTN_GRAD_SINKS, but use is without ATTN_USE_SINKS: there are no sinks");
    return ATTN_OK;
}

static attn_status check_optional(const attn_softmax_desc *d)
{
    attn_status st = check_position(d);

    if (st != ATTN_OK)
        return st;
    if (d->use & ATTN_USE_SCALE)
        RULE(isfinite(d->scale), "scale = %g, want a finite number", (double)d->scale);
    if (d->use & ATTN_USE_SOFTCAP)
        RULE(isfinite(d->softcap) && d->softcap >= 0, "softcap = %g, want >= 0 and finite",
             (double)d->softcap);
    if (d->use & ATTN_USE_BIAS)
        RULE(d->type_bias == ATTN_F32 || d->type_bias == ATTN_F16 ||
                 d->type_bias == ATTN_BF16,
             "type_bias = %d, want ATTN_F32, ATTN_F16 or ATTN_BF16", (int)d->type_bias);
    if (d->use & ATTN_USE_PAGES) {
        RULE(d->page_size >= 1 && d->page_size <= MOST,
             "page_size = %lld, want 1 .. 2^31 - 1", (long long)d->page_size);
        RULE(!(d->use & ATTN_USE_PACKED_K),
             "page_size = %lld beside packed keys, want one of them",
             (long long)d->page_size);
    }
    if (d->use & ATTN_USE_GRAD && (st = check_grad(d)) != ATTN_OK)
        return st;
    if (d->use & ATTN_USE_DROPOUT)
        RULE(d->dropout >= 0 && d->dropout <= 1, "dropout = %g, want 0 .. 1",
             (double)d->dropout);
    return d->use & ATTN_USE_LAYOUT ? check_layouts(d) : ATTN_OK;
}

attn_status attn_softmax_desc_read(attn_softmax_desc *desc, const attn_softmax_desc *from)
{
    attn_sizes sizes;
    attn_status st;

    RULE(from, "desc is NULL");
    RULE(attn_struct_copy(desc, sizeof *desc, from, from->size,
                          offsetof(attn_softmax_desc, type_bias)),
         "size = %zu, want sizeof(attn_softmax_desc) = %zu", from->size, sizeof *desc);
    RULE(!(desc->use & ~(uint32_t)KNOWN_USE), "use = 0x%x has bits that mean nothing: 0x%x",
         (unsigned)desc->use, (unsigned)(desc->use & ~(uint32_t)KNOWN_USE));
    sizes = (attn_sizes){ desc->type,  desc->batch,  desc->heads_q, desc->heads_kv,
                          desc->len_q, desc->len_kv, desc->dim_qk,  desc->dim_v };
    if ((st = attn_sizes_check(&sizes)) != ATTN_OK)
        return st;
    return check_optional(desc);
}

attn_status attn_softmax_check(const attn_softmax_desc *desc)
{
    attn_softmax_desc copy;
    return attn_softmax_desc_read(&copy, desc);
}

static void read_position(attn_problem *p, const attn_softmax_desc *d)
{
    if ((d->use & ATTN_USE_ALIGN) && d->align == ATTN_ALIGN_BOTTOM_RIGHT)
        p->features |= ATTN_FEAT_ALIGN_BR;
    if ((d->use & ATTN_USE_OFFSET) && d->offset) {
        p->features |= ATTN_FEAT_OFFSET;
        p->offset = d->offset;
    }
    p->window_left = p->window_right = -1;
    if ((d->use & ATTN_USE_WINDOW) && (d->window_left >= 0 || d->window_right >= 0)) {
        p->features |= ATTN_FEAT_WINDOW;
        p->window_left = d->window_left;
        p->window_right = d->window_right;
    }
}

/* Features that come and go with one bit of `use`. */
static const struct {
    uint32_t feature, use;
} same[] = {
    { ATTN_FEAT_CAUSAL, ATTN_USE_CAUSAL },     { ATTN_FEAT_OFFSETS, ATTN_USE_OFFSETS },
    { ATTN_FEAT_BIAS, ATTN_USE_BIAS },         { ATTN_FEAT_MASK, ATTN_USE_MASK },
    { ATTN_FEAT_ALIBI, ATTN_USE_ALIBI },       { ATTN_FEAT_SINKS, ATTN_USE_SINKS },
    { ATTN_FEAT_LENS_Q, ATTN_USE_LENS_Q },     { ATTN_FEAT_LENS_KV, ATTN_USE_LENS_KV },
    { ATTN_FEAT_PACKED_Q, ATTN_USE_PACKED_Q }, { ATTN_FEAT_PACKED_K, ATTN_USE_PACKED_K },
    { ATTN_FEAT_PAGES, ATTN_USE_PAGES },       { ATTN_FEAT_LSE, ATTN_USE_LSE },
};

/* Those of which a field decides too: window (-1, -1) is none. */
static const struct {
    uint32_t feature, use;
} decided[] = {
    { ATTN_FEAT_ALIGN_BR, ATTN_USE_ALIGN },  { ATTN_FEAT_OFFSET, ATTN_USE_OFFSET },
    { ATTN_FEAT_WINDOW, ATTN_USE_WINDOW },   { ATTN_FEAT_SOFTCAP, ATTN_USE_SOFTCAP },
    { ATTN_FEAT_DROPOUT, ATTN_USE_DROPOUT },
};

void attn_problem_from_softmax(attn_problem *p, const attn_softmax_desc *d)
{
    const attn_layout layout[ATTN_TENSOR_ALL] = { d->layout_q,      d->layout_k,
                                                  d->layout_v,      d->layout_o,
                                                  d->layout_grad_o, d->layout_grad_q,
                                                  d->layout_grad_k, d->layout_grad_v };

    memset(p, 0, sizeof *p);
    p->op = ATTN_OP_SOFTMAX;
    if (d->use & ATTN_USE_GRAD) {
        p->pass = ATTN_PASS_BWD;
        p->grad = d->grad;
        p->features = ATTN_FEAT_LSE;
    }
    p->type = d->type;
    p->b = d->batch;
    p->hq = d->heads_q;
    p->hkv = d->heads_kv;
    p->lq = d->len_q;
    p->lk = d->len_kv;
    p->d = d->dim_qk;
    p->dv = d->dim_v ? d->dim_v : d->dim_qk;
    read_position(p, d);
    p->scale_given = (d->use & ATTN_USE_SCALE) != 0;
    p->scale = p->scale_given ? d->scale : (float)(1.0 / sqrt((double)p->d));
    p->allow_tf32 = p->type == ATTN_F32 && (d->use & ATTN_USE_ALLOW_TF32);
    if ((d->use & ATTN_USE_SOFTCAP) && d->softcap > 0) {
        p->features |= ATTN_FEAT_SOFTCAP;
        p->softcap = d->softcap;
    }
    if ((d->use & ATTN_USE_DROPOUT) && d->dropout > 0) {
        p->features |= ATTN_FEAT_DROPOUT;
        p->dropout = d->dropout;
    }
    if (d->use & ATTN_USE_BIAS)
        p->type_bias = d->type_bias;
    if (d->use & ATTN_USE_PAGES)
        p->page_size = d->page_size;
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (d->use & same[i].use)
            p->features |= same[i].feature;
    if (d->use & ATTN_USE_LAYOUT)
        for (int t = 0; t < attn_problem_layouts(p); t++)
            p->layout[t] = attn_layout_canonical(layout[t], p->type);
}

void attn_problem_to_softmax(const attn_problem *p, attn_softmax_desc *d)
{
    *d = (attn_softmax_desc){
        .size = sizeof *d,
        .type = p->type,
        .batch = p->b,
        .heads_q = p->hq,
        .heads_kv = p->hkv,
        .len_q = p->lq,
        .len_kv = p->lk,
        .dim_qk = p->d,
        .dim_v = p->dv,
        .align = p->features & ATTN_FEAT_ALIGN_BR ? ATTN_ALIGN_BOTTOM_RIGHT
                                                  : ATTN_ALIGN_TOP_LEFT,
        .offset = p->offset,
        .window_left = p->window_left,
        .window_right = p->window_right,
        .scale = p->scale,
        .softcap = p->softcap,
        .layout_q = p->layout[ATTN_TENSOR_Q],
        .layout_k = p->layout[ATTN_TENSOR_K],
        .layout_v = p->layout[ATTN_TENSOR_V],
        .layout_o = p->layout[ATTN_TENSOR_O],
        .type_bias = p->type_bias,
        .page_size = p->page_size,
        .grad = p->grad,
        .layout_grad_o = p->layout[ATTN_TENSOR_GRAD_O],
        .layout_grad_q = p->layout[ATTN_TENSOR_GRAD_Q],
        .layout_grad_k = p->layout[ATTN_TENSOR_GRAD_K],
        .layout_grad_v = p->layout[ATTN_TENSOR_GRAD_V],
        .dropout = p->dropout,
    };
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (p->features & same[i].feature)
            d->use |= same[i].use;
    for (size_t i = 0; i < sizeof decided / sizeof decided[0]; i++)
        if (p->features & decided[i].feature)
            d->use |= decided[i].use;
    if (p->scale_given)
        d->use |= ATTN_USE_SCALE;
    if (p->allow_tf32)
        d->use |= ATTN_USE_ALLOW_TF32;
    if (p->pass == ATTN_PASS_BWD)
        d->use |= ATTN_USE_GRAD;
    for (int t = 0; t < ATTN_TENSOR_ALL; t++)
        if (p->layout[t] != ATTN_LAYOUT_16)
            d->use |= ATTN_USE_LAYOUT;
}

double attn_problem_visible(const attn_problem *p)
{
    const int64_t offset = p->features & ATTN_FEAT_ALIGN_BR ? p->lk - p->lq : p->offset;
    const int64_t far = (int64_t)1 << 40;
    int64_t left = p->window_left < 0 ? far : p->window_left;
    int64_t right = p->window_right < 0 ? far : p->window_right;
    double sum = 0;

    if (p->features & ATTN_FEAT_CAUSAL)
        right = attn_min(right, 0);
    if (left == far && right == far)
        return (double)p->lq * (double)p->lk;

    /* piecewise linear in i: sample at most 65536 rows, the midpoints of equal runs */
    const int64_t runs = attn_min(p->lq, 65536);
    for (int64_t r = 0; r < runs; r++) {
        double i = ((double)r + 0.5) * (double)p->lq / (double)runs - 0.5;
        double first = fmax(0, i + (double)(offset - left));
        double end = fmin((double)p->lk, i + (double)(offset + right) + 1);
        sum += fmax(0, end - first) * (double)p->lq / (double)runs;
    }
    return sum;
}
