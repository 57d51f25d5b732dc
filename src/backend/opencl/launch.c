/* SPDX-License-Identifier: MIT */
/* backend/opencl/launch.c: enqueues the steps of one execution. */
#include <inttypes.h>
#include <string.h>

#include "backend/opencl/opencl.h"
#include "backend/rounds.h"
#include "common/params.h"
#include "core/size.h"
#include "core/status.h"

/* The parameters' values, a field for each name in the list; and the rows that
 * say where each lies, in the kernels' order. */
typedef cl_mem c_IN, c_OUT, c_BIAS, c_U8, c_I32, c_F32, c_WORD, c_FLOATS;
typedef cl_long c_LONG;
typedef cl_int c_INT;
typedef cl_float c_FLOAT, c_LAST;

typedef struct arguments {
#define FIELD(KIND, name) c_##KIND name;
    SOFTMAX_FWD_PARAMS(FIELD)
#undef FIELD
} arguments;

static const attn_cl_param params[] = {
#define ROW(KIND, name) { #name, offsetof(arguments, name), sizeof(c_##KIND) },
    SOFTMAX_FWD_PARAMS(ROW)
#undef ROW
};
enum { N_PARAMS = sizeof params / sizeof params[0] };

cl_uint attn_cl_n_params(const char *kernel)
{
    return strcmp(kernel, "softmax_merge") ? N_PARAMS : attn_cl_n_merge_params;
}

#define VIEW(a, name, t)                       \
    do {                                       \
        (a)->name##_offset = (t)->offset;      \
        (a)->name##_stride_b = (t)->stride[0]; \
        (a)->name##_stride_h = (t)->stride[1]; \
        (a)->name##_stride_l = (t)->stride[2]; \
        (a)->name##_stride_d = (t)->stride[3]; \
    } while (0)

#define LIST(a, name, t)                       \
    do {                                       \
        (a)->name##_offset = (t)->offset;      \
        (a)->name##_stride_b = (t)->stride[0]; \
    } while (0)

/* A tensor that was left out is bound to q's buffer and never touched. */
static cl_mem memory_of(const attn_tensor *t, const attn_tensor *q)
{
    return t->type != ATTN_TYPE_NONE && t->data ? t->data : q->data;
}

static void fill_tensors(arguments *a, const attn_args *t)
{
    a->q = t->q.data;
    a->k = memory_of(&t->k, &t->q);
    a->v = memory_of(&t->v, &t->q);
    a->o = memory_of(&t->o, &t->q);
    a->lse = memory_of(&t->lse, &t->q);
    a->bias = memory_of(&t->bias, &t->q);
    a->mask = memory_of(&t->mask, &t->q);
    a->alibi = memory_of(&t->alibi, &t->q);
    a->sinks = memory_of(&t->sinks, &t->q);
    a->lens_q = memory_of(&t->lens_q, &t->q);
    a->lens_kv = memory_of(&t->lens_kv, &t->q);
    a->offsets = memory_of(&t->offsets, &t->q);
    a->cu_q = memory_of(&t->cu_q, &t->q);
    a->cu_k = memory_of(&t->cu_k, &t->q);
    a->table = memory_of(&t->block_table, &t->q);
    a->status = memory_of(&t->status, &t->q);
    a->work = t->workspace ? t->workspace : t->q.data;
    VIEW(a, q, &t->q);
    VIEW(a, k, &t->k);
    VIEW(a, v, &t->v);
    VIEW(a, o, &t->o);
    VIEW(a, bias, &t->bias);
    VIEW(a, mask, &t->mask);
    LIST(a, lse, &t->lse);
    LIST(a, alibi, &t->alibi);
    LIST(a, lens_q, &t->lens_q);
    LIST(a, lens_kv, &t->lens_kv);
    LIST(a, offsets, &t->offsets);
    LIST(a, cu_q, &t->cu_q);
    LIST(a, cu_k, &t->cu_k);
    LIST(a, table, &t->block_table);
    a->lse_stride_h = t->lse.stride[1];
    a->lse_stride_l = t->lse.stride[2];
    a->alibi_stride_h = t->alibi.stride[1];
    a->table_stride_h = t->block_table.stride[1];
    a->sinks_offset = t->sinks.offset;
    a->sinks_stride_h = t->sinks.stride[1];
    a->status_offset = t->status.offset;
}

static void fill(arguments *a, const attn_call *call)
{
    const attn_args *t = call->args;

    *a = (arguments){
        .batch = (cl_int)call->batch,
        .heads_q = (cl_int)call->heads_q,
        .heads_kv = (cl_int)call->heads_kv,
        .len_q = (cl_int)call->len_q,
        .len_kv = (cl_int)call->len_kv,
        .tokens_q = (cl_int)call->tokens_q,
        .tokens_k = (cl_int)call->tokens_k,
        .pages = (cl_int)call->pages,
        .page_size = (cl_int)call->page_size,
        .offset = call->offset,
        .left = call->left,
        .right = call->right,
        .want_o = t->o.type != ATTN_TYPE_NONE,
        .want_lse = t->lse.type != ATTN_TYPE_NONE,
        .want_status = t->status.type != ATTN_TYPE_NONE,
        .scale = call->scale,
        .softcap = call->softcap,
    };
    fill_tensors(a, t);
}

/* A caller's queue has been made anywhere; ours is known. */
attn_status attn_cl_find_queue(attn_device *dev, const attn_stream *stream,
                               attn_cl_target *to)
{
    const attn_cl *cl = dev->cl;
    cl_command_queue_properties properties = 0;
    cl_context context = NULL;
    cl_device_id device = NULL;
    attn_status st = ATTN_OK;

    *to = (attn_cl_target){
        .cl = cl, .queue = dev->queue, .wait = stream->wait, .n_wait = stream->n_wait
    };
    if (!stream->n_wait != !stream->wait)
        return attn_fail(ATTN_ERR_INVALID, "wait is %s but n_wait = %u",
                         stream->wait ? "given" : "NULL", (unsigned)stream->n_wait);
    if (!stream->queue)
        return ATTN_OK;
    to->queue = stream->queue;
    CL(cl->clGetCommandQueueInfo(to->queue, CL_QUEUE_CONTEXT, sizeof context, &context,
                                 NULL));
    CL(cl->clGetCommandQueueInfo(to->queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL));
    if (context != dev->context)
        return attn_fail(ATTN_ERR_INVALID, "queue = %p belongs to another cl_context",
                         stream->queue);
    if (device != dev->id)
        return attn_fail(ATTN_ERR_INVALID,
                         "queue = %p belongs to another device of the "
                         "cl_context",
                         stream->queue);
    if (!stream->ns)
        return ATTN_OK;
    CL(cl->clGetCommandQueueInfo(to->queue, CL_QUEUE_PROPERTIES, sizeof properties,
                                 &properties, NULL));
    if (!(properties & CL_QUEUE_PROFILING_ENABLE))
        return attn_fail(ATTN_ERR_INVALID,
                         "queue = %p was not made with "
                         "CL_QUEUE_PROFILING_ENABLE, which timing needs",
                         stream->queue);
fail:
    return st;
}

/* The work-items of a step in one round, as plan/step.h counts its groups. */
static attn_status global_size(const attn_device *dev, const attn_step *step,
                               const attn_kernel *k, const attn_call *call,
                               const attn_round *round, size_t *out)
{
    const int64_t group = step->grouped ? call->heads_q / call->heads_kv : 1;
    const int64_t heads = round->heads / group;
    const int64_t pieces = attn_pieces_of(step->piece, call);
    int64_t tiles, n = 0;

    if (step->block > k->max_group)
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "kernel %s: groups of %" PRId64
                         " work-items, but %s takes %" PRId64,
                         k->name, step->block, dev->info.name, k->max_group);
    if (!attn_mul(round->queries, group, &tiles) ||
        !attn_mul(attn_ceil_div(tiles, step->tile_q), heads, &n) ||
        !attn_mul(n, pieces, &n) || !attn_mul(n, step->block, &n) ||
        (uint64_t)n > SIZE_MAX || (dev->address_bits < 64 && n >> dev->address_bits))
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "kernel %s: tiles of %" PRId64 " queries over %" PRId64
                         " queries, %" PRId64 " pieces of keys and %" PRId64
                         " heads of all batches are more work-items than %s can count",
                         k->name, step->tile_q, round->queries * group, pieces, heads,
                         dev->info.name);
    *out = (size_t)n;
    return ATTN_OK;
}

/* One critical section, since a cl_kernel holds a single set of arguments. */
attn_status attn_cl_enqueue(const attn_cl_target *to, const attn_kernel *kernel,
                            const attn_cl_param *list, cl_uint n, const void *a,
                            size_t global, size_t local, cl_event *done)
{
    attn_kernel *k = (attn_kernel *)kernel;
    attn_status st = ATTN_OK;
    cl_int code = CL_SUCCESS;
    cl_uint i = 0;

    pthread_mutex_lock(&k->lock);
    for (; i < n && code == CL_SUCCESS; i++)
        code = to->cl->clSetKernelArg(k->kernel, i, list[i].bytes,
                                      (const char *)a + list[i].offset);
    if (code != CL_SUCCESS) {
        st = attn_fail_in(attn_cl_fail(code, "clSetKernelArg"), "kernel %s, argument %s",
                          k->name, list[i - 1].name);
    } else {
        code = to->cl->clEnqueueNDRangeKernel(to->queue, k->kernel, 1, NULL, &global,
                                              &local, to->n_wait, to->wait, done);
        if (code != CL_SUCCESS)
            st = attn_fail_in(attn_cl_fail(code, "clEnqueueNDRangeKernel"),
                              "kernel %s, %zu work-items in groups of %zu", k->name, global,
                              local);
    }
    pthread_mutex_unlock(&k->lock);
    return st;
}

/* One step of one round; `done` may be NULL. */
static attn_status enqueue_step(attn_device *dev, const attn_cl_target *to,
                                const attn_kernel *k, const attn_step *step,
                                const attn_call *call, const attn_round *round,
                                arguments *a, cl_event *done)
{
    size_t global = 0;
    attn_status st;

    if (k->library)
        return k->library(dev, &(attn_cl_job){ .step = step,
                                               .call = call,
                                               .heads = round->heads,
                                               .queries = round->queries,
                                               .queue = to->queue,
                                               .n_wait = to->n_wait,
                                               .wait = to->wait,
                                               .done = done });
    st = global_size(dev, step, k, call, round, &global);
    a->round_head = (cl_int)round->head;
    a->round_heads = (cl_int)round->heads;
    a->round_query = (cl_int)round->query;
    a->round_queries = (cl_int)round->queries;
    return st != ATTN_OK ? st
                         : attn_cl_enqueue(to, k, params, N_PARAMS, a, global,
                                           (size_t)step->block, done);
}

/* Each step after the one before, on an out-of-order queue too. The events of
 * the first and the last go out where asked for. */
static attn_status enqueue_all(attn_device *dev, attn_cl_target *to, int n,
                               const attn_kernel *const kernels[], const attn_step steps[],
                               const attn_call *call, cl_event *first, cl_event *last)
{
    const int64_t total = n * attn_rounds_of(&steps[0], call);
    cl_event before = NULL;
    attn_status st = ATTN_OK;
    arguments a;

    fill(&a, call);
    for (int64_t i = 0; i < total && st == ATTN_OK; i++) {
        const attn_round at = attn_round_at(&steps[0], call, i / n);
        const bool named = i + 1 < total || last;
        cl_event link = NULL;

        st = enqueue_step(dev, to, kernels[i % n], &steps[i % n], call, &at, &a,
                          named ? &link : NULL);
        if (before && (i > 1 || !first))
            dev->cl->clReleaseEvent(before);
        else if (before)
            *first = before;
        before = link;
        to->wait = &before;
        to->n_wait = 1;
    }
    if (st == ATTN_OK && last)
        *last = before;
    else if (before)
        dev->cl->clReleaseEvent(before);
    return st;
}

/* From the start of `first` (NULL: of `last`) to the end of `last`. */
static attn_status measure(const attn_cl *cl, cl_event first, cl_event last, uint64_t *ns)
{
    cl_ulong start = 0, end = 0;
    attn_status st = ATTN_OK;

    CL(cl->clGetEventProfilingInfo(first ? first : last, CL_PROFILING_COMMAND_START,
                                   sizeof start, &start, NULL));
    CL(cl->clGetEventProfilingInfo(last, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL));
    *ns = end > start ? end - start : 0;
fail:
    return st;
}

attn_status attn_cl_launch(attn_device *dev, int n, const attn_kernel *const kernels[],
                           const attn_step steps[], const attn_call *call,
                           const attn_stream *stream)
{
    cl_event *const done = stream->done;
    const attn_cl *cl = dev->cl;
    cl_event first = NULL, last = NULL;
    attn_status st;
    attn_cl_target to;

    if ((st = attn_cl_find_queue(dev, stream, &to)) != ATTN_OK)
        return st;
    if (n > 0 && (!call->len_q || !call->heads_q || !call->batch))
        n = 0;
    if (n > 0) {
        if (!call->args->q.data)
            return attn_fail(ATTN_ERR_INVALID, "q.data is NULL");
        st = enqueue_all(dev, &to, n, kernels, steps, call, stream->ns ? &first : NULL,
                         done || stream->ns ? &last : NULL);
        if (st != ATTN_OK)
            return st;
        if (stream->ns && (st = attn_cl_wait_event(dev, last)) == ATTN_OK)
            st = measure(cl, first, last, stream->ns);
    } else if (done || to.n_wait || stream->ns) {
        CL(cl->clEnqueueMarkerWithWaitList(to.queue, to.n_wait, to.wait, &last));
        if (stream->ns) {
            *stream->ns = 0;
            st = attn_cl_wait_event(dev, last);
        }
    }
fail:
    if (first)
        cl->clReleaseEvent(first);
    if (st == ATTN_OK && done)
        *done = last;
    else if (last)
        cl->clReleaseEvent(last);
    return st;
}
