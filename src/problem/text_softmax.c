/* SPDX-License-Identifier: MIT */
/* problem/text_softmax.c: the fields of a text of softmax attention. */
#include "problem/text.h"

enum { PACKED = ATTN_FEAT_PACKED_Q | ATTN_FEAT_PACKED_K };

static const attn_text_flag flags[] = {
    { "mask", ATTN_FEAT_MASK, ATTN_FEAT_MASK },
    { "alibi", ATTN_FEAT_ALIBI, ATTN_FEAT_ALIBI },
    { "sinks", ATTN_FEAT_SINKS, ATTN_FEAT_SINKS },
    { "qlens", ATTN_FEAT_LENS_Q, ATTN_FEAT_LENS_Q },
    { "lens", ATTN_FEAT_LENS_KV, ATTN_FEAT_LENS_KV },
    { "packed", PACKED, PACKED },
    { "packed=q", PACKED, ATTN_FEAT_PACKED_Q },
    { "packed=k", PACKED, ATTN_FEAT_PACKED_K },
};

void attn_text_softmax_fields(const attn_problem *p, attn_text *text)
{
    if (p->features & ATTN_FEAT_CAUSAL)
        attn_text_add(text, ",causal");
    if (p->features & ATTN_FEAT_ALIGN_BR)
        attn_text_add(text, ",align=br");
    if (p->features & ATTN_FEAT_OFFSET)
        attn_text_add(text, ",offset=%lld", (long long)p->offset);
    if (p->features & ATTN_FEAT_OFFSETS)
        attn_text_add(text, ",offsets");
    if (p->features & ATTN_FEAT_WINDOW)
        attn_text_add(text, ",window=%lld:%lld", (long long)p->window_left,
                      (long long)p->window_right);
    if (p->scale_given)
        attn_text_float(text, "scale", p->scale);
    if (p->features & ATTN_FEAT_SOFTCAP)
        attn_text_float(text, "softcap", p->softcap);
    if (p->features & ATTN_FEAT_BIAS)
        attn_text_add(text, ",bias=%s", attn_type_name(p->type_bias));
    attn_text_flags(p, flags, sizeof flags / sizeof flags[0], text);
    if (p->features & ATTN_FEAT_PAGES)
        attn_text_add(text, ",pages=%lld", (long long)p->page_size);
    if (p->features & ATTN_FEAT_DROPOUT)
        attn_text_float(text, "dropout", p->dropout);
    if (p->features & ATTN_FEAT_LSE && p->pass == ATTN_PASS_FWD)
        attn_text_add(text, ",lse");
}

static const attn_text_word aligns[] = {
    { "br", ATTN_ALIGN_BOTTOM_RIGHT },
    { "tl", ATTN_ALIGN_TOP_LEFT },
    { NULL, 0 },
};

static const attn_text_word grads[] = {
    { "q", ATTN_GRAD_Q },       { "k", ATTN_GRAD_K },         { "v", ATTN_GRAD_V },
    { "bias", ATTN_GRAD_BIAS }, { "sinks", ATTN_GRAD_SINKS }, { NULL, 0 },
};

#define AT(field) offsetof(attn_softmax_desc, field)
static const attn_text_field fields[] = {
    TEXT_DIM("b", AT(batch), true, "b and an integer"),
    TEXT_DIM("hq", AT(heads_q), true, "hq and an integer"),
    TEXT_DIM("hkv", AT(heads_kv), true, "hkv and an integer"),
    TEXT_DIM("lq", AT(len_q), true, "lq and an integer"),
    TEXT_DIM("lk", AT(len_kv), true, "lk and an integer"),
    TEXT_DIM("d", AT(dim_qk), true, "d and an integer"),
    TEXT_DIM("dv", AT(dim_v), false, "dv and an integer, not 0"),
    TEXT_FLAG("causal", ATTN_USE_CAUSAL),
    TEXT_VALUE("align=", WORD, AT(align), ATTN_USE_ALIGN, "align=br or align=tl", aligns),
    TEXT_VALUE("offset=", INTEGER, AT(offset), ATTN_USE_OFFSET, "offset=INTEGER", NULL),
    TEXT_FLAG("offsets", ATTN_USE_OFFSETS),
    TEXT_VALUE("window=", PAIR, AT(window_left), ATTN_USE_WINDOW, "window=LEFT:RIGHT",
               NULL),
    TEXT_VALUE("scale=", NUMBER, AT(scale), ATTN_USE_SCALE, "scale=NUMBER", NULL),
    TEXT_VALUE("softcap=", NUMBER, AT(softcap), ATTN_USE_SOFTCAP, "softcap=NUMBER", NULL),
    TEXT_VALUE("bias=", WORD, AT(type_bias), ATTN_USE_BIAS,
               "bias=f32, bias=f16 or bias=bf16", attn_text_types),
    TEXT_FLAG("mask", ATTN_USE_MASK),
    TEXT_FLAG("alibi", ATTN_USE_ALIBI),
    TEXT_FLAG("sinks", ATTN_USE_SINKS),
    TEXT_FLAG("qlens", ATTN_USE_LENS_Q),
    TEXT_FLAG("lens", ATTN_USE_LENS_KV),
    TEXT_FLAG("packed", ATTN_USE_PACKED_Q | ATTN_USE_PACKED_K),
    TEXT_FLAG("packed=q", ATTN_USE_PACKED_Q),
    TEXT_FLAG("packed=k", ATTN_USE_PACKED_K),
    TEXT_VALUE("pages=", INTEGER, AT(page_size), ATTN_USE_PAGES, "pages=INTEGER", NULL),
    TEXT_VALUE("dropout=", NUMBER, AT(dropout), ATTN_USE_DROPOUT, "dropout=NUMBER", NULL),
    TEXT_FLAG("lse", ATTN_USE_LSE),
    TEXT_VALUE("grad=", GRAD, 0, ATTN_USE_GRAD,
               "grad= and q, k, v, bias, sinks with + between, each once", NULL),
    TEXT_VALUE(
        "layout=", LAYOUT, 0, ATTN_USE_LAYOUT,
        "layout=CLASS or a CLASS for each of q, k, v and o (of softmax_bwd eight: also "
        "the gradients of o, q, k and v) with : between, of 16, 8, 4, 2 and any",
        NULL),
    TEXT_FLAG("allow=tf32", ATTN_USE_ALLOW_TF32),
};

const attn_text_op attn_text_softmax = {
    .name = "softmax",
    .fields = fields,
    .n_fields = sizeof fields / sizeof fields[0],
    .use = AT(use),
    .type = AT(type),
    .layout = { AT(layout_q), AT(layout_k), AT(layout_v), AT(layout_o), AT(layout_grad_o),
                AT(layout_grad_q), AT(layout_grad_k), AT(layout_grad_v) },
    .grad = AT(grad),
    .grads = grads,
};
