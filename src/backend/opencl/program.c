/* SPDX-License-Identifier: MIT */
/* backend/opencl/program.c: a kernel's program, from disk or from source. */
#include <stdlib.h>
#include <string.h>

#include "backend/opencl/cache.h"
#include "backend/opencl/opencl.h"
#include "backend/opencl/source.h"
#include "core/status.h"

enum { MAX_PROGRAM_BYTES = 1 << 26 };

static const attn_cl_source *source_of(const char *name)
{
    for (const attn_cl_source *s = attn_cl_sources; s->kernel; s++)
        if (!strcmp(s->kernel, name))
            return s;
    return NULL;
}

/* All that a compiled program depends on, as text; NULL: don't keep it. */
static char *cache_key(const attn_device *dev, const attn_kernel *k,
                       const attn_cl_source *source, size_t *bytes)
{
    attn_text text = attn_text_in(NULL, 0);
    char *data = NULL;

    for (int pass = 0; dev->cache_dir && pass < 2; pass++) {
        if (pass && !(data = malloc(text.len + 1)))
            return NULL;
        text = attn_text_in(data, data ? text.len + 1 : 0);
        attn_text_add(&text, "attn %s, %zu bits\n", attn_version(), 8 * sizeof(void *));
        attn_cl_identity(dev->cl, dev->id, &text);
        attn_text_add(&text, "%s\n%s\n%s", k->name, k->options, source->text);
    }
    if (text.len >= text.cap) {
        free(data);
        return NULL;
    }
    *bytes = text.len;
    return data;
}

/* Builds k->program and makes its kernel. `call` is what failed. */
static cl_int build(attn_device *dev, attn_kernel *k, const char **call)
{
    const attn_cl *cl = dev->cl;
    char symbol[128];
    attn_text text = attn_text_in(symbol, sizeof symbol);
    cl_uint n = 0;
    cl_int code;

    *call = "clBuildProgram";
    code = cl->clBuildProgram(k->program, 1, &dev->id, k->options, NULL, NULL);
    if (code != CL_SUCCESS)
        return code;
    *call = "clCreateKernel";
    attn_text_add(&text, "attn_%s", k->name);
    k->kernel = cl->clCreateKernel(k->program, symbol, &code);
    if (code != CL_SUCCESS || !k->kernel)
        return code != CL_SUCCESS ? code : CL_INVALID_KERNEL;
    *call = "number of its parameters";
    code = cl->clGetKernelInfo(k->kernel, CL_KERNEL_NUM_ARGS, sizeof n, &n, NULL);
    if (code == CL_SUCCESS && n != attn_cl_n_params(k->name))
        code = CL_INVALID_KERNEL_DEFINITION;
    return code;
}

static attn_status build_failed(attn_device *dev, const attn_kernel *k, cl_int code,
                                const char *call)
{
    const attn_cl *cl = dev->cl;
    attn_status st = attn_cl_fail(code, call);
    size_t bytes = 0;
    char *log = NULL;

    if (st != ATTN_ERR_NO_MEMORY)
        st = ATTN_ERR_BUILD;
    if (cl->clGetProgramBuildInfo(k->program, dev->id, CL_PROGRAM_BUILD_LOG, 0, NULL,
                                  &bytes) ||
        !(log = calloc(1, bytes + 1)) ||
        cl->clGetProgramBuildInfo(k->program, dev->id, CL_PROGRAM_BUILD_LOG, bytes, log,
                                  NULL))
        bytes = 0;
    st = attn_fail(st, "kernel %s on %s: %s = %d (%s); options: %s; log:\n%.6000s", k->name,
                   dev->info.name, call, (int)code, attn_cl_code_name(code), k->options,
                   bytes && log[0] ? log : "(none)");
    free(log);
    return st;
}

static attn_status from_source(attn_device *dev, attn_kernel *k,
                               const attn_cl_source *source)
{
    const char *text = source->text, *call;
    const attn_cl *cl = dev->cl;
    attn_status st;
    cl_int built;

    CL_NEW(k->program,
           cl->clCreateProgramWithSource(dev->context, 1, &text, &source->bytes, &code));
    built = build(dev, k, &call);
    return built == CL_SUCCESS ? ATTN_OK : build_failed(dev, k, built, call);

fail:
    return attn_fail_in(st, "kernel %s on %s", k->name, dev->info.name);
}

void attn_cl_program_drop(attn_device *dev, attn_kernel *k)
{
    if (k->kernel)
        dev->cl->clReleaseKernel(k->kernel);
    if (k->program)
        dev->cl->clReleaseProgram(k->program);
    k->kernel = NULL;
    k->program = NULL;
}

/* true: k is ready. An entry that does not build is of no use any more. */
static bool from_disk(attn_device *dev, attn_kernel *k, const attn_cl_place *at)
{
    size_t bytes = 0;
    unsigned char *data = attn_cl_cache_load(at, &bytes);
    const unsigned char *binary = data;
    cl_int code = CL_SUCCESS, loaded = CL_SUCCESS;
    const char *call;

    if (!data)
        return false;
    k->program = dev->cl->clCreateProgramWithBinary(dev->context, 1, &dev->id, &bytes,
                                                    &binary, &loaded, &code);
    free(data);
    if (k->program && code == CL_SUCCESS && loaded == CL_SUCCESS &&
        build(dev, k, &call) == CL_SUCCESS)
        return true;
    attn_cl_program_drop(dev, k);
    attn_cl_cache_drop(at);
    return false;
}

/* A program of a caller's context may know several devices. All are asked for,
 * in their exact sizes: some drivers write what was not wanted. */
typedef struct binaries {
    cl_uint n;
    cl_device_id *device;
    size_t *bytes;
    unsigned char **at;
    unsigned char *data;
} binaries;

static bool get_binaries(const attn_cl *cl, cl_program program, binaries *b)
{
    size_t all = 0, used = 0;

    if (cl->clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof b->n, &b->n, NULL) ||
        !b->n || !(b->device = calloc(b->n, sizeof *b->device)) ||
        !(b->bytes = calloc(b->n, sizeof *b->bytes)) ||
        !(b->at = calloc(b->n, sizeof *b->at)) ||
        cl->clGetProgramInfo(program, CL_PROGRAM_DEVICES, b->n * sizeof *b->device,
                             b->device, NULL) ||
        cl->clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, b->n * sizeof *b->bytes,
                             b->bytes, NULL))
        return false;
    for (cl_uint i = 0; i < b->n; all += b->bytes[i++])
        if (b->bytes[i] > MAX_PROGRAM_BYTES)
            return false;
    if (!all || !(b->data = malloc(all)))
        return false;
    for (cl_uint i = 0; i < b->n; used += b->bytes[i++])
        b->at[i] = b->bytes[i] ? b->data + used : NULL;
    return !cl->clGetProgramInfo(program, CL_PROGRAM_BINARIES, b->n * sizeof *b->at, b->at,
                                 NULL);
}

/* After clCreateKernel, since some drivers compile no sooner. */
static void to_disk(attn_device *dev, attn_kernel *k, const attn_cl_place *at)
{
    binaries b = { 0 };

    if (get_binaries(dev->cl, k->program, &b))
        for (cl_uint i = 0; i < b.n; i++)
            if (b.device[i] == dev->id && b.bytes[i])
                attn_cl_cache_store(at, b.at[i], b.bytes[i]);
    free(b.data);
    free(b.at);
    free(b.bytes);
    free(b.device);
}

attn_status attn_cl_program(attn_device *dev, attn_kernel *k)
{
    const attn_cl_source *source = source_of(k->name);
    attn_cl_place at = { .dir = dev->cache_dir };
    attn_status st = ATTN_OK;
    char *key;

    if (!source)
        return attn_fail(ATTN_ERR_BUILD, "this library holds no OpenCL source of kernel %s",
                         k->name);
    at.key = key = cache_key(dev, k, source, &at.key_bytes);
    if (!key || !from_disk(dev, k, &at)) {
        st = from_source(dev, k, source);
        if (st == ATTN_OK && key)
            to_disk(dev, k, &at);
    }
    free(key);
    return st;
}
