/* SPDX-License-Identifier: MIT */
/* core/text.h: building text in a caller's buffer, cut when it is full. */
#ifndef ATTN_CORE_TEXT_H
#define ATTN_CORE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* `len` counts what a large enough buffer would hold, without the final 0. */
typedef struct attn_text {
    char *data;
    size_t cap;
    size_t len;
} attn_text;

/* An empty text in `data`, which may be NULL if cap is 0. */
attn_text attn_text_in(char *data, size_t cap);

__attribute__((format(printf, 2, 3)))
void attn_text_add(attn_text *text, const char *format, ...);

/* A number with 9 digits, which name an f32 exactly, and with a point whatever
 * the caller's locale. */
void attn_text_number(attn_text *text, float x);

/* Reads such a number up to `end`; also nan and inf, for the rules to refuse. */
bool attn_number_read(const char *at, const char *end, float *out);

#endif
