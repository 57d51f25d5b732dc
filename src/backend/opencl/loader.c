/* SPDX-License-Identifier: MIT */
/* backend/opencl/loader.c: finds libOpenCL and its functions. */
#define _POSIX_C_SOURCE 200809L
#include "backend/opencl/loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/text.h"

static const char *const usual[] = { "libOpenCL.so.1", "libOpenCL.so" };
enum { N_USUAL = sizeof usual / sizeof usual[0] };

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define X(name) { #name, offsetof(attn_cl, name) },
    ATTN_CL_FUNCTIONS(X)
#undef X
};
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

typedef struct library {
    struct library *next;
    attn_cl cl;
    char name[]; /* as it was asked for */
} library;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static library *libraries; /* guarded by `lock`; grows only */

static bool find_functions(void *handle, attn_cl *cl, const char *path, attn_text *reason)
{
    if (!dlsym(handle, "clGetPlatformIDs")) {
        attn_text_add(reason, "; %s has no clGetPlatformIDs, so it is no OpenCL library",
                      path);
        return false;
    }
    for (size_t i = 0; i < N_FUNCTIONS; i++) {
        void *symbol = dlsym(handle, functions[i].name);
        if (!symbol) {
            attn_text_add(reason, "; %s lacks %s, so it is older than OpenCL 1.2", path,
                          functions[i].name);
            return false;
        }
        memcpy((char *)cl + functions[i].offset, &symbol, sizeof symbol);
    }
    return true;
}

static bool open_one(const char *path, attn_cl *cl, attn_text *reason)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);

    if (handle)
        return find_functions(handle, cl, path, reason);
    const char *why = dlerror();
    attn_text_add(reason, "; %s", why ? why : path);
    return false;
}

/* The library that the process has already: the caller's own, whose objects we
 * may be given, or a checker's that was put in front of it. */
static bool find_loaded(attn_cl *cl)
{
    attn_text nowhere = attn_text_in(NULL, 0);
    void *handle = dlopen(NULL, RTLD_NOW | RTLD_LOCAL);

    return handle && find_functions(handle, cl, "", &nowhere);
}

/* In a folder only that folder's libraries are tried. */
static bool open_any(const char *name, attn_cl *cl, attn_text *reason)
{
    struct stat st;
    char path[4096];

    if (*name && (stat(name, &st) || !S_ISDIR(st.st_mode)))
        return open_one(name, cl, reason);
    if (!*name && find_loaded(cl))
        return true;
    for (size_t i = 0; i < N_USUAL; i++) {
        int n = snprintf(path, sizeof path, "%s%s%s", name, *name ? "/" : "", usual[i]);
        if (n > 0 && (size_t)n < sizeof path && open_one(path, cl, reason))
            return true;
    }
    return false;
}

const attn_cl *attn_cl_load(const char *name, char *reason, size_t cap)
{
    attn_text text = attn_text_in(reason, cap);
    library *l;

    if (!name)
        name = "";
    attn_text_add(&text, "no usable OpenCL library");
    pthread_mutex_lock(&lock);
    for (l = libraries; l && strcmp(l->name, name); l = l->next)
        ;
    if (!l && (l = calloc(1, sizeof *l + strlen(name) + 1))) {
        strcpy(l->name, name);
        if (open_any(name, &l->cl, &text)) {
            l->next = libraries;
            libraries = l;
        } else {
            free(l);
            l = NULL;
        }
    }
    pthread_mutex_unlock(&lock);
    if (l && cap)
        reason[0] = '\0';
    return l ? &l->cl : NULL;
}
