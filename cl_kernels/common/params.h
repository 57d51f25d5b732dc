/* SPDX-License-Identifier: MIT */
/* common/params.h: the parameters of every kernel, once, in order. The kernels
 * make their signatures from this list and src/backend/opencl sets the
 * arguments from it, so the two cannot disagree.
 *
 *   IN(name)   OUT(name)   tensors of the computing type (__global ELEM *)
 *   F32(name)  I32(name)   other buffers: __global float *, __global const int *
 *   LONG(name) INT(name) FLOAT(name)   scalars
 *
 * Offsets and strides are in elements. A tensor that was left out is bound to
 * some other buffer (never NULL, which old drivers and checkers refuse) and its
 * flag or feature macro is 0. */
#ifndef ATTN_COMMON_PARAMS_H
#define ATTN_COMMON_PARAMS_H

/* strides of a [B, H, L, D] view and where it starts in its buffer */
#define VIEW_PARAMS(LONG, name) \
    LONG(name##_offset) LONG(name##_stride_b) LONG(name##_stride_h) \
    LONG(name##_stride_l) LONG(name##_stride_d)

#define SOFTMAX_FWD_PARAMS(IN, OUT, F32, I32, LONG, INT, FLOAT) \
    IN(q) IN(k) IN(v) OUT(o) F32(lse) I32(lens_kv) \
    VIEW_PARAMS(LONG, q) VIEW_PARAMS(LONG, k) VIEW_PARAMS(LONG, v) VIEW_PARAMS(LONG, o) \
    LONG(lse_offset) LONG(lse_stride_b) LONG(lse_stride_h) LONG(lse_stride_l) \
    LONG(lens_kv_offset) LONG(lens_kv_stride_b) \
    INT(batch) INT(heads_q) INT(heads_kv) INT(len_q) INT(len_kv) \
    LONG(offset)    /* position of query 0; not read with ALIGN_BR            */ \
    LONG(left)      /* key j is visible to query i when                       */ \
    LONG(right)     /*   i + offset - left <= j <= i + offset + right         */ \
    INT(want_o)     /* 0: o is not written                                    */ \
    INT(want_lse)   /* 0: lse is not written                                  */ \
    FLOAT(scale)

#endif
