/* SPDX-License-Identifier: MIT */
/* backend/opencl/cache.h: compiled programs on disk. Fails open: what can't be
 * read or written is compiled from source, and nobody is told. */
#ifndef ATTN_OPENCL_CACHE_H
#define ATTN_OPENCL_CACHE_H

#include <stddef.h>

/* Where entries are, and all that a program depends on, as text. */
typedef struct attn_cl_place {
    const char *dir;
    const char *key;
    size_t key_bytes;
} attn_cl_place;

/* The program, to be freed, or NULL. An entry that is not whole is deleted:
 * some drivers take a damaged program without an error. */
void *attn_cl_cache_load(const attn_cl_place *at, size_t *bytes);

/* Makes the folder if need be. Other processes see the whole entry or none. */
void attn_cl_cache_store(const attn_cl_place *at, const void *program, size_t bytes);

void attn_cl_cache_drop(const attn_cl_place *at);

#endif
