/* SPDX-License-Identifier: MIT */
/* problem/text.c: problems as text, printed and read by the table of their operation. */
#include "problem/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/status.h"

const attn_text_word attn_text_types[] = {
    { "f32", ATTN_F32 },
    { "f16", ATTN_F16 },
    { "bf16", ATTN_BF16 },
    { NULL, 0 },
};

static const attn_text_word layouts[] = {
    { "16", ATTN_LAYOUT_16 }, { "8", ATTN_LAYOUT_8 },     { "4", ATTN_LAYOUT_4 },
    { "2", ATTN_LAYOUT_2 },   { "any", ATTN_LAYOUT_ANY }, { NULL, 0 },
};

static const attn_text_op *const ops[] = {
    [ATTN_OP_SOFTMAX] = &attn_text_softmax,
    [ATTN_OP_LINEAR] = &attn_text_linear,
};

enum { N_OPS = sizeof ops / sizeof ops[0] };

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
    for (const attn_text_word *w = layouts; w->word; w++)
        if (w->value == (int)layout)
            return w->word;
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

static void grad_text(const attn_problem *p, attn_text *text)
{
    const char *before = ",grad=";

    for (const attn_text_word *w = ops[p->op]->grads; w->word; w++)
        if (p->grad & (uint32_t)w->value) {
            attn_text_add(text, "%s%s", before, w->word);
            before = "+";
        }
}

void attn_text_flags(const attn_problem *p, const attn_text_flag *flags, size_t n,
                     attn_text *text)
{
    for (size_t i = 0; i < n; i++)
        if ((p->features & flags[i].of) == flags[i].are)
            attn_text_add(text, ",%s", flags[i].word);
}

void attn_text_float(attn_text *text, const char *name, float x)
{
    attn_text_add(text, ",%s=", name);
    attn_text_number(text, x);
}

void attn_problem_text(const attn_problem *p, attn_text *text)
{
    attn_text_add(text, "%s_%s:%s,b%lld,hq%lld,hkv%lld,lq%lld,lk%lld,d%lld",
                  ops[p->op]->name, p->pass == ATTN_PASS_BWD ? "bwd" : "fwd",
                  attn_type_name(p->type), (long long)p->b, (long long)p->hq,
                  (long long)p->hkv, (long long)p->lq, (long long)p->lk, (long long)p->d);
    if (p->dv != p->d)
        attn_text_add(text, ",dv%lld", (long long)p->dv);
    if (p->op == ATTN_OP_LINEAR)
        attn_text_linear_fields(p, text);
    else
        attn_text_softmax_fields(p, text);
    grad_text(p, text);
    layout_text(p, text);
    if (p->allow_tf32 || p->allow_nondet)
        attn_text_add(text, ",allow=%s%s%s", p->allow_tf32 ? "tf32" : "",
                      p->allow_tf32 && p->allow_nondet ? "+" : "",
                      p->allow_nondet ? "nondet" : "");
}

/* Parsing: one field at a time, into a descriptor whose rules are checked last. */

typedef struct reader {
    const char *text, *at; /* the whole text; the field being read       */
    const char *end;       /* of that field                              */
    attn_op op;
    const attn_text_op *by;
    union {
        attn_softmax_desc softmax;
        attn_linear_desc linear;
    } desc;
    bool backward; /* the text began with OP_bwd                 */
    bool typed;    /* the type was read                          */
    uint64_t seen; /* bit k: row k of the op's fields was read   */
} reader;

static void *field_at(reader *r, size_t at)
{
    return (char *)&r->desc + at;
}

static uint32_t *use_of(reader *r)
{
    return field_at(r, r->by->use);
}

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

static bool pair(const char *at, const char *end, int64_t to[2])
{
    const char *colon = memchr(at, ':', (size_t)(end - at));
    return colon && integer(at, colon, &to[0]) && integer(colon + 1, end, &to[1]);
}

/* The word that reaches up to `end`; NULL: none of them. */
static const attn_text_word *find_word(const attn_text_word *words, const char *at,
                                       const char *end)
{
    for (; words->word; words++)
        if (strlen(words->word) == (size_t)(end - at) &&
            !memcmp(words->word, at, (size_t)(end - at)))
            return words;
    return NULL;
}

/* Enums may be of any size that holds them; these are all int's. */
static bool word(const attn_text_word *words, const char *at, const char *end, void *to)
{
    const attn_text_word *w = find_word(words, at, end);
    _Static_assert(sizeof(attn_type) == sizeof(int) && sizeof(attn_layout) == sizeof(int) &&
                       sizeof(attn_align) == sizeof(int) && sizeof(attn_phi) == sizeof(int),
                   "fields of WORD are written as int");

    if (w)
        memcpy(to, &w->value, sizeof w->value);
    return w;
}

/* One class for all, or one for each of the tensors that the pass has. */
static bool layout(reader *r, const char *at)
{
    const size_t *to = r->by->layout;
    const int n = r->backward ? ATTN_TENSOR_ALL : ATTN_TENSOR_COUNT;

    if (!memchr(at, ':', (size_t)(r->end - at))) {
        for (int t = 0; t < n; t++)
            if (!word(layouts, at, r->end, field_at(r, to[t])))
                return false;
        return true;
    }
    for (int t = 0; t < n; t++) {
        const char *stop = t == n - 1 ? r->end : memchr(at, ':', (size_t)(r->end - at));
        if (!stop || !word(layouts, at, stop, field_at(r, to[t])))
            return false;
        at = stop + 1;
    }
    return true;
}

/* Words with "+" between, each once. */
static bool gradients(reader *r, const char *at)
{
    uint32_t *grad = field_at(r, r->by->grad);

    for (const char *stop; at <= r->end; at = stop + 1) {
        const attn_text_word *w;

        stop = memchr(at, '+', (size_t)(r->end - at));
        stop = stop ? stop : r->end;
        w = find_word(r->by->grads, at, stop);
        if (!w || *grad & (uint32_t)w->value)
            return false;
        *grad |= (uint32_t)w->value;
    }
    return true;
}

/* Whether the field in the reader is that one: words with a value match their beginning,
 * a dimension its letters and then a digit, the others as a whole. */
static bool is_field(const reader *r, const attn_text_field *f)
{
    const size_t n = strlen(f->word), have = (size_t)(r->end - r->at);

    if (have < n || memcmp(r->at, f->word, n))
        return false;
    if (f->kind == ATTN_TEXT_FLAG)
        return have == n;
    if (f->kind == ATTN_TEXT_DIM)
        return have > n && (isdigit((unsigned char)r->at[n]) || r->at[n] == '-');
    return true;
}

static bool read_value(reader *r, const attn_text_field *f)
{
    const char *value = r->at + strlen(f->word);
    void *to = field_at(r, f->field);

    *use_of(r) |= f->use;
    switch (f->kind) {
    case ATTN_TEXT_FLAG: return true;
    case ATTN_TEXT_DIM:
        return integer(value, r->end, to) && !(f->not_zero && *(int64_t *)to == 0);
    case ATTN_TEXT_INTEGER: return integer(value, r->end, to);
    case ATTN_TEXT_NUMBER: return attn_number_read(value, r->end, to);
    case ATTN_TEXT_PAIR: return pair(value, r->end, to);
    case ATTN_TEXT_WORD: return word(f->words, value, r->end, to);
    case ATTN_TEXT_LAYOUT: return layout(r, value);
    case ATTN_TEXT_GRAD: return gradients(r, value);
    }
    return false;
}

/* What a field that is none could have been: flags that are the same up to its "=". */
static void find_alike(const reader *r, attn_text *want)
{
    const size_t n = strcspn(r->at, "=,");
    int found = 0;

    for (int k = 0; k < r->by->n_fields && r->at[n] == '='; k++) {
        const attn_text_field *f = &r->by->fields[k];

        if (f->kind == ATTN_TEXT_FLAG && !strncmp(f->word, r->at, n + 1))
            attn_text_add(want, "%s%s", found++ ? " or " : "", f->word);
    }
    if (!found)
        attn_text_add(want, "a field of a %s problem", r->by->name);
}

static attn_status read_field(reader *r)
{
    static const char once[] = "each field once";
    char list[128];
    attn_text want = attn_text_in(list, sizeof list);

    if (find_word(attn_text_types, r->at, r->end)) {
        if (r->typed)
            return bad(r, r->at, once);
        r->typed = true;
        word(attn_text_types, r->at, r->end, field_at(r, r->by->type));
        return ATTN_OK;
    }
    for (int k = 0; k < r->by->n_fields; k++) {
        const attn_text_field *f = &r->by->fields[k];

        if (!is_field(r, f))
            continue;
        if (r->seen >> k & 1 || *use_of(r) & f->use)
            return bad(r, r->at, once);
        if (f->kind == ATTN_TEXT_GRAD && !r->backward) {
            attn_text_add(&want, "gradients of a %s_bwd problem alone", r->by->name);
            return bad(r, r->at, list);
        }
        r->seen |= (uint64_t)1 << k;
        return read_value(r, f) ? ATTN_OK : bad(r, r->at, f->want);
    }
    find_alike(r, &want);
    return bad(r, r->at, list);
}

/* "softmax_fwd:" and the like; false: none of them. */
static bool read_op(reader *r)
{
    for (int op = 0; op < N_OPS; op++) {
        const size_t n = strlen(ops[op]->name);

        if (strncmp(r->text, ops[op]->name, n))
            continue;
        r->op = (attn_op)op;
        r->by = ops[op];
        r->backward = !strncmp(r->text + n, "_bwd:", 5);
        r->at = r->text + n + 5;
        return r->backward || !strncmp(r->text + n, "_fwd:", 5);
    }
    return false;
}

static attn_status read_all(reader *r)
{
    attn_status st;

    if (!read_op(r))
        return bad(r, r->text,
                   "\"softmax_fwd:\", \"softmax_bwd:\", \"linear_fwd:\" or \"linear_bwd:\" "
                   "first");
    for (;; r->at = r->end + 1) {
        r->end = r->at + strcspn(r->at, ",");
        if ((st = read_field(r)) != ATTN_OK)
            return st;
        if (!*r->end)
            break;
    }
    if (!r->typed)
        return attn_fail(ATTN_ERR_INVALID,
                         "problem text \"%.80s\" lacks a type: f32, f16 or "
                         "bf16",
                         r->text);
    for (int k = 0; k < r->by->n_fields; k++) {
        const attn_text_field *f = &r->by->fields[k];

        if ((f->wanted || (f->kind == ATTN_TEXT_GRAD && r->backward)) &&
            !(r->seen >> k & 1))
            return attn_fail(ATTN_ERR_INVALID, "problem text \"%.80s\" lacks %s", r->text,
                             f->want);
    }
    return ATTN_OK;
}

attn_status attn_problem_parse(attn_problem *p, const char *text)
{
    reader r = { .text = text };
    attn_status st;

    memset(&r.desc, 0, sizeof r.desc); /* whichever of the two is larger */
    if ((st = read_all(&r)) != ATTN_OK)
        return st;
    if (r.op == ATTN_OP_LINEAR) {
        attn_linear_desc desc;

        r.desc.linear.size = sizeof r.desc.linear;
        if ((st = attn_linear_desc_read(&desc, &r.desc.linear)) != ATTN_OK)
            return st;
        attn_problem_from_linear(p, &desc);
        if (p->type_decay != desc.type_decay || p->type_beta != desc.type_beta)
            st = attn_fail(ATTN_ERR_INVALID,
                           "problem text \"%.80s\" has %s, which its rule has not", text,
                           p->type_decay != desc.type_decay ? "decay=" : "beta=");
    } else {
        attn_softmax_desc desc;

        r.desc.softmax.size = sizeof r.desc.softmax;
        if ((st = attn_softmax_desc_read(&desc, &r.desc.softmax)) == ATTN_OK)
            attn_problem_from_softmax(p, &desc);
    }
    return st;
}
