/* SPDX-License-Identifier: MIT */
/* host/linear.h: linear attention on the processor, as plain C functions. */
#ifndef ATTN_HOST_LINEAR_H
#define ATTN_HOST_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <attn/linear.h>
#include <attn/plan.h>
#include <attn/tensor.h>

/* One execution, all checked. Tensors are views in host memory, any strides, as
 * attn/plan.h says; those that are not there are ATTN_TYPE_NONE, decay and beta are
 * broadcast by strides of 0. */
typedef struct attn_host_linear {
    attn_args t;
    attn_type type;          /* of q, k, v, o                                 */
    int64_t batch, heads_q, heads_kv, dim_qk, dim_v;
    int64_t len_q, len_kv;   /* the most of a batch                           */
    attn_phi phi;
    attn_rule rule;
    bool causal, normalize;
    float scale;             /* of q and dQ: the gradients', and the reference's */
    float eps;               /* the reference's                               */
    float sum_scale, sum_eps, sum_unit; /* of the forward: attn_problem_sums() */
    int64_t tile;            /* tokens of a chunk                             */
    int64_t columns;         /* of the state, of a unit of work; or rows      */
    int threads;
    void *workspace;         /* threads * scratch bytes first, aligned to 64  */
    size_t scratch_bytes;    /* of one thread, a multiple of 64               */
} attn_host_linear;

typedef void attn_host_linear_fn(const attn_host_linear *s);

/* The oracle: plain loops in double, token by token; every rule. */
void attn_host_linear_fwd_reference(const attn_host_linear *s);

/* The gradients, likewise. */
void attn_host_linear_bwd_reference(const attn_host_linear *s);

#endif
