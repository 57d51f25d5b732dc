/* SPDX-License-Identifier: MIT */
/* backend/opencl/clblast.c: the matrix products that CLBlast computes, and the library
 * itself. */
#include "backend/opencl/clblast.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "backend/rounds.h"
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

/* Where the three matrices begin; C = A B for each pair: A is [k][m], or `plain` [m][k], B
 * [k][n], C [m][n], the pairs of each behind one another. `more`: it is added to C. */
typedef struct factors {
    int64_t pairs, m, k, n, a, b, c;
    bool plain, more;
} factors;

/* Adds rows i .. i + span - 1 of B, with what of A is multiplied by those, to C, or begins
 * with them. Commands before are waited for by a barrier: CLBlast takes no wait list. */
static attn_status add_span(attn_device *dev, const attn_cl_job *job, const factors *f,
                            int64_t i, int64_t span, cl_uint n_wait, const cl_event *wait,
                            cl_event *done)
{
    const attn_cl *cl = dev->cl;
    const size_t m = (size_t)f->m, k = (size_t)f->k, n = (size_t)f->n;
    const int64_t a = f->a + (f->plain ? i : i * f->m);
    const cl_mem work = job->call->args->workspace;
    cl_command_queue queue = job->queue;
    attn_status st = ATTN_OK;
    int answer;

    if (n_wait)
        CL(cl->clEnqueueBarrierWithWaitList(queue, n_wait, wait, NULL));
    pthread_mutex_lock(&calls);
    answer =
        dev->blas->sgemm(ROW_MAJOR, f->plain ? AS_IT_IS : TRANSPOSED, AS_IT_IS, m, n,
                         (size_t)span, 1.0f, work, (size_t)a, f->plain ? k : m, k * m, work,
                         (size_t)(f->b + i * f->n), n, k * n, i || f->more ? 1.0f : 0.0f,
                         work, (size_t)f->c, n, m * n, (size_t)f->pairs, &queue, done);
    pthread_mutex_unlock(&calls);
    if (answer < 0 && answer > -1000) /* OpenCL's own */
        st = attn_cl_fail(answer, "CLBlastSgemmStridedBatched");
    else if (answer)
        st = attn_fail(ATTN_ERR_DEVICE, "CLBlastSgemmStridedBatched = %d", answer);
fail:
    return st;
}

/* The event that completes with `last`, and fails with what was to be waited for: a command
 * behind a barrier may end well where that has failed. */
static attn_status join(attn_device *dev, const attn_cl_job *job, cl_event last)
{
    const attn_cl *cl = dev->cl;
    cl_event both[2] = { last };
    attn_status st = ATTN_OK;

    CL(cl->clEnqueueMarkerWithWaitList(job->queue, job->n_wait, job->wait, &both[1]));
    CL(cl->clEnqueueMarkerWithWaitList(job->queue, 2, both, job->done));
fail:
    if (both[1])
        cl->clReleaseEvent(both[1]);
    return st;
}

/* In spans, lest errors grow with the number of keys. The planner chose rounds whose
 * offsets and sizes fit 31 bits; CLBlast would cut them off unseen. */
static attn_status product(attn_device *dev, const attn_cl_job *job, const factors *f)
{
    const int64_t ends[] = { f->a + f->pairs * f->k * f->m, f->b + f->pairs * f->k * f->n,
                             f->c + f->pairs * f->m * f->n };
    const cl_event *wait = job->wait;
    cl_uint n_wait = job->n_wait;
    cl_event before = NULL;
    attn_status st = ATTN_OK;

    if (attn_max(ends[0], attn_max(ends[1], ends[2])) > INT32_MAX)
        return attn_fail(ATTN_ERR_UNSUPPORTED, "CLBlast counts no more than 2^31 elements");
    for (int64_t i = 0; i < f->k && st == ATTN_OK; i += SPAN) {
        const bool last = i + SPAN >= f->k;
        cl_event link = NULL;

        st = add_span(dev, job, f, i, attn_min(SPAN, f->k - i), n_wait, wait,
                      last && !job->n_wait ? job->done : &link);
        if (before)
            dev->cl->clReleaseEvent(before);
        before = link;
        wait = &before;
        n_wait = 1;
    }
    if (st == ATTN_OK && before && job->done)
        st = join(dev, job, before);
    if (before)
        dev->cl->clReleaseEvent(before);
    return st;
}

/* Nothing to compute, but what was to be waited for. */
static attn_status nothing(attn_device *dev, const attn_cl_job *job)
{
    const attn_cl *cl = dev->cl;
    attn_status st = ATTN_OK;

    CL(cl->clEnqueueMarkerWithWaitList(job->queue, job->n_wait, job->wait, job->done));
fail:
    return st;
}

static attn_status scores(attn_device *dev, const attn_cl_job *job)
{
    const matrices x = matrices_of(job);
    const factors f = { .pairs = x.pairs,
                        .m = x.keys,
                        .k = x.d,
                        .n = x.cols,
                        .a = WORK_K(x.pairs, x.d, x.dv, x.keys, x.cols),
                        .b = 0,
                        .c = WORK_S(x.pairs, x.d, x.dv, x.keys, x.cols) };

    return product(dev, job, &f);
}

static attn_status output(attn_device *dev, const attn_cl_job *job)
{
    const matrices x = matrices_of(job);
    const factors f = { .pairs = x.pairs,
                        .m = x.dv,
                        .k = x.keys,
                        .n = x.cols,
                        .a = WORK_V(x.pairs, x.d, x.dv, x.keys, x.cols),
                        .b = WORK_S(x.pairs, x.d, x.dv, x.keys, x.cols),
                        .c = WORK_O(x.pairs, x.d, x.dv, x.keys, x.cols) };

    return job->call->args->o.type == ATTN_TYPE_NONE /* V was not packed */
               ? nothing(dev, job)
               : product(dev, job, &f);
}

/* The matrices of a round of gradients, likewise with MR = NR = NB = 1. */
typedef struct gradients {
    int64_t pairs, keys, cols, d, dv, dm, dn, dvn;
#define PLACE(name, rows, columns) int64_t name;
    WORK_GRADIENTS(PLACE)
#undef PLACE
} gradients;

static gradients gradients_of(const attn_cl_job *job)
{
    const attn_call *call = job->call;
    const matrices x = matrices_of(job);
    gradients g = { .pairs = x.pairs,
                    .keys = x.keys,
                    .cols = x.cols,
                    .d = x.d,
                    .dv = x.dv,
                    .dm = x.d,
                    .dn = x.d,
                    .dvn = x.dv };
    int64_t at = WORK_DELTA(call->batch * call->heads_q * call->len_q);

#define PLACE(name, rows, columns) \
    g.name = at;                   \
    at += g.pairs * g.rows * g.columns;
    WORK_GRADIENTS(PLACE)
#undef PLACE
    return g;
}

/* Those of two products that are wanted, the second after the first. */
static attn_status products(attn_device *dev, const attn_cl_job *job, const factors *first,
                            bool want_first, const factors *second, bool want_second)
{
    attn_cl_job part = *job;
    cl_event link = NULL;
    attn_status st;

    if (!want_first || !want_second)
        return want_first    ? product(dev, job, first)
               : want_second ? product(dev, job, second)
                             : nothing(dev, job);
    part.done = &link;
    st = product(dev, &part, first);
    if (st == ATTN_OK) {
        part = *job;
        part.wait = &link;
        part.n_wait = 1;
        st = product(dev, &part, second);
    }
    if (link)
        dev->cl->clReleaseEvent(link);
    return st;
}

/* Scores of the queries, and of the gradients of O. */
static attn_status bwd_scores(attn_device *dev, const attn_cl_job *job)
{
    const attn_args *t = job->call->args;
    const gradients g = gradients_of(job);
    factors f = { g.pairs, g.keys, g.d, g.cols, g.k_t, g.q_t, g.w, false, false };
    factors of_o = { g.pairs, g.keys, g.dv, g.cols, g.v_t, g.g_t, g.s, false, false };

    return products(dev, job, &f, true, &of_o,
                    attn_is_there(&t->grad_o) &&
                        (attn_is_there(&t->grad_q) || attn_is_there(&t->grad_k) ||
                         attn_is_there(&t->grad_bias)));
}

static attn_status bwd_q(attn_device *dev, const attn_cl_job *job)
{
    const gradients g = gradients_of(job);
    const factors f = { g.pairs, g.dm, g.keys, g.cols, g.k_r, g.s, g.dq, false, false };

    return product(dev, job, &f);
}

/* Added to those of the rounds before it that had other queries of the same heads. */
static attn_status bwd_kv(attn_device *dev, const attn_cl_job *job)
{
    const attn_args *t = job->call->args;
    const gradients g = gradients_of(job);
    const bool more = job->query > 0;
    const factors k = { g.pairs, g.keys, g.cols, g.dn, g.s, g.q_r, g.dk, true, more };
    const factors v = { g.pairs, g.keys, g.cols, g.dvn, g.w, g.g_r, g.dvs, true, more };

    return products(dev, job, &k, attn_is_there(&t->grad_k), &v,
                    attn_is_there(&t->grad_v) && attn_is_there(&t->grad_o));
}

attn_cl_library *attn_clblast_step(const char *kernel)
{
    static const struct {
        const char *name;
        attn_cl_library *library;
    } steps[] = { { "clblast_scores", scores },
                  { "clblast_output", output },
                  { "clblast_bwd_scores", bwd_scores },
                  { "clblast_bwd_q", bwd_q },
                  { "clblast_bwd_kv", bwd_kv } };

    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++)
        if (!strcmp(kernel, steps[i].name))
            return steps[i].library;
    return NULL;
}

void attn_clblast_clear(const attn_clblast *blas)
{
    pthread_mutex_lock(&calls);
    blas->clear_cache();
    pthread_mutex_unlock(&calls);
}
