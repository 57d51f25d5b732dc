/* SPDX-License-Identifier: MIT */
/* tools/npy.h: NumPy .npy files in and out, and the 16-bit floats they hold. */
#ifndef ATTN_TOOLS_NPY_H
#define ATTN_TOOLS_NPY_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum npy_type { NPY_F4, NPY_F2, NPY_F8, NPY_B1, NPY_I4, NPY_I8 } npy_type;

/* An array in C order: the last dimension is contiguous, nothing is padded. */
typedef struct npy_array {
    npy_type type;
    int rank;          /* 0..4; a number alone has rank 0                    */
    int64_t shape[4];  /* the first `rank` entries count; 0 is a valid size  */
    void *data;        /* 64-byte aligned, never NULL in a loaded array      */
    size_t bytes;      /* product of the shape times npy_type_bytes(type)    */
} npy_array;

/* Reads the file at `path`, which may be a pipe: versions 1.0, 2.0 and 3.0,
 * the types above, little endian, C order, and nothing after the data.
 *
 *   out  receives the array; its data belong to the caller until npy_free();
 *        all zero on failure
 *   err  on failure receives one line, "FILE: what is wrong", cut to `cap`
 *        bytes with its final 0; may be NULL if cap is 0
 *
 * 0, or -1 on failure. A header that promises terabytes costs no more memory
 * than twice what the file really holds. Threads: safe. */
int npy_load(const char *path, npy_array *out, char *err, size_t cap);

/* The same from an open stream, read to its end and left open; `name` stands
 * for the file in messages. */
int npy_parse(FILE *file, const char *name, npy_array *out, char *err, size_t cap);

/* Writes version 1.0, byte for byte what numpy.save writes. A regular file is
 * written beside `path` and renamed over it, so that a failure leaves the old
 * file as it was; its mode is kept. Anything else at `path` (/dev/stdout, a
 * pipe, a symbolic link) is opened and written as it stands. Errors as above. */
int npy_save(const char *path, const npy_array *array, char *err, size_t cap);

/* The same for several files: all are written beside their paths before the first is
 * renamed, so that what fails leaves every file as it was; what is no regular file is
 * written first of all. Only where renaming itself fails may some be new. */
typedef struct npy_output {
    const char *path;
    const npy_array *array;
} npy_output;

enum { NPY_MOST_OUTPUTS = 12 };

int npy_save_all(const npy_output outputs[], int n, char *err, size_t cap);

/* Makes an array of zeros. 0, or -1 if the shape is not valid or memory is
 * exhausted; `out` is then all zero. Free it with npy_free(). */
int npy_alloc(npy_array *out, npy_type type, int rank, const int64_t *shape);

/* Frees the data and makes the array all zero. Accepts NULL and freed ones. */
void npy_free(npy_array *array);

size_t npy_type_bytes(npy_type type);       /* of one element             */
const char *npy_type_descr(npy_type type);  /* "<f4", a static string     */

/* Conversions round to nearest, ties to even, whatever the rounding mode; what
 * is too large becomes infinite, a NaN stays a (quiet) NaN with its sign. */
float npy_half_to_float(uint16_t half);
uint16_t npy_float_to_half(float x);
float npy_bf16_to_float(uint16_t bf16);
uint16_t npy_float_to_bf16(float x);

#endif
