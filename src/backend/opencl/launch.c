/* SPDX-License-Identifier: MIT */
/* backend/opencl/launch.c: enqueues the steps of one execution. */
#include <inttypes.h>
#include <string.h>

#include "backend/opencl/opencl.h"
#include "common/params.h"
#include "core/size.h"
#include "core/status.h"

/* The parameters' values, a field for each name in the list; and the rows that
 * say where each lies, in the kernels' order. */
typedef struct arguments {
#define MEM(name)   cl_mem name;
#define LONG(name)  cl_long name;
#define INT(name)   cl_int name;
#define FLOAT(name) cl_float name;
    SOFTMAX_FWD_PARAMS(MEM, MEM, MEM, MEM, LONG, INT, FLOAT)
#undef MEM
#undef LONG
#undef INT
#undef FLOAT
} arguments;

static const struct {
    const char *name;
    size_t offset, bytes;
} params[] = {
#define ROW(name) { #name, offsetof(arguments, name), sizeof((arguments *)0)->name },
    SOFTMAX_FWD_PARAMS(ROW, ROW, ROW, ROW, ROW, ROW, ROW)
#undef ROW
};
enum { N_PARAMS = sizeof params / sizeof params[0] };

const cl_uint attn_cl_n_params = N_PARAMS;

#define VIEW(a, name, t)                       \
    do {                                       \
        (a)->name##_offset = (t)->offset;      \
        (a)->name##_stride_b = (t)->stride[0]; \
        (a)->name##_stride_h = (t)->stride[1]; \
        (a)->name##_stride_l = (t)->stride[2]; \
        (a)->name##_stride_d = (t)->stride[3]; \
    } while (0)

/* A tensor that was left out is bound to q's buffer and never touched. */
static cl_mem memory_of(const attn_tensor *t, const attn_tensor *q)
{
    return t->type != ATTN_TYPE_NONE && t->data ? t->data : q->data;
}

static void fill(arguments *a, const attn_call *call)
{
    const attn_args *t = call->args;

    *a = (arguments){
        .q = t->q.data,
        .k = memory_of(&t->k, &t->q),
        .v = memory_of(&t->v, &t->q),
        .o = memory_of(&t->o, &t->q),
        .lse = memory_of(&t->lse, &t->q),
        .lens_kv = memory_of(&t->lens_kv, &t->q),
        .lse_offset = t->lse.offset,
        .lse_stride_b = t->lse.stride[0],
        .lse_stride_h = t->lse.stride[1],
        .lse_stride_l = t->lse.stride[2],
        .lens_kv_offset = t->lens_kv.offset,
        .lens_kv_stride_b = t->lens_kv.stride[0],
        .batch = (cl_int)call->batch,
        .heads_q = (cl_int)call->heads_q,
        .heads_kv = (cl_int)call->heads_kv,
        .len_q = (cl_int)call->len_q,
        .len_kv = (cl_int)call->len_kv,
        .offset = call->offset,
        .left = call->left,
        .right = call->right,
        .want_o = t->o.type != ATTN_TYPE_NONE,
        .want_lse = t->lse.type != ATTN_TYPE_NONE,
        .scale = call->scale,
    };
    VIEW(a, q, &t->q);
    VIEW(a, k, &t->k);
    VIEW(a, v, &t->v);
    VIEW(a, o, &t->o);
}

/* Where one execution goes. */
typedef struct target {
    const attn_cl *cl;
    cl_command_queue queue;
    const cl_event *wait;
    cl_uint n_wait;
} target;

/* A caller's queue has been made anywhere; ours is known. */
static attn_status find_queue(attn_device *dev, const attn_stream *stream, target *to)
{
    const attn_cl *cl = dev->cl;
    cl_command_queue_properties properties = 0;
    cl_context context = NULL;
    cl_device_id device = NULL;
    attn_status st = ATTN_OK;

    *to = (target){
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

/* The work-items of a step: one group for each tile of queries, head and batch. */
static attn_status global_size(const attn_device *dev, const attn_step *step,
                               const attn_kernel *k, const attn_call *call, size_t *out)
{
    const int64_t tiles = attn_ceil_div(call->len_q, step->tile_q);
    int64_t n = 0;

    if (step->block > k->max_group)
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "kernel %s: groups of %" PRId64
                         " work-items, but %s takes %" PRId64,
                         k->name, step->block, dev->info.name, k->max_group);
    if (!attn_mul(tiles, call->heads_q, &n) || !attn_mul(n, call->batch, &n) ||
        !attn_mul(n, step->block, &n) || (uint64_t)n > SIZE_MAX ||
        (dev->address_bits < 64 && n >> dev->address_bits))
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "kernel %s: %" PRId64 " tiles of %" PRId64 " heads of %" PRId64
                         " batches are more work-items than %s can "
                         "count",
                         k->name, tiles, call->heads_q, call->batch, dev->info.name);
    *out = (size_t)n;
    return ATTN_OK;
}

/* Sets all arguments and enqueues: one critical section, since a cl_kernel holds
 * a single set of arguments. */
static attn_status enqueue(const target *to, attn_kernel *k, const arguments *a,
                           size_t global, size_t local, cl_event *done)
{
    attn_status st = ATTN_OK;
    cl_int code = CL_SUCCESS;
    cl_uint i = 0;

    pthread_mutex_lock(&k->lock);
    for (; i < N_PARAMS && code == CL_SUCCESS; i++)
        code = to->cl->clSetKernelArg(k->kernel, i, params[i].bytes,
                                      (const char *)a + params[i].offset);
    if (code != CL_SUCCESS) {
        st = attn_fail_in(attn_cl_fail(code, "clSetKernelArg"), "kernel %s, argument %s",
                          k->name, params[i - 1].name);
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

/* Each step after the one before, on an out-of-order queue too. The events of
 * the first and the last go out where asked for. */
static attn_status enqueue_all(attn_device *dev, target *to, int n,
                               const attn_kernel *const kernels[], const attn_step steps[],
                               const attn_call *call, cl_event *first, cl_event *last)
{
    cl_event link[ATTN_MAX_STEPS] = { NULL };
    size_t global[ATTN_MAX_STEPS];
    attn_status st = ATTN_OK;
    arguments a;

    for (int i = 0; i < n && st == ATTN_OK; i++)
        st = global_size(dev, &steps[i], kernels[i], call, &global[i]);
    fill(&a, call);
    for (int i = 0; i < n && st == ATTN_OK; i++) {
        const bool named = i + 1 < n || last;
        st = enqueue(to, (attn_kernel *)kernels[i], &a, global[i], (size_t)steps[i].block,
                     named ? &link[i] : NULL);
        to->wait = &link[i];
        to->n_wait = 1;
    }
    if (st == ATTN_OK && last) {
        *last = link[n - 1];
        link[n - 1] = NULL;
    }
    if (st == ATTN_OK && first && n > 1) {
        *first = link[0];
        link[0] = NULL;
    }
    for (int i = 0; i < n; i++)
        if (link[i])
            dev->cl->clReleaseEvent(link[i]);
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
    target to;

    if ((st = find_queue(dev, stream, &to)) != ATTN_OK)
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
