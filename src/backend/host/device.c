/* SPDX-License-Identifier: MIT */
/* backend/host/device.c: this process as a device: what it can do, its memory. */
#include "backend/host/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/size.h"
#include "core/status.h"
#include "host/merge.h"

static attn_status host_count(const attn_env *env, int *n, char *reason, size_t cap)
{
    (void)env;
    if (cap)
        reason[0] = '\0';
    *n = 1;
    return ATTN_OK;
}

/* The text behind "key : " in /proc/cpuinfo, where there is one. */
static void cpuinfo(const char *key, char *out, size_t cap)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[512];

    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) || !colon)
            continue;
        colon += colon[1] == ' ' ? 2 : 1;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, cap, "%s", colon);
        break;
    }
    if (file)
        fclose(file);
}

static int64_t cache_bytes(void)
{
#ifdef _SC_LEVEL2_CACHE_SIZE
    const long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (bytes > 0)
        return bytes;
#endif
    return 256 * 1024; /* not told: what nearly every core has */
}

static attn_status host_describe(const attn_env *env, int index, attn_device_info *info)
{
    const attn_host_level *level = attn_host_level_find(NULL);
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    char mhz[32] = "";

    (void)env;
    (void)index;
    snprintf(info->selector, sizeof info->selector, "host");
    snprintf(info->name, sizeof info->name, "processor");
    snprintf(info->platform, sizeof info->platform, "attn host kernels %s", attn_version());
    cpuinfo("model name", info->name, sizeof info->name);
    cpuinfo("vendor_id", info->vendor, sizeof info->vendor);
    cpuinfo("cpu MHz", mhz, sizeof mhz);
    info->kind = ATTN_DEVICE_HOST;
#ifdef _OPENMP
    info->compute_units = omp_get_max_threads();
    snprintf(info->driver, sizeof info->driver, "OpenMP %d", _OPENMP);
#else
    info->compute_units = 1;
    snprintf(info->driver, sizeof info->driver, "no OpenMP: one thread");
#endif
    info->fast_bytes = cache_bytes();
    info->max_group = 1;
    info->subgroup = level->panel;
    info->vector_width = level->lanes;
    info->memory_bytes = pages > 0 && page > 0 ? (int64_t)pages * page : 0;
    info->max_alloc_bytes = info->memory_bytes;
    info->clock_mhz = (int64_t)strtod(mhz, NULL);
    snprintf(info->isa, sizeof info->isa, "%s", level->name);
    return ATTN_OK;
}

static attn_status host_open(const attn_env *env, int index, attn_device **out)
{
    (void)env;
    (void)index;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return attn_fail(ATTN_ERR_NO_MEMORY, "device: %zu bytes", sizeof **out);
    attn_host_kernels(*out, attn_host_level_find(NULL));
    return ATTN_OK;
}

static void host_close(attn_device **dev)
{
    if (!dev)
        return;
    free(*dev);
    *dev = NULL;
}

static attn_status host_merge(attn_device *dev, const attn_kernel *const kernel[],
                              const attn_step step[], const attn_merge_args *args,
                              const attn_stream *stream)
{
    (void)dev;
    (void)kernel;
    if (stream->queue)
        return attn_fail(ATTN_ERR_INVALID, "stream = %p, want NULL: \"host\" has no queues",
                         stream->queue);
    if (args) {
        const attn_type part =
            args->o.type != ATTN_TYPE_NONE ? args->part_o[0].type : ATTN_F32;
        attn_host_merge(args, (int)step[part].threads);
    }
    return ATTN_OK;
}

static attn_status host_wait(attn_device *dev)
{
    (void)dev; /* every launch has ended when it returns */
    return ATTN_OK;
}

static attn_status host_alloc(attn_device *dev, size_t bytes, void **out)
{
    (void)dev;
    if (bytes > PTRDIFF_MAX || posix_memalign(out, 64, bytes ? bytes : 1)) {
        *out = NULL;
        return attn_fail(ATTN_ERR_NO_MEMORY, "host memory: %zu bytes", bytes);
    }
    return ATTN_OK;
}

static void host_free(attn_device *dev, void *memory)
{
    (void)dev;
    free(memory);
}

static attn_status host_upload(attn_device *dev, void *memory, size_t offset,
                               const void *from, size_t bytes)
{
    (void)dev;
    memcpy((char *)memory + offset, from, bytes);
    return ATTN_OK;
}

static attn_status host_download(attn_device *dev, void *to, const void *memory,
                                 size_t offset, size_t bytes)
{
    (void)dev;
    memcpy(to, (const char *)memory + offset, bytes);
    return ATTN_OK;
}

static attn_status host_buffer_bytes(attn_device *dev, const void *memory, size_t *bytes)
{
    (void)dev;
    (void)memory;
    *bytes = 0; /* a pointer does not know how far it may go */
    return ATTN_OK;
}

const attn_backend attn_backend_host = {
    .name = "host",
    .count = host_count,
    .describe = host_describe,
    .open = host_open,
    .close = host_close,
    .kernel = attn_host_kernel,
    .launch = attn_host_launch,
    .merge = host_merge,
    .wait = host_wait,
    .alloc = host_alloc,
    .free = host_free,
    .upload = host_upload,
    .download = host_download,
    .buffer_bytes = host_buffer_bytes,
    .on_host = true,
    .addresses = true,
};
