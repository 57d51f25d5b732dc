/* SPDX-License-Identifier: MIT */
/* tools/views.c: the strides of each kind of view, and what lies between. */
#include "views.h"

#include <math.h>
#include <string.h>

#include "npy.h"

/* Behind every buffer's last element; a kernel that reads or writes a vector or a
 * row too far lands there. */
enum { GUARD_BYTES = 1024 };

/* 0xffe5 is a quiet NaN as f16 and as bf16, and twice as f32. */
static const unsigned char poison[2] = { 0xe5, 0xff };

const char *view_kind_name(view_kind kind)
{
    static const char *const names[VIEW_KINDS] = { "plain",    "blhd",   "padded",
                                                   "reversed", "shared", "transposed",
                                                   "spread" };
    return names[kind];
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

static void set(int64_t stride[4], int64_t b, int64_t h, int64_t l, int64_t d)
{
    stride[0] = b;
    stride[1] = h;
    stride[2] = l;
    stride[3] = d;
}

/* Strides in elements; `unit` elements are what the class promises. */
static void lay_out(int64_t stride[4], const int64_t size[4], int64_t unit, view_kind kind)
{
    const int64_t h = size[1], l = size[2], d = size[3], row = round_up(d, unit);
    const int64_t odd = unit * ((row / unit + 1) | 1); /* an odd number of units */
    const int64_t head = l * odd + 2 * unit;

    switch (kind) {
    case VIEW_BLHD: set(stride, l * h * row, row, h * row, 1); break;
    case VIEW_PADDED: set(stride, h * head + 3 * unit, head, odd, 1); break;
    case VIEW_REVERSED: set(stride, h * head + unit, -head, -odd, 1); break;
    case VIEW_SHARED: set(stride, l * row, 0, row, 1); break;
    case VIEW_TRANSPOSED: set(stride, h * d * (l + 1), d * (l + 1), 1, l + 1); break;
    case VIEW_SPREAD:
        set(stride, h * l * (3 * d + 1), l * (3 * d + 1), 3 * d + 1, 3);
        break;
    default: set(stride, h * l * row, l * row, row, 1); break;
    }
}

view view_make(attn_type type, const int64_t size[4], int64_t class_bytes, view_kind kind)
{
    const int64_t elem = (int64_t)attn_type_bytes(type);
    const int64_t unit = class_bytes > elem ? class_bytes / elem : 1;
    int64_t stride[4], low = 0, high = 0;
    view v = { .kind = kind };

    lay_out(stride, size, unit, kind);
    for (int i = 0; i < 4; i++) {
        const int64_t reach = size[i] > 0 ? (size[i] - 1) * stride[i] : 0;
        *(reach < 0 ? &low : &high) += reach;
    }
    v.tensor = attn_tensor_strided(NULL, type, size, stride);
    /* an odd number of units from the start: aligned as promised and no better */
    v.tensor.offset = kind == VIEW_PLAIN ? 0 : round_up(-low, unit) + (64 | 1) * unit;
    v.tensor.data_bytes = (size_t)((v.tensor.offset + high + 1) * elem) + GUARD_BYTES;
    v.tensor.data_bytes = (size_t)round_up((int64_t)v.tensor.data_bytes, 64);
    return v;
}

void view_broadcast(view *v, const int64_t size[4])
{
    for (int i = 0; i < 4; i++)
        if (v->tensor.size[i] == 1 && size[i] > 1) {
            v->tensor.size[i] = size[i];
            v->tensor.stride[i] = 0;
        }
}

void view_poison(void *image, size_t bytes)
{
    unsigned char *to = image;

    for (size_t i = 0; i < bytes; i++)
        to[i] = poison[i % 2];
}

static void put(void *image, attn_type type, int64_t at, float x)
{
    switch (type) {
    case ATTN_F16: ((uint16_t *)image)[at] = npy_float_to_half(x); break;
    case ATTN_BF16: ((uint16_t *)image)[at] = npy_float_to_bf16(x); break;
    default: ((float *)image)[at] = x; break;
    }
}

static float take(void *image, attn_type type, int64_t at)
{
    switch (type) {
    case ATTN_F16: return npy_half_to_float(((uint16_t *)image)[at]);
    case ATTN_BF16: return npy_bf16_to_float(((uint16_t *)image)[at]);
    default: return ((float *)image)[at];
    }
}

/* Element 0 of a row. */
static int64_t row_at(const attn_tensor *t, const int64_t at[3])
{
    return t->offset + at[0] * t->stride[0] + at[1] * t->stride[1] + at[2] * t->stride[2];
}

void view_put_row(const view *v, void *image, const int64_t at[3], const float *values)
{
    const attn_tensor *t = &v->tensor;
    const int64_t row = row_at(t, at);

    for (int64_t e = 0; e < t->size[3]; e++)
        put(image, t->type, row + e * t->stride[3], values[e]);
}

void view_put_bytes(const view *v, void *image, const int64_t at[3], const void *values)
{
    const attn_tensor *t = &v->tensor;
    const size_t bytes = attn_type_bytes(t->type);
    const int64_t row = row_at(t, at);

    for (int64_t e = 0; e < t->size[3]; e++)
        memcpy((char *)image + (size_t)(row + e * t->stride[3]) * bytes,
               (const char *)values + (size_t)e * bytes, bytes);
}

void view_put_wild(const view *v, void *image, const int64_t at[3])
{
    const attn_tensor *t = &v->tensor;
    const int64_t row = row_at(t, at), i = at[0] + at[1] + at[2];
    const float wild = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;

    for (int64_t e = 0; e < t->size[3]; e++)
        put(image, t->type, row + e * t->stride[3], wild);
}

void view_take_row(const view *v, void *image, const int64_t at[3], float *values)
{
    const attn_tensor *t = &v->tensor;
    const size_t bytes = attn_type_bytes(t->type);
    const int64_t row = row_at(t, at);

    for (int64_t e = 0; e < t->size[3]; e++) {
        const int64_t n = row + e * t->stride[3];
        values[e] = take(image, t->type, n);
        view_poison((char *)image + (size_t)n * bytes, bytes);
    }
}

bool view_clean(const void *image, size_t bytes, size_t *where)
{
    const unsigned char *from = image;

    for (size_t i = 0; i < bytes; i++)
        if (from[i] != poison[i % 2]) {
            *where = i;
            return false;
        }
    return true;
}
