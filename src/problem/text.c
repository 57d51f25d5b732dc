/* SPDX-License-Identifier: MIT */
/* problem/text.c: a problem as one line of text, both ways (attn/text.h). */
#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"
#include "problem/problem.h"

static const struct {
    const char *word;
    attn_layout layout;
} layouts[] = {
    { "16", ATTN_LAYOUT_16 }, { "8", ATTN_LAYOUT_8 },     { "4", ATTN_LAYOUT_4 },
    { "2", ATTN_LAYOUT_2 },   { "any", ATTN_LAYOUT_ANY },
};

const char *attn_feature_word(uint32_t bit)
{
#define X(name, word)            \
    if (bit == ATTN_FEAT_##name) \
        return word;
    ATTN_FEATURE_LIST(X)
#undef X
    return "?";
}

int64_t attn_layout_bytes(attn_layout layout, attn_type type)
{
    switch (layout) {
    case ATTN_LAYOUT_16: return 16;
    case ATTN_LAYOUT_8: return 8;
    case ATTN_LAYOUT_4: return 4;
    case ATTN_LAYOUT_ELEMENT: return (int64_t)attn_type_bytes(type);
    case ATTN_LAYOUT_ANY: break;
    }
    return 0;
}

static const char *layout_word(attn_layout layout)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (layouts[i].layout == layout)
            return layouts[i].word;
    return "?";
}

static void layout_text(const attn_problem *p, attn_text *text)
{
    const attn_layout *l = p->layout;
    const int n = attn_problem_layouts(p);
    bool same = true;

    for (int t = 1; t < n; t++)
        same = same && l[t] == l[0];
    if (same && l[0] == ATTN_LAYOUT_16)
        return;
    attn_text_add(text, ",layout=%s", layout_word(l[0]));
    for (int t = 1; t < n && !same; t++)
        attn_text_add(text, ":%s", layout_word(l[t]));
}

static const struct {
    const char *word;
    uint32_t bit;
} grads[] = {
    { "q", ATTN_GRAD_Q },       { "k", ATTN_GRAD_K },         { "v", ATTN_GRAD_V },
    { "bias", ATTN_GRAD_BIAS }, { "sinks", ATTN_GRAD_SINKS },
};

enum { N_GRADS = sizeof grads / sizeof grads[0] };

static void grad_text(const attn_problem *p, attn_text *text)
{
    const char *before = ",grad=";

    for (int i = 0; i < N_GRADS; i++)
        if (p->grad & grads[i].bit) {
            attn_text_add(text, "%s%s", before, grads[i].word);
            before = "+";
        }
}

enum { PACKED = ATTN_FEAT_PACKED_Q | ATTN_FEAT_PACKED_K };

/* Words without a value, in order: printed if of the features `of` just `are` set. */
static const struct {
    const char *word;
    uint32_t of, are;
} flags[] = {
    { "mask", ATTN_FEAT_MASK, ATTN_FEAT_MASK },
    { "alibi", ATTN_FEAT_ALIBI, ATTN_FEAT_ALIBI },
    { "sinks", ATTN_FEAT_SINKS, ATTN_FEAT_SINKS },
    { "qlens", ATTN_FEAT_LENS_Q, ATTN_FEAT_LENS_Q },
    { "lens", ATTN_FEAT_LENS_KV, ATTN_FEAT_LENS_KV },
    { "packed", PACKED, PACKED },
    { "packed=q", PACKED, ATTN_FEAT_PACKED_Q },
    { "packed=k", PACKED, ATTN_FEAT_PACKED_K },
};

void attn_problem_text(const attn_problem *p, attn_text *text)
{
    attn_text_add(text, "softmax_%s:%s,b%lld,hq%lld,hkv%lld,lq%lld,lk%lld,d%lld",
                  p->pass == ATTN_PASS_BWD ? "bwd" : "fwd", attn_type_name(p->type),
                  (long long)p->b, (long long)p->hq, (long long)p->hkv, (long long)p->lq,
                  (long long)p->lk, (long long)p->d);
    if (p->dv != p->d)
        attn_text_add(text, ",dv%lld", (long long)p->dv);
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
        attn_text_add(text, ",scale="), attn_text_number(text, p->scale);
    if (p->features & ATTN_FEAT_SOFTCAP)
        attn_text_add(text, ",softcap="), attn_text_number(text, p->softcap);
    if (p->features & ATTN_FEAT_BIAS)
        attn_text_add(text, ",bias=%s", attn_type_name(p->type_bias));
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if ((p->features & flags[i].of) == flags[i].are)
            attn_text_add(text, ",%s", flags[i].word);
    if (p->features & ATTN_FEAT_PAGES)
        attn_text_add(text, ",pages=%lld", (long long)p->page_size);
    if (p->features & ATTN_FEAT_LSE && p->pass == ATTN_PASS_FWD)
        attn_text_add(text, ",lse");
    grad_text(p, text);
    layout_text(p, text);
    if (p->allow_tf32)
        attn_text_add(text, ",allow=tf32");
}

/* Parsing: one field at a time, into a descriptor whose rules are checked last. */

typedef struct reader {
    const char *text, *at; /* the whole text; the field being read   */
    const char *end;       /* of that field                          */
    attn_softmax_desc desc;
    bool backward; /* the text began with softmax_bwd       */
    uint32_t seen; /* bit k: row k of `fields` was read      */
} reader;

static attn_status bad(const reader *r, const char *at, const char *want)
{
    int n = (int)strcspn(at, ",");
    return attn_fail(ATTN_ERR_INVALID, "problem text, position %d: \"%.*s\", want %s",
                     (int)(at - r->text), n > 40 ? 40 : n, at, want);
}

/* A decimal integer that reaches up to `end`. */
static bool integer(const char *at, const char *end, int64_t *out)
{
    char *stop;

    if (at == end || !(isdigit((unsigned char)*at) || *at == '-'))
        return false;
    errno = 0;
    *out = strtoll(at, &stop, 10);
    return !errno && stop == end;
}

static bool window(const char *at, const char *end, attn_softmax_desc *d)
{
    const char *colon = memchr(at, ':', (size_t)(end - at));
    return colon && integer(at, colon, &d->window_left) &&
           integer(colon + 1, end, &d->window_right);
}

static bool one_layout(const char *at, const char *end, attn_layout *out)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++)
        if (strlen(layouts[i].word) == (size_t)(end - at) &&
            !memcmp(layouts[i].word, at, (size_t)(end - at))) {
            *out = layouts[i].layout;
            return true;
        }
    return false;
}

/* One class for all, or one for each of the tensors that the pass has. */
static bool layout(const char *at, const char *end, bool backward, attn_softmax_desc *d)
{
    attn_layout *to[ATTN_TENSOR_ALL] = { &d->layout_q,      &d->layout_k,
                                         &d->layout_v,      &d->layout_o,
                                         &d->layout_grad_o, &d->layout_grad_q,
                                         &d->layout_grad_k, &d->layout_grad_v };
    const int n = backward ? ATTN_TENSOR_ALL : ATTN_TENSOR_COUNT;

    if (!memchr(at, ':', (size_t)(end - at))) {
        if (!one_layout(at, end, to[0]))
            return false;
        for (int t = 1; t < n; t++)
            *to[t] = *to[0];
        return true;
    }
    for (int t = 0; t < n; t++) {
        const char *stop = t == n - 1 ? end : memchr(at, ':', (size_t)(end - at));
        if (!stop || !one_layout(at, stop, to[t]))
            return false;
        at = stop + 1;
    }
    return true;
}

/* Words with "+" between, each once. */
static bool gradients(const char *at, const char *end, uint32_t *grad)
{
    for (const char *stop; at <= end; at = stop + 1) {
        uint32_t bit = 0;

        stop = memchr(at, '+', (size_t)(end - at));
        stop = stop ? stop : end;
        for (int i = 0; i < N_GRADS; i++)
            if (strlen(grads[i].word) == (size_t)(stop - at) &&
                !memcmp(grads[i].word, at, (size_t)(stop - at)))
                bit = grads[i].bit;
        if (!bit || *grad & bit)
            return false;
        *grad |= bit;
    }
    return true;
}

static bool bias_type(const char *at, const char *end, attn_softmax_desc *d)
{
    static const attn_type types[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        const char *name = attn_type_name(types[i]);
        if (strlen(name) == (size_t)(end - at) && !memcmp(name, at, (size_t)(end - at))) {
            d->type_bias = types[i];
            return true;
        }
    }
    return false;
}

typedef enum kind {
    TYPE,
    DIM,
    FLAG,
    ALIGN,
    INTEGER,
    NUMBER,
    WINDOW,
    LAYOUT,
    BIAS,
    GRAD
} kind;

#define AT(field) offsetof(attn_softmax_desc, field)

static const struct {
    const char *word;
    kind kind;
    size_t field;     /* where the value goes                         */
    uint32_t use;     /* the bit that the field sets                  */
    bool wanted;      /* a problem without it is no problem           */
    const char *want; /* for the message                              */
} fields[] = {
    { "f32", TYPE, ATTN_F32, 0, false, "f32" },
    { "f16", TYPE, ATTN_F16, 0, false, "f16" },
    { "bf16", TYPE, ATTN_BF16, 0, false, "bf16" },
    { "b", DIM, AT(batch), 0, true, "b and an integer" },
    { "hq", DIM, AT(heads_q), 0, true, "hq and an integer" },
    { "hkv", DIM, AT(heads_kv), 0, true, "hkv and an integer" },
    { "lq", DIM, AT(len_q), 0, true, "lq and an integer" },
    { "lk", DIM, AT(len_kv), 0, true, "lk and an integer" },
    { "d", DIM, AT(dim_qk), 0, true, "d and an integer" },
    { "dv", DIM, AT(dim_v), 0, false, "dv and an integer, not 0" },
    { "causal", FLAG, 0, ATTN_USE_CAUSAL, false, "causal" },
    { "align=", ALIGN, AT(align), ATTN_USE_ALIGN, false, "align=br or align=tl" },
    { "offset=", INTEGER, AT(offset), ATTN_USE_OFFSET, false, "offset=INTEGER" },
    { "offsets", FLAG, 0, ATTN_USE_OFFSETS, false, "offsets" },
    { "window=", WINDOW, 0, ATTN_USE_WINDOW, false, "window=LEFT:RIGHT" },
    { "scale=", NUMBER, AT(scale), ATTN_USE_SCALE, false, "scale=NUMBER" },
    { "softcap=", NUMBER, AT(softcap), ATTN_USE_SOFTCAP, false, "softcap=NUMBER" },
    { "bias=", BIAS, 0, ATTN_USE_BIAS, false, "bias=f32, bias=f16 or bias=bf16" },
    { "mask", FLAG, 0, ATTN_USE_MASK, false, "mask" },
    { "alibi", FLAG, 0, ATTN_USE_ALIBI, false, "alibi" },
    { "sinks", FLAG, 0, ATTN_USE_SINKS, false, "sinks" },
    { "qlens", FLAG, 0, ATTN_USE_LENS_Q, false, "qlens" },
    { "lens", FLAG, 0, ATTN_USE_LENS_KV, false, "lens" },
    { "packed", FLAG, 0, ATTN_USE_PACKED_Q | ATTN_USE_PACKED_K, false, "packed" },
    { "packed=q", FLAG, 0, ATTN_USE_PACKED_Q, false, "packed=q" },
    { "packed=k", FLAG, 0, ATTN_USE_PACKED_K, false, "packed=k" },
    { "pages=", INTEGER, AT(page_size), ATTN_USE_PAGES, false, "pages=INTEGER" },
    { "lse", FLAG, 0, ATTN_USE_LSE, false, "lse" },
    { "grad=", GRAD, 0, ATTN_USE_GRAD, false,
      "grad= and q, k, v, bias, sinks with + between, each once" },
    { "layout=", LAYOUT, 0, ATTN_USE_LAYOUT, false,
      "layout=CLASS or a CLASS for each of q, k, v and o (of softmax_bwd eight: also the "
      "gradients of o, q, k and v) with : between, of 16, 8, 4, 2 and any" },
    { "allow=tf32", FLAG, 0, ATTN_USE_ALLOW_TF32, false, "allow=tf32" },
};

enum { N_FIELDS = sizeof fields / sizeof fields[0], N_TYPES = 3 };

/* Whether the field in the reader is of row k: words with a value match their
 * beginning, a dimension its letters and then a digit, the others as a whole. */
static bool is_field(const reader *r, int k)
{
    const size_t n = strlen(fields[k].word), have = (size_t)(r->end - r->at);

    if (have < n || memcmp(r->at, fields[k].word, n))
        return false;
    if (fields[k].kind == TYPE || fields[k].kind == FLAG)
        return have == n;
    if (fields[k].kind == DIM)
        return have > n && (isdigit((unsigned char)r->at[n]) || r->at[n] == '-');
    return true;
}

static bool read_value(reader *r, int k)
{
    const char *value = r->at + strlen(fields[k].word);
    char *field = (char *)&r->desc + fields[k].field;

    r->desc.use |= fields[k].use;
    switch (fields[k].kind) {
    case TYPE: r->desc.type = (attn_type)fields[k].field; return true;
    case FLAG: return true;
    case DIM:
        /* in a descriptor 0 means D, in a text the field is left out for that */
        return integer(value, r->end, (int64_t *)(void *)field) &&
               !(fields[k].field == AT(dim_v) && r->desc.dim_v == 0);
    case INTEGER: return integer(value, r->end, (int64_t *)(void *)field);
    case NUMBER: return attn_number_read(value, r->end, (float *)(void *)field);
    case WINDOW: return window(value, r->end, &r->desc);
    case LAYOUT: return layout(value, r->end, r->backward, &r->desc);
    case GRAD: return r->backward && gradients(value, r->end, &r->desc.grad);
    case BIAS: return bias_type(value, r->end, &r->desc);
    case ALIGN:
        r->desc.align = r->end - value == 2 && !memcmp(value, "br", 2)
                            ? ATTN_ALIGN_BOTTOM_RIGHT
                            : ATTN_ALIGN_TOP_LEFT;
        return r->end - value == 2 && (!memcmp(value, "br", 2) || !memcmp(value, "tl", 2));
    }
    return false;
}

static attn_status read_field(reader *r)
{
    const uint32_t types = (1u << N_TYPES) - 1;

    for (int k = 0; k < N_FIELDS; k++) {
        if (!is_field(r, k))
            continue;
        if (r->seen & (k < N_TYPES ? types : 1u << k) || r->desc.use & fields[k].use)
            return bad(r, r->at, "each field once");
        r->seen |= 1u << k;
        return read_value(r, k) ? ATTN_OK : bad(r, r->at, fields[k].want);
    }
    return bad(r, r->at, "a field of a softmax problem");
}

static attn_status read_all(reader *r)
{
    static const char forward[] = "softmax_fwd:", backward[] = "softmax_bwd:";
    attn_status st;

    r->backward = !strncmp(r->text, backward, sizeof backward - 1);
    if (!r->backward && strncmp(r->text, forward, sizeof forward - 1))
        return bad(r, r->text, "\"softmax_fwd:\" or \"softmax_bwd:\" first");
    for (r->at = r->text + sizeof forward - 1;; r->at = r->end + 1) {
        r->end = r->at + strcspn(r->at, ",");
        if ((st = read_field(r)) != ATTN_OK)
            return st;
        if (!*r->end)
            break;
    }
    if (!(r->seen & ((1u << N_TYPES) - 1)))
        return attn_fail(ATTN_ERR_INVALID,
                         "problem text \"%.80s\" lacks a type: f32, f16 or "
                         "bf16",
                         r->text);
    for (int k = 0; k < N_FIELDS; k++)
        if ((fields[k].wanted || (fields[k].kind == GRAD && r->backward)) &&
            !(r->seen & 1u << k))
            return attn_fail(ATTN_ERR_INVALID, "problem text \"%.80s\" lacks %s", r->text,
                             fields[k].want);
    return ATTN_OK;
}

attn_status attn_problem_parse(attn_problem *p, const char *text)
{
    reader r = { .text = text, .desc = { .size = sizeof r.desc } };
    attn_softmax_desc desc;
    attn_status st;

    if ((st = read_all(&r)) != ATTN_OK ||
        (st = attn_softmax_desc_read(&desc, &r.desc)) != ATTN_OK)
        return st;
    attn_problem_from_softmax(p, &desc);
    return ATTN_OK;
}
