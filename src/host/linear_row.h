/* SPDX-License-Identifier: MIT */
/* host/linear_row.h: where rows of linear attention lie, how many a batch has, and phi of
 * single numbers. */
#ifndef ATTN_HOST_LINEAR_ROW_H
#define ATTN_HOST_LINEAR_ROW_H

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

#include "host/entry.h"
#include "host/linear.h"

static inline bool attn_linear_has(const attn_tensor *t)
{
    return t->type != ATTN_TYPE_NONE;
}

/* Keys that batch b has; those of them that reach its state: in the causal form there is
 * one step for each query. */
static inline int64_t attn_linear_length(const attn_host_linear *s, int64_t b)
{
    if (!attn_linear_has(&s->t.lens_kv))
        return s->len_kv;
    return attn_host_length(&s->t, attn_host_entry(&s->t.lens_kv, b), s->len_kv,
                            ATTN_CLAMPED_LENS_KV);
}

static inline int64_t attn_linear_keys(const attn_host_linear *s, int64_t b)
{
    const int64_t keys = attn_linear_length(s, b);
    return s->causal ? attn_min(keys, s->len_q) : keys;
}

/* Element 0 of row i of head h. */
static inline int64_t attn_linear_at(const attn_tensor *t, int64_t b, int64_t h, int64_t i)
{
    return t->offset + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

static inline double attn_linear_phi(attn_phi phi, double x)
{
    switch (phi) {
    case ATTN_PHI_ELU1: return x > 0 ? x + 1 : exp(x);
    case ATTN_PHI_RELU: return x > 0 ? x : x != x ? x : 0;
    case ATTN_PHI_IDENTITY: break;
    }
    return x;
}

/* phi' */
static inline double attn_linear_slope(attn_phi phi, double x)
{
    switch (phi) {
    case ATTN_PHI_ELU1: return x > 0 ? 1 : exp(x);
    case ATTN_PHI_RELU: return x > 0 ? 1 : 0;
    case ATTN_PHI_IDENTITY: break;
    }
    return 1;
}

/* The scratch of the calling thread. */
static inline void *attn_linear_scratch(const attn_host_linear *s)
{
#ifdef _OPENMP
    const size_t thread = (size_t)omp_get_thread_num();
#else
    const size_t thread = 0;
#endif
    return (char *)s->workspace + thread * s->scratch_bytes;
}

/* What all threads share, behind their scratch. */
static inline void *attn_linear_shared(const attn_host_linear *s)
{
    return (char *)s->workspace + (size_t)s->threads * s->scratch_bytes;
}

#ifdef _OPENMP
#define ATTN_LINEAR_PARALLEL \
    _Pragma("omp parallel for num_threads(s->threads) schedule(dynamic, 1)")
#else
#define ATTN_LINEAR_PARALLEL
#endif

#endif
