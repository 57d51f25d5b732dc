/* SPDX-License-Identifier: MIT */
/* backend/cuda/loader.c: finds libcuda and its functions. */
#include "backend/cuda/loader.h"

#include "core/library.h"

/* Not libcuda.so: that is the toolkit's stub for linking. */
static const char usual[] = "libcuda.so.1";

/* Two steps, so that cuda.h's names are replaced before they become text. */
#define TEXT(name) #name
#define NAME(name) TEXT(name)

static const attn_library_function functions[] = {
#define X(name) { NAME(name), offsetof(attn_cu, name) },
    ATTN_CUDA_FUNCTIONS(X)
#undef X
};
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

static bool find_functions(void *handle, attn_cu *cu, const char *name, attn_text *reason)
{
    static const attn_library_function first = { "cuInit", offsetof(attn_cu, cuInit) };
    const char *lacks = attn_library_functions(handle, &first, 1, cu);

    if (lacks) {
        attn_text_add(reason, "; %s has no %s, so it is no CUDA driver", name, lacks);
        return false;
    }
    lacks = attn_library_functions(handle, functions, N_FUNCTIONS, cu);
    if (lacks)
        attn_text_add(reason, "; %s lacks %s, so it is older than CUDA %d.%d", name, lacks,
                      CUDA_VERSION / 1000, CUDA_VERSION % 1000 / 10);
    return !lacks;
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

static bool open_driver(const char *name, void *table, attn_text *reason)
{
    char path[ATTN_PATH_BYTES];
    void *const handle = attn_library_open(name, usual, path, reason);

    return handle && find_functions(handle, table, path, reason) &&
           check_version(table, reason) && start(table, reason);
}

const attn_cu *attn_cu_load(const char *name, char *reason, size_t cap)
{
    static attn_libraries drivers = ATTN_LIBRARIES(attn_cu, open_driver);
    attn_text text = attn_text_in(reason, cap);
    const attn_cu *cu;

    attn_text_add(&text, "no usable CUDA driver");
    cu = attn_library_load(&drivers, name, &text);
    if (cu && cap)
        reason[0] = '\0';
    return cu;
}
