/* SPDX-License-Identifier: MIT */
/* core/status.c: status names, the text of a thread's last error, the version. */
#include "core/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define STR_(x) #x
#define STR(x)  STR_(x)

/* A build log is the longest thing that goes in here; its head says enough. */
static _Thread_local char last_error[ATTN_ERROR_BYTES];

const char *attn_version(void)
{
    return STR(ATTN_VERSION_MAJOR) "." STR(ATTN_VERSION_MINOR) "." STR(ATTN_VERSION_PATCH);
}

const char *attn_status_name(attn_status status)
{
    switch (status) {
    case ATTN_OK: return "ATTN_OK";
#define X(name, text) \
    case ATTN_ERR_##name: return "ATTN_ERR_" #name;
        ATTN_ERROR_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *attn_status_text(attn_status status)
{
    switch (status) {
    case ATTN_OK: return "success";
#define X(name, text) \
    case ATTN_ERR_##name: return text;
        ATTN_ERROR_LIST(X)
#undef X
    }
    return "unknown status";
}

const char *attn_last_error(void)
{
    return last_error;
}

attn_status attn_fail(attn_status status, const char *format, ...)
{
    char text[ATTN_ERROR_BYTES]; /* an argument may be last_error itself */
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(last_error, text, sizeof text);
    return status;
}

attn_status attn_fail_in(attn_status status, const char *format, ...)
{
    char what[256];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return attn_fail(status, "%s: %s", what, last_error);
}

void attn_error_save(attn_error_text *out)
{
    memcpy(out->text, last_error, sizeof out->text);
}

void attn_error_restore(const attn_error_text *saved)
{
    memcpy(last_error, saved->text, sizeof saved->text);
}
