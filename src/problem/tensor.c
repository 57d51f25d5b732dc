/* SPDX-License-Identifier: MIT */
/* problem/tensor.c: makers of the common tensor descriptor. */
#include <attn/tensor.h>

#include <string.h>

size_t attn_type_bytes(attn_type type)
{
    switch (type) {
    case ATTN_F32:
    case ATTN_I32: return 4;
    case ATTN_F16:
    case ATTN_BF16: return 2;
    case ATTN_BOOL: return 1;
    case ATTN_TYPE_NONE: break;
    }
    return 0;
}

const char *attn_type_name(attn_type type)
{
    switch (type) {
    case ATTN_F32: return "f32";
    case ATTN_F16: return "f16";
    case ATTN_BF16: return "bf16";
    case ATTN_I32: return "i32";
    case ATTN_BOOL: return "bool";
    case ATTN_TYPE_NONE: break;
    }
    return "none";
}

attn_tensor attn_tensor_strided(void *data, attn_type type, const int64_t size[4],
                                const int64_t stride[4])
{
    attn_tensor t = { .type = type, .data = data };

    memcpy(t.size, size, sizeof t.size);
    memcpy(t.stride, stride, sizeof t.stride);
    return t;
}

/* Sizes that overflow wrap here (unsigned), and are refused where the tensor is
 * checked: its sizes then disagree with the plan. */
static int64_t times(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

attn_tensor attn_tensor_bhld(void *data, attn_type type, int64_t batch, int64_t heads,
                             int64_t len, int64_t dim)
{
    const int64_t row = times(len, dim);
    return (attn_tensor){ .type = type,
                          .data = data,
                          .size = { batch, heads, len, dim },
                          .stride = { times(heads, row), row, dim, 1 } };
}

attn_tensor attn_tensor_blhd(void *data, attn_type type, int64_t batch, int64_t heads,
                             int64_t len, int64_t dim)
{
    const int64_t row = times(heads, dim);
    return (attn_tensor){ .type = type,
                          .data = data,
                          .size = { batch, heads, len, dim },
                          .stride = { times(len, row), dim, row, 1 } };
}

attn_tensor attn_tensor_vector(void *data, attn_type type, int64_t n)
{
    return (attn_tensor){
        .type = type, .data = data, .size = { n, 1, 1, 1 }, .stride = { 1, 1, 1, 1 }
    };
}
