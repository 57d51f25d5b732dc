/* SPDX-License-Identifier: MIT */
/* core/status.h: recording what went wrong for attn_last_error(). */
#ifndef ATTN_CORE_STATUS_H
#define ATTN_CORE_STATUS_H

#include <attn/status.h>

/* Records the sentence for attn_last_error() and returns its first argument. */
__attribute__((format(printf, 2, 3)))
attn_status attn_fail(attn_status status, const char *format, ...);

/* Puts "what: " in front of the recorded sentence; returns its first argument. */
__attribute__((format(printf, 2, 3)))
attn_status attn_fail_in(attn_status status, const char *format, ...);

/* The recorded sentence, kept over calls whose failure is no failure of ours. */
enum { ATTN_ERROR_BYTES = 8192 };

typedef struct attn_error_text {
    char text[ATTN_ERROR_BYTES];
} attn_error_text;

void attn_error_save(attn_error_text *out);
void attn_error_restore(const attn_error_text *saved);

#endif
