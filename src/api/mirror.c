/* SPDX-License-Identifier: MIT */
/* api/mirror.c: arrays in host memory and their copies on the device, for the one-call
 * forms. */
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "core/size.h"
#include "core/status.h"

static bool contiguous(const attn_tensor *t)
{
    int64_t want = 1;

    for (int i = 3; i >= 0; i--) {
        if (t->size[i] > 1 && t->stride[i] != want)
            return false;
        want *= t->size[i];
    }
    return true;
}

/* false if they are more than an address reaches. */
static bool bytes_of(const attn_tensor *t, size_t *bytes)
{
    int64_t n = (int64_t)attn_type_bytes(t->type);

    for (int i = 0; i < 4; i++)
        if (!attn_mul(n, t->size[i], &n))
            return false;
    *bytes = (size_t)n;
    return true;
}

/* Copies a view to or from contiguous memory, a row at a time. */
static void copy_rows(const attn_tensor *t, char *packed, bool pack)
{
    const size_t elem = attn_type_bytes(t->type);
    const size_t row = (size_t)t->size[3] * elem;
    char *base = (char *)t->data + t->offset * (int64_t)elem;

    for (int64_t b = 0; b < t->size[0]; b++)
        for (int64_t h = 0; h < t->size[1]; h++)
            for (int64_t l = 0; l < t->size[2]; l++, packed += row) {
                char *at = base + (b * t->stride[0] + h * t->stride[1] + l * t->stride[2]) *
                                      (int64_t)elem;
                if (t->stride[3] == 1 || t->size[3] == 1) {
                    memcpy(pack ? packed : at, pack ? at : packed, row);
                    continue;
                }
                for (int64_t d = 0; d < t->size[3]; d++) {
                    char *e = at + d * t->stride[3] * (int64_t)elem;
                    char *p = packed + (size_t)d * elem;
                    memcpy(pack ? p : e, pack ? e : p, elem);
                }
            }
}

static char *first_byte(const attn_tensor *t)
{
    return (char *)t->data + t->offset * (int64_t)attn_type_bytes(t->type);
}

static attn_status upload(attn_ctx *ctx, const attn_mirror *m)
{
    char *packed = NULL;
    attn_status st;

    if (contiguous(&m->host))
        return attn_memory_upload(ctx, m->device->data, 0, first_byte(&m->host), m->bytes);
    if (!(packed = malloc(m->bytes)))
        return attn_fail(ATTN_ERR_NO_MEMORY, "packing an input: %zu bytes", m->bytes);
    copy_rows(&m->host, packed, true);
    st = attn_memory_upload(ctx, m->device->data, 0, packed, m->bytes);
    free(packed);
    return st;
}

static attn_status download(attn_ctx *ctx, const attn_mirror *m)
{
    char *packed = NULL;
    attn_status st;

    if (contiguous(&m->host))
        return attn_memory_download(ctx, first_byte(&m->host), m->device->data, 0,
                                    m->bytes);
    if (!(packed = malloc(m->bytes)))
        return attn_fail(ATTN_ERR_NO_MEMORY, "unpacking an output: %zu bytes", m->bytes);
    st = attn_memory_download(ctx, packed, m->device->data, 0, m->bytes);
    if (st == ATTN_OK)
        copy_rows(&m->host, packed, false);
    free(packed);
    return st;
}

/* The widest class that a view keeps, at an address. */
static attn_layout layout_of(const attn_tensor *t, uintptr_t address)
{
    static const attn_layout classes[] = { ATTN_LAYOUT_16, ATTN_LAYOUT_8, ATTN_LAYOUT_4,
                                           ATTN_LAYOUT_2 };
    const int64_t elem = (int64_t)attn_type_bytes(t->type);

    if (attn_tensor_empty(t))
        return ATTN_LAYOUT_16;
    for (size_t c = 0; c < sizeof classes / sizeof classes[0]; c++) {
        const int64_t bytes = attn_layout_bytes(classes[c], t->type);
        bool keeps = (t->size[3] == 1 || t->stride[3] == 1) &&
                     (address + (uintptr_t)(t->offset * elem)) % (uintptr_t)bytes == 0;
        for (int i = 0; i < 3; i++)
            keeps = keeps && (t->size[i] == 1 || t->stride[i] * elem % bytes == 0);
        if (keeps)
            return classes[c];
    }
    return ATTN_LAYOUT_ANY;
}

/* Plans and runs once; `args` are tensors of the device. */
static attn_status run(attn_ctx *ctx, const attn_problem *problem,
                       const attn_options *options, attn_args *args)
{
    attn_plan *plan = NULL;
    attn_status st = attn_plan_problem(ctx, problem, options, &plan);

    args->workspace = NULL;
    if (st != ATTN_OK)
        return st;
    args->workspace_bytes = attn_plan_workspace_bytes(plan);
    if (args->workspace_bytes)
        st = attn_memory_alloc(ctx, args->workspace_bytes, &args->workspace);
    if (st == ATTN_OK)
        st = attn_execute_on(plan, args, &(attn_stream){ 0 });
    if (st == ATTN_OK)
        st = attn_ctx_wait(ctx);
    attn_memory_free(ctx, &args->workspace);
    attn_plan_destroy(&plan);
    return st;
}

/* What a mirror stores, and the device's view of it: a broadcast dimension stays
 * one. */
static attn_status mirror_make(attn_mirror *m)
{
    const attn_tensor host = m->host;
    attn_tensor *d = m->device;

    for (int i = 0; i < 4; i++)
        if (host.stride[i] == 0 && host.size[i] > 1)
            m->host.size[i] = 1;
    *d = attn_tensor_bhld(NULL, host.type, m->host.size[0], m->host.size[1],
                          m->host.size[2], m->host.size[3]);
    for (int i = 0; i < 4; i++) {
        d->stride[i] = m->host.size[i] == host.size[i] ? d->stride[i] : 0;
        d->size[i] = host.size[i];
    }
    if (m->layout)
        *m->layout = layout_of(d, 0);
    if (!bytes_of(&m->host, &m->bytes))
        return attn_fail(ATTN_ERR_NO_MEMORY, "a copy of %lld x %lld x %lld x %lld elements",
                         (long long)host.size[0], (long long)host.size[1],
                         (long long)host.size[2], (long long)host.size[3]);
    return ATTN_OK;
}

attn_status attn_mirror_open(attn_ctx *ctx, attn_mirror *m, bool fill)
{
    attn_status st = mirror_make(m);

    if (st == ATTN_OK && !attn_tensor_empty(&m->host))
        st = attn_memory_alloc(ctx, m->bytes, &m->device->data);
    if (st == ATTN_OK && fill && !attn_tensor_empty(&m->host))
        st = upload(ctx, m);
    return st;
}

attn_status attn_mirror_close(attn_ctx *ctx, attn_mirror *m, attn_status st)
{
    if (st == ATTN_OK && m->output && m->device->data)
        st = download(ctx, m);
    attn_memory_free(ctx, &m->device->data);
    return st;
}

/* Nothing is written: then nothing is copied either, but the answer to an
 * unsupported problem stays the same. */
static attn_status plan_only(attn_ctx *ctx, const attn_problem *p,
                             const attn_options *options)
{
    attn_plan *plan = NULL;
    const attn_status st = attn_plan_problem(ctx, p, options, &plan);

    attn_plan_destroy(&plan);
    return st;
}

/* Whether no output has an element. */
static bool writes_nothing(const attn_problem *p, attn_args *args)
{
    for (int k = 0; k < ATTN_ARGS; k++)
        if (attn_arg_is_output(p, k) && !attn_tensor_empty(attn_arg_tensor(args, k)) &&
            attn_arg_list[k].at != offsetof(attn_args, status))
            return false;
    return true;
}

static attn_status run_mirrored(attn_ctx *ctx, attn_problem *p, const attn_options *options,
                                attn_args *host)
{
    attn_args device = { .size = sizeof device,
                         .dropout_seed = host->dropout_seed,
                         .dropout_offset = host->dropout_offset };
    /* then rows that belong to no query come back as they were */
    const bool partial = p->features & (ATTN_FEAT_LENS_Q | ATTN_FEAT_PACKED_Q) ||
                         (p->pass == ATTN_PASS_BWD &&
                          p->features & (ATTN_FEAT_LENS_KV | ATTN_FEAT_PACKED_K)) ||
                         host->status.type != ATTN_TYPE_NONE;
    attn_mirror all[ATTN_ARGS] = { 0 };
    attn_status st = ATTN_OK;
    int n = 0;

    if (p->pass == ATTN_PASS_FWD && writes_nothing(p, host))
        return plan_only(ctx, p, options);
    for (int k = 0; k < ATTN_ARGS && st == ATTN_OK; k++) {
        const attn_arg *arg = &attn_arg_list[k];
        attn_mirror *m = &all[n];

        *m = (attn_mirror){ .host = *attn_arg_tensor(host, k),
                            .device = attn_arg_tensor(&device, k),
                            .layout = arg->layout >= 0 ? &p->layout[arg->layout] : NULL,
                            .output = attn_arg_is_output(p, k) };
        if (m->host.type == ATTN_TYPE_NONE)
            continue;
        n++;
        st = attn_mirror_open(ctx, m, !m->output || partial);
    }
    if (st == ATTN_OK)
        st = run(ctx, p, options, &device);
    for (int i = 0; i < n; i++)
        st = attn_mirror_close(ctx, &all[i], st);
    return st;
}

static attn_status run_in_place(attn_ctx *ctx, attn_problem *p, const attn_options *options,
                                attn_args *args)
{
    for (int k = 0; k < ATTN_ARGS; k++) {
        const attn_tensor *t = attn_arg_tensor(args, k);

        if (attn_arg_list[k].layout >= 0)
            p->layout[attn_arg_list[k].layout] = t->type == ATTN_TYPE_NONE
                                                     ? ATTN_LAYOUT_16
                                                     : layout_of(t, (uintptr_t)t->data);
    }
    return run(ctx, p, options, args);
}

attn_status attn_run_host(attn_ctx *ctx, attn_problem *p, const attn_options *options,
                          attn_args *args)
{
    attn_extent extent;
    attn_status st;

    if ((st = attn_args_check(ctx, p, args, false, &extent)) != ATTN_OK ||
        (st = attn_args_check_indices(p, args, &extent)) != ATTN_OK)
        return st;
    return ctx->backend->on_host ? run_in_place(ctx, p, options, args)
                                 : run_mirrored(ctx, p, options, args);
}

uint32_t attn_args_grads(const attn_args *args)
{
    attn_args a = *args;
    uint32_t grad = 0;

    for (int k = 0; k < ATTN_ARGS; k++)
        if (attn_arg_tensor(&a, k)->type != ATTN_TYPE_NONE)
            grad |= attn_arg_list[k].grad & ~ATTN_ARG_GIVEN;
    return grad;
}
