/* SPDX-License-Identifier: MIT */
/* api/context.c: devices, contexts and memory on the device. */
#include "api/context.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/list.h"
#include "core/status.h"

static const attn_backend *const backends[] = {
#define X(name) &attn_backend_##name,
    ATTN_BACKEND_LIST(X)
#undef X
};

enum { N_BACKENDS = sizeof backends / sizeof backends[0] };

const attn_backend *attn_backend_find(const char *name)
{
    for (int i = 0; i < N_BACKENDS; i++)
        if (!strcmp(backends[i]->name, name))
            return backends[i];
    return NULL;
}

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

void attn_env_read(attn_env_storage *s)
{
    const char *cache = variable("ATTN_CACHE"), *dir = variable("ATTN_CACHE_DIR");
    const char *xdg = variable("XDG_CACHE_HOME"), *home = variable("HOME");
    int n = 0;

    *s = (attn_env_storage){ .env = { .device = variable("ATTN_DEVICE"),
                                      .opencl_lib = variable("ATTN_OPENCL_LIB"),
                                      .clblast_lib = variable("ATTN_CLBLAST_LIB"),
                                      .cublas_lib = variable("ATTN_CUBLAS_LIB"),
                                      .cudnn_lib = variable("ATTN_CUDNN_LIB"),
                                      .cuda_lib = variable("ATTN_CUDA_LIB") } };
    if (cache && !strcmp(cache, "0"))
        return;
    if (dir)
        n = snprintf(s->cache_dir, sizeof s->cache_dir, "%s", dir);
    else if (xdg && *xdg == '/')
        n = snprintf(s->cache_dir, sizeof s->cache_dir, "%s/attn", xdg);
    else if (home)
        n = snprintf(s->cache_dir, sizeof s->cache_dir, "%s/.cache/attn", home);
    if (n > 0 && (size_t)n < sizeof s->cache_dir)
        s->env.cache_dir = s->cache_dir;
}

/* How many devices a back end has; 0, with the reason, if it can't be asked. */
static int count_of(const attn_backend *b, const attn_env *env, char *reason, size_t cap)
{
    attn_error_text before;
    int n = 0;

    reason[0] = '\0';
    attn_error_save(&before);
    if (b->count(env, &n, reason, cap) != ATTN_OK) {
        snprintf(reason, cap, "%.255s", attn_last_error());
        n = 0;
    }
    attn_error_restore(&before);
    return n;
}

attn_status attn_backend_list(attn_backend_info *out, size_t cap, size_t *n)
{
    attn_env_storage s;

    if (!n || (cap && !out))
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", n ? "out" : "n");
    attn_env_read(&s);
    for (size_t i = 0; i < N_BACKENDS && i < cap; i++) {
        out[i] = (attn_backend_info){ .name = backends[i]->name };
        out[i].devices = count_of(backends[i], &s.env, out[i].reason, sizeof out[i].reason);
    }
    *n = N_BACKENDS;
    return ATTN_OK;
}

static attn_status describe(const attn_backend *b, const attn_env *env, int index,
                            attn_device_info *info)
{
    memset(info, 0, sizeof *info);
    return b->describe(env, index, info);
}

attn_status attn_device_list(attn_device_info *out, size_t cap, size_t *n)
{
    attn_env_storage s;
    char reason[256];
    size_t found = 0;

    if (!n || (cap && !out))
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", n ? "out" : "n");
    attn_env_read(&s);
    for (int i = 0; i < N_BACKENDS; i++) {
        const int devices = count_of(backends[i], &s.env, reason, sizeof reason);
        for (int k = 0; k < devices; k++, found++) {
            attn_status st =
                found < cap ? describe(backends[i], &s.env, k, &out[found]) : ATTN_OK;
            if (st != ATTN_OK)
                return st;
        }
    }
    *n = found;
    return ATTN_OK;
}

/* "auto": lower is better; -1: not taken. */
static int rank(const attn_backend *b, const attn_device_info *info)
{
    if (!strcmp(b->name, "cuda"))
        return 0;
    if (!strcmp(b->name, "host"))
        return 2;
    return info->kind == ATTN_DEVICE_GPU ? 1 : info->kind == ATTN_DEVICE_CPU ? 3 : -1;
}

static attn_status find_auto(const attn_env *env, const attn_backend **out, int *index)
{
    attn_device_info info;
    attn_error_text before;
    char reason[256];
    int best = -1;

    attn_error_save(&before);
    for (int i = 0; i < N_BACKENDS; i++) {
        const int n = count_of(backends[i], env, reason, sizeof reason);
        for (int k = 0; k < n; k++) {
            int r;
            if (describe(backends[i], env, k, &info) != ATTN_OK)
                continue;
            r = rank(backends[i], &info);
            if (r >= 0 && (best < 0 || r < best)) {
                best = r;
                *out = backends[i];
                *index = k;
            }
        }
    }
    attn_error_restore(&before);
    if (best < 0)
        return attn_fail(ATTN_ERR_NO_DEVICE, "selector = \"auto\": no device at all");
    return ATTN_OK;
}

static attn_status find_device(const attn_env *env, const char *selector,
                               const attn_backend **out, int *index)
{
    const char *colon = strchr(selector, ':');
    char name[16] = "", reason[256], *end = NULL;
    long n = 0;
    int have;

    if (!strcmp(selector, "auto"))
        return find_auto(env, out, index);
    snprintf(name, sizeof name, "%.*s", colon ? (int)(colon - selector) : (int)sizeof name,
             selector);
    *out = attn_backend_find(name);
    errno = 0;
    if (colon)
        n = colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : -1;
    if (!*out || n < 0 || errno || (end && *end) || (!colon && strcmp(name, "host")))
        return attn_fail(ATTN_ERR_INVALID,
                         "selector = \"%s\", want auto, host, opencl:N or "
                         "cuda:N",
                         selector);
    have = count_of(*out, env, reason, sizeof reason);
    if (n >= have)
        return attn_fail(ATTN_ERR_NO_DEVICE, "selector = \"%s\": %s has %d device%s%s%s",
                         selector, name, have, have == 1 ? "" : "s", reason[0] ? ": " : "",
                         reason);
    *index = (int)n;
    return ATTN_OK;
}

attn_caps attn_caps_from_info(const attn_device_info *info)
{
    return (attn_caps){
        .kind = info->kind,
        .compute_units = info->compute_units,
        .fast_bytes = info->fast_bytes,
        .max_group = info->max_group,
        .subgroup = info->subgroup,
        .vector_width = info->vector_width,
        .memory_bytes = info->memory_bytes,
        .max_alloc_bytes = info->max_alloc_bytes,
        .clock_mhz = info->clock_mhz,
        .max_loops = info->max_loops,
        .capability = info->capability,
        .generic_code = info->generic_code,
        .blas = info->blas[0] != '\0',
        .cudnn_version = info->cudnn_version,
    };
}

attn_status attn_ctx_wrap(const attn_backend *backend, attn_device *device,
                          const attn_device_info *info, bool borrowed, attn_ctx **out)
{
    attn_ctx *ctx = calloc(1, sizeof *ctx);

    if (!ctx) {
        backend->close(&device);
        return attn_fail(ATTN_ERR_NO_MEMORY, "context: %zu bytes", sizeof *ctx);
    }
    ctx->backend = backend;
    ctx->device = device;
    ctx->info = *info;
    ctx->borrowed = borrowed;
    ctx->target.backend = backend->name;
    ctx->target.caps = attn_caps_from_info(info);
    ctx->target.variants = attn_variants_for(backend->name, &ctx->target.caps);
    pthread_mutex_init(&ctx->lock, NULL);
    *out = ctx;
    return ATTN_OK;
}

attn_status attn_ctx_create(const char *selector, attn_ctx **out)
{
    const attn_backend *backend = NULL;
    attn_device_info info;
    attn_device *device = NULL;
    attn_env_storage s;
    attn_status st;
    int index = 0;

    if (!out)
        return attn_fail(ATTN_ERR_INVALID, "out is NULL");
    *out = NULL;
    attn_env_read(&s);
    if (!selector)
        selector = s.env.device ? s.env.device : "auto";
    if ((st = find_device(&s.env, selector, &backend, &index)) != ATTN_OK ||
        (st = describe(backend, &s.env, index, &info)) != ATTN_OK ||
        (st = backend->open(&s.env, index, &device)) != ATTN_OK)
        return st;
    return attn_ctx_wrap(backend, device, &info, false, out);
}

void attn_ctx_destroy(attn_ctx **ctx)
{
    if (!ctx || !*ctx)
        return;
    (*ctx)->backend->close(&(*ctx)->device);
    pthread_mutex_destroy(&(*ctx)->lock);
    free((*ctx)->proven);
    free(*ctx);
    *ctx = NULL;
}

attn_status attn_ctx_wait(attn_ctx *ctx)
{
    return ctx ? ctx->backend->wait(ctx->device)
               : attn_fail(ATTN_ERR_INVALID, "ctx is NULL");
}

attn_status attn_ctx_info(const attn_ctx *ctx, attn_device_info *out)
{
    if (!ctx || !out)
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", ctx ? "out" : "ctx");
    *out = ctx->info;
    return ATTN_OK;
}

attn_status attn_ctx_set_threads(attn_ctx *ctx, int32_t n)
{
    if (!ctx)
        return attn_fail(ATTN_ERR_INVALID, "ctx is NULL");
    if (n < 0 || n > 4096)
        return attn_fail(ATTN_ERR_INVALID, "n = %d, want 0 .. 4096", (int)n);
    if (ctx->info.kind != ATTN_DEVICE_HOST)
        return ATTN_OK;
    pthread_mutex_lock(&ctx->lock);
    ctx->target.caps.compute_units = n ? n : ctx->info.compute_units;
    pthread_mutex_unlock(&ctx->lock);
    return ATTN_OK;
}

attn_status attn_memory_alloc(attn_ctx *ctx, size_t bytes, void **out)
{
    if (!ctx || !out)
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", ctx ? "out" : "ctx");
    *out = NULL;
    return ctx->backend->alloc(ctx->device, bytes, out);
}

void attn_memory_free(attn_ctx *ctx, void **memory)
{
    if (!ctx || !memory || !*memory)
        return;
    ctx->backend->free(ctx->device, *memory);
    *memory = NULL;
}

attn_status attn_memory_upload(attn_ctx *ctx, void *memory, size_t offset, const void *from,
                               size_t bytes)
{
    if (!ctx || !memory || (bytes && !from))
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL",
                         !ctx      ? "ctx"
                         : !memory ? "memory"
                                   : "from");
    return bytes ? ctx->backend->upload(ctx->device, memory, offset, from, bytes) : ATTN_OK;
}

attn_status attn_memory_download(attn_ctx *ctx, void *to, const void *memory, size_t offset,
                                 size_t bytes)
{
    if (!ctx || !memory || (bytes && !to))
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL",
                         !ctx      ? "ctx"
                         : !memory ? "memory"
                                   : "to");
    return bytes ? ctx->backend->download(ctx->device, to, memory, offset, bytes) : ATTN_OK;
}
