/* SPDX-License-Identifier: MIT */
/* backend/cuda/loader.c: finds libcuda and its functions. */
#define _POSIX_C_SOURCE 200809L
#include "backend/cuda/loader.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/text.h"

/* Not libcuda.so: that is the toolkit's stub for linking. */
static const char usual[] = "libcuda.so.1";

/* Two steps, so that cuda.h's names are replaced before they become text. */
#define TEXT(name) #name
#define NAME(name) TEXT(name)

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define X(name) { NAME(name), offsetof(attn_cu, name) },
    ATTN_CUDA_FUNCTIONS(X)
#undef X
};
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

typedef struct library {
    struct library *next;
    attn_cu cu;
    char name[]; /* as it was asked for */
} library;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static library *libraries; /* guarded by `lock`; grows only */

static bool find_functions(void *handle, attn_cu *cu, const char *path, attn_text *reason)
{
    if (!dlsym(handle, "cuInit")) {
        attn_text_add(reason, "; %s has no cuInit, so it is no CUDA driver", path);
        return false;
    }
    for (size_t i = 0; i < N_FUNCTIONS; i++) {
        void *symbol = dlsym(handle, functions[i].name);
        if (!symbol) {
            attn_text_add(reason, "; %s lacks %s, so it is older than CUDA %d.%d", path,
                          functions[i].name, CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
            return false;
        }
        memcpy((char *)cu + functions[i].offset, &symbol, sizeof symbol);
    }
    return true;
}

/* Drivers run what a toolkit of their own major version has compiled. */
static bool check_version(const attn_cu *cu, attn_text *reason)
{
    int version = 0;
    const CUresult code = cu->cuDriverGetVersion(&version);

    if (code == CUDA_SUCCESS && version / 1000 >= CUDA_VERSION / 1000)
        return true;
    attn_text_add(reason, "; the driver is of CUDA %d.%d, the kernels here want %d.0",
                  version / 1000, version % 1000 / 10, CUDA_VERSION / 1000);
    return false;
}

static bool start(const attn_cu *cu, attn_text *reason)
{
    const CUresult code = cu->cuInit(0);
    const char *name = "unknown code", *text = "";

    if (code == CUDA_SUCCESS)
        return true;
    if (cu->cuGetErrorName(code, &name) != CUDA_SUCCESS)
        name = "unknown code";
    if (cu->cuGetErrorString(code, &text) != CUDA_SUCCESS)
        text = "";
    attn_text_add(reason, "; cuInit = %d (%s: %s)", (int)code, name, text);
    return false;
}

bool attn_cu_path(const char *name, const char *usual_name, char *path, size_t cap)
{
    struct stat st;
    int n;

    if (!*name)
        n = snprintf(path, cap, "%s", usual_name);
    else if (!stat(name, &st) && S_ISDIR(st.st_mode))
        n = snprintf(path, cap, "%s/%s", name, usual_name);
    else
        n = snprintf(path, cap, "%s", name);
    return n >= 0 && (size_t)n < cap;
}

static bool open_one(const char *name, attn_cu *cu, attn_text *reason)
{
    char path[4096];
    void *handle;

    if (!attn_cu_path(name, usual, path, sizeof path)) {
        attn_text_add(reason, "; its name is too long");
        return false;
    }
    handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
        const char *why = dlerror();
        attn_text_add(reason, "; %s", why ? why : path);
        return false;
    }
    return find_functions(handle, cu, path, reason) && check_version(cu, reason) &&
           start(cu, reason);
}

const attn_cu *attn_cu_load(const char *name, char *reason, size_t cap)
{
    attn_text text = attn_text_in(reason, cap);
    library *l;

    if (!name)
        name = "";
    attn_text_add(&text, "no usable CUDA driver");
    pthread_mutex_lock(&lock);
    for (l = libraries; l && strcmp(l->name, name); l = l->next)
        ;
    if (!l && (l = calloc(1, sizeof *l + strlen(name) + 1))) {
        strcpy(l->name, name);
        if (open_one(name, &l->cu, &text)) {
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
    return l ? &l->cu : NULL;
}
