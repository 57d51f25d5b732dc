/* SPDX-License-Identifier: MIT */
/* backend/opencl/clblast.c: the matrix products that CLBlast computes, and the library
 * itself. */
#include "backend/opencl/clblast.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "common/work.h"
#include "core/library.h"
#include "core/size.h"
#include "core/status.h"

enum { ROW_MAJOR = 101, AS_IT_IS = 111, TRANSPOSED = 112 }; /* clblast_c.h's numbers */
enum { SPAN = 256 }; /* rows of A and B that one call sums up */

static const attn_library_function functions[] = {
    { "CLBlastSgemmStridedBatched", offsetof(attn_clblast, sgemm) },
    { "CLBlastClearCache", offsetof(attn_clblast, clear_cache) },
};
enum { N_FUNCTIONS = sizeof functions / sizeof functions[0] };

typedef struct library {
    attn_clblast blas;
    char shown[64];
} library;

/* Before 1.6.1 its cache of programs is not safe for threads. */
static pthread_mutex_t calls = PTHREAD_MUTEX_INITIALIZER;

static bool open_library(const char *name, void *table, attn_text *reason)
{
    library *const l = table;
    char path[ATTN_PATH_BYTES];
    void *const handle = attn_library_open(name, "libclblast.so.1", path, reason);
    const char *slash;

    if (!handle || attn_library_functions(handle, functions, N_FUNCTIONS, &l->blas))
        return false;
    slash = strrchr(path, '/');
    snprintf(l->shown, sizeof l->shown, "CLBlast, %.48s", slash ? slash + 1 : path);
    return true;
}

const attn_clblast *attn_clblast_load(const char *name, char *shown, size_t cap)
{
    static attn_libraries opened = ATTN_LIBRARIES(library, open_library);
    attn_text nowhere = attn_text_in(NULL, 0);
    const library *const l = attn_library_load(&opened, name, &nowhere);

    snprintf(shown, cap, "%s", l ? l->shown : "");
    return l ? &l->blas : NULL;
}

/* The matrices of a round as common/work.h lays them out, with MR = NR = 1. */
typedef struct matrices {
    int64_t pairs, keys, cols, d, dv;
} matrices;

static matrices matrices_of(const attn_cl_job *job)
{
    const attn_call *call = job->call;
    const int64_t group = call->heads_q / call->heads_kv;

    return (matrices){ .pairs = job->heads / group,
                       .keys = attn_max(call->len_kv, 1),
                       .cols = group * WORK_PAD(job->queries, job->step->tile_q),
                       .d = job->step->d,
                       .dv = job->step->dv };
}

/* Where the three matrices begin; C = A^T B for each pair: A is [k][m], B [k][cols],
 * C [m][cols], the pairs of each behind one another. */
typedef struct factors {
    int64_t m, k, a, b, c;
} factors;

/* Adds rows i .. i + n - 1 of A and B to C, or begins with them. Commands before are waited
 * for by a barrier: CLBlast takes no wait list. */
static attn_status add_span(attn_device *dev, const attn_cl_job *job, const matrices *x,
                            const factors *f, int64_t i, int64_t n, cl_uint n_wait,
                            const cl_event *wait, cl_event *done)
{
    const attn_cl *cl = dev->cl;
    const size_t m = (size_t)f->m, k = (size_t)f->k, cols = (size_t)x->cols;
    const cl_mem work = job->call->args->workspace;
    cl_command_queue queue = job->queue;
    attn_status st = ATTN_OK;
    int answer;

    if (n_wait)
        CL(cl->clEnqueueBarrierWithWaitList(queue, n_wait, wait, NULL));
    pthread_mutex_lock(&calls);
    answer = dev->blas->sgemm(ROW_MAJOR, TRANSPOSED, AS_IT_IS, m, cols, (size_t)n, 1.0f,
                              work, (size_t)(f->a + i * f->m), m, k * m, work,
                              (size_t)(f->b + i * x->cols), cols, k * cols, i ? 1.0f : 0.0f,
                              work, (size_t)f->c, cols, m * cols, (size_t)x->pairs, &queue,
                              done);
    pthread_mutex_unlock(&calls);
    if (answer < 0 && answer > -1000) /* OpenCL's own */
        st = attn_cl_fail(answer, "CLBlastSgemmStridedBatched");
    else if (answer)
        st = attn_fail(ATTN_ERR_DEVICE, "CLBlastSgemmStridedBatched = %d", answer);
fail:
    return st;
}

/* In spans, lest errors grow with the number of keys. The planner chose rounds whose
 * offsets and sizes fit 31 bits; CLBlast would cut them off unseen. */
static attn_status product(attn_device *dev, const attn_cl_job *job, const matrices *x,
                           const factors *f)
{
    const int64_t ends[] = { f->a + x->pairs * f->k * f->m,
                             f->b + x->pairs * f->k * x->cols,
                             f->c + x->pairs * f->m * x->cols };
    const cl_event *wait = job->wait;
    cl_uint n_wait = job->n_wait;
    cl_event before = NULL;
    attn_status st = ATTN_OK;

    if (attn_max(ends[0], attn_max(ends[1], ends[2])) > INT32_MAX)
        return attn_fail(ATTN_ERR_UNSUPPORTED, "CLBlast counts no more than 2^31 elements");
    for (int64_t i = 0; i < f->k && st == ATTN_OK; i += SPAN) {
        const bool last = i + SPAN >= f->k;
        cl_event link = NULL;

        st = add_span(dev, job, x, f, i, attn_min(SPAN, f->k - i), n_wait, wait,
                      last ? job->done : &link);
        if (before)
            dev->cl->clReleaseEvent(before);
        before = link;
        wait = &before;
        n_wait = 1;
    }
    if (before)
        dev->cl->clReleaseEvent(before);
    return st;
}

static attn_status scores(attn_device *dev, const attn_cl_job *job)
{
    const matrices x = matrices_of(job);

    return product(dev, job, &x,
                   &(factors){ .m = x.keys,
                               .k = x.d,
                               .a = WORK_K(x.pairs, x.d, x.dv, x.keys, x.cols),
                               .b = 0,
                               .c = WORK_S(x.pairs, x.d, x.dv, x.keys, x.cols) });
}

static attn_status output(attn_device *dev, const attn_cl_job *job)
{
    const matrices x = matrices_of(job);
    const attn_cl *cl = dev->cl;
    attn_status st = ATTN_OK;

    if (job->call->args->o.type == ATTN_TYPE_NONE) { /* V was not packed */
        CL(cl->clEnqueueMarkerWithWaitList(job->queue, job->n_wait, job->wait, job->done));
        return ATTN_OK;
    }
    return product(dev, job, &x,
                   &(factors){ .m = x.dv,
                               .k = x.keys,
                               .a = WORK_V(x.pairs, x.d, x.dv, x.keys, x.cols),
                               .b = WORK_S(x.pairs, x.d, x.dv, x.keys, x.cols),
                               .c = WORK_O(x.pairs, x.d, x.dv, x.keys, x.cols) });
fail:
    return st;
}

attn_cl_library *attn_clblast_step(const char *kernel)
{
    return !strcmp(kernel, "clblast_scores")   ? scores
           : !strcmp(kernel, "clblast_output") ? output
                                               : NULL;
}

void attn_clblast_clear(const attn_clblast *blas)
{
    pthread_mutex_lock(&calls);
    blas->clear_cache();
    pthread_mutex_unlock(&calls);
}
