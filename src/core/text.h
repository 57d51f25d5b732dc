/* SPDX-License-Identifier: MIT */
/* core/text.h: building text in a caller's buffer, cut when it is full. */
#ifndef ATTN_CORE_TEXT_H
#define ATTN_CORE_TEXT_H

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

#endif
