/* SPDX-License-Identifier: MIT */
/* tools/gemm.c: finds OpenBLAS at run time and times its sgemm. */
#include "gemm.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "timing.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111 }; /* of cblas.h */

/* A function of the library; POSIX lets object and function pointers be the same. */
static void *symbol(const gemm *g, const char *name, void *to, size_t bytes)
{
    void *found = dlsym(g->library, name);
    memcpy(to, &found, bytes);
    return found;
}

static void describe(gemm *g)
{
    char *(*core)(void) = NULL;
    int (*threads)(void) = NULL;
    size_t used;

    symbol(g, "openblas_get_corename", &core, sizeof core);
    symbol(g, "openblas_get_num_threads", &threads, sizeof threads);
    snprintf(g->name, sizeof g->name, "OpenBLAS %.64s",
             core ? core() : "of unknown core type");
    used = strlen(g->name);
    if (threads)
        snprintf(g->name + used, sizeof g->name - used, ", %d threads", threads());
}

bool gemm_open(gemm *g)
{
    static const char *const names[] = { "libopenblas.so.0", "libopenblas.so" };
    const size_t n = (size_t)GEMM_SIZE * GEMM_SIZE;

    *g = (gemm){ 0 };
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !g->library; i++)
        if (!(g->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL)) && i == 0)
            snprintf(g->absent, sizeof g->absent, "%s", dlerror());
    if (!g->library)
        return false;
    g->absent[0] = '\0';
    g->matrices = malloc(3 * n * sizeof *g->matrices);
    if (!g->matrices || !symbol(g, "cblas_sgemm", &g->sgemm, sizeof g->sgemm)) {
        snprintf(g->absent, sizeof g->absent, "%s",
                 g->matrices ? "libopenblas has no cblas_sgemm" : "no memory for matrices");
        gemm_close(g);
        return false;
    }
    for (size_t i = 0; i < 3 * n; i++)
        g->matrices[i] = (float)random_normal(1, 1, i);
    describe(g);
    return true;
}

double gemm_rate(const gemm *g)
{
    const int n = GEMM_SIZE;
    float *a = g->matrices, *b = a + GEMM_SIZE * GEMM_SIZE, *c = b + GEMM_SIZE * GEMM_SIZE;
    double start = timing_now();

    g->sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, n, n, n, 1, a, n, b, n, 0, c, n);
    return 2.0 * n * n * n / (timing_now() - start) / 1e9;
}

void gemm_close(gemm *g)
{
    free(g->matrices);
    g->matrices = NULL;
    g->sgemm = NULL;
    if (g->library)
        dlclose(g->library);
    g->library = NULL;
}
