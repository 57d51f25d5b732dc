/* SPDX-License-Identifier: MIT */
/* api/workspace.c: a call's workspace: its size, its alignment, and that nothing else
 * lies in it. */
#include "api/context.h"
#include "core/status.h"

enum { ALIGNMENT = 64 };

attn_status attn_place_of(const attn_ctx *ctx, const void *data, bool buffers,
                          attn_place *out)
{
    *out = (attn_place){ .at = (uintptr_t)data };
    if (!buffers || ctx->backend->addresses)
        return ATTN_OK;
    return ctx->backend->buffer_place(ctx->device, data, &out->block, &out->at);
}

attn_status attn_workspace_check(const attn_ctx *ctx, const void *workspace, size_t bytes,
                                 size_t want)
{
    size_t known = 0;
    attn_place place;
    attn_status st;

    if (!workspace || bytes < want)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace = %p of %zu bytes, want %zu bytes",
                         workspace, bytes, want);
    if ((st = ctx->backend->buffer_bytes(ctx->device, workspace, &known)) != ATTN_OK)
        return attn_fail_in(st, "workspace");
    if (known && known < want)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace has %zu bytes, want %zu bytes",
                         known, want);
    if ((st = attn_place_of(ctx, workspace, true, &place)) != ATTN_OK)
        return attn_fail_in(st, "workspace");
    if (place.at % ALIGNMENT)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace = %p, want a multiple of %d bytes",
                         (void *)place.at, ALIGNMENT);
    return ATTN_OK;
}

bool attn_workspace_overlaps(const attn_ctx *ctx, const void *workspace, size_t bytes,
                             const attn_tensor *t)
{
    const int64_t elem = (int64_t)attn_type_bytes(t->type);
    int64_t first, last;
    attn_place a, b;

    if (!ctx->backend->addresses && workspace == t->data)
        return true;
    if (t->type == ATTN_TYPE_NONE || attn_tensor_empty(t) ||
        !attn_tensor_extent(t, &first, &last) ||
        attn_place_of(ctx, workspace, true, &a) != ATTN_OK ||
        attn_place_of(ctx, t->data, true, &b) != ATTN_OK || a.block != b.block)
        return false;
    return a.at < b.at + (uintptr_t)((last + 1) * elem) &&
           b.at + (uintptr_t)(first * elem) < a.at + bytes;
}
