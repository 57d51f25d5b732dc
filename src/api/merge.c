/* SPDX-License-Identifier: MIT */
/* api/merge.c: merges partial results: checks, kernels, the back end's verb. */
#include <attn/merge.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "core/size.h"
#include "core/status.h"

#define RULE(cond, ...)                                      \
    do {                                                     \
        if (!(cond))                                         \
            return attn_fail(ATTN_ERR_INVALID, __VA_ARGS__); \
    } while (0)

enum { TYPES = ATTN_BF16 + 1, MOST_WIDTH = 16 };

static bool is_there(const attn_tensor *t)
{
    return t->type != ATTN_TYPE_NONE;
}

static bool is_float(attn_type type)
{
    return type == ATTN_F32 || type == ATTN_F16 || type == ATTN_BF16;
}

static attn_status args_read(attn_merge_args *args, const attn_merge_args *from)
{
    RULE(from, "args is NULL");
    RULE(attn_struct_copy(args, sizeof *args, from, from->size, sizeof *args),
         "args.size = %zu, want sizeof(attn_merge_args) = %zu", from->size, sizeof *args);
    RULE(args->n_parts >= 1 && args->n_parts <= INT32_MAX,
         "n_parts = %lld, want 1 .. 2^31 - 1", (long long)args->n_parts);
    RULE(args->part_lse, "part_lse is NULL");
    RULE(args->part_o || !is_there(&args->o), "part_o is NULL, but o is given");
    for (int i = 0; i < 3; i++)
        RULE(args->part_lse[0].size[i] >= 0 && args->part_lse[0].size[i] <= INT32_MAX,
             "part_lse[0].size[%d] = %lld, want 0 .. 2^31 - 1", i,
             (long long)args->part_lse[0].size[i]);
    RULE(!is_there(&args->o) || (args->o.size[3] >= 0 && args->o.size[3] <= INT32_MAX),
         "o.size[3] (D) = %lld, want 0 .. 2^31 - 1", (long long)args->o.size[3]);
    return ATTN_OK;
}

/* An LSE, or an O of `depth` columns, of the rows that the first LSE has. */
static attn_status add(const attn_merge_args *a, const attn_tensor *t, const char *name,
                       int64_t depth, bool output, attn_operand *list, int *n)
{
    const int64_t *rows = a->part_lse[0].size;

    RULE(depth < 0 || is_float(t->type), "%s.type = %s, want f32, f16 or bf16", name,
         attn_type_shown(t->type, (char[ATTN_TYPE_BYTES]){ 0 }));
    list[(*n)++] = (attn_operand){
        .name = name,
        .t = t,
        .type = depth < 0 ? ATTN_F32 : t->type,
        .size = { rows[0], rows[1], rows[2], depth < 0 ? 1 : depth },
        .layout = -1,
        .output = output,
    };
    return ATTN_OK;
}

/* Every part with the outputs, which must not overlap it. */
static attn_status check(const attn_ctx *ctx, const attn_merge_args *a, bool buffers)
{
    const int64_t depth = a->o.size[3];
    attn_status st = ATTN_OK;

    for (int64_t p = 0; p < a->n_parts && st == ATTN_OK; p++) {
        char name_o[40], name_lse[40];
        attn_operand list[4];
        int n = 0;

        snprintf(name_o, sizeof name_o, "part_o[%lld]", (long long)p);
        snprintf(name_lse, sizeof name_lse, "part_lse[%lld]", (long long)p);
        st = add(a, &a->part_lse[p], name_lse, -1, false, list, &n);
        if (st == ATTN_OK && is_there(&a->o))
            st = add(a, &a->part_o[p], name_o, depth, false, list, &n);
        if (st == ATTN_OK && is_there(&a->o))
            st = add(a, &a->o, "o", depth, true, list, &n);
        if (st == ATTN_OK && is_there(&a->lse))
            st = add(a, &a->lse, "lse", -1, true, list, &n);
        if (st == ATTN_OK)
            st = attn_operands_check(ctx, list, n, buffers);
    }
    return st;
}

/* m and l twice, and a row of sums in f32 (softmax/merge.cl); false if that overflows. */
static bool workspace_bytes(const attn_ctx *ctx, const attn_merge_args *a, int64_t *bytes)
{
    const attn_tensor *t = is_there(&a->o) ? &a->o : &a->lse;
    const int64_t depth = is_there(&a->o) ? t->size[3] : 0;

    *bytes = 0;
    if (ctx->backend->on_host || a->n_parts < 2 || !is_there(t))
        return true;
    if (depth < 0 || depth > INT32_MAX)
        return false;
    *bytes = 4 * (attn_round_up(depth, MOST_WIDTH) + 4);
    for (int i = 0; i < 3; i++)
        if (t->size[i] < 0 || !attn_mul(*bytes, t->size[i], bytes))
            return false;
    return (uint64_t)*bytes <= PTRDIFF_MAX;
}

size_t attn_merge_workspace_bytes(const attn_ctx *ctx, const attn_merge_args *args)
{
    attn_merge_args a;
    int64_t bytes;

    if (!ctx || !args || !attn_struct_copy(&a, sizeof a, args, args->size, sizeof a))
        return 0;
    return workspace_bytes(ctx, &a, &bytes) ? (size_t)bytes : SIZE_MAX;
}

static attn_status check_workspace(const attn_ctx *ctx, attn_merge_args *a)
{
    const void *const work = a->workspace;
    attn_status st;
    int64_t want;

    RULE(workspace_bytes(ctx, a, &want), "the workspace would be too large for an address");
    if (!want) { /* what is given is not used */
        a->workspace = NULL;
        return ATTN_OK;
    }
    if ((st = attn_workspace_check(ctx, work, a->workspace_bytes, (size_t)want)) != ATTN_OK)
        return st;
    RULE(!attn_workspace_overlaps(ctx, work, (size_t)want, &a->o),
         "workspace overlaps o, want memory of its own");
    RULE(!attn_workspace_overlaps(ctx, work, (size_t)want, &a->lse),
         "workspace overlaps lse, want memory of its own");
    for (int64_t p = 0; p < a->n_parts; p++)
        RULE(!attn_workspace_overlaps(ctx, work, (size_t)want, &a->part_lse[p]) &&
                 !(is_there(&a->o) &&
                   attn_workspace_overlaps(ctx, work, (size_t)want, &a->part_o[p])),
             "workspace overlaps part %lld, want memory of its own", (long long)p);
    return ATTN_OK;
}

/* The kernel for parts of one type. Compiles at its first use; smaller groups where the
 * device learns then that it wants them. */
static attn_status make_kernel(attn_ctx *ctx, attn_type part, attn_type o, attn_step *step,
                               const attn_kernel **kernel)
{
    attn_caps caps = ctx->target.caps;
    attn_status st;

    for (;;) {
        int64_t limit = 0;

        attn_merge_step(ctx->target.backend, &caps, part, o, step);
        st = ctx->backend->kernel(ctx->device, step, kernel, &limit);
        if (st != ATTN_OK || step->block <= limit)
            return st;
        if (limit < 1)
            return ATTN_ERR_UNSUPPORTED; /* the back end has said why */
        if (limit >= caps.max_group)
            return attn_fail(ATTN_ERR_UNSUPPORTED,
                             "kernel %s: groups of %lld, but %s takes %lld", step->kernel,
                             (long long)step->block, ctx->info.name, (long long)limit);
        caps.max_group = limit;
    }
}

static attn_status make_kernels(attn_ctx *ctx, const attn_merge_args *a,
                                attn_step step[TYPES], const attn_kernel *kernel[TYPES])
{
    const bool want_o = is_there(&a->o);
    const attn_type o = want_o ? a->o.type : ATTN_F32;
    attn_status st = ATTN_OK;

    pthread_mutex_lock(&ctx->lock);
    for (int64_t p = 0; p < a->n_parts && st == ATTN_OK; p++) {
        const attn_type part = want_o ? a->part_o[p].type : ATTN_F32;

        if (ctx->backend->on_host)
            attn_merge_step(ctx->target.backend, &ctx->target.caps, part, o, &step[part]);
        else if (!kernel[part])
            st = make_kernel(ctx, part, o, &step[part], &kernel[part]);
    }
    pthread_mutex_unlock(&ctx->lock);
    return st;
}

attn_status attn_merge_on(attn_ctx *ctx, const attn_merge_args *from,
                          const attn_stream *stream)
{
    const attn_kernel *kernel[TYPES] = { NULL };
    attn_step step[TYPES] = { { .kernel = NULL } };
    attn_merge_args a;
    attn_status st;

    RULE(ctx, "ctx is NULL");
    if ((st = args_read(&a, from)) != ATTN_OK)
        return st;
    if (!ctx->backend->merge)
        return attn_fail(ATTN_ERR_UNSUPPORTED, "\"%s\" has no merge", ctx->backend->name);
    if ((st = check(ctx, &a, true)) != ATTN_OK ||
        (st = check_workspace(ctx, &a)) != ATTN_OK)
        return st;
    if (!is_there(&a.o) && !is_there(&a.lse))
        return ctx->backend->merge(ctx->device, NULL, NULL, NULL, stream);
    if ((st = make_kernels(ctx, &a, step, kernel)) != ATTN_OK)
        return st;
    return ctx->backend->merge(ctx->device, kernel, step, &a, stream);
}

attn_status attn_merge(attn_ctx *ctx, const attn_merge_args *args, void *stream)
{
    if (ctx && ctx->borrowed && !stream)
        return attn_fail(ATTN_ERR_INVALID,
                         "stream is NULL, want a queue: the context was made "
                         "from the caller's objects and has none of its own");
    return attn_merge_on(ctx, args, &(attn_stream){ .queue = stream });
}

/* The device's tensors in place of the host's: parts' O, parts' LSE, o, lse. */
static attn_status run_mirrored(attn_ctx *ctx, attn_merge_args *a, attn_mirror *all,
                                attn_tensor *parts)
{
    const attn_tensor o = a->o, lse = a->lse;
    attn_status st = ATTN_OK;
    int64_t n = 0;

    for (int64_t p = 0; p < a->n_parts; p++) {
        all[n++] =
            (attn_mirror){ .host = a->part_lse[p], .device = &parts[a->n_parts + p] };
        if (is_there(&o))
            all[n++] = (attn_mirror){ .host = a->part_o[p], .device = &parts[p] };
    }
    if (is_there(&o))
        all[n++] = (attn_mirror){ .host = o, .device = &a->o, .output = true };
    if (is_there(&lse))
        all[n++] = (attn_mirror){ .host = lse, .device = &a->lse, .output = true };
    for (int64_t i = 0; i < n && st == ATTN_OK; i++)
        st = attn_mirror_open(ctx, &all[i], !all[i].output);
    a->part_o = parts;
    a->part_lse = parts + a->n_parts;
    a->workspace = NULL;
    a->workspace_bytes = attn_merge_workspace_bytes(ctx, a);
    if (st == ATTN_OK && a->workspace_bytes)
        st = attn_memory_alloc(ctx, a->workspace_bytes, &a->workspace);
    if (st == ATTN_OK)
        st = attn_merge_on(ctx, a, &(attn_stream){ 0 });
    if (st == ATTN_OK)
        st = attn_ctx_wait(ctx);
    for (int64_t i = 0; i < n; i++)
        st = attn_mirror_close(ctx, &all[i], st);
    attn_memory_free(ctx, &a->workspace);
    return st;
}

attn_status attn_merge_host(attn_ctx *ctx, const attn_merge_args *args)
{
    attn_mirror *all = NULL;
    attn_tensor *parts = NULL;
    attn_merge_args a;
    attn_status st;
    bool nothing;

    RULE(ctx, "ctx is NULL");
    if ((st = args_read(&a, args)) != ATTN_OK || (st = check(ctx, &a, false)) != ATTN_OK)
        return st;
    nothing = attn_tensor_empty(&a.part_lse[0]) || (!is_there(&a.o) && !is_there(&a.lse));
    if (ctx->backend->on_host || nothing)
        return nothing ? ATTN_OK : attn_merge_on(ctx, &a, &(attn_stream){ 0 });
    if (!(all = calloc((size_t)a.n_parts * 2 + 2, sizeof *all)) ||
        !(parts = calloc((size_t)a.n_parts * 2, sizeof *parts)))
        st = attn_fail(ATTN_ERR_NO_MEMORY, "copies of %lld parts", (long long)a.n_parts);
    else
        st = run_mirrored(ctx, &a, all, parts);
    free(parts);
    free(all);
    return st;
}
