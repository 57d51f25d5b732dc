/* SPDX-License-Identifier: MIT */
/* attn/status.h: status codes, the text of the last error, the version. */
#ifndef ATTN_STATUS_H
#define ATTN_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

/* The version of these headers. 0.x releases may break the ABI; the soname
 * then changes and CHANGELOG.md says so. */
#define ATTN_VERSION_MAJOR 0
#define ATTN_VERSION_MINOR 1
#define ATTN_VERSION_PATCH 0

/* Every error, once: the enum, the names and the sentences all come from this
 * list. Append only; the values are ABI.
 *
 * INVALID is the caller's mistake and will fail on every machine. UNSUPPORTED
 * is a correct request that no kernel of this build or device takes. */
#define ATTN_ERROR_LIST(X)                                                    \
    X(INVALID, "an argument breaks a documented rule")                        \
    X(UNSUPPORTED, "a valid request that no kernel here can run")             \
    X(NO_MEMORY, "host or device memory is exhausted")                        \
    X(WORKSPACE, "the workspace is missing, small or misaligned")             \
    X(BUILD, "a kernel did not compile or load")                              \
    X(DEVICE, "the driver reported an error")                                 \
    X(NO_DEVICE, "there is no such device on this machine")

typedef enum attn_status {
    ATTN_OK = 0,
#define X(name, text) ATTN_ERR_##name,
    ATTN_ERROR_LIST(X)
#undef X
} attn_status;

/* The version of the library that is running, as "major.minor.patch". A
 * static string. Threads: safe. */
ATTN_API const char *attn_version(void);

/* The name of a status ("ATTN_ERR_INVALID") and the sentence that goes with
 * it. Static strings, also for a number that is no status ("unknown status").
 * Threads: safe. */
ATTN_API const char *attn_status_name(attn_status status);
ATTN_API const char *attn_status_text(attn_status status);

/* What went wrong in the last call of this thread that did not return ATTN_OK:
 * for INVALID the argument, its value and the rule; for BUILD the compiler's
 * log; for DEVICE the driver's call, code and name. Never NULL; "" before the
 * first error. A call that succeeds leaves it alone.
 *
 * The text belongs to the library and stays until the next failing call of the
 * same thread. Threads: each has its own. */
ATTN_API const char *attn_last_error(void);

#ifdef __cplusplus
}
#endif

#endif
