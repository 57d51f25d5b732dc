/* SPDX-License-Identifier: MIT */
/* attn/text.h: a problem or a plan as one line of text, both ways. */
#ifndef ATTN_TEXT_H
#define ATTN_TEXT_H

#include <stddef.h>

#include <attn/device.h>
#include <attn/linear.h>
#include <attn/plan.h>
#include <attn/softmax.h>
#include <attn/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The text of a problem:
 *
 *     problem = op "_" pass ":" field { "," field }
 *     op      = "softmax" | "linear"   pass = "fwd" | "bwd"
 *     field   = type | dim | flag [ "=" value ]
 *     type    = "f32" | "f16" | "bf16"
 *     dim     = ( "b" | "hq" | "hkv" | "lq" | "lk" | "d" | "dv" ) integer
 *     flag    = "causal" | "scale=" x | "lens" | "grad=" grads | "layout=" class
 *             | "allow=tf32", which 16-bit types drop
 *     of softmax also, after causal, "align=" ( "br" | "tl" ) | "offset=" n | "offsets"
 *             | "window=" left ":" right; after scale "softcap=" x | "bias=" type
 *             | "mask" | "alibi" | "sinks" | "qlens"; after lens "packed" | "packed=q"
 *             | "packed=k" | "pages=" n | "dropout=" p | "lse"
 *     of linear also, after scale, "phi=" ( "elu1" | "relu" | "identity" ) | "normalize"
 *             | "eps=" x | "rule=" ( "gated" | "delta" | "gated_delta" | "linear" )
 *             | "decay=" type | "beta=" type, as the rule has them; after lens "state"
 *             (in and out) | "state=in" | "state=out" | "den"; last "allow=nondet" |
 *             "allow=tf32+nondet"
 *     grads   = grad { "+" grad }   grad = "q" | "k" | "v" | "bias" | "sinks", of linear
 *               "q" | "k" | "v" | "state"; of bwd, which needs it, alone
 *     class   = "16" | "8" | "4" | "2" | "any", one for all tensors or four
 *               with ":" between, for q, k, v and o, of bwd eight, then for the gradients
 *               of o, q, k and v; in bytes; "2" is one element, which of f32 is "4"
 *
 * Example: softmax_fwd:f16,b1,hq32,hkv8,lq512,lk512,d128,causal,align=br
 *          softmax_bwd:f16,b1,hq32,hkv8,lq512,lk512,d128,causal,align=br,grad=q+k+v
 *          linear_fwd:bf16,b4,hq16,hkv16,lq4096,lk4096,d64,causal,phi=elu1,normalize
 *
 * Printing gives the order above and leaves out what is default (dv equal to d,
 * align top-left, phi identity, rule linear, layout 16; of bwd lse and den); parsing takes
 * the fields in any order, each once. Printing and parsing are inverse. */

/* Writes the text of `desc` and a terminating 0 into `text`, at most `cap`
 * bytes, and the length without the 0 into *len (may be NULL). With too small a
 * `cap` the text is cut and the call still succeeds, as snprintf does.
 * ATTN_ERR_INVALID if desc breaks a rule. Threads: safe. */
ATTN_API attn_status attn_softmax_text(const attn_softmax_desc *desc, char *text,
                                       size_t cap, size_t *len);
ATTN_API attn_status attn_linear_text(const attn_linear_desc *desc, char *text, size_t cap,
                                      size_t *len);

/* Reads a problem of that operation. *desc is written on success only.
 * ATTN_ERR_INVALID: not a problem, with the position and what stands there; one of the
 * other operation; or it breaks a rule of softmax.h or linear.h. Threads: safe. */
ATTN_API attn_status attn_softmax_parse(const char *text, attn_softmax_desc *desc);
ATTN_API attn_status attn_linear_parse(const char *text, attn_linear_desc *desc);

/* The text of a plan: back end, variant and instance, a space, the problem:
 *
 *     opencl:softmax_fwd_tile_cpu[br96,bc64,vw8,nv3,d64,dv64,f32] softmax_fwd:f32,...
 *
 * Of attn_options only the variant is in it: a plan with splits of the caller's is not
 * made again from its text. On "host" the instance follows the number of threads too (the
 * results do not). As attn_softmax_text(). */
ATTN_API attn_status attn_plan_text(const attn_plan *plan, char *text, size_t cap,
                                    size_t *len);

/* Makes the plan that a text names: of a problem alone, the best variant; of a
 * plan's text, exactly that variant and instance.
 * ATTN_ERR_INVALID      not a problem or plan, or one of another back end
 * ATTN_ERR_UNSUPPORTED  the variant says no, or this library plans another
 *                       instance for it now; both texts are in the error
 * Otherwise as attn_plan_softmax(). */
ATTN_API attn_status attn_plan_parse(attn_ctx *ctx, const char *text, attn_plan **out);

/* Explains, for a person, what the planner does with a problem on this context:
 * the chosen variant and its tile, its fast-memory budget line by line, its
 * groups and waves, predicted bytes and FLOPs, the workspace, and for every
 * other variant why it was not chosen. Several lines. As attn_softmax_text().
 * A problem that no variant takes is no error here: the text says so. */
ATTN_API attn_status attn_softmax_explain(attn_ctx *ctx, const attn_softmax_desc *desc,
                                          const attn_options *options, char *text,
                                          size_t cap, size_t *len);
ATTN_API attn_status attn_linear_explain(attn_ctx *ctx, const attn_linear_desc *desc,
                                         const attn_options *options, char *text,
                                         size_t cap, size_t *len);

#ifdef __cplusplus
}
#endif

#endif
