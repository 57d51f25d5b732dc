/* SPDX-License-Identifier: MIT */
/* backend/opencl/source.h: the embedded kernel sources (made by tools/embed.py). */
#ifndef ATTN_OPENCL_SOURCE_H
#define ATTN_OPENCL_SOURCE_H

#include <stddef.h>

typedef struct attn_cl_source {
    const char *kernel;   /* symbol without "attn_" */
    const char *text;     /* ends with a 0          */
    size_t bytes;         /* without it             */
} attn_cl_source;

/* Ends with a NULL kernel. */
extern const attn_cl_source attn_cl_sources[];

#endif
