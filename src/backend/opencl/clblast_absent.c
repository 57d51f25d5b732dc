/* SPDX-License-Identifier: MIT */
/* backend/opencl/clblast_absent.c: a build without CLBlast: it is never found. */
#include "backend/opencl/clblast.h"

const attn_clblast *attn_clblast_load(const char *name, char *shown, size_t cap)
{
    (void)name;
    if (cap)
        shown[0] = '\0';
    return NULL;
}

attn_cl_library *attn_clblast_step(const char *kernel)
{
    (void)kernel;
    return NULL;
}

void attn_clblast_clear(const attn_clblast *blas)
{
    (void)blas;
}
