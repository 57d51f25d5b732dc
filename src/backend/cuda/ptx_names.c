/* SPDX-License-Identifier: MIT */
/* backend/cuda/ptx_names.c: gives the registers of PTX whole names again. The other half,
 * and what the short ones mean, is tools/ptx_names.py. */
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/image.h"

enum { MOST_KINDS = 16, KIND_BYTES = 8, MOST_REGISTERS = 1 << 24 };

/* The registers of a kind, %r say, that a function has used, latest last. */
typedef struct kind {
    char name[KIND_BYTES];
    uint32_t *used;
    size_t n, cap;
} kind;

/* The rest of the text to read and of the room to write to. */
typedef struct work {
    const char *at, *end;
    char *out, *full;
    kind kinds[MOST_KINDS];
    int n_kinds;
} work;

static attn_status damaged(const char *what)
{
    return attn_fail(ATTN_ERR_BUILD, "the library's file is damaged: PTX with %s", what);
}

static attn_status put(work *w, const char *text, size_t bytes)
{
    if ((size_t)(w->full - w->out) < bytes)
        return damaged("too much text");
    memcpy(w->out, text, bytes);
    w->out += bytes;
    return ATTN_OK;
}

static attn_status put_number(work *w, uint32_t value)
{
    char digits[10];
    int i = sizeof digits;

    do
        digits[--i] = (char)('0' + value % 10);
    while (value /= 10);
    return put(w, digits + i, sizeof digits - (size_t)i);
}

/* Reads a number that ends before `w->end`; numbers too large stay so. */
static size_t read_number(work *w)
{
    size_t value = 0;

    for (; w->at < w->end && *w->at >= '0' && *w->at <= '9'; w->at++)
        if (value <= MOST_REGISTERS)
            value = 10 * value + (size_t)(*w->at - '0');
    return value;
}

static kind *find(work *w, const char *name, size_t bytes)
{
    for (int i = 0; i < w->n_kinds; i++)
        if (!strncmp(w->kinds[i].name, name, bytes) && !w->kinds[i].name[bytes])
            return &w->kinds[i];
    return NULL;
}

/* %r<9>: registers 0 to 8, none of them used yet. */
static attn_status declare(work *w, const char *name, size_t bytes, size_t registers)
{
    kind *k = find(w, name, bytes);
    uint32_t *grown;

    if (!k && w->n_kinds == MOST_KINDS)
        return damaged("too many kinds of registers");
    if (!registers || registers > MOST_REGISTERS)
        return damaged("a wrong number of registers");
    if (!k) {
        k = &w->kinds[w->n_kinds++];
        memcpy(k->name, name, bytes);
    }
    k->n = 0;
    if (k->cap >= registers)
        return ATTN_OK;
    if (!(grown = realloc(k->used, registers * sizeof *grown)))
        return attn_fail(ATTN_ERR_NO_MEMORY, "PTX: %zu registers", registers);
    k->used = grown;
    k->cap = registers;
    return ATTN_OK;
}

/* The register used before `since` others, or a new one, becomes the latest. */
static attn_status use(work *w, kind *k, bool is_new, size_t since)
{
    uint32_t number;

    if (!k || (is_new ? k->n >= k->cap : since >= k->n))
        return damaged("a register that is not there");
    if (is_new) {
        number = (uint32_t)++k->n;
    } else {
        uint32_t *from = k->used + (k->n - 1 - since);
        number = *from;
        memmove(from, from + 1, since * sizeof *from);
    }
    k->used[k->n - 1] = number;
    return put_number(w, number);
}

/* What follows %kind, which is written already. */
static attn_status restore_name(work *w, const char *name, size_t bytes)
{
    const char what = w->at < w->end ? *w->at : '\0';
    const char *from = w->at;
    size_t value;
    attn_status st;

    if (!bytes || bytes >= KIND_BYTES || !what || !strchr("<+-", what))
        return ATTN_OK;
    w->at++;
    if (what == '+')
        return use(w, find(w, name, bytes), true, 0);
    value = read_number(w);
    if (what == '-')
        return use(w, find(w, name, bytes), false, value);
    if ((st = declare(w, name, bytes, value)) != ATTN_OK)
        return st;
    return put(w, from, (size_t)(w->at - from));
}

attn_status attn_cu_ptx_restore(const char *text, size_t bytes, char *out, size_t cap)
{
    work w = { .at = text, .end = text + bytes, .out = out, .full = out + cap };
    attn_status st = ATTN_OK;

    while (st == ATTN_OK && w.at < w.end) {
        const char *from = w.at, *mark = memchr(w.at, '%', (size_t)(w.end - w.at)), *name;

        w.at = mark ? mark + 1 : w.end;
        for (name = w.at; w.at < w.end && *w.at >= 'a' && *w.at <= 'z';)
            w.at++;
        st = put(&w, from, (size_t)(w.at - from));
        if (st == ATTN_OK && mark)
            st = restore_name(&w, name, (size_t)(w.at - name));
    }
    if (st == ATTN_OK && w.out != w.full)
        st = damaged("too little text");
    for (int i = 0; i < w.n_kinds; i++)
        free(w.kinds[i].used);
    return st;
}
