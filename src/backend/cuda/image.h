/* SPDX-License-Identifier: MIT */
/* backend/cuda/image.h: the machine code and PTX of the kernels, embedded at build time by
 * tools/pack_images.py. */
#ifndef ATTN_CUDA_IMAGE_H
#define ATTN_CUDA_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

/* A frame of Zstandard: what all images of a kernel file have for one architecture, one after the
 * other, or all of their PTX. */
typedef struct attn_cu_pack {
    const unsigned char *data;
    size_t bytes, raw_bytes;
} attn_cu_pack;

/* What a driver can load. */
typedef struct attn_cu_part {
    int capability;           /* 10 * major + minor                               */
    bool exact;               /* runs on that one alone: sm_90a                   */
    bool ptx;                 /* text, in the pack with its registers' names short */
    const attn_cu_pack *pack;
    size_t offset, bytes;     /* in the unpacked pack                             */
    size_t text_bytes;        /* of PTX with whole names                          */
} attn_cu_part;

/* The instance of a kernel file. Its kernels are named after it: softmax_fwd_tile_f32_d64
 * has attn_softmax_fwd_tile_f32_d64_all and others. */
typedef struct attn_cu_image {
    const char *name;
    const attn_cu_part *parts;
    int n_parts;
} attn_cu_image;

/* The image that a kernel is named after; NULL: there is none. */
const attn_cu_image *attn_cu_image_find(const char *kernel);

enum { ATTN_CU_MOST_PARTS = 16 };

/* Lists the parts that a device of that capability should run, best first: machine code,
 * then PTX, newest first. If there is none, the first part, so that the driver says what is
 * wrong. Returns their number. */
int attn_cu_image_parts(const attn_cu_image *image, int64_t capability,
                        const attn_cu_part *parts[ATTN_CU_MOST_PARTS]);

/* Whether there is machine code for that capability alone: sm_90a for 90. All images are
 * built for the same architectures. */
bool attn_cu_image_exact(int64_t capability);

/* Unpacks a part into memory of its own, *out, which the caller frees; PTX ends with a NUL.
 * ATTN_ERR_NO_MEMORY, and ATTN_ERR_BUILD if it is damaged: then *out is NULL. Any number of
 * threads at a time. */
attn_status attn_cu_image_unpack(const attn_cu_part *part, char **out);

/* ptx_names.c: writes `bytes` of PTX, `text` after tools/ptx_names.py's shorten(), with whole
 * names to `out`, which has room for `cap` and is filled by them. */
attn_status attn_cu_ptx_restore(const char *text, size_t bytes, char *out, size_t cap);

#endif
