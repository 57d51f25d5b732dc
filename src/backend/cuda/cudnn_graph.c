/* SPDX-License-Identifier: MIT */
/* backend/cuda/cudnn_graph.c: attention as cuDNN wants it described, and its execution.
 *
 * Operation by operation (two products, the softmax between them in its single parts): so
 * cuDNN's fused engines have known attention since before version 9. The one descriptor for
 * all of it (SDPA_FWD, since 9.13) had no attribute for causal before 9.21. */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cuda/cudnn.h"
#include "core/size.h"
#include "core/status.h"

enum { DIMS = 4, MOST_OPERATIONS = 16, MOST_CONFIGS = 8, BYTES_ALIGNED = 16 };

/* Names of tensors that have memory, or a value; those of the others follow. */
enum {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_O,
    UID_LSE,
    UID_SCALE,
    UID_HIDDEN,
    UID_KEYS,
    UID_QUERIES,
    UID_FIRST_VIRTUAL
};

typedef cudnnBackendDescriptor_t descriptor;

/* The first failure stays; what follows it does nothing. */
typedef struct builder {
    const attn_cudnn *dnn;
    cudnnHandle_t handle;
    attn_cudnn_graph *graph;
    const attn_cudnn_shape *shape;
    const char *what; /* that is being described */
    int64_t next_uid;
    descriptor operation[MOST_OPERATIONS];
    int64_t n_operations;
    attn_status st;
} builder;

attn_status attn_cudnn_fail(const attn_cudnn *dnn, cudnnStatus_t code, const char *call,
                            const char *what)
{
    const int32_t kind = code / 1000 * 1000;
    const attn_status st =
        code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
            ? ATTN_ERR_NO_MEMORY
        : kind == CUDNN_STATUS_BAD_PARAM || kind == CUDNN_STATUS_NOT_SUPPORTED
            ? ATTN_ERR_UNSUPPORTED
            : ATTN_ERR_DEVICE;
    char text[200] = "";

    dnn->cudnnGetLastErrorString(text, sizeof text);
    text[sizeof text - 1] = '\0';
    for (char *c = text; *c; c++)
        if (*c == '\n')
            *c = ' ';
    return attn_fail(st, "%s (%s) = %d (%s%s%s)", call, what, (int)code,
                     dnn->cudnnGetErrorString(code), *text ? ": " : "", text);
}

static bool good(builder *b, cudnnStatus_t code, const char *call)
{
    if (b->st == ATTN_OK && code != CUDNN_STATUS_SUCCESS)
        b->st = attn_cudnn_fail(b->dnn, code, call, b->what);
    return b->st == ATTN_OK;
}

/* A descriptor that lives as long as the graph. */
static descriptor make(builder *b, int type)
{
    attn_cudnn_graph *g = b->graph;
    descriptor d = NULL;

    assert(g->n_made < ATTN_CUDNN_DESCRIPTORS);
    if (b->st == ATTN_OK && good(b, b->dnn->cudnnBackendCreateDescriptor(type, &d),
                                 "cudnnBackendCreateDescriptor"))
        g->made[g->n_made++] = d;
    return d;
}

static void set(builder *b, descriptor d, int name, int type, int64_t n, const void *value)
{
    if (b->st == ATTN_OK)
        good(b, b->dnn->cudnnBackendSetAttribute(d, name, type, n, value),
             "cudnnBackendSetAttribute");
}

static void set_one(builder *b, descriptor d, int name, descriptor to)
{
    set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &to);
}

static void set_type(builder *b, descriptor d, int name, int type)
{
    set(b, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void finish(builder *b, descriptor d)
{
    if (b->st == ATTN_OK)
        good(b, b->dnn->cudnnBackendFinalize(d), "cudnnBackendFinalize");
}

typedef enum storage { IN_MEMORY, BY_VALUE, VIRTUAL } storage;

static descriptor tensor(builder *b, const char *what, storage where, int64_t uid, int type,
                         const int64_t size[DIMS], const int64_t stride[DIMS])
{
    const int64_t alignment =
        uid == UID_LSE ? 4 : BYTES_ALIGNED; /* it has no layout class */
    const bool yes = true;
    descriptor d;

    b->what = what;
    d = make(b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set_type(b, d, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
    set(b, d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DIMS, size);
    set(b, d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DIMS, stride);
    set(b, d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &uid);
    set(b, d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (where != IN_MEMORY)
        set(b, d,
            where == VIRTUAL ? CUDNN_ATTR_TENSOR_IS_VIRTUAL : CUDNN_ATTR_TENSOR_IS_BY_VALUE,
            CUDNN_TYPE_BOOLEAN, 1, &yes);
    finish(b, d);
    return d;
}

static int io_type(const attn_cudnn_shape *s)
{
    return s->type == ATTN_F16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* One of Q, V and O, or K with rows and columns exchanged. */
static descriptor matrix(builder *b, const char *what, int64_t uid, int64_t heads,
                         int64_t rows, int64_t columns, const int64_t stride[3])
{
    const bool turned = uid == UID_K;
    const int64_t size[DIMS] = { b->shape->b, heads, turned ? columns : rows,
                                 turned ? rows : columns };
    const int64_t strides[DIMS] = { stride[0], stride[1], turned ? 1 : stride[2],
                                    turned ? stride[2] : 1 };

    return tensor(b, what, IN_MEMORY, uid, io_type(b->shape), size, strides);
}

/* Of every pair of a query and a key (columns: keys), or of every query (1); in no
 * memory. */
static descriptor of_rows(builder *b, const char *what, int64_t columns, int type)
{
    const attn_cudnn_shape *s = b->shape;
    const int64_t size[DIMS] = { s->b, s->hq, s->lq, columns };
    const int64_t stride[DIMS] = { s->hq * s->lq * columns, s->lq * columns, columns, 1 };

    return tensor(b, what, VIRTUAL, b->next_uid++, type, size, stride);
}

static descriptor scores(builder *b, const char *what, int type)
{
    return of_rows(b, what, b->shape->lk, type);
}

static descriptor rows(builder *b, const char *what)
{
    return of_rows(b, what, 1, CUDNN_DATA_FLOAT);
}

static descriptor number(builder *b, const char *what, int64_t uid, int type)
{
    static const int64_t ones[DIMS] = { 1, 1, 1, 1 };

    return tensor(b, what, BY_VALUE, uid, type, ones, ones);
}

static descriptor lse_of(builder *b)
{
    const attn_cudnn_shape *s = b->shape;
    const bool wanted = s->lse[2] != 0;
    const int64_t size[DIMS] = { s->b, s->hq, s->lq, 1 };
    const int64_t stride[DIMS] = { s->lse[0], s->lse[1], s->lse[2], 1 };

    return wanted ? tensor(b, "lse", IN_MEMORY, UID_LSE, CUDNN_DATA_FLOAT, size, stride)
                  : rows(b, "lse");
}

static void add_operation(builder *b, descriptor d)
{
    finish(b, d);
    assert(b->n_operations < MOST_OPERATIONS);
    b->operation[b->n_operations++] = d;
}

/* y = x times z, summed up in f32. */
static void product(builder *b, const char *what, descriptor x, descriptor z, descriptor y)
{
    descriptor how, d;

    b->what = what;
    how = make(b, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    set_type(b, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
    finish(b, how);
    d = make(b, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    set_one(b, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, x);
    set_one(b, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, z);
    set_one(b, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, y);
    set_one(b, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
    add_operation(b, d);
}

static void reduce(builder *b, const char *what, int operator, descriptor x, descriptor y)
{
    descriptor how, d;

    b->what = what;
    how = make(b, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    set_type(b, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
    set(b, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1,
        &operator);
    finish(b, how);
    d = make(b, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    set_one(b, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    set_one(b, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
    set_one(b, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
    add_operation(b, d);
}

/* What a pointwise operation does; axis: of an index, else 0. */
typedef struct pointwise_how {
    int mode, precision;
    int64_t axis;
} pointwise_how;

/* y from x, and z and `where` if they are not NULL. */
static void pointwise(builder *b, const char *what, pointwise_how h, descriptor x,
                      descriptor z, descriptor where, descriptor y)
{
    descriptor how, d;

    b->what = what;
    how = make(b, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(b, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &h.mode);
    set_type(b, how, CUDNN_ATTR_POINTWISE_MATH_PREC, h.precision);
    if (h.axis)
        set(b, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &h.axis);
    finish(b, how);
    d = make(b, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set_one(b, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
    set_one(b, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (z)
        set_one(b, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, z);
    if (where)
        set_one(b, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, where);
    set_one(b, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    add_operation(b, d);
}

static void with_floats(builder *b, const char *what, int mode, descriptor x, descriptor z,
                        descriptor y)
{
    pointwise(b, what, (pointwise_how){ mode, CUDNN_DATA_FLOAT, 0 }, x, z, NULL, y);
}

/* -inf where the key's number is larger than the query's, counted from its position: the
 * query's number, plus keys, less queries. */
static descriptor hide_later_keys(builder *b, descriptor s)
{
    const descriptor query = scores(b, "the query's number", CUDNN_DATA_INT32);
    const descriptor key = scores(b, "the key's number", CUDNN_DATA_INT32);
    const descriptor seen = scores(b, "what a query sees", CUDNN_DATA_BOOLEAN);
    const descriptor y = scores(b, "masked scores", CUDNN_DATA_FLOAT);
    const descriptor hidden = number(b, "-inf", UID_HIDDEN, CUDNN_DATA_FLOAT);
    descriptor position = query;

    pointwise(b, "the query's number",
              (pointwise_how){ CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 2 }, s, NULL,
              NULL, query);
    pointwise(b, "the key's number",
              (pointwise_how){ CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, 3 }, s, NULL,
              NULL, key);
    if (b->shape->shift) {
        const descriptor keys = number(b, "keys", UID_KEYS, CUDNN_DATA_INT32);
        const descriptor queries = number(b, "queries", UID_QUERIES, CUDNN_DATA_INT32);
        const descriptor sum = scores(b, "number and keys", CUDNN_DATA_INT32);

        position = scores(b, "the query's position", CUDNN_DATA_INT32);
        pointwise(b, "number and keys",
                  (pointwise_how){ CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, 0 }, query, keys,
                  NULL, sum);
        pointwise(b, "the query's position",
                  (pointwise_how){ CUDNN_POINTWISE_SUB, CUDNN_DATA_INT32, 0 }, sum, queries,
                  NULL, position);
    }
    pointwise(b, "what a query sees",
              (pointwise_how){ CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0 }, position,
              key, NULL, seen);
    pointwise(b, "masked scores",
              (pointwise_how){ CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0 }, s,
              hidden, seen, y);
    return y;
}

/* Probabilities in the type of Q, as the second product wants them; and the LSE, without
 * which the engines don't know the pattern: if nobody wants it, it is in no memory. */
static descriptor softmax(builder *b, descriptor s)
{
    const descriptor most = rows(b, "maxima"), sum = rows(b, "sums");
    const descriptor log = rows(b, "logarithms");
    const descriptor less = scores(b, "scores less the maximum", CUDNN_DATA_FLOAT);
    const descriptor power = scores(b, "exponentials", CUDNN_DATA_FLOAT);
    const descriptor p = scores(b, "probabilities", io_type(b->shape));

    reduce(b, "maxima", CUDNN_REDUCE_TENSOR_MAX, s, most);
    with_floats(b, "scores less the maximum", CUDNN_POINTWISE_SUB, s, most, less);
    with_floats(b, "exponentials", CUDNN_POINTWISE_EXP, less, NULL, power);
    reduce(b, "sums", CUDNN_REDUCE_TENSOR_ADD, power, sum);
    with_floats(b, "logarithms", CUDNN_POINTWISE_LOG, sum, NULL, log);
    with_floats(b, "lse", CUDNN_POINTWISE_ADD, most, log, lse_of(b));
    with_floats(b, "probabilities", CUDNN_POINTWISE_DIV, power, sum, p);
    return p;
}

static void describe(builder *b)
{
    const attn_cudnn_shape *s = b->shape;
    const descriptor q = matrix(b, "q", UID_Q, s->hq, s->lq, s->d, s->q);
    const descriptor k = matrix(b, "k", UID_K, s->hkv, s->lk, s->d, s->k);
    const descriptor v = matrix(b, "v", UID_V, s->hkv, s->lk, s->dv, s->v);
    const descriptor o = matrix(b, "o", UID_O, s->hq, s->lq, s->dv, s->o);
    const descriptor raw = scores(b, "products", CUDNN_DATA_FLOAT);
    const descriptor scale = number(b, "scale", UID_SCALE, CUDNN_DATA_FLOAT);
    descriptor x = scores(b, "scores", CUDNN_DATA_FLOAT);

    product(b, "q k^T", q, k, raw);
    with_floats(b, "scores", CUDNN_POINTWISE_MUL, raw, scale, x);
    if (s->causal)
        x = hide_later_keys(b, x);
    product(b, "p v", softmax(b, x), v, o);
}

static descriptor operation_graph(builder *b)
{
    descriptor d;

    b->what = "graph";
    d = make(b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(b, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &b->handle);
    set(b, d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, b->n_operations,
        b->operation);
    finish(b, d);
    return d;
}

/* Makes a plan of a configuration; false: it can't be made, or wants more than may be, and
 * the text of the last error says so. */
static bool try_config(builder *b, descriptor config, int64_t most_bytes)
{
    const attn_cudnn *dnn = b->dnn;
    attn_cudnn_graph *g = b->graph;
    descriptor d;
    int64_t n = 0;

    b->what = "plan";
    d = make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(b, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &b->handle);
    set_one(b, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    finish(b, d);
    if (b->st == ATTN_OK)
        good(b,
             dnn->cudnnBackendGetAttribute(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                           CUDNN_TYPE_INT64, 1, &n, &g->workspace_bytes),
             "cudnnBackendGetAttribute");
    if (b->st == ATTN_OK && g->workspace_bytes > most_bytes)
        b->st = attn_fail(ATTN_ERR_UNSUPPORTED,
                          "cuDNN's plan wants %lld bytes of workspace, %lld were planned",
                          (long long)g->workspace_bytes, (long long)most_bytes);
    if (b->st == ATTN_OK)
        g->plan = d;
    return g->plan;
}

/* What the heuristics of one mode propose. */
static void try_mode(builder *b, descriptor graph, int mode, int64_t most_bytes)
{
    const attn_cudnn *dnn = b->dnn;
    descriptor heuristics, config[MOST_CONFIGS];
    int64_t n = 0;

    b->what = "heuristics";
    heuristics = make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set_one(b, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(b, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(b, heuristics);
    for (int i = 0; i < MOST_CONFIGS; i++)
        config[i] = make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (b->st == ATTN_OK)
        good(b,
             dnn->cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, MOST_CONFIGS, &n,
                                           config),
             "cudnnBackendGetAttribute");
    if (b->st == ATTN_OK && !n)
        b->st = attn_fail(ATTN_ERR_UNSUPPORTED, "cuDNN has no engine for this problem");
    for (int64_t i = 0; i < attn_min(n, MOST_CONFIGS); i++) {
        const int32_t before = b->graph->n_made;

        b->st = ATTN_OK;
        if (try_config(b, config[i], most_bytes))
            return;
        while (b->graph->n_made > before)
            dnn->cudnnBackendDestroyDescriptor(b->graph->made[--b->graph->n_made]);
    }
}

attn_status attn_cudnn_graph_make(const attn_cudnn *dnn, cudnnHandle_t handle,
                                  const attn_cudnn_shape *shape, int64_t most_bytes,
                                  attn_cudnn_graph **out)
{
    attn_cudnn_graph *g = calloc(1, sizeof *g);
    builder b = { .dnn = dnn, .handle = handle, .graph = g, .next_uid = UID_FIRST_VIRTUAL };
    attn_error_text before, why;
    descriptor graph;

    *out = NULL;
    if (!g)
        return attn_fail(ATTN_ERR_NO_MEMORY, "cuDNN's graph: %zu bytes", sizeof *g);
    g->shape = *shape;
    b.shape = &g->shape;
    attn_error_save(&before);
    describe(&b);
    graph = operation_graph(&b);
    if (b.st == ATTN_OK && (try_mode(&b, graph, CUDNN_HEUR_MODE_A, most_bytes), !g->plan)) {
        const attn_status first = b.st;

        attn_error_save(&why);
        b.st = ATTN_OK;
        try_mode(&b, graph, CUDNN_HEUR_MODE_FALLBACK, most_bytes);
        if (!g->plan) { /* the usual engines' reason says more */
            b.st = first;
            attn_error_restore(&why);
        }
    }
    if (b.st != ATTN_OK) {
        attn_cudnn_graph_free(dnn, &g);
        return b.st;
    }
    attn_error_restore(&before); /* plans that could not be made are no error */
    *out = g;
    return ATTN_OK;
}

void attn_cudnn_graph_free(const attn_cudnn *dnn, attn_cudnn_graph **graph)
{
    attn_cudnn_graph *g = graph ? *graph : NULL;

    if (!g)
        return;
    while (g->n_made)
        dnn->cudnnBackendDestroyDescriptor(g->made[--g->n_made]);
    free(g);
    *graph = NULL;
}

attn_status attn_cudnn_graph_run(const attn_cudnn *dnn, cudnnHandle_t handle,
                                 const attn_cudnn_graph *graph, const attn_cudnn_memory *m)
{
    enum { MOST = UID_FIRST_VIRTUAL };
    const attn_cudnn_shape *s = &graph->shape;
    float scale = m->scale, hidden = -INFINITY;
    int32_t keys = (int32_t)s->lk, queries = (int32_t)s->lq;
    void *const all[MOST] = {
        [UID_Q] = m->q,
        [UID_K] = m->k,
        [UID_V] = m->v,
        [UID_O] = m->o,
        [UID_LSE] = s->lse[2] ? m->lse : NULL,
        [UID_SCALE] = &scale,
        [UID_HIDDEN] = s->causal ? &hidden : NULL,
        [UID_KEYS] = s->causal && s->shift ? &keys : NULL,
        [UID_QUERIES] = s->causal && s->shift ? &queries : NULL,
    };
    void *data[MOST];
    int64_t uid[MOST], n = 0;
    attn_cudnn_graph pack = { .n_made = 0 }; /* only its list of descriptors */
    builder b = { .dnn = dnn, .graph = &pack, .what = "launch" };
    descriptor d;

    for (int64_t i = 1; i < MOST; i++)
        if (all[i]) {
            uid[n] = i;
            data[n++] = all[i];
        }
    d = make(&b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&b, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, n, uid);
    set(&b, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, n, data);
    set(&b, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &m->workspace);
    finish(&b, d);
    if (b.st == ATTN_OK)
        good(&b, dnn->cudnnBackendExecute(handle, graph->plan, d), "cudnnBackendExecute");
    if (d)
        dnn->cudnnBackendDestroyDescriptor(d);
    return b.st;
}
