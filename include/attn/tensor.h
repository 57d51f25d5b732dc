/* SPDX-License-Identifier: MIT */
/* attn/tensor.h: the one tensor descriptor that every operation and every
 * back end takes. */
#ifndef ATTN_TENSOR_H
#define ATTN_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include <attn/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types. f16 is IEEE binary16, bf16 the upper half of an f32. Append
 * only; the values are ABI. */
typedef enum attn_type {
    ATTN_TYPE_NONE = 0, /* no tensor                       */
    ATTN_F32 = 1,       /* 4 bytes                         */
    ATTN_F16 = 2,       /* 2 bytes                         */
    ATTN_BF16 = 3,      /* 2 bytes                         */
    ATTN_I32 = 4,       /* 4 bytes: lengths and boundaries */
    ATTN_BOOL = 5       /* 1 byte, 0 or 1: masks           */
} attn_type;

/* A view of memory: four sizes and four strides.
 *
 *   element (i0, i1, i2, i3) is element
 *       offset + i0 * stride[0] + i1 * stride[1] + i2 * stride[2] + i3 * stride[3]
 *   of the buffer `data`.
 *
 * Sizes, strides and the offset count elements, never bytes. Strides may be 0
 * (a broadcast view; inputs only) or negative, as long as no element lies
 * before the start of the buffer. The order of the dimensions is always
 * [B, H, L, D]; a [B, L, H, D] array is the same view with other strides.
 *
 * `data` is what the context's device calls memory: a host pointer on "host",
 * a device pointer on "cuda", a cl_mem on "opencl". It is borrowed: it must
 * stay valid until the work that uses it has ended.
 *
 * `data_bytes` is the size of the buffer if the caller knows it, 0 if not. A
 * view that leaves a buffer of known size is INVALID. OpenCL buffers know
 * their own size.
 *
 * A tensor whose type is ATTN_TYPE_NONE (all zero) is no tensor: that is how
 * optional ones are left out. */
typedef struct attn_tensor {
    attn_type type;
    void *data;
    int64_t offset;     /* in elements, >= 0    */
    int64_t size[4];    /* in elements, >= 0    */
    int64_t stride[4];  /* in elements          */
    size_t data_bytes;  /* 0: not known         */
} attn_tensor;

/* What a plan may rely on about the memory of one tensor: the last dimension
 * is contiguous (stride 1), and its address and its other strides are multiples
 * of so many bytes. attn_execute() checks the real tensors against it. */
typedef enum attn_layout {
    ATTN_LAYOUT_16 = 0,      /* 16 bytes; the default                        */
    ATTN_LAYOUT_8 = 1,       /*  8 bytes                                     */
    ATTN_LAYOUT_4 = 2,       /*  4 bytes                                     */
    ATTN_LAYOUT_ELEMENT = 3, /*  one element                                 */
    ATTN_LAYOUT_ANY = 4      /* any strides; the last one need not be 1      */
} attn_layout;

/* The size of one element in bytes; 0 for ATTN_TYPE_NONE or no type at all. */
ATTN_API size_t attn_type_bytes(attn_type type);

/* The name of a type as problems write it ("f32"); "none" for no type. */
ATTN_API const char *attn_type_name(attn_type type);

/* A contiguous [B, H, L, D] array. */
ATTN_API attn_tensor attn_tensor_bhld(void *data, attn_type type, int64_t batch,
                                      int64_t heads, int64_t len, int64_t dim);

/* A contiguous [B, L, H, D] array, seen as [B, H, L, D]. */
ATTN_API attn_tensor attn_tensor_blhd(void *data, attn_type type, int64_t batch,
                                      int64_t heads, int64_t len, int64_t dim);

/* Any view: `size` and `stride` are in the order [B, H, L, D], in elements. */
ATTN_API attn_tensor attn_tensor_strided(void *data, attn_type type,
                                         const int64_t size[4],
                                         const int64_t stride[4]);

/* A contiguous vector of `n` elements, as lengths are given: size [n, 1, 1, 1]. */
ATTN_API attn_tensor attn_tensor_vector(void *data, attn_type type, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
