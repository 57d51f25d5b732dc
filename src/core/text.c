/* SPDX-License-Identifier: MIT */
/* core/text.c: building text in a caller's buffer. */
#include "core/text.h"

#include <stdarg.h>
#include <stdio.h>

attn_text attn_text_in(char *data, size_t cap)
{
    if (cap)
        data[0] = '\0';
    return (attn_text){ .data = data, .cap = cap };
}

void attn_text_add(attn_text *text, const char *format, ...)
{
    size_t used = text->len < text->cap ? text->len : text->cap;
    va_list args;
    int n;

    va_start(args, format);
    n = vsnprintf(used < text->cap ? text->data + used : NULL, text->cap - used, format,
                  args);
    va_end(args);
    if (n > 0)
        text->len += (size_t)n;
}
