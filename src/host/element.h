/* SPDX-License-Identifier: MIT */
/* host/element.h: single elements of a tensor, in double. */
#ifndef ATTN_HOST_ELEMENT_H
#define ATTN_HOST_ELEMENT_H

#include <attn/tensor.h>

#include "core/float16.h"

static inline double attn_element_load(const attn_tensor *t, int64_t index)
{
    switch (t->type) {
    case ATTN_F16: return attn_f32_from_f16(((const uint16_t *)t->data)[index]);
    case ATTN_BF16: return attn_f32_from_bf16(((const uint16_t *)t->data)[index]);
    default: return ((const float *)t->data)[index];
    }
}

/* Rounded to f32, from there to 16 bits. */
static inline void attn_element_store(const attn_tensor *t, int64_t index, double x)
{
    switch (t->type) {
    case ATTN_F16: ((uint16_t *)t->data)[index] = attn_f16_from_f32((float)x); break;
    case ATTN_BF16: ((uint16_t *)t->data)[index] = attn_bf16_from_f32((float)x); break;
    default: ((float *)t->data)[index] = (float)x;
    }
}

#endif
