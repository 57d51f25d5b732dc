/* SPDX-License-Identifier: MIT */
/* core/library.c: finds, opens and keeps shared libraries. */
#define _POSIX_C_SOURCE 200809L
#include "core/library.h"

#include <dlfcn.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct attn_library {
    struct attn_library *next;
    char *name;
    alignas(max_align_t) char table[];
};

bool attn_library_is_folder(const char *name)
{
    struct stat st;

    return !stat(name, &st) && S_ISDIR(st.st_mode);
}

bool attn_library_path(const char *name, const char *usual, char *path, size_t cap)
{
    const int n = !*name                         ? snprintf(path, cap, "%s", usual)
                  : attn_library_is_folder(name) ? snprintf(path, cap, "%s/%s", name, usual)
                                                 : snprintf(path, cap, "%s", name);

    return n >= 0 && (size_t)n < cap;
}

void *attn_library_open(const char *name, const char *usual, char path[ATTN_PATH_BYTES],
                        attn_text *reason)
{
    void *handle;

    if (!attn_library_path(name, usual, path, ATTN_PATH_BYTES)) {
        attn_text_add(reason, "; its name is too long");
        return NULL;
    }
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        attn_text_add(reason, "; %s", why ? why : path);
    }
    return handle;
}

const char *attn_library_functions(void *handle, const attn_library_function *list,
                                   size_t n, void *table)
{
    for (size_t i = 0; i < n; i++) {
        void *symbol = dlsym(handle, list[i].name);
        if (!symbol)
            return list[i].name;
        memcpy((char *)table + list[i].offset, &symbol, sizeof symbol);
    }
    return NULL;
}

static attn_library *open_one(attn_libraries *all, const char *name, attn_text *reason)
{
    attn_library *l = calloc(1, sizeof *l + all->bytes + strlen(name) + 1);

    if (!l)
        return NULL;
    l->name = l->table + all->bytes;
    strcpy(l->name, name);
    if (all->open(name, l->table, reason)) {
        l->next = all->first;
        return all->first = l;
    }
    free(l);
    return NULL;
}

const void *attn_library_load(attn_libraries *all, const char *name, attn_text *reason)
{
    attn_library *l;

    if (!name)
        name = "";
    pthread_mutex_lock(&all->lock);
    for (l = all->first; l && strcmp(l->name, name); l = l->next)
        ;
    if (!l)
        l = open_one(all, name, reason);
    pthread_mutex_unlock(&all->lock);
    return l ? l->table : NULL;
}
