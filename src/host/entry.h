/* SPDX-License-Identifier: MIT */
/* host/entry.h: integers of a batch, clamped to what is there, and reported. */
#ifndef ATTN_HOST_ENTRY_H
#define ATTN_HOST_ENTRY_H

#include <stdint.h>

#include <attn/plan.h>

#include "core/size.h"

static inline void attn_host_report(const attn_args *t, int bits)
{
    if (bits && t->status.type != ATTN_TYPE_NONE)
        __atomic_fetch_or((int32_t *)t->status.data + t->status.offset, bits,
                          __ATOMIC_RELAXED);
}

/* Entry b of a vector over the batch. */
static inline int64_t attn_host_entry(const attn_tensor *t, int64_t b)
{
    return ((const int32_t *)t->data)[t->offset + b * t->stride[0]];
}

static inline int64_t attn_host_length(const attn_args *t, int64_t n, int64_t most, int bit)
{
    int64_t clamped = attn_min(attn_max(n, 0), most);

    attn_host_report(t, n != clamped ? bit : 0);
    return clamped;
}

#endif
