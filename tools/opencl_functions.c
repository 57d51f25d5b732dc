/* SPDX-License-Identifier: MIT */
/* tools/opencl_functions.c: finds the OpenCL loader and its functions. */
#include "opencl_functions.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool find(opencl_functions *cl, const char *library)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    bool found = handle != NULL;

#define X(name)                                    \
    if (found) {                                   \
        void *symbol = dlsym(handle, #name);       \
        memcpy(&cl->name, &symbol, sizeof symbol); \
        found = symbol != NULL;                    \
    }
    OPENCL_FUNCTIONS(X)
#undef X
    return found;
}

bool opencl_functions_open(opencl_functions *cl)
{
    const char *named = getenv("ATTN_OPENCL_LIB");
    char path[4096];

    if (!named || !*named)
        return find(cl, NULL) || find(cl, "libOpenCL.so.1") || find(cl, "libOpenCL.so");
    snprintf(path, sizeof path, "%s/libOpenCL.so.1", named);
    return find(cl, named) || find(cl, path);
}
