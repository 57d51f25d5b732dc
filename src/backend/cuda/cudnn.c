/* SPDX-License-Identifier: MIT */
/* backend/cuda/cudnn.c: the library itself, and plans that a device's launches share. */
#define _POSIX_C_SOURCE 200809L
#include "backend/cuda/cudnn.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/params.h"
#include "core/library.h"
#include "core/size.h"
#include "core/status.h"

enum { ALIGNMENT = 256 }; /* of the room that cuDNN is given */

static const attn_library_function functions[] = {
#define X(name) { #name, offsetof(attn_cudnn, name) },
    ATTN_CUDNN_FUNCTIONS(X)
#undef X
};
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

/* A handle has one stream at a time, so `lock` is held from setting it to the launch. Plans
 * stay until the device is closed: a captured graph may hold their kernels. */
struct attn_cu_graphs {
    pthread_mutex_t lock;
    cudnnHandle_t handle;
    attn_cudnn_graph *made; /* guarded by `lock`, last used first */
};

static bool open_library(const char *name, void *table, attn_text *reason)
{
    char path[ATTN_PATH_BYTES];
    void *const handle = attn_library_open(name, "libcudnn.so.9", path, reason);

    return handle && !attn_library_functions(handle, functions, N_FUNCTIONS, table);
}

const attn_cudnn *attn_cudnn_load(const char *name, int64_t *version)
{
    static attn_libraries opened = ATTN_LIBRARIES(attn_cudnn, open_library);
    attn_text nowhere = attn_text_in(NULL, 0);
    const attn_cudnn *const dnn = attn_library_load(&opened, name, &nowhere);

    *version = dnn ? (int64_t)dnn->cudnnGetVersion() : 0;
    return dnn;
}

attn_status attn_cudnn_open(attn_device *dev)
{
    const attn_cudnn *dnn = dev->dnn;
    struct attn_cu_graphs *graphs;
    cudnnStatus_t code;

    assert(dnn); /* the planner was told */
    if (dev->graphs)
        return ATTN_OK;
    if (!(graphs = calloc(1, sizeof *graphs)))
        return attn_fail(ATTN_ERR_NO_MEMORY, "cuDNN: %zu bytes", sizeof *graphs);
    if ((code = dnn->cudnnCreate(&graphs->handle)) != CUDNN_STATUS_SUCCESS) {
        free(graphs);
        return attn_cudnn_fail(dnn, code, "cudnnCreate", "handle");
    }
    pthread_mutex_init(&graphs->lock, NULL);
    dev->graphs = graphs;
    return ATTN_OK;
}

void attn_cudnn_close(attn_device *dev, bool current)
{
    if (!dev->graphs)
        return;
    while (current && dev->graphs->made) {
        attn_cudnn_graph *g = dev->graphs->made;
        dev->graphs->made = g->next;
        attn_cudnn_graph_free(dev->dnn, &g);
    }
    if (current)
        dev->dnn->cudnnDestroy(dev->graphs->handle);
    while (dev->graphs->made) { /* what the library keeps for them stays */
        attn_cudnn_graph *g = dev->graphs->made;
        dev->graphs->made = g->next;
        free(g);
    }
    pthread_mutex_destroy(&dev->graphs->lock);
    free(dev->graphs);
    dev->graphs = NULL;
}

/* The plan for a shape, or NULL. graphs->lock is held. */
static const attn_cudnn_graph *find(struct attn_cu_graphs *graphs,
                                    const attn_cudnn_shape *shape)
{
    attn_cudnn_graph **at = &graphs->made, *g;

    while (*at && memcmp(&(*at)->shape, shape, sizeof *shape))
        at = &(*at)->next;
    if ((g = *at)) {
        *at = g->next;
        g->next = graphs->made;
        graphs->made = g;
    }
    return g;
}

/* Makes one. graphs->lock is held. */
static attn_status add(const attn_device *dev, const attn_cudnn_shape *shape,
                       int64_t most_bytes, const attn_cudnn_graph **out)
{
    struct attn_cu_graphs *const graphs = dev->graphs;
    attn_cudnn_graph *g;
    const attn_status st =
        attn_cudnn_graph_make(dev->dnn, graphs->handle, shape, most_bytes, &g);

    if (st != ATTN_OK)
        return st;
    g->next = graphs->made;
    *out = graphs->made = g;
    return ATTN_OK;
}

/* Keys behind the last query's are cut off: what nobody sees must not be read, and cuDNN
 * would multiply it by 0. */
static void set_sizes(attn_cudnn_shape *s, const attn_step *step, bool causal)
{
    s->type = step->type;
    s->d = step->d;
    s->dv = step->dv;
    s->causal = causal;
    if (causal && step->align_br)
        s->shift = s->lk - s->lq;
    else if (causal)
        s->lk = attn_min(s->lk, s->lq);
}

/* Along a dimension of size 1 a stride says nothing: there it is made the same for all. */
static void set_strides(int64_t to[3], const int64_t from[3], int64_t b, int64_t h,
                        int64_t l, int64_t columns)
{
    to[2] = l > 1 ? from[2] : columns;
    to[1] = h > 1 ? from[1] : l * to[2];
    to[0] = b > 1 ? from[0] : h * to[1];
}

/* Of `rows` rows a head, of which l are used. */
static void set_packed(int64_t to[3], int64_t b, int64_t h, int64_t l, int64_t rows,
                       int64_t columns)
{
    const int64_t packed[3] = { h * rows * columns, rows * columns, columns };

    set_strides(to, packed, b, h, l, columns);
}

attn_status attn_cudnn_prepare(attn_device *dev, const attn_step *step,
                               const attn_kernel *kernel)
{
    attn_cudnn_shape s;
    const attn_cudnn_graph *graph;
    attn_status st = ATTN_OK;

    memset(&s, 0, sizeof s);
    s.b = step->b;
    s.hq = step->hq;
    s.hkv = step->hkv;
    s.lq = step->lq;
    s.lk = step->lk;
    set_sizes(&s, step, kernel->features & FEAT_RANGE_RIGHT);
    set_packed(s.q, s.b, s.hq, s.lq, s.lq, s.d);
    set_packed(s.k, s.b, s.hkv, s.lk, step->lk, s.d);
    set_packed(s.v, s.b, s.hkv, s.lk, step->lk, s.dv);
    set_packed(s.o, s.b, s.hq, s.lq, s.lq, s.dv);
    if (kernel->features & FEAT_LSE)
        set_packed(s.lse, s.b, s.hq, s.lq, s.lq, 1);
    pthread_mutex_lock(&dev->graphs->lock);
    if (!find(dev->graphs, &s))
        st = add(dev, &s, step->scratch_bytes, &graph);
    pthread_mutex_unlock(&dev->graphs->lock);
    return st;
}

static void *start_of(const attn_tensor *t)
{
    return t->type == ATTN_TYPE_NONE
               ? NULL
               : (char *)t->data + t->offset * (int64_t)attn_type_bytes(t->type);
}

/* cuDNN's tensors go forwards. */
static attn_status check_forward(const char *name, const attn_tensor *t)
{
    for (int i = 0; i < 4 && t->type != ATTN_TYPE_NONE; i++)
        if (t->size[i] > 1 && t->stride[i] < 0)
            return attn_fail(ATTN_ERR_UNSUPPORTED,
                             "%s: stride[%d] = %" PRId64
                             " is negative, which cuDNN does not take",
                             name, i, t->stride[i]);
    return ATTN_OK;
}

static attn_status shape_of(const attn_cu_job *job, attn_cudnn_shape *s)
{
    const attn_call *c = job->call;
    const attn_args *a = c->args;
    const bool causal = c->right != ATTN_STEP_UNBOUNDED;
    attn_status st;

    if ((st = check_forward("q", &a->q)) != ATTN_OK ||
        (st = check_forward("k", &a->k)) != ATTN_OK ||
        (st = check_forward("v", &a->v)) != ATTN_OK ||
        (st = check_forward("o", &a->o)) != ATTN_OK ||
        (st = check_forward("lse", &a->lse)) != ATTN_OK)
        return st;
    if (!c->len_kv || (causal && job->step->align_br && c->len_kv < c->len_q))
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "softmax_fwd_cudnn: %" PRId64 " queries and %" PRId64
                         " keys leave queries without a key, which cuDNN is not given",
                         c->len_q, c->len_kv);
    memset(s, 0, sizeof *s);
    s->b = c->batch;
    s->hq = c->heads_q;
    s->hkv = c->heads_kv;
    s->lq = c->len_q;
    s->lk = c->len_kv;
    set_sizes(s, job->step, causal);
    set_strides(s->q, a->q.stride, s->b, s->hq, s->lq, s->d);
    set_strides(s->k, a->k.stride, s->b, s->hkv, s->lk, s->d);
    set_strides(s->v, a->v.stride, s->b, s->hkv, s->lk, s->dv);
    if (a->o.type != ATTN_TYPE_NONE)
        set_strides(s->o, a->o.stride, s->b, s->hq, s->lq, s->dv);
    else
        set_packed(s->o, s->b, s->hq, s->lq, s->lq, s->dv);
    if (a->lse.type != ATTN_TYPE_NONE)
        set_strides(s->lse, a->lse.stride, s->b, s->hq, s->lq, 1);
    return ATTN_OK;
}

/* A plan can't be made while the stream is captured: making it loads code. */
static attn_status check_capture(const attn_device *dev, CUstream stream)
{
    const attn_cu *cu = dev->cu;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    attn_status st = ATTN_OK;

    CU(cu->cuStreamIsCapturing(stream, &capture));
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return attn_fail(
            ATTN_ERR_INVALID,
            "stream = %p is being captured into a graph, but cuDNN has no plan "
            "yet for tensors of these sizes and strides: execute once before",
            (void *)stream);
fail:
    return st;
}

static attn_status run(attn_device *dev, const attn_cu_job *job)
{
    const attn_cudnn *dnn = dev->dnn;
    const attn_args *a = job->call->args;
    const uintptr_t work = (uintptr_t)a->workspace;
    char *const room = (char *)a->workspace + (ALIGNMENT - work % ALIGNMENT) % ALIGNMENT;
    const attn_cudnn_graph *graph = NULL;
    attn_cudnn_memory memory = { .q = start_of(&a->q),
                                 .k = start_of(&a->k),
                                 .v = start_of(&a->v),
                                 .o = start_of(&a->o),
                                 .lse = start_of(&a->lse),
                                 .workspace = room,
                                 .scale = job->call->scale };
    attn_cudnn_shape shape;
    cudnnStatus_t code;
    attn_status st;

    if ((st = shape_of(job, &shape)) != ATTN_OK)
        return st;
    if (!memory.o) /* cuDNN has no attention without O */
        memory.o = room + job->step->scratch_bytes;
    pthread_mutex_lock(&dev->graphs->lock);
    graph = find(dev->graphs, &shape);
    if (!graph && ((st = check_capture(dev, job->stream)) != ATTN_OK ||
                   (st = add(dev, &shape, job->step->scratch_bytes, &graph)) != ATTN_OK))
        goto done;
    code = dnn->cudnnSetStream(dev->graphs->handle, job->stream);
    st = code == CUDNN_STATUS_SUCCESS
             ? attn_cudnn_graph_run(dnn, dev->graphs->handle, graph, &memory)
             : attn_cudnn_fail(dnn, code, "cudnnSetStream", "launch");
done:
    pthread_mutex_unlock(&dev->graphs->lock);
    return st;
}

attn_cu_library *attn_cudnn_step(const char *kernel)
{
    return !strcmp(kernel, "cudnn_attention") ? run : NULL;
}
