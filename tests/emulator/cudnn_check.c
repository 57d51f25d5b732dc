/* SPDX-License-Identifier: MIT */
/* emulator/cudnn_check.c: whether descriptors make sense, and what a graph computes. */
#include "cudnn.h"

#include <stdlib.h>
#include <string.h>

/* Sizes of one are shared by all. */
static bool fits(const descriptor *x, const descriptor *y)
{
    const int64_t *a = numbers_of(x, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const int64_t *b = numbers_of(y, CUDNN_ATTR_TENSOR_DIMENSIONS);

    for (int i = 0; i < DIMS; i++)
        if (a[i] != b[i] && a[i] != 1)
            return false;
    return true;
}

static cudnnStatus_t check_tensor(const descriptor *d)
{
    const int64_t *size = numbers_of(d, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const int64_t *stride = numbers_of(d, CUDNN_ATTR_TENSOR_STRIDES);

    for (int i = 0; i < DIMS; i++) {
        if (size[i] < 1)
            return no(CUDNN_STATUS_BAD_PARAM, "an empty tensor");
        if (stride[i] < 0)
            return no(CUDNN_STATUS_BAD_PARAM, "a negative stride");
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_product(const descriptor *d)
{
    const int64_t *a = numbers_of(one_of(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
                                  CUDNN_ATTR_TENSOR_DIMENSIONS);
    const int64_t *b = numbers_of(one_of(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC),
                                  CUDNN_ATTR_TENSOR_DIMENSIONS);
    const int64_t *c = numbers_of(one_of(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC),
                                  CUDNN_ATTR_TENSOR_DIMENSIONS);

    return a[0] == b[0] && b[0] == c[0] && a[1] == c[1] && a[1] % b[1] == 0 &&
                   a[2] == c[2] && a[3] == b[2] && b[3] == c[3]
               ? CUDNN_STATUS_SUCCESS
               : no(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "matrices that do not fit");
}

static cudnnStatus_t check_pointwise(const descriptor *d)
{
    const descriptor *how = one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const descriptor *b = one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const descriptor *t = one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    const descriptor *y = one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const int64_t mode = number_of(how, CUDNN_ATTR_POINTWISE_MODE);
    const bool index = mode == CUDNN_POINTWISE_GEN_INDEX;
    const bool alone = index || mode == CUDNN_POINTWISE_EXP || mode == CUDNN_POINTWISE_LOG;

    if (index != (count_of(how, CUDNN_ATTR_POINTWISE_AXIS) == 1) || alone == (b != NULL) ||
        (mode == CUDNN_POINTWISE_BINARY_SELECT) != (t != NULL))
        return no(CUDNN_STATUS_BAD_PARAM, "tensors that the mode does not take");
    if (!fits(one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), y) || (b && !fits(b, y)) ||
        (t && !fits(t, y)))
        return no(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "tensors that do not fit");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t check_reduction(const descriptor *d)
{
    return fits(one_of(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC),
                one_of(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC))
               ? CUDNN_STATUS_SUCCESS
               : no(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a sum that does not fit");
}

static bool same(const slot *a, const slot *b)
{
    return !memcmp(a->size, b->size, sizeof a->size) &&
           !memcmp(a->stride, b->stride, sizeof a->stride) && a->type == b->type &&
           a->is_virtual == b->is_virtual && a->by_value == b->by_value;
}

/* The tensor's place in the program; it is added if nobody had its number. -1: two tensors
 * of one number, or a virtual one that nothing has written. */
static int slot_of(program *p, const descriptor *d, bool written)
{
    slot s = { .uid = number_of(d, CUDNN_ATTR_TENSOR_UNIQUE_ID),
               .type = (int)number_of(d, CUDNN_ATTR_TENSOR_DATA_TYPE),
               .is_virtual = number_of(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL),
               .by_value = number_of(d, CUDNN_ATTR_TENSOR_IS_BY_VALUE),
               .alignment = number_of(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT),
               .offset = p->row_floats };

    memcpy(s.size, numbers_of(d, CUDNN_ATTR_TENSOR_DIMENSIONS), sizeof s.size);
    memcpy(s.stride, numbers_of(d, CUDNN_ATTR_TENSOR_STRIDES), sizeof s.stride);
    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensor[i].uid == s.uid)
            return written || !same(&p->tensor[i], &s) ? -1 : i;
    if (p->n_tensors == MOST_SLOTS || (s.is_virtual && !written))
        return -1;
    p->tensor[p->n_tensors] = s;
    p->row_floats += s.is_virtual ? s.size[3] : 0;
    return p->n_tensors++;
}

static operation compiled(program *p, const descriptor *d)
{
    const descriptor *b, *t;
    operation o = { .kind = d->type, .b = -1, .t = -1 };

    switch (d->type) {
    case MATMUL_OP:
        o.x = slot_of(p, one_of(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC), false);
        o.b = slot_of(p, one_of(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC), false);
        o.y = slot_of(p, one_of(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC), true);
        o.x = o.b < 0 ? -1 : o.x;
        break;
    case REDUCTION_OP:
        o.mode = (int)number_of(one_of(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC),
                                CUDNN_ATTR_REDUCTION_OPERATOR);
        o.x = slot_of(p, one_of(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC), false);
        o.y = slot_of(p, one_of(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC), true);
        break;
    default:
        b = one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
        t = one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
        o.mode = (int)number_of(one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
                                CUDNN_ATTR_POINTWISE_MODE);
        o.axis = number_of(one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
                           CUDNN_ATTR_POINTWISE_AXIS);
        o.x = slot_of(p, one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC), false);
        if ((b && (o.b = slot_of(p, b, false)) < 0) ||
            (t && (o.t = slot_of(p, t, false)) < 0))
            o.x = -1;
        o.y = slot_of(p, one_of(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC), true);
    }
    return o;
}

program *program_of(const descriptor *graph)
{
    return graph->value[7].pointers[0];
}

/* The program lies behind the graph's attributes. */
static cudnnStatus_t compile(descriptor *d)
{
    program *p = calloc(1, sizeof *p);
    descriptor *const *step = list_of(d, CUDNN_ATTR_OPERATIONGRAPH_OPS);

    if (!p)
        return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
    d->value[7].pointers[0] = p;
    for (int64_t i = 0; i < count_of(d, CUDNN_ATTR_OPERATIONGRAPH_OPS); i++) {
        const operation o = compiled(p, step[i]);

        if (o.x < 0 || o.y < 0) {
            free(p);
            return no(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES,
                      "tensors that are written twice, or never");
        }
        p->step[p->n_steps++] = o;
    }
    return CUDNN_STATUS_SUCCESS;
}

/* A pack has a pointer for each number. */
static cudnnStatus_t check_pack(const descriptor *d)
{
    return count_of(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS) ==
                   count_of(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)
               ? CUDNN_STATUS_SUCCESS
               : no(CUDNN_STATUS_BAD_PARAM, "numbers and pointers that differ in number");
}

static cudnnStatus_t check_plan(const descriptor *d)
{
    return one_of(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->number
               ? CUDNN_STATUS_SUCCESS
               : no(CUDNN_STATUS_NOT_SUPPORTED, "an engine that can't be had");
}

cudnnStatus_t check(descriptor *d)
{
    switch (d->type) {
    case TENSOR: return check_tensor(d);
    case MATMUL_OP: return check_product(d);
    case POINT_OP: return check_pointwise(d);
    case REDUCTION_OP: return check_reduction(d);
    case GRAPH: return compile(d);
    case PLAN: return check_plan(d);
    case PACK: return check_pack(d);
    default: return CUDNN_STATUS_SUCCESS;
    }
}

/* The true engines know attention by its pattern, the LSE included: two products, and a
 * logarithm. */
bool is_attention(const program *p)
{
    int products = 0, logarithms = 0;

    for (int i = 0; i < p->n_steps; i++) {
        products += p->step[i].kind == MATMUL_OP;
        logarithms += p->step[i].kind == POINT_OP && p->step[i].mode == CUDNN_POINTWISE_LOG;
    }
    return products == 2 && logarithms == 1 && p->step[0].kind == MATMUL_OP &&
           p->step[p->n_steps - 1].kind == MATMUL_OP;
}
