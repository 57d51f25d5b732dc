/* SPDX-License-Identifier: MIT */
/* tests/check.h: cmocka, and the two ways a call of the library ends. */
#ifndef ATTN_TESTS_CHECK_H
#define ATTN_TESTS_CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <attn/status.h>

/* Missing hardware: Meson shows such a test as skipped. */
enum { EXIT_SKIPPED = 77 };

#define check_ok(call)                                                                 \
    do {                                                                               \
        attn_status check_status = (call);                                             \
        if (check_status != ATTN_OK)                                                   \
            fail_msg("%s: %s: %s", #call, attn_status_name(check_status),              \
                     attn_last_error());                                               \
    } while (0)

/* The call must fail with this status and a text in which `says` stands. */
#define check_error(call, want, says)                                                  \
    do {                                                                               \
        attn_status check_status = (call);                                             \
        if (check_status != (want) || !strstr(attn_last_error(), (says)))              \
            fail_msg("%s: want %s with \"%s\", have %s: %s", #call,                    \
                     attn_status_name(want), (says), attn_status_name(check_status),   \
                     attn_last_error());                                               \
    } while (0)

#endif
