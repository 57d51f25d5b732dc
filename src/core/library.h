/* SPDX-License-Identifier: MIT */
/* core/library.h: shared libraries that are opened when first needed: each once in a
 * process, and never closed, since drivers do not survive it. */
#ifndef ATTN_CORE_LIBRARY_H
#define ATTN_CORE_LIBRARY_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "core/text.h"

enum { ATTN_PATH_BYTES = 4096 };

/* Whether a name is that of a folder, in which a library is then looked for. */
bool attn_library_is_folder(const char *name);

/* The file to open: `usual` alone if the name is empty, in the folder of that name, or the
 * name itself. false: too long. */
bool attn_library_path(const char *name, const char *usual, char *path, size_t cap);

/* Opens that file, `path`; NULL on failure, with "; why" added to `reason`. */
void *attn_library_open(const char *name, const char *usual, char path[ATTN_PATH_BYTES],
                        attn_text *reason);

/* A function's name, and where in a table its address goes. */
typedef struct attn_library_function {
    const char *name;
    size_t offset;
} attn_library_function;

/* Fills in a table; the name of the first function that the library lacks, or NULL. */
const char *attn_library_functions(void *handle, const attn_library_function *list,
                                   size_t n, void *table);

/* Those of one kind that have been opened, by the names that were asked for. */
typedef struct attn_library attn_library;

typedef struct attn_libraries {
    pthread_mutex_t lock;
    attn_library *first; /* guarded by `lock`; grows only */
    size_t bytes;        /* of a table                    */

    /* Opens the library of that name ("": the usual one) and fills in its table, which
     * begins as zeros. */
    bool (*open)(const char *name, void *table, attn_text *reason);
} attn_libraries;

#define ATTN_LIBRARIES(type, opener)                                               \
    {                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER, .bytes = sizeof(type), .open = (opener) \
    }

/* The table of the library of that name (NULL: the usual one), which lives as long as the
 * process. NULL on failure, with the reason added to `reason`. Threads: safe. */
const void *attn_library_load(attn_libraries *all, const char *name, attn_text *reason);

#endif
