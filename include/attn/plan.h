/* SPDX-License-Identifier: MIT */
/* attn/plan.h: plan once, give workspace, execute as often as wanted. */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include <attn/device.h>
#include <attn/linear.h>
#include <attn/softmax.h>
#include <attn/status.h>
#include <attn/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A problem, the kernels that compute it on one context's device, and how.
 * Immutable: any number of threads may execute one plan at the same time. */
typedef struct attn_plan attn_plan;

/* How to plan. All zero (but `size`) is the default. */
typedef struct attn_options {
    size_t size;         /* sizeof(attn_options), as the caller saw it         */
    const char *variant; /* take this variant or fail; NULL: the best that can */
    int64_t splits;      /* into at most so many pieces the keys are split, 1 .. 4096
                            (all pieces but the last are equal): from 2 on by a variant
                            that splits; 0: the planner's, that depend on Lk alone */
} attn_options;

/* The tensors of one execution. Sizes are those of this call: they must equal
 * the plan's, but lengths may be shorter than planned. Of softmax attention:
 *
 *   q        [B, Hq,  Lq, D]    k  [B, Hkv, Lk, D]
 *   o        [B, Hq,  Lq, Dv]   v  [B, Hkv, Lk, Dv]
 *            packed (ATTN_USE_PACKED_Q, _K): [1, H, tokens, D] with any number of
 *            tokens; paged (ATTN_USE_PAGES): k and v [pages, Hkv, page size, D]
 *   lse      f32 [B, Hq, Lq, 1], packed [1, Hq, tokens, 1]; only with ATTN_USE_LSE,
 *            may be left out
 *
 * Each of the following belongs to one ATTN_USE_ bit, and is required with it and
 * INVALID without it:
 *
 *   bias         desc.type_bias [B or 1, Hq or 1, Lq or 1, Lk or 1]: a size of 1 is
 *                broadcast, as is a stride of 0
 *   mask         bool, the same sizes: true (any byte but 0) = attend
 *   alibi        f32 [B or 1, Hq, 1, 1] slopes
 *   sinks        f32 [1, Hq, 1, 1] logits
 *   lens_kv      i32 [B, 1, 1, 1] keys of each batch;    lens_q  its queries
 *   offsets      i32 [B, 1, 1, 1] position of each batch's query 0
 *   cu_q, cu_k   i32 [B + 1, 1, 1, 1] where each sequence begins, ascending; the
 *                last entry is where the last one ends
 *   block_table  i32 [B, blocks, 1, 1] page numbers. Without lens_kv each batch has
 *                blocks * page size keys, or Lk as planned if that is less
 *
 * dropout_seed and dropout_offset are numbers of this call, read with ATTN_USE_DROPOUT: any
 * numbers, and the same for the backward of a call. A program counts the offset up by one a
 * call, or takes a new seed. They are read during the call: a captured execution keeps them.
 *
 * The integers among them lie in the memory of the device and are read by the
 * kernels when they run: a captured or enqueued execution sees what is there then.
 * A value out of range is clamped, never followed out of a buffer; status, if given
 * (i32 [1, 1, 1, 1], any plan), then gets the ATTN_CLAMPED_ bits of what was clamped
 * or'ed into it. The caller clears it. A call without query rows need not read them, nor
 * one of gradients of V alone without keys.
 *
 * Outputs must not overlap each other or an input; views that lie side by side in
 * one array do not. O may be left out when only the LSE is wanted; without both,
 * nothing is computed.
 *
 * Backward (ATTN_USE_GRAD) o and lse are inputs, the forward's results: lse is required,
 * o beside grad_o. Further inputs, one of them at least:
 *
 *   grad_o       as o;    grad_lse  as lse
 *
 * and outputs, each INVALID without its bit in desc.grad; any may be left out, and without
 * all nothing is computed:
 *
 *   grad_q       as q;    grad_k  as k;    grad_v  as v
 *   grad_bias    f32, the sizes of bias: where those are 1, it is summed
 *   grad_sinks   f32 [1, Hq, 1, 1]
 *
 * Linear attention (linear.h) has q, k, v, o, lens_kv and status as above, and by its own
 * bits the following, required where not said otherwise:
 *
 *   state_in     f32 [B, Hkv, D, Dv]     z_in  f32 [B, Hkv, D, 1], with NORMALIZE
 *   decay        desc.type_decay [B or 1, Hkv or 1, Lk or 1, D or 1] logarithms
 *   beta         desc.type_beta  [B or 1, Hkv or 1, Lk or 1, 1]
 *   state_out    as state_in, written, may be left out
 *   z_out        as z_in, likewise, with NORMALIZE
 *   den          f32 [B, Hq, Lq, 1], written, may be left out; with eps
 *
 * state_out may be state_in itself, the very same view, and z_out may be z_in: they are
 * updated in place. Backward, o and den are inputs, the forward's results: with NORMALIZE
 * den is required, o beside grad_o; without it neither is read. Further inputs, one of all
 * three at least:
 *
 *   grad_o       as o
 *   grad_state_out  as state_in          grad_z_out  as z_in, with NORMALIZE
 *
 * and outputs by desc.grad, any of which may be left out:
 *
 *   grad_q       as q;    grad_k  as k;    grad_v  as v
 *   grad_state_in   as state_in          grad_z_in   as z_in, with NORMALIZE */
typedef struct attn_args {
    size_t size;            /* sizeof(attn_args), as the caller saw it        */
    attn_tensor q, k, v, o;
    attn_tensor lse;
    attn_tensor lens_kv;
    void *workspace;        /* memory of the context's device                 */
    size_t workspace_bytes;
    attn_tensor bias, mask, alibi, sinks;
    attn_tensor lens_q, offsets, cu_q, cu_k, block_table;
    attn_tensor status;     /* written, optional                              */
    attn_tensor grad_o, grad_lse;
    attn_tensor grad_q, grad_k, grad_v, grad_bias, grad_sinks;
    attn_tensor state_in, z_in;     /* linear attention, as all that follow    */
    attn_tensor state_out, z_out;
    attn_tensor den;
    attn_tensor decay, beta;
    attn_tensor grad_state_out, grad_z_out;
    attn_tensor grad_state_in, grad_z_in;
    uint64_t dropout_seed, dropout_offset;  /* softmax attention              */
} attn_args;

/* What an execution had to clamp, in attn_args.status. */
#define ATTN_CLAMPED_LENS_Q      (1 << 0) /* a length outside 0 .. Lq         */
#define ATTN_CLAMPED_LENS_KV     (1 << 1) /* a length outside 0 .. Lk         */
#define ATTN_CLAMPED_CU_Q        (1 << 2) /* descending, outside the tokens, or a */
#define ATTN_CLAMPED_CU_K        (1 << 3) /*   sequence longer than planned   */
#define ATTN_CLAMPED_BLOCK_TABLE (1 << 4) /* a page that is not there         */

/* Picks kernels for `desc` and makes them ready to launch. Slow: it may
 * compile. Call it once per shape and keep the plan. One plan, one pass: a program that
 * trains makes a second one of the same desc with ATTN_USE_GRAD.
 *
 *   ctx   borrowed; must outlive the plan
 *   desc  read during this call only
 *   out   receives the plan, owned by the caller until attn_plan_destroy();
 *         set to NULL on failure
 *
 * ATTN_ERR_INVALID      desc breaks a rule stated at one of its fields
 * ATTN_ERR_UNSUPPORTED  no variant takes desc; attn_last_error() lists why; or a vendor's
 *                       library made no plan for it
 * ATTN_ERR_BUILD        compiler log in attn_last_error()
 * ATTN_ERR_DEVICE, ATTN_ERR_NO_MEMORY
 *
 * Threads: safe. */
ATTN_API attn_status attn_plan_softmax(attn_ctx *ctx, const attn_softmax_desc *desc,
                                       attn_plan **out);

/* The same with options (NULL: none). A variant that does not exist is INVALID,
 * one that does not take the problem UNSUPPORTED with its reason. */
ATTN_API attn_status attn_plan_softmax_with(attn_ctx *ctx, const attn_softmax_desc *desc,
                                            const attn_options *options, attn_plan **out);

/* The same for linear attention. Not every back end has variants of it yet: where there
 * are none, UNSUPPORTED says so. */
ATTN_API attn_status attn_plan_linear(attn_ctx *ctx, const attn_linear_desc *desc,
                                      attn_plan **out);
ATTN_API attn_status attn_plan_linear_with(attn_ctx *ctx, const attn_linear_desc *desc,
                                           const attn_options *options, attn_plan **out);

/* Frees a plan and sets *plan to NULL. Accepts NULL and a NULL plan. The plan
 * must not be in a call of attn_execute(); work that was enqueued goes on. */
ATTN_API void attn_plan_destroy(attn_plan **plan);

/* How much workspace an execution of this plan needs, in bytes; 0: none. One
 * workspace serves one execution at a time: two that run at once with the same
 * one give wrong results, which the library cannot see. Its address must be a
 * multiple of 64. Threads: safe. */
ATTN_API size_t attn_plan_workspace_bytes(const attn_plan *plan);

/* Enqueues one execution on `stream` and returns without waiting for it ("host"
 * is synchronous: there the result is ready).
 *
 *   plan    borrowed
 *   args    read during this call only; the memory it names must stay valid
 *           until the work has ended
 *   stream  what the device calls a queue: a cl_command_queue on "opencl", NULL
 *           on "host". NULL means the context's own queue, for which
 *           attn_ctx_wait() waits; a context that was made from a caller's
 *           objects has none, and NULL is INVALID there
 *
 * ATTN_ERR_INVALID    a tensor breaks a rule; nothing was enqueued
 * ATTN_ERR_UNSUPPORTED  a vendor's library (ATTN_TRAIT_VENDOR) does not take these lengths
 *                     or strides; nothing was enqueued
 * ATTN_ERR_WORKSPACE  its needed size, or alignment, is in attn_last_error()
 * ATTN_ERR_DEVICE, ATTN_ERR_NO_MEMORY   from the driver
 *
 * Threads: safe, with a workspace of its own for each call. */
ATTN_API attn_status attn_execute(const attn_plan *plan, const attn_args *args,
                                  void *stream);

/* As attn_execute(), but waits for the work and reports the time that the
 * device spent on it, by the device's own clock, in nanoseconds. On "opencl"
 * the queue must have been made with profiling on; the context's own has. On "cuda" a
 * stream that is being captured is INVALID, and its capture goes on. */
ATTN_API attn_status attn_execute_timed(const attn_plan *plan, const attn_args *args,
                                        void *stream, uint64_t *ns);

/* One call for arrays in host memory: plans, uploads, runs, downloads, and
 * returns when O (and LSE) are there.
 *
 *   desc       as for attn_plan_softmax(), without the bits that need tensors of
 *              their own (lengths, bias, mask, ...) or dropout; layouts are taken from the
 *              arrays, and ATTN_USE_LSE from whether lse is given
 *   q k v o    contiguous [B, H, L, D] arrays in host memory of desc's type
 *   lse        f32 [B, Hq, Lq], or NULL
 *
 * Programs are kept in the context, so a second call of a like problem compiles
 * nothing. Errors as attn_plan_softmax() and attn_execute().
 * Threads: safe. */
ATTN_API attn_status attn_softmax_forward_host(attn_ctx *ctx, const attn_softmax_desc *desc,
                                               const void *q, const void *k,
                                               const void *v, void *o, float *lse);

/* The same for arrays of any strides, with every feature: every tensor of `args`
 * lies in host memory; workspace is not read. What the host can see is checked:
 * lengths out of range, boundaries that descend or leave the tokens, entries of the
 * block table that are needed and name no page are INVALID, and nothing is written.
 * Only the elements of O and LSE themselves are written, not the gaps between. */
ATTN_API attn_status attn_softmax_forward_host_args(attn_ctx *ctx,
                                                    const attn_softmax_desc *desc,
                                                    const attn_options *options,
                                                    const attn_args *args);

/* The backward of attn_softmax_forward_host(), in one call too. desc is the forward's;
 * ATTN_USE_GRAD is set by the call, its `grad` bits are those of the outputs that are
 * given.
 *
 *   q k v o lse           what the forward was given, and what it gave
 *   grad_o grad_lse       the gradients of o and of lse; one may be NULL, and beside a
 *                         NULL grad_o also o
 *   grad_q grad_k grad_v  receive the gradients; NULL: not wanted, but not all three
 *
 * Errors and threads as there. */
ATTN_API attn_status attn_softmax_backward_host(attn_ctx *ctx,
                                                const attn_softmax_desc *desc,
                                                const void *q, const void *k, const void *v,
                                                const void *o, const float *lse,
                                                const void *grad_o, const float *grad_lse,
                                                void *grad_q, void *grad_k, void *grad_v);

/* The same for arrays of any strides, with every feature: as
 * attn_softmax_forward_host_args(). */
ATTN_API attn_status attn_softmax_backward_host_args(attn_ctx *ctx,
                                                     const attn_softmax_desc *desc,
                                                     const attn_options *options,
                                                     const attn_args *args);

/* Linear attention in one call, as attn_softmax_forward_host(): contiguous arrays of
 * desc's type, and of f32 the states [B, Hkv, D, Dv]. desc is without the bits of
 * lengths, rules with a decay or beta, and NORMALIZE beside a state, which need tensors of
 * their own; those of the states are taken from whether they are given.
 *
 *   state_in state_out   NULL: zeros; not wanted. They may be one array */
ATTN_API attn_status attn_linear_forward_host(attn_ctx *ctx, const attn_linear_desc *desc,
                                              const void *q, const void *k, const void *v,
                                              void *o, const float *state_in,
                                              float *state_out);

/* The same for arrays of any strides, with every feature, forward and backward: as
 * attn_softmax_forward_host_args() and attn_softmax_backward_host_args(). Outputs are
 * asked for by giving them: the bits of desc for state_out and den, of the backward
 * ATTN_LINEAR_GRAD and `grad`, are set by the call. */
ATTN_API attn_status attn_linear_forward_host_args(attn_ctx *ctx,
                                                   const attn_linear_desc *desc,
                                                   const attn_options *options,
                                                   const attn_args *args);
ATTN_API attn_status attn_linear_backward_host_args(attn_ctx *ctx,
                                                    const attn_linear_desc *desc,
                                                    const attn_options *options,
                                                    const attn_args *args);

#ifdef __cplusplus
}
#endif

#endif
