/* SPDX-License-Identifier: MIT */
/* backend/opencl/cache.c: compiled programs on disk.
 *
 * Entry   head, key, program; its name is the hash of the key
 * Trust   only our own regular files, whose key and program are, bit for bit,
 *         what was written */
#define _POSIX_C_SOURCE 200809L
#include "backend/opencl/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { FORMAT = 1, MAX_BYTES = 1 << 28, PATH_BYTES = 4096 };

static const char magic[8] = "attn-cl";

typedef struct head {
    char magic[8];
    uint32_t format;
    uint32_t key_bytes;
    uint64_t program_bytes;
    uint64_t hash[2]; /* of the program */
} head;

static head head_of(const attn_cl_place *at, const void *program, size_t bytes)
{
    const XXH128_hash_t hash = XXH3_128bits(program, bytes);
    head h = { .format = FORMAT,
               .key_bytes = (uint32_t)at->key_bytes,
               .program_bytes = bytes,
               .hash = { hash.low64, hash.high64 } };

    memcpy(h.magic, magic, sizeof magic);
    return h;
}

static bool path_of(const attn_cl_place *at, char path[PATH_BYTES])
{
    const XXH128_hash_t hash = XXH3_128bits(at->key, at->key_bytes);
    const int n = snprintf(path, PATH_BYTES, "%s/%016llx%016llx.clbin", at->dir,
                           (unsigned long long)hash.high64, (unsigned long long)hash.low64);

    return n > 0 && n < PATH_BYTES;
}

/* NULL if there is none, or if it is not ours to trust or to delete. Opening
 * without waiting, since a name may be anything, a pipe too. */
static FILE *open_entry(const char *path, size_t *bytes)
{
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    FILE *file;

    if (fd < 0)
        return NULL;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        !(file = fdopen(fd, "rb"))) {
        close(fd);
        return NULL;
    }
    *bytes = st.st_size > 0 ? (size_t)st.st_size : 0;
    return file;
}

void *attn_cl_cache_load(const attn_cl_place *at, size_t *bytes)
{
    char path[PATH_BYTES], *all = NULL, *program;
    size_t size = 0;
    FILE *file;
    head want, have;

    if (!path_of(at, path) || !(file = open_entry(path, &size)))
        return NULL;
    if (size <= sizeof want + at->key_bytes || size > MAX_BYTES || !(all = malloc(size)) ||
        fread(all, 1, size, file) != size)
        goto fail;
    program = all + sizeof want + at->key_bytes;
    *bytes = size - sizeof want - at->key_bytes;
    want = head_of(at, program, *bytes);
    memcpy(&have, all, sizeof have);
    if (memcmp(&have, &want, sizeof want) ||
        memcmp(all + sizeof want, at->key, at->key_bytes))
        goto fail;
    memmove(all, program, *bytes);
    fclose(file);
    return all;

fail:
    fclose(file);
    free(all);
    attn_cl_cache_drop(at);
    return NULL;
}

/* Like mkdir -p; whether it worked shows when the file is made. */
static void make_folders(const char *dir)
{
    char path[PATH_BYTES];
    const int n = snprintf(path, sizeof path, "%s", dir);

    if (n <= 0 || n >= PATH_BYTES)
        return;
    for (char *c = path + 1; *c; c++)
        if (*c == '/') {
            *c = '\0';
            mkdir(path, 0700);
            *c = '/';
        }
    mkdir(path, 0700);
}

void attn_cl_cache_store(const attn_cl_place *at, const void *program, size_t bytes)
{
    char path[PATH_BYTES], draft[PATH_BYTES];
    const head h = head_of(at, program, bytes);
    const int n = snprintf(draft, sizeof draft, "%s/draft-XXXXXX", at->dir);
    FILE *file = NULL;
    bool good;
    int fd;

    if (!bytes || bytes > MAX_BYTES / 2 || at->key_bytes > MAX_BYTES / 4 || n <= 0 ||
        n >= PATH_BYTES || !path_of(at, path))
        return;
    fd = mkstemp(draft);
    if (fd < 0 && errno == ENOENT) {
        make_folders(at->dir);
        snprintf(draft, sizeof draft, "%s/draft-XXXXXX", at->dir);
        fd = mkstemp(draft);
    }
    if (fd < 0)
        return;
    if (!(file = fdopen(fd, "wb"))) {
        close(fd);
        unlink(draft);
        return;
    }
    good = fwrite(&h, sizeof h, 1, file) == 1 &&
           fwrite(at->key, 1, at->key_bytes, file) == at->key_bytes &&
           fwrite(program, 1, bytes, file) == bytes;
    good = fclose(file) == 0 && good;
    if (!good || rename(draft, path))
        unlink(draft);
}

void attn_cl_cache_drop(const attn_cl_place *at)
{
    char path[PATH_BYTES];

    if (path_of(at, path))
        unlink(path);
}
