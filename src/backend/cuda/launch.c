/* SPDX-License-Identifier: MIT */
/* backend/cuda/launch.c: enqueues the steps of one execution. Nothing is allocated
 * and nothing waits, so a launch can be captured into a graph. */
#include <inttypes.h>

#include "backend/cuda/linear.h"
#include "backend/cuda/maps.h"
#include "backend/rounds.h"
#include "common/params.h"
#include "core/philox.h"
#include "core/size.h"
#include "core/status.h"

/* A kernel's parameters end where an old driver's room for them does. */
_Static_assert(sizeof(attn_kparams) + sizeof(attn_maps) + 64 <= 4096,
               "parameters of a launch");

#define VIEW(a, name, t)                       \
    do {                                       \
        (a)->name = (t)->data;                 \
        (a)->name##_offset = (t)->offset;      \
        (a)->name##_stride_b = (t)->stride[0]; \
        (a)->name##_stride_h = (t)->stride[1]; \
        (a)->name##_stride_l = (t)->stride[2]; \
        (a)->name##_stride_d = (t)->stride[3]; \
    } while (0)

#define LIST(a, name, t)                       \
    do {                                       \
        (a)->name = (t)->data;                 \
        (a)->name##_offset = (t)->offset;      \
        (a)->name##_stride_b = (t)->stride[0]; \
    } while (0)

static void fill_gradients(attn_kparams *a, const attn_args *t)
{
    VIEW(a, grad_o, &t->grad_o);
    VIEW(a, grad_q, &t->grad_q);
    VIEW(a, grad_k, &t->grad_k);
    VIEW(a, grad_v, &t->grad_v);
    VIEW(a, grad_bias, &t->grad_bias);
    LIST(a, grad_lse, &t->grad_lse);
    a->grad_lse_stride_h = t->grad_lse.stride[1];
    a->grad_lse_stride_l = t->grad_lse.stride[2];
    a->grad_sinks = t->grad_sinks.data;
    a->grad_sinks_offset = t->grad_sinks.offset;
    a->grad_sinks_stride_h = t->grad_sinks.stride[1];
    a->grad_bias_size_b = (int32_t)t->grad_bias.size[0];
    a->grad_bias_size_h = (int32_t)t->grad_bias.size[1];
    a->grad_bias_size_l = (int32_t)t->grad_bias.size[2];
    a->grad_bias_size_d = (int32_t)t->grad_bias.size[3];
    a->has = (attn_is_there(&t->grad_o) ? HAS_GRAD_O : 0) |
             (attn_is_there(&t->grad_lse) ? HAS_GRAD_LSE : 0) |
             (attn_is_there(&t->grad_k) ? HAS_GRAD_K : 0) |
             (attn_is_there(&t->grad_v) ? HAS_GRAD_V : 0) |
             (attn_is_there(&t->grad_q) ? HAS_GRAD_Q : 0) |
             (attn_is_there(&t->grad_bias) ? HAS_GRAD_BIAS : 0);
}

/* A tensor that was left out is all zero. */
static void fill_tensors(attn_kparams *a, const attn_args *t)
{
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
    a->sinks = t->sinks.data;
    a->sinks_offset = t->sinks.offset;
    a->sinks_stride_h = t->sinks.stride[1];
    a->status = t->status.data;
    a->status_offset = t->status.offset;
    a->lse_stride_h = t->lse.stride[1];
    a->lse_stride_l = t->lse.stride[2];
    a->alibi_stride_h = t->alibi.stride[1];
    a->table_stride_h = t->block_table.stride[1];
    a->work = t->workspace;
}

static void fill(attn_kparams *a, const attn_call *call)
{
    const attn_args *t = call->args;

    *a = (attn_kparams){
        .batch = (int32_t)call->batch,
        .heads_q = (int32_t)call->heads_q,
        .heads_kv = (int32_t)call->heads_kv,
        .group = (int32_t)(call->heads_kv ? call->heads_q / call->heads_kv : 1),
        .len_q = (int32_t)call->len_q,
        .len_kv = (int32_t)call->len_kv,
        .tokens_q = (int32_t)call->tokens_q,
        .tokens_k = (int32_t)call->tokens_k,
        .pages = (int32_t)call->pages,
        .page_size = (int32_t)call->page_size,
        .offset = call->offset,
        .left = call->left,
        .right = call->right,
        .want_o = attn_is_there(&t->o),
        .want_lse = attn_is_there(&t->lse),
        .want_status = attn_is_there(&t->status),
        .scale = call->scale,
        .softcap = call->softcap,
    };
    fill_tensors(a, t);
    fill_gradients(a, t);
    attn_dropout_counter(t->dropout_seed, t->dropout_offset, a->drop_key, &a->drop_offset);
    a->drop_below = attn_dropout_below((double)call->dropout);
    a->drop_factor = (float)attn_dropout_factor((double)call->dropout);
}

/* A caller's stream may be of another context; ours is known. */
attn_status attn_cu_find_stream(const attn_device *dev, const attn_stream *stream,
                                CUstream *out)
{
    const attn_cu *cu = dev->cu;
    CUcontext context = NULL;
    attn_status st = ATTN_OK;

    *out = dev->stream;
    if (stream->n_wait || stream->wait || stream->done)
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "events are OpenCL's; on cuda a stream's own order, and "
                         "cuStreamWaitEvent, say what comes after what");
    if (!stream->queue)
        return ATTN_OK;
    *out = stream->queue;
    CU(cu->cuStreamGetCtx(*out, &context));
    if (context != dev->context)
        return attn_fail(ATTN_ERR_INVALID, "stream = %p belongs to another CUcontext",
                         stream->queue);
fail:
    return st;
}

/* The groups of a step in one round: all along x, where CUDA takes 2^31 - 1. And how its
 * tiles are cut, of which there may be more then. */
static attn_status grid_size(const attn_device *dev, const attn_step *step,
                             const attn_kernel *k, const attn_call *call,
                             const attn_round *round, attn_cut *cut, unsigned *out)
{
    int64_t n = 0;

    if (step->block > k->max_group)
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "kernel %s: groups of %" PRId64 " threads, but %s takes %" PRId64,
                         k->name, step->block, dev->info.name, k->max_group);
    if (!attn_groups_of(step, call, round, &n) || n > INT32_MAX)
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "kernel %s: tiles of %" PRId64 " queries over %" PRId64
                         " queries, %" PRId64 " keys in tiles of %" PRId64 ", %" PRId64
                         " pieces of them and %" PRId64
                         " heads of all batches are more than 2^31 - 1 groups",
                         k->name, step->tile_q, round->queries, call->len_kv, step->tile_k,
                         attn_pieces_of(step->piece, call), round->heads);
    *cut = step->slots
               ? attn_find_cut(n, attn_ceil_div(call->len_kv, step->tile_k), step->slots)
               : (attn_cut){ 0 };
    if (cut->rest)
        n = attn_cut_jobs(cut);
    *out = (unsigned)(step->resident ? attn_min(n, step->resident) : n);
    return ATTN_OK;
}

enum { OVERLAP_CAPABILITY = 90 }; /* kernels that wait for the one before */

/* One step of one round. The context is current. */
static attn_status enqueue(attn_device *dev, CUstream stream, const attn_kernel *k,
                           const attn_step *step, const attn_call *call,
                           const attn_round *round, attn_kparams *a)
{
    const attn_cu *cu = dev->cu;
    CUlaunchAttribute overlap = {
        .id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        .value = { .programmaticStreamSerializationAllowed = 1 },
    };
    attn_linear_kparams linear_params;
    attn_maps maps;
    /* of which a kernel without maps takes the first */
    void *params[] = { k->linear ? (void *)&linear_params : a, &maps };
    unsigned groups = 0;
    attn_status st;

    if (k->library)
        return k->library(dev, &(attn_cu_job){ .step = step,
                                               .call = call,
                                               .heads = round->heads,
                                               .query = round->query,
                                               .queries = round->queries,
                                               .stream = stream });
    if ((st = grid_size(dev, step, k, call, round, &a->cut, &groups)) != ATTN_OK)
        return st;
    a->features = k->features;
    a->bias_type = k->bias_type;
    a->d = k->d;
    a->dv = k->dv;
    a->piece = (int32_t)(step->piece ? step->piece : step->merges);
    a->pieces = (int32_t)attn_pieces_of(a->piece, call);
    a->share = (int32_t)(step->share ? step->share : a->piece);
    a->shares = (int32_t)attn_pieces_of(a->share, call);
    a->ends = step->ends;
    a->round_head = (int32_t)round->head;
    a->round_heads = (int32_t)round->heads;
    a->round_query = (int32_t)round->query;
    a->round_queries = (int32_t)round->queries;
    if (k->linear)
        attn_cu_linear_fill(&linear_params, k, step, call);
    if (step->counted)
        CU(cu->cuMemsetD32Async((CUdeviceptr)a->work, 0, 1, stream));
    if (a->cut.rest)
        CU(cu->cuMemsetD32Async((CUdeviceptr)a->work, 0, (size_t)CUT_COUNTERS(a->cut.slots),
                                stream));
    if (step->box_q)
        attn_cu_make_maps(dev, step, call, &maps);
    if (step->overlaps && dev->info.capability >= OVERLAP_CAPABILITY)
        CU(cu->cuLaunchKernelEx(
            &(CUlaunchConfig){ .gridDimX = groups,
                               .gridDimY = 1,
                               .gridDimZ = 1,
                               .blockDimX = (unsigned)step->block,
                               .blockDimY = 1,
                               .blockDimZ = 1,
                               .sharedMemBytes = (unsigned)k->fast_bytes,
                               .hStream = stream,
                               .attrs = &overlap,
                               .numAttrs = 1 },
            k->function, params, NULL));
    else
        CU(cu->cuLaunchKernel(k->function, groups, 1, 1, (unsigned)step->block, 1, 1,
                              (unsigned)k->fast_bytes, stream, params, NULL));
    return ATTN_OK;

fail:
    return attn_fail_in(st, "kernel %s, %u groups of %" PRId64 " threads", k->name, groups,
                        step->block);
}

static attn_status enqueue_all(attn_device *dev, CUstream stream, int n,
                               const attn_kernel *const kernels[], const attn_step steps[],
                               const attn_call *call)
{
    const int64_t total = n ? n * attn_rounds_of(&steps[0], call) : 0;
    attn_status st = ATTN_OK;
    attn_kparams a;

    if (total)
        fill(&a, call);
    for (int64_t i = 0; i < total && st == ATTN_OK; i++) {
        const attn_round at = attn_round_at(&steps[0], call, i / n);

        if (attn_has_work(&steps[i % n], call, &at))
            st = enqueue(dev, stream, kernels[i % n], &steps[i % n], call, &at, &a);
    }
    return st;
}

/* A wait would fail, and end the caller's capture; so it is refused before. */
static attn_status check_can_wait(const attn_device *dev, CUstream stream)
{
    const attn_cu *cu = dev->cu;
    CUstreamCaptureStatus capture = CU_STREAM_CAPTURE_STATUS_NONE;
    attn_status st = ATTN_OK;

    CU(cu->cuStreamIsCapturing(stream, &capture));
    if (capture != CU_STREAM_CAPTURE_STATUS_NONE)
        return attn_fail(ATTN_ERR_INVALID,
                         "stream = %p is being captured into a graph, but a timed "
                         "execution waits for it",
                         (void *)stream);
fail:
    return st;
}

/* The same between two events; waits. The context is current. */
static attn_status enqueue_timed(attn_device *dev, CUstream stream, int n,
                                 const attn_kernel *const kernels[],
                                 const attn_step steps[], const attn_call *call,
                                 uint64_t *ns)
{
    const attn_cu *cu = dev->cu;
    CUevent first = NULL, last = NULL;
    attn_status st = ATTN_OK;
    float ms = 0;

    *ns = 0;
    if ((st = check_can_wait(dev, stream)) != ATTN_OK)
        return st;
    CU(cu->cuEventCreate(&first, CU_EVENT_DEFAULT));
    CU(cu->cuEventCreate(&last, CU_EVENT_DEFAULT));
    CU(cu->cuEventRecord(first, stream));
    if ((st = enqueue_all(dev, stream, n, kernels, steps, call)) != ATTN_OK)
        goto fail;
    CU(cu->cuEventRecord(last, stream));
    CU(cu->cuEventSynchronize(last));
    CU(cu->cuEventElapsedTime(&ms, first, last));
    *ns = n ? (uint64_t)((double)ms * 1e6) : 0;
fail:
    if (first)
        cu->cuEventDestroy(first);
    if (last)
        cu->cuEventDestroy(last);
    return st;
}

attn_status attn_cu_launch(attn_device *dev, int n, const attn_kernel *const kernels[],
                           const attn_step steps[], const attn_call *call,
                           const attn_stream *stream)
{
    CUstream to = NULL;
    attn_status st;

    if (!attn_any_has_work(n, steps, call))
        n = 0;
    if ((st = attn_cu_enter(dev)) != ATTN_OK)
        return st;
    if ((st = attn_cu_find_stream(dev, stream, &to)) == ATTN_OK)
        st = stream->ns ? enqueue_timed(dev, to, n, kernels, steps, call, stream->ns)
                        : enqueue_all(dev, to, n, kernels, steps, call);
    attn_cu_leave(dev);
    return st;
}
