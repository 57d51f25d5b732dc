/* SPDX-License-Identifier: MIT */
/* api/workspace.c: a call's workspace: its size, its alignment, and that nothing else
 * lies in it. */
#include "api/context.h"
#include "core/status.h"

enum { ALIGNMENT = 64 };

attn_status attn_workspace_check(const attn_ctx *ctx, const void *workspace, size_t bytes,
                                 size_t want)
{
    size_t known = 0;
    attn_status st;

    if (!workspace || bytes < want)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace = %p of %zu bytes, want %zu bytes",
                         workspace, bytes, want);
    if ((st = ctx->backend->buffer_bytes(ctx->device, workspace, &known)) != ATTN_OK)
        return attn_fail_in(st, "workspace");
    if (known && known < want)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace has %zu bytes, want %zu bytes",
                         known, want);
    if (ctx->backend->addresses && (uintptr_t)workspace % ALIGNMENT)
        return attn_fail(ATTN_ERR_WORKSPACE, "workspace = %p, want a multiple of %d bytes",
                         workspace, ALIGNMENT);
    return ATTN_OK;
}

bool attn_workspace_overlaps(const attn_ctx *ctx, const void *workspace, size_t bytes,
                             const attn_tensor *t)
{
    const uintptr_t a = (uintptr_t)workspace, b = (uintptr_t)t->data;
    const int64_t elem = (int64_t)attn_type_bytes(t->type);
    int64_t first, last;

    if (!ctx->backend->addresses)
        return workspace == t->data;
    if (t->type == ATTN_TYPE_NONE || attn_tensor_empty(t) ||
        !attn_tensor_extent(t, &first, &last))
        return false;
    return a < b + (uintptr_t)((last + 1) * elem) &&
           b + (uintptr_t)(first * elem) < a + bytes;
}
