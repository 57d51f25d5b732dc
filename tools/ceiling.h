/* SPDX-License-Identifier: MIT */
/* tools/ceiling.h: the most that a GPU can do, measured in the same run: copies of its
 * memory and the matrix products of its vendor's library. */
#ifndef ATTN_TOOLS_CEILING_H
#define ATTN_TOOLS_CEILING_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/attn.h>

#include "lane_cuda.h"

enum { CEILING_TYPES = ATTN_BF16 + 1 };

/* What was not measured is NAN. */
typedef struct ceiling {
    double product_gflop_s[CEILING_TYPES]; /* of square matrices; by attn_type           */
    int size;                              /* of those                                   */
    char product_name[128];                /* "cuBLAS, libcublas.so.13"; "": none        */
    char product_absent[256];              /* why there is none                          */
    double copy_gb_s;                      /* bytes read and written                     */
    char copy_absent[256];
} ceiling;

/* What to measure and how. */
typedef struct ceiling_how {
    attn_ctx *ctx;
    const attn_device_info *info;
    const lane_cuda *lane;       /* on "cuda", if it opened                               */
    uint32_t types;              /* 1 << attn_type for each of the products               */
    bool blocks;                 /* back to back; else single launches after idle time    */
} ceiling_how;

/* Of a "cuda" device or an OpenCL GPU; of others all is NAN. */
void ceiling_measure(ceiling *c, const ceiling_how *how);

/* The rest is the back ends' own. ceiling_run: n runs back to back, and what the device
 * spent on them in all. */
typedef bool ceiling_run(void *with, int n, double *ms);

/* ms of one run, NAN if one failed. */
double ceiling_ms(ceiling_run *run, void *with, bool blocks);

/* A block of n normal random numbers of a type; NULL if there is no memory. */
void *ceiling_numbers(attn_ctx *ctx, attn_type type, int64_t n);

/* How many f32 numbers a copy moves. */
int64_t ceiling_copy_size(const attn_device_info *info);

double ceiling_product_flop(int size);

void ceiling_cuda(ceiling *c, const ceiling_how *how);
void ceiling_opencl(ceiling *c, const ceiling_how *how);

#endif
