/* SPDX-License-Identifier: MIT */
/* core/text.c: building text in a caller's buffer. */
#include "core/text.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

void attn_text_number(attn_text *text, float x)
{
    char digits[64];

    snprintf(digits, sizeof digits, "%.9g", (double)x);
    for (char *c = digits; *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '-' && *c != '+')
            *c = '.'; /* the locale's own point */
    attn_text_add(text, "%s", digits);
}

/* Decimal digits into *value, at most 17 of them; returns how many were there. */
static int digits_read(const char **at, const char *end, double *value, int *scale)
{
    int n = 0;

    for (; *at < end && isdigit((unsigned char)**at); ++*at, n++) {
        if (*value < 1e16)
            *value = *value * 10 + (**at - '0');
        else
            ++*scale; /* beyond what a double tells apart */
    }
    return n;
}

bool attn_number_read(const char *at, const char *end, float *out)
{
    const bool negative = at < end && *at == '-';
    double value = 0, power = 0;
    int scale = 0, digits, dropped = 0;

    at += negative;
    if (end - at == 3 && (!memcmp(at, "nan", 3) || !memcmp(at, "inf", 3))) {
        *out = *at == 'n' ? NAN : negative ? -INFINITY : INFINITY;
        return true;
    }
    digits = digits_read(&at, end, &value, &scale);
    if (at < end && *at == '.') {
        const char *point = ++at;
        digits += digits_read(&at, end, &value, &dropped);
        scale -= (int)(at - point) - dropped;
    }
    if (!digits)
        return false;
    if (at < end && (*at == 'e' || *at == 'E')) {
        const bool minus = ++at < end && *at == '-';
        int ignored = 0;
        at += at < end && (*at == '-' || *at == '+');
        if (!digits_read(&at, end, &power, &ignored) || power > 999)
            return false;
        scale += minus ? -(int)power : (int)power;
    }
    *out = (float)((negative ? -value : value) * pow(10, scale));
    return at == end;
}
