/* SPDX-License-Identifier: MIT */
/* tools/library.c: by name, or by what a variable says. */
#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

void *library_open(const char *variable, const char *const usual[], char *absent,
                   size_t cap)
{
    const char *named = getenv(variable);
    void *handle = NULL;
    char path[4096];

    if (named && *named && (handle = dlopen(named, RTLD_NOW | RTLD_LOCAL)))
        return handle;
    for (int i = 0; usual[i] && !handle; i++) {
        snprintf(path, sizeof path, "%s%s%s", named ? named : "",
                 named && *named ? "/" : "", usual[i]);
        if (!(handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)) && i == 0)
            snprintf(absent, cap, "%s", dlerror());
    }
    return handle;
}
