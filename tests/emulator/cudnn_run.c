/* SPDX-License-Identifier: MIT */
/* emulator/cudnn_run.c: a graph, computed row after row by plain loops. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/float16.h"
#include "cudnn.h"

/* The row of the score matrix that is being computed. */
typedef struct row {
    const execution *e;
    int64_t batch, head, query;
    float *virtuals;
} row;

/* Probabilities keep f16's digits but not its exponents: the true engines round them before
 * they are divided by the sum, so that none becomes too small for the type. */
static float rounded(int type, float x)
{
    int exponent = 0;

    switch (type) {
    case CUDNN_DATA_HALF:
        x = frexpf(x, &exponent);
        return ldexpf(attn_f32_from_f16(attn_f16_from_f32(x)), exponent);
    case CUDNN_DATA_BFLOAT16: return attn_f32_from_bf16(attn_bf16_from_f32(x));
    case CUDNN_DATA_INT32: return truncf(x);
    case CUDNN_DATA_BOOLEAN: return x != 0;
    default: return x;
    }
}

/* Element (line, column) of a tensor's matrix; heads are shared by groups of queries'. */
static int64_t element(const row *r, const slot *t, int64_t heads, int64_t line,
                       int64_t column)
{
    return r->batch * t->stride[0] + r->head / (heads / t->size[1]) * t->stride[1] +
           line * t->stride[2] + column * t->stride[3];
}

static float load(const row *r, int which, int64_t heads, int64_t line, int64_t column)
{
    const slot *t = &r->e->p->tensor[which];
    const void *data = r->e->data[which];
    int64_t at;

    if (t->by_value)
        return r->e->value[which];
    if (t->size[3] == 1)
        column = 0;
    if (t->is_virtual)
        return r->virtuals[t->offset + column];
    at = element(r, t, heads, line, column);
    return t->type == CUDNN_DATA_FLOAT  ? ((const float *)data)[at]
           : t->type == CUDNN_DATA_HALF ? attn_f32_from_f16(((const uint16_t *)data)[at])
                                        : attn_f32_from_bf16(((const uint16_t *)data)[at]);
}

static void store(const row *r, int which, int64_t column, float x)
{
    const slot *t = &r->e->p->tensor[which];
    void *data = r->e->data[which];
    int64_t at;

    if (t->is_virtual) {
        r->virtuals[t->offset + column] = rounded(t->type, x);
        return;
    }
    at = element(r, t, t->size[1], r->query, column);
    if (t->type == CUDNN_DATA_FLOAT)
        ((float *)data)[at] = x;
    else
        ((uint16_t *)data)[at] =
            t->type == CUDNN_DATA_HALF ? attn_f16_from_f32(x) : attn_bf16_from_f32(x);
}

static void multiply(const row *r, const operation *o)
{
    const slot *b = &r->e->p->tensor[o->b], *y = &r->e->p->tensor[o->y];

    for (int64_t n = 0; n < y->size[3]; n++) {
        float sum = 0;

        for (int64_t k = 0; k < b->size[2]; k++)
            sum += load(r, o->x, y->size[1], r->query, k) * load(r, o->b, y->size[1], k, n);
        store(r, o->y, n, sum);
    }
}

static void reduce(const row *r, const operation *o)
{
    const int64_t n = r->e->p->tensor[o->x].size[3];
    float all = o->mode == CUDNN_REDUCE_TENSOR_MAX ? -INFINITY : 0;

    for (int64_t i = 0; i < n; i++) {
        const float x = load(r, o->x, 1, r->query, i);

        all = o->mode == CUDNN_REDUCE_TENSOR_ADD ? all + x : x > all || isnan(x) ? x : all;
    }
    store(r, o->y, 0, all);
}

static float point(int mode, float x, float b, float t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD: return x + b;
    case CUDNN_POINTWISE_SUB: return x - b;
    case CUDNN_POINTWISE_MUL: return x * b;
    case CUDNN_POINTWISE_DIV: return x / b;
    case CUDNN_POINTWISE_EXP: return expf(x);
    case CUDNN_POINTWISE_LOG: return logf(x);
    case CUDNN_POINTWISE_CMP_GE: return x >= b;
    case CUDNN_POINTWISE_BINARY_SELECT: return t != 0 ? x : b;
    default: abort();
    }
}

static void pointwise(const row *r, const operation *o)
{
    const int64_t n = r->e->p->tensor[o->y].size[3];

    for (int64_t i = 0; i < n; i++)
        store(r, o->y, i,
              o->mode == CUDNN_POINTWISE_GEN_INDEX
                  ? (float)(o->axis == 2 ? r->query : i)
                  : point(o->mode, load(r, o->x, 1, r->query, i),
                          o->b >= 0 ? load(r, o->b, 1, r->query, i) : 0,
                          o->t >= 0 ? load(r, o->t, 1, r->query, i) : 0));
}

static void run_row(const row *r)
{
    for (int i = 0; i < r->e->p->n_steps; i++) {
        const operation *o = &r->e->p->step[i];

        if (o->kind == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
            multiply(r, o);
        else if (o->kind == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
            reduce(r, o);
        else
            pointwise(r, o);
    }
}

/* The rows are those of what the first operation gives: the scores. */
void run_program(const void *with)
{
    const execution *const e = with;
    const slot *s = &e->p->tensor[e->p->step[0].y];
    row r = { .e = e, .virtuals = malloc((size_t)e->p->row_floats * sizeof(float)) };

    if (!r.virtuals)
        abort();
    memset(e->workspace, 0x7f, (size_t)e->workspace_bytes);
    for (r.batch = 0; r.batch < s->size[0]; r.batch++)
        for (r.head = 0; r.head < s->size[1]; r.head++)
            for (r.query = 0; r.query < s->size[2]; r.query++)
                run_row(&r);
    free(r.virtuals);
}
