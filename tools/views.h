/* SPDX-License-Identifier: MIT */
/* tools/views.h: tensors as views of poisoned buffers, in many memory layouts. */
#ifndef ATTN_TOOLS_VIEWS_H
#define ATTN_TOOLS_VIEWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <attn/tensor.h>

typedef enum view_kind {
    VIEW_PLAIN,        /* [B, H, L, D], from the start of the buffer on             */
    VIEW_BLHD,         /* [B, L, H, D]                                              */
    VIEW_PADDED,       /* gaps after rows, heads and batches; strides odd multiples
                        * of what the layout class promises                         */
    VIEW_REVERSED,     /* rows and heads lie backwards: negative strides            */
    VIEW_SHARED,       /* one head for all: stride 0 (inputs with equal heads only) */
    VIEW_TRANSPOSED,   /* [B, H, D, L]: for layout "any" only                       */
    VIEW_SPREAD,       /* every third element: for layout "any" only                */
    VIEW_KINDS
} view_kind;

const char *view_kind_name(view_kind kind);

/* A view of a buffer of `tensor.data_bytes` bytes; tensor.data is set by whoever
 * allocates it. Everything around and between the elements is poison. */
typedef struct view {
    attn_tensor tensor;
    view_kind kind;
} view;

/* `class_bytes`: addresses and strides are multiples of it; 0: any strides. */
view view_make(attn_type type, const int64_t size[4], int64_t class_bytes, view_kind kind);

/* Gives a dimension of size 1 that size, all at one place. */
void view_broadcast(view *v, const int64_t size[4]);

/* Fills a buffer with poison: a NaN in every type, a negative number as int32. */
void view_poison(void *image, size_t bytes);

/* Puts or takes the row (b, h, i): size[3] numbers, or bytes and integers. Taking
 * leaves poison in their place. */
void view_put_row(const view *v, void *image, const int64_t at[3], const float *values);
void view_put_bytes(const view *v, void *image, const int64_t at[3], const void *values);
void view_take_row(const view *v, void *image, const int64_t at[3], float *values);

/* Puts NaN and infinity into a row. */
void view_put_wild(const view *v, void *image, const int64_t at[3]);

/* true if nothing but poison is there; otherwise the first byte that is none. */
bool view_clean(const void *image, size_t bytes, size_t *where);

#endif
