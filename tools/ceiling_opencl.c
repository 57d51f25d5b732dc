/* SPDX-License-Identifier: MIT */
/* tools/ceiling_opencl.c: copies by the OpenCL driver, products by CLBlast where it is
 * there. */
#include "ceiling.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "library.h"
#include "timing.h"

#ifdef ATTN_TOOLS_OPENCL

#include "opencl_functions.h"

enum { ROW_MAJOR = 101, AS_IT_IS = 111 }; /* clblast_c.h's numbers */
enum { SIZE = 4096 };

/* CLBlastSgemm() */
typedef int product(int layout, int trans_a, int trans_b, size_t m, size_t n, size_t k,
                    float alpha, cl_mem a, size_t offset_a, size_t lda, cl_mem b,
                    size_t offset_b, size_t ldb, float beta, cl_mem c, size_t offset_c,
                    size_t ldc, cl_command_queue *queue, cl_event *event);

/* One thing to run again and again. */
typedef struct job {
    opencl_functions cl;
    cl_command_queue queue;
    product *sgemm;
    int64_t n; /* of a copy, f32 numbers */
    void *block[3];
} job;

/* A queue of the cl_context and device that the blocks are of. */
static bool open_queue(job *j)
{
    cl_context context = NULL;
    cl_device_id device = NULL;
    cl_int code;

    if (j->cl.clGetMemObjectInfo(j->block[0], CL_MEM_CONTEXT, sizeof(cl_context), &context,
                                 NULL) ||
        j->cl.clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof(cl_device_id), &device,
                               NULL))
        return false;
    j->queue =
        j->cl.clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &code);
    return code == CL_SUCCESS;
}

static bool wait_profiled(const opencl_functions *cl, cl_event first, cl_event last,
                          double *ms)
{
    cl_ulong start = 0, end = 0;

    if (cl->clWaitForEvents(1, &last) ||
        cl->clGetEventProfilingInfo(first, CL_PROFILING_COMMAND_START, sizeof start, &start,
                                    NULL) ||
        cl->clGetEventProfilingInfo(last, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL))
        return false;
    *ms = (double)(end - start) * 1e-6;
    return true;
}

static bool run_copies(void *with, int n, double *ms)
{
    const job *j = with;
    const opencl_functions *cl = &j->cl;
    cl_event first = NULL, last = NULL;
    bool good = true;

    for (int i = 0; i < n && good; i++)
        good = !cl->clEnqueueCopyBuffer(j->queue, j->block[0], j->block[1], 0, 0,
                                        (size_t)j->n * sizeof(float), 0, NULL,
                                        i == 0       ? &first
                                        : i == n - 1 ? &last
                                                     : NULL);
    good = good && wait_profiled(cl, first, last ? last : first, ms);
    if (first)
        cl->clReleaseEvent(first);
    if (last)
        cl->clReleaseEvent(last);
    return good;
}

/* By the host's clock: CLBlast gives the event of its last kernel only. */
static bool run_products(void *with, int n, double *ms)
{
    job *j = with;
    const double start = timing_now();
    bool good = true;

    for (int i = 0; i < n && good; i++)
        good =
            !j->sgemm(ROW_MAJOR, AS_IT_IS, AS_IT_IS, SIZE, SIZE, SIZE, 1, j->block[0], 0,
                      SIZE, j->block[1], 0, SIZE, 0, j->block[2], 0, SIZE, &j->queue, NULL);
    good = !j->cl.clFinish(j->queue) && good;
    *ms = (timing_now() - start) * 1e3;
    return good;
}

/* Blocks of n numbers each, as many as there may be; 0: all were made. */
static const char *open_job(job *j, attn_ctx *ctx, int blocks, int64_t n)
{
    j->n = n;
    if (!opencl_functions_open(&j->cl))
        return "the OpenCL loader was not found";
    for (int i = 0; i < blocks; i++)
        if (!(j->block[i] = ceiling_numbers(ctx, ATTN_F32, n)))
            return "no memory for it";
    return open_queue(j) ? NULL : "no queue on the device";
}

static void close_job(job *j, attn_ctx *ctx)
{
    if (j->queue)
        j->cl.clReleaseCommandQueue(j->queue);
    for (int i = 0; i < 3; i++)
        attn_memory_free(ctx, &j->block[i]);
}

static void measure_copy(ceiling *c, const ceiling_how *how)
{
    job j = { .queue = NULL };
    const char *wrong = open_job(&j, how->ctx, 2, ceiling_copy_size(how->info));

    if (!wrong) {
        c->copy_gb_s =
            2 * sizeof(float) * (double)j.n / ceiling_ms(run_copies, &j, how->blocks) / 1e6;
        wrong = isnan(c->copy_gb_s) ? "clEnqueueCopyBuffer failed" : "";
    }
    snprintf(c->copy_absent, sizeof c->copy_absent, "%s", wrong);
    close_job(&j, how->ctx);
}

static void measure_product(ceiling *c, const ceiling_how *how, product *sgemm)
{
    job j = { .sgemm = sgemm };
    const char *wrong = open_job(&j, how->ctx, 3, (int64_t)SIZE * SIZE);

    if (!wrong) {
        c->product_gflop_s[ATTN_F32] =
            ceiling_product_flop(SIZE) / ceiling_ms(run_products, &j, how->blocks) / 1e6;
        wrong = isnan(c->product_gflop_s[ATTN_F32]) ? "CLBlastSgemm failed" : "";
    }
    snprintf(c->product_absent, sizeof c->product_absent, "%s", wrong);
    close_job(&j, how->ctx);
}

void ceiling_opencl(ceiling *c, const ceiling_how *how)
{
    static const char *const usual[] = { "libclblast.so.1", NULL };
    /* never closed: OpenCL drivers that it has opened do not survive that */
    void *library = library_open("ATTN_CLBLAST_LIB", usual, c->product_absent,
                                 sizeof c->product_absent);
    product *sgemm = NULL;
    void *found = library ? dlsym(library, "CLBlastSgemm") : NULL;

    measure_copy(c, how);
    if (found) {
        memcpy(&sgemm, &found, sizeof sgemm);
        c->size = SIZE;
        snprintf(c->product_name, sizeof c->product_name, "CLBlast");
        measure_product(c, how, sgemm);
    } else if (library) {
        snprintf(c->product_absent, sizeof c->product_absent,
                 "libclblast has no CLBlastSgemm");
    }
}

#else

void ceiling_opencl(ceiling *c, const ceiling_how *how)
{
    (void)how;
    snprintf(c->copy_absent, sizeof c->copy_absent,
             "attn-bench was built without the OpenCL headers");
    snprintf(c->product_absent, sizeof c->product_absent, "%s", c->copy_absent);
}

#endif
