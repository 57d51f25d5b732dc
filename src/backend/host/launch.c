/* SPDX-License-Identifier: MIT */
/* backend/host/launch.c: runs steps at once, in the calling thread and OpenMP's. */
#include <time.h>

#include "backend/host/host.h"
#include "core/status.h"

static attn_host_softmax bind_softmax(const attn_step *step, const attn_call *call)
{
    return (attn_host_softmax){
        .t = *call->args,
        .type = step->type,
        .batch = call->batch,
        .heads_q = call->heads_q,
        .heads_kv = call->heads_kv,
        .len_q = call->len_q,
        .len_kv = call->len_kv,
        .tokens_q = call->tokens_q,
        .tokens_k = call->tokens_k,
        .pages = call->pages,
        .page_size = call->page_size,
        .dim_qk = step->d,
        .dim_v = step->dv,
        .align_br = step->align_br,
        .offset = call->offset,
        .left = call->left,
        .right = call->right,
        .scale = call->scale,
        .softcap = call->softcap,
        .dropout = call->dropout,
        .tile_q = step->tile_q,
        .tile_k = step->tile_k,
        .piece = step->piece,
        .round = step->round_blocks,
        .threads = (int)step->threads,
        .workspace = call->args->workspace,
        .scratch_bytes = (size_t)step->scratch_bytes,
    };
}

static attn_host_linear bind_linear(const attn_step *step, const attn_call *call)
{
    return (attn_host_linear){
        .t = *call->args,
        .type = step->type,
        .batch = call->batch,
        .heads_q = call->heads_q,
        .heads_kv = call->heads_kv,
        .len_q = call->len_q,
        .len_kv = call->len_kv,
        .dim_qk = step->d,
        .dim_v = step->dv,
        .phi = call->phi,
        .rule = call->rule,
        .causal = call->causal,
        .normalize = call->normalize,
        .scale = call->scale,
        .sum_scale = call->sum_scale,
        .sum_eps = call->sum_eps,
        .sum_unit = call->sum_unit,
        .eps = call->eps,
        .tile = step->tile_q,
        .columns = step->columns,
        .threads = (int)step->threads,
        .workspace = call->args->workspace,
        .scratch_bytes = (size_t)step->scratch_bytes,
    };
}

static void run(const attn_kernel *kernel, const attn_step *step, const attn_call *call)
{
    if (kernel->linear) {
        const attn_host_linear s = bind_linear(step, call);
        kernel->linear(&s);
    } else {
        const attn_host_softmax s = bind_softmax(step, call);
        kernel->softmax(&s);
    }
}

static uint64_t now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

attn_status attn_host_launch(attn_device *dev, int n, const attn_kernel *const kernels[],
                             const attn_step steps[], const attn_call *call,
                             const attn_stream *stream)
{
    const uint64_t start = stream->ns ? now_ns() : 0;

    (void)dev;
    if (stream->queue)
        return attn_fail(ATTN_ERR_INVALID, "stream = %p, want NULL: \"host\" has no queues",
                         stream->queue);
    for (int i = 0; i < n; i++)
        run(kernels[i], &steps[i], call);
    if (stream->ns)
        *stream->ns = now_ns() - start;
    return ATTN_OK;
}
