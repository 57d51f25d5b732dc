/* SPDX-License-Identifier: MIT */
/* tools/opencl_queues.c: a caller's own OpenCL context and queues, one of them out of
 * order. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "stress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "timing.h"

#ifdef ATTN_TOOLS_OPENCL

#include "opencl_functions.h"

/* Device "opencl:N": they are counted platform by platform. */
static bool find_device(const opencl_functions *cl, int n, cl_device_id *out)
{
    cl_platform_id platform[32];
    cl_uint platforms = 0;

    if (cl->clGetPlatformIDs(32, platform, &platforms) != CL_SUCCESS)
        return false;
    for (cl_uint i = 0; i < platforms && i < 32; i++) {
        cl_device_id device[64];
        cl_uint devices = 0;

        if (cl->clGetDeviceIDs(platform[i], CL_DEVICE_TYPE_ALL, 64, device, &devices) !=
            CL_SUCCESS)
            continue;
        if (n < (int)devices && n < 64) {
            *out = device[n];
            return true;
        }
        n -= (int)devices;
    }
    return false;
}

/* A caller's objects. */
typedef struct caller {
    opencl_functions cl;
    cl_device_id device;
    cl_context context;
    cl_command_queue queue[STRESS_THREADS];
    bool out_of_order;
    attn_ctx *ctx;
    attn_plan *plan;
} caller;

/* A queue of a caller, for one trial. */
typedef struct lane {
    const caller *c;
    cl_command_queue queue;
    char what[128];
} lane;

static attn_status call_failed(trial *t, const char *what)
{
    snprintf(t->what, sizeof t->what, "%s", what);
    return ATTN_ERR_DEVICE;
}

/* Enqueues behind an event that only the host completes: until then nothing may run,
 * and afterwards everything must. */
static attn_status behind_an_event(trial *t, void *with)
{
    const lane *l = with;
    const opencl_functions *cl = &l->c->cl;
    cl_int code, state = CL_COMPLETE;
    cl_event gate = cl->clCreateUserEvent(l->c->context, &code), done = NULL;
    attn_status st = ATTN_ERR_DEVICE;

    if (code != CL_SUCCESS)
        return call_failed(t, "clCreateUserEvent");
    st = attn_execute_opencl(t->plan, &t->args, l->queue, 1, &gate, &done);
    if (st == ATTN_OK) {
        cl->clFlush(l->queue);
        nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL); /* time to begin early */
        cl->clGetEventInfo(done, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state,
                           NULL);
    }
    cl->clSetUserEventStatus(gate, CL_COMPLETE);
    if (st == ATTN_OK && cl->clWaitForEvents(1, &done) != CL_SUCCESS)
        st = call_failed(t, "clWaitForEvents");
    if (st == ATTN_OK && (state == CL_COMPLETE || state == CL_RUNNING))
        st = call_failed(t, "the work did not wait for its wait list");
    if (done)
        cl->clReleaseEvent(done);
    cl->clReleaseEvent(gate);
    return st;
}

static attn_status on_a_queue(trial *t, void *with)
{
    const lane *l = with;
    attn_status st = attn_execute_opencl(t->plan, &t->args, l->queue, 0, NULL, NULL);

    if (st == ATTN_OK && l->c->cl.clFinish(l->queue) != CL_SUCCESS)
        st = call_failed(t, "clFinish");
    return st;
}

static bool open_caller(caller *c, const char *selector, const attn_softmax_desc *d,
                        const char **wrong)
{
    cl_command_queue_properties can = 0;
    cl_int code;

    *wrong = "the OpenCL loader or the device was not found";
    if (!opencl_functions_open(&c->cl) ||
        !find_device(&c->cl, atoi(selector + 7), &c->device))
        return false;
    *wrong = "clCreateContext failed";
    c->context = c->cl.clCreateContext(NULL, 1, &c->device, NULL, NULL, &code);
    if (code != CL_SUCCESS)
        return false;
    c->cl.clGetDeviceInfo(c->device, CL_DEVICE_QUEUE_PROPERTIES, sizeof can, &can, NULL);
    c->out_of_order = can & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
    *wrong = "clCreateCommandQueue failed";
    for (int i = 0; i < STRESS_THREADS; i++) {
        const bool out = i == 0 && c->out_of_order;
        c->queue[i] = c->cl.clCreateCommandQueue(
            c->context, c->device, out ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &code);
        if (code != CL_SUCCESS)
            return false;
    }
    *wrong = NULL;
    if (attn_ctx_create_opencl(c->context, c->device, &c->ctx) != ATTN_OK ||
        attn_plan_softmax(c->ctx, d, &c->plan) != ATTN_OK)
        *wrong = attn_last_error();
    return !*wrong;
}

static void close_caller(caller *c)
{
    attn_plan_destroy(&c->plan);
    attn_ctx_destroy(&c->ctx);
    for (int i = 0; i < STRESS_THREADS; i++)
        if (c->queue[i])
            c->cl.clReleaseCommandQueue(c->queue[i]);
    if (c->context)
        c->cl.clReleaseContext(c->context);
}

static void check_queues(const stress *s, const caller *c, const inputs *in,
                         const trial *want)
{
    lane lanes[STRESS_THREADS];
    void *with[STRESS_THREADS], *first[STRESS_THREADS];
    trial t = { .ctx = c->ctx, .in = in, .plan = c->plan, .execute = behind_an_event };
    double start = timing_now();
    const char *wrong;

    for (int i = 0; i < STRESS_THREADS; i++) {
        lanes[i] = (lane){ .c = c, .queue = c->queue[i] };
        with[i] = &lanes[i];
        first[i] = &lanes[0];
    }
    wrong = stress_threads(&t, first, want);
    stress_note(s, wrong ? OUTCOME_FAILED : OUTCOME_PASSED, start, wrong,
                "%d threads on one queue %s order, wait lists and events", STRESS_THREADS,
                c->out_of_order ? "out of" : "in");
    t.execute = on_a_queue;
    start = timing_now();
    wrong = stress_threads(&t, with, want);
    stress_note(s, wrong ? OUTCOME_FAILED : OUTCOME_PASSED, start, wrong,
                "%d threads with one plan, a caller's queue each", STRESS_THREADS);
}

void stress_queues(const stress *s, const inputs *in, const trial *want)
{
    const char *selector = s->report->device[s->device].info.selector, *wrong = NULL;
    caller c = { .device = NULL };

    if (strncmp(selector, "opencl:", 7) != 0)
        return;
    if (open_caller(&c, selector, &in->desc, &wrong))
        check_queues(s, &c, in, want);
    else
        stress_note(s, OUTCOME_FAILED, timing_now(), wrong,
                    "a caller's context and queues");
    close_caller(&c);
}

#else

void stress_queues(const stress *s, const inputs *in, const trial *want)
{
    (void)in;
    (void)want;
    if (!strncmp(s->report->device[s->device].info.selector, "opencl:", 7))
        stress_note(s, OUTCOME_SKIPPED, timing_now(),
                    "attn-validate was built without the OpenCL headers",
                    "a caller's context and queues");
}

#endif
