/* SPDX-License-Identifier: MIT */
/* attn/attn.h: exact attention for C programs, on any GPU and without one.
 *
 * Includes every part of the interface that needs no driver header. A program
 * with its own OpenCL queue includes <attn/opencl.h> as well.
 *
 * The alphabet, used in all headers, messages and problem texts:
 *
 *     B    batch                 Hq   query heads       Hkv  key/value heads
 *     Lq   queries, in tokens    Lk   keys, in tokens
 *     D    elements of a query or key row               Dv   of a value row
 *
 * One call with arrays in host memory:
 *
 *     attn_ctx *ctx = NULL;
 *     attn_softmax_desc desc = { .size = sizeof desc, .type = ATTN_F32,
 *         .batch = 1, .heads_q = 32, .heads_kv = 8,
 *         .len_q = 512, .len_kv = 512, .dim_qk = 128,
 *         .use = ATTN_USE_CAUSAL };
 *     attn_ctx_create("auto", &ctx);
 *     attn_softmax_forward_host(ctx, &desc, q, k, v, o, lse);
 *     attn_ctx_destroy(&ctx);
 *
 * Memory that lives on a device: attn_plan_softmax() once for a shape, then
 * attn_execute() as often as wanted (plan.h). */
#ifndef ATTN_ATTN_H
#define ATTN_ATTN_H

#include <attn/device.h>
#include <attn/linear.h>
#include <attn/merge.h>
#include <attn/plan.h>
#include <attn/softmax.h>
#include <attn/status.h>
#include <attn/tensor.h>
#include <attn/text.h>

#endif
