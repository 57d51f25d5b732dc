/* SPDX-License-Identifier: MIT */
/* backend/opencl/loader.c: finds libOpenCL and its functions. */
#include "backend/opencl/loader.h"

#include <dlfcn.h>

#include "core/library.h"

static const char *const usual[] = { "libOpenCL.so.1", "libOpenCL.so" };
enum { N_USUAL = sizeof usual / sizeof usual[0] };

static const attn_library_function functions[] = {
#define X(name) { #name, offsetof(attn_cl, name) },
    ATTN_CL_FUNCTIONS(X)
#undef X
};
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

static bool find_functions(void *handle, attn_cl *cl, const char *name, attn_text *reason)
{
    static const attn_library_function first = { "clGetPlatformIDs",
                                                 offsetof(attn_cl, clGetPlatformIDs) };
    const char *lacks = attn_library_functions(handle, &first, 1, cl);

    if (lacks) {
        attn_text_add(reason, "; %s has no %s, so it is no OpenCL library", name, lacks);
        return false;
    }
    lacks = attn_library_functions(handle, functions, N_FUNCTIONS, cl);
    if (lacks)
        attn_text_add(reason, "; %s lacks %s, so it is older than OpenCL 1.2", name, lacks);
    return !lacks;
}

/* The library that the process has already: the caller's own, whose objects we
 * may be given, or a checker's that was put in front of it. */
static bool find_loaded(attn_cl *cl)
{
    attn_text nowhere = attn_text_in(NULL, 0);
    void *handle = dlopen(NULL, RTLD_NOW | RTLD_LOCAL);

    return handle && find_functions(handle, cl, "", &nowhere);
}

/* Of the usual names the first that will do, also in a folder. */
static bool open_any(const char *name, void *table, attn_text *reason)
{
    const int n = *name && !attn_library_is_folder(name) ? 1 : N_USUAL;
    char path[ATTN_PATH_BYTES];

    if (!*name && find_loaded(table))
        return true;
    for (int i = 0; i < n; i++) {
        void *const handle = attn_library_open(name, usual[i], path, reason);
        if (handle && find_functions(handle, table, path, reason))
            return true;
    }
    return false;
}

const attn_cl *attn_cl_load(const char *name, char *reason, size_t cap)
{
    static attn_libraries loaders = ATTN_LIBRARIES(attn_cl, open_any);
    attn_text text = attn_text_in(reason, cap);
    const attn_cl *cl;

    attn_text_add(&text, "no usable OpenCL library");
    cl = attn_library_load(&loaders, name, &text);
    if (cl && cap)
        reason[0] = '\0';
    return cl;
}
