/* SPDX-License-Identifier: MIT */
/* backend/opencl/launch.c: enqueues the steps of one execution. */
#include <inttypes.h>
#include <string.h>

#include "backend/opencl/linear.h"
#include "backend/opencl/opencl.h"
#include "backend/rounds.h"
#include "common/params.h"
#include "core/philox.h"
#include "core/size.h"
#include "core/status.h"

/* The parameters' values, a field for each name in the longer list; and the rows that
 * say where each lies, in the order of the kernels of each pass. */
typedef cl_mem c_IN, c_OUT, c_BIAS, c_U8, c_I32, c_F32, c_WORD, c_FLOATS;
typedef cl_long c_LONG;
typedef cl_int c_INT;
typedef cl_float c_FLOAT, c_LAST;

typedef struct arguments {
#define FIELD(KIND, name) c_##KIND name;
    SOFTMAX_BWD_PARAMS(FIELD)
#undef FIELD
} arguments;

_Static_assert(sizeof(arguments) <= 1024, "no device must take more");

#define ROW(KIND, name) { #name, offsetof(arguments, name), sizeof(c_##KIND) },
static const attn_cl_param fwd_params[] = { SOFTMAX_FWD_PARAMS(ROW) };
static const attn_cl_param bwd_params[] = { SOFTMAX_BWD_PARAMS(ROW) };
#undef ROW

enum {
    N_FWD_PARAMS = sizeof fwd_params / sizeof fwd_params[0],
    N_BWD_PARAMS = sizeof bwd_params / sizeof bwd_params[0]
};

static bool is_backward(const char *kernel)
{
    return !strncmp(kernel, "softmax_bwd_", 12);
}

cl_uint attn_cl_n_params(const char *kernel)
{
    cl_uint n;

    if (attn_cl_is_linear(kernel)) {
        attn_cl_linear_params(kernel, &n);
        return n;
    }
    if (is_backward(kernel))
        return N_BWD_PARAMS;
    return strcmp(kernel, "softmax_merge") ? N_FWD_PARAMS : attn_cl_n_merge_params;
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

/* A tensor that was left out, or is empty, is bound to some other's buffer and never
 * touched. */
static cl_mem memory_of(const attn_tensor *t, cl_mem spare)
{
    return attn_is_there(t) && t->data ? t->data : spare;
}

/* Any buffer of the call. Not all can be empty, for there is something to launch. */
static cl_mem find_spare(const attn_args *t)
{
    void *const all[] = { t->q.data,      t->grad_q.data,    t->grad_k.data,
                          t->grad_v.data, t->grad_bias.data, t->grad_sinks.data,
                          t->workspace };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (all[i])
            return all[i];
    return NULL;
}

static void fill_gradients(arguments *a, const attn_args *t, cl_mem spare)
{
    a->grad_o = memory_of(&t->grad_o, spare);
    a->grad_lse = memory_of(&t->grad_lse, spare);
    a->grad_q = memory_of(&t->grad_q, spare);
    a->grad_k = memory_of(&t->grad_k, spare);
    a->grad_v = memory_of(&t->grad_v, spare);
    a->grad_bias = memory_of(&t->grad_bias, spare);
    a->grad_sinks = memory_of(&t->grad_sinks, spare);
    VIEW(a, grad_o, &t->grad_o);
    VIEW(a, grad_q, &t->grad_q);
    VIEW(a, grad_k, &t->grad_k);
    VIEW(a, grad_v, &t->grad_v);
    VIEW(a, grad_bias, &t->grad_bias);
    LIST(a, grad_lse, &t->grad_lse);
    a->grad_lse_stride_h = t->grad_lse.stride[1];
    a->grad_lse_stride_l = t->grad_lse.stride[2];
    a->grad_sinks_offset = t->grad_sinks.offset;
    a->grad_sinks_stride_h = t->grad_sinks.stride[1];
    a->grad_bias_size_b = (cl_int)t->grad_bias.size[0];
    a->grad_bias_size_h = (cl_int)t->grad_bias.size[1];
    a->grad_bias_size_l = (cl_int)t->grad_bias.size[2];
    a->grad_bias_size_d = (cl_int)t->grad_bias.size[3];
    a->has = (attn_is_there(&t->grad_o) ? HAS_GRAD_O : 0) |
             (attn_is_there(&t->grad_lse) ? HAS_GRAD_LSE : 0) |
             (attn_is_there(&t->grad_q) ? HAS_GRAD_Q : 0) |
             (attn_is_there(&t->grad_bias) ? HAS_GRAD_BIAS : 0) |
             (attn_is_there(&t->grad_k) ? HAS_GRAD_K : 0) |
             (attn_is_there(&t->grad_v) ? HAS_GRAD_V : 0);
}

static void fill_tensors(arguments *a, const attn_args *t, cl_mem spare)
{
    a->q = memory_of(&t->q, spare);
    a->k = memory_of(&t->k, spare);
    a->v = memory_of(&t->v, spare);
    a->o = memory_of(&t->o, spare);
    a->lse = memory_of(&t->lse, spare);
    a->bias = memory_of(&t->bias, spare);
    a->mask = memory_of(&t->mask, spare);
    a->alibi = memory_of(&t->alibi, spare);
    a->sinks = memory_of(&t->sinks, spare);
    a->lens_q = memory_of(&t->lens_q, spare);
    a->lens_kv = memory_of(&t->lens_kv, spare);
    a->offsets = memory_of(&t->offsets, spare);
    a->cu_q = memory_of(&t->cu_q, spare);
    a->cu_k = memory_of(&t->cu_k, spare);
    a->table = memory_of(&t->block_table, spare);
    a->status = memory_of(&t->status, spare);
    a->work = t->workspace ? t->workspace : spare;
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

static void fill_dropout(arguments *a, const attn_call *call)
{
    uint32_t key[2], offset;

    attn_dropout_counter(call->args->dropout_seed, call->args->dropout_offset, key,
                         &offset);
    a->drop_key0 = (cl_int)key[0];
    a->drop_key1 = (cl_int)key[1];
    a->drop_offset = (cl_int)offset;
    a->drop_below = (cl_int)attn_dropout_below((double)call->dropout);
    a->drop_factor = (cl_float)attn_dropout_factor((double)call->dropout);
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
        .want_o = attn_is_there(&t->o),
        .want_lse = attn_is_there(&t->lse),
        .want_status = attn_is_there(&t->status),
        .scale = call->scale,
        .softcap = call->softcap,
    };
    fill_tensors(a, t, find_spare(t));
    fill_gradients(a, t, find_spare(t));
    fill_dropout(a, call);
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
    for (cl_uint i = 0; i < stream->n_wait; i++)
        if (!to->wait[i])
            return attn_fail(ATTN_ERR_INVALID, "wait[%u] is NULL, want a cl_event",
                             (unsigned)i);
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

/* The work-items of a step in one round. */
static attn_status global_size(const attn_device *dev, const attn_step *step,
                               const attn_kernel *k, const attn_call *call,
                               const attn_round *round, size_t *out)
{
    int64_t n = 0;

    if (step->block > k->max_group)
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "kernel %s: groups of %" PRId64
                         " work-items, but %s takes %" PRId64,
                         k->name, step->block, dev->info.name, k->max_group);
    if (!attn_groups_of(step, call, round, &n) || !attn_mul(n, step->block, &n) ||
        (uint64_t)n > SIZE_MAX || (dev->address_bits < 64 && n >> dev->address_bits))
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "kernel %s: tiles of %" PRId64 " queries over %" PRId64
                         " queries, %" PRId64 " keys in tiles of %" PRId64 " and %" PRId64
                         " heads of all batches are more work-items than %s can count",
                         k->name, step->tile_q, round->queries, call->len_kv, step->tile_k,
                         round->heads, dev->info.name);
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
                                               .query = round->query,
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
    if (st != ATTN_OK)
        return st;
    if (attn_cl_is_linear(k->name)) {
        attn_cl_linear linear;
        cl_uint n;
        const attn_cl_param *params = attn_cl_linear_params(k->name, &n);

        attn_cl_linear_fill(&linear, step, call);
        return attn_cl_enqueue(to, k, params, n, &linear, global, (size_t)step->block,
                               done);
    }
    return is_backward(k->name) ? attn_cl_enqueue(to, k, bwd_params, N_BWD_PARAMS, a,
                                                  global, (size_t)step->block, done)
                                : attn_cl_enqueue(to, k, fwd_params, N_FWD_PARAMS, a,
                                                  global, (size_t)step->block, done);
}

/* Each step that has work after the one before, on an out-of-order queue too. The events of
 * the first and the last go out where asked for. */
static attn_status enqueue_all(attn_device *dev, attn_cl_target *to, int n,
                               const attn_kernel *const kernels[], const attn_step steps[],
                               const attn_call *call, cl_event *first, cl_event *last)
{
    const int64_t total = n * attn_rounds_of(&steps[0], call);
    bool before_that = false;
    cl_event before = NULL;
    attn_status st = ATTN_OK;
    arguments a;

    fill(&a, call);
    for (int64_t i = 0; i < total && st == ATTN_OK; i++) {
        const attn_round at = attn_round_at(&steps[0], call, i / n);
        const bool named = i + 1 < total || last;
        cl_event link = NULL;

        if (!attn_has_work(&steps[i % n], call, &at))
            continue;
        st = enqueue_step(dev, to, kernels[i % n], &steps[i % n], call, &at, &a,
                          named ? &link : NULL);
        if (before && (before_that || !first))
            dev->cl->clReleaseEvent(before);
        else if (before)
            *first = before;
        before_that = before != NULL;
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
    if (!attn_any_has_work(n, steps, call))
        n = 0;
    if (n > 0) {
        if (!call->args->q.data && call->len_q && call->heads_q && call->batch)
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
