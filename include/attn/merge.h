/* SPDX-License-Identifier: MIT */
/* attn/merge.h: merges results of softmax attention over parts of the keys. */
#ifndef ATTN_MERGE_H
#define ATTN_MERGE_H

#include <stddef.h>
#include <stdint.h>

#include <attn/device.h>
#include <attn/status.h>
#include <attn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The same queries were computed against disjoint sets of keys, part p giving O_p and
 * LSE_p (attn/softmax.h). Against all those keys together they give, for every batch,
 * head and query,
 *
 *     LSE = ln sum_p exp(LSE_p)                       [B, Hq, Lq]
 *     O   = sum_p exp(LSE_p - LSE) O_p                [B, Hq, Lq, Dv]
 *
 * A part with LSE_p = -inf saw no key: its weight is exactly 0, and its O_p may hold
 * anything, NaN and Inf included. So may that of a part whose weight is 0 in f32 against
 * the parts before it together, or that one part which follows outweighs so far that all
 * before that one weigh 0 (devices take parts one by one, where weights that shrink by
 * steps are never quite 0, and may take subnormal numbers for 0). All parts so: O = 0 and
 * LSE = -inf. A part with LSE_p = +inf, as a sink makes it, takes all weight: LSE = +inf. A
 * NaN in an LSE makes its row NaN. Sums are kept in f32 for every type, in the order of the
 * parts, so the same parts give the same bits on the same device; results are rounded to
 * nearest even. A sink counts once, in one of the parts.
 *
 * Causal or windowed attention merges too: each part is computed with an offset
 * (ATTN_USE_OFFSET) that is less by the number of keys before it.
 *
 * Method: as M. Milakov and N. Gimelshein, "Online normalizer calculation for softmax"
 * (2018), over parts instead of keys. */

/* One merge. All zero (but `size`) is nothing given. The arrays part_o and part_lse are
 * in host memory and read during the call only; the memory that their tensors name must
 * stay valid until the work has ended. */
typedef struct attn_merge_args {
    size_t size;                 /* sizeof(attn_merge_args), as the caller saw it */
    int64_t n_parts;             /* 1 .. 2^31 - 1                             */
    const attn_tensor *part_o;   /* n_parts of [B, Hq, Lq, Dv], each of its own type:
                                    ATTN_F32, ATTN_F16, ATTN_BF16; NULL if o is
                                    left out                                  */
    const attn_tensor *part_lse; /* n_parts of f32 [B, Hq, Lq, 1]             */
    attn_tensor o;               /* written; of any of the types; or left out */
    attn_tensor lse;             /* written; f32 [B, Hq, Lq, 1]; or left out  */
    void *workspace;             /* memory of the context's device            */
    size_t workspace_bytes;
} attn_merge_args;

/* How much workspace a merge needs, in bytes; 0: none. It depends on the context's back
 * end, on n_parts and on the sizes of o and lse alone: no memory is looked at, and
 * `data` may be NULL. SIZE_MAX if that overflows, 0 if ctx or args is NULL.
 * Threads: safe. */
ATTN_API size_t attn_merge_workspace_bytes(const attn_ctx *ctx,
                                           const attn_merge_args *args);

/* Enqueues one merge on `stream` and returns without waiting for it ("host" is
 * synchronous). Tensors may have any strides.
 *
 *   ctx     borrowed; its device's memory holds the tensors and the workspace
 *   args    read during this call only. o and lse must not overlap each other, a part or
 *           the workspace. Sizes of 0 succeed and write what the formula says. Without
 *           both o and lse nothing is computed
 *   stream  as for attn_execute()
 *
 * The first merge of a type on a context compiles a kernel.
 *
 * ATTN_ERR_INVALID      a tensor breaks a rule, or n_parts does; nothing was enqueued
 * ATTN_ERR_WORKSPACE    its needed size, or alignment, is in attn_last_error()
 * ATTN_ERR_UNSUPPORTED  the back end has no merge
 * ATTN_ERR_BUILD        compiler log in attn_last_error()
 * ATTN_ERR_DEVICE, ATTN_ERR_NO_MEMORY   from the driver
 *
 * Threads: safe, with a workspace of its own for each call. */
ATTN_API attn_status attn_merge(attn_ctx *ctx, const attn_merge_args *args, void *stream);

/* The same for arrays in host memory, on the context's device: uploads, merges,
 * downloads, and returns when o and lse are there. Only their elements are written, not
 * the gaps between. workspace is not read. Errors as attn_merge(). Threads: safe. */
ATTN_API attn_status attn_merge_host(attn_ctx *ctx, const attn_merge_args *args);

#ifdef __cplusplus
}
#endif

#endif
