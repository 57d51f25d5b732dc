/* SPDX-License-Identifier: MIT */
/* tools/lane_cuda.c: the CUDA driver for attn-bench. */
#include "lane_cuda.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "library.h"
#include "timing.h"

/* cuda.h's numbers. */
enum { POINTER_CONTEXT = 1, STREAM_NON_BLOCKING = 1, EVENT_DEFAULT = 0 };

static const double HOLD_S = 3e-4;

/* The version that is of CUDA 13, or the one before. */
static bool find_functions(lane_cuda *l)
{
    const struct {
        void *to;
        const char *name, *before;
    } functions[] = {
        { &l->push, "cuCtxPushCurrent_v2", NULL },
        { &l->pop, "cuCtxPopCurrent_v2", NULL },
        { &l->pointer, "cuPointerGetAttributes", NULL },
        { &l->stream_create, "cuStreamCreate", NULL },
        { &l->stream_destroy, "cuStreamDestroy_v2", NULL },
        { &l->event_create, "cuEventCreate", NULL },
        { &l->event_destroy, "cuEventDestroy_v2", NULL },
        { &l->event_record, "cuEventRecord", NULL },
        { &l->event_wait, "cuEventSynchronize", NULL },
        { &l->event_elapsed, "cuEventElapsedTime_v2", "cuEventElapsedTime" },
        { &l->host_function, "cuLaunchHostFunc", NULL },
        { &l->copy, "cuMemcpyDtoDAsync_v2", NULL },
    };

    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        void *found = dlsym(l->library, functions[i].name);

        if (!found && functions[i].before)
            found = dlsym(l->library, functions[i].before);
        if (!found) {
            snprintf(l->absent, sizeof l->absent, "the CUDA driver has no %s",
                     functions[i].name);
            return false;
        }
        memcpy(functions[i].to, &found, sizeof found);
    }
    return true;
}

/* Of any block of its memory: that is so whichever way the library numbers devices. */
static bool find_context(lane_cuda *l, attn_ctx *ctx)
{
    const int what = POINTER_CONTEXT;
    void *const where = &l->context;
    void *block = NULL;
    bool found = attn_memory_alloc(ctx, 1, &block) == ATTN_OK &&
                 !l->pointer(1, &what, &where, (CUdeviceptr)(uintptr_t)block) && l->context;

    attn_memory_free(ctx, &block);
    if (!found)
        snprintf(l->absent, sizeof l->absent, "the CUcontext was not found");
    return found;
}

static bool make_stream(lane_cuda *l)
{
    CUcontext popped;
    bool made = !l->push(l->context);

    if (made) {
        made = !l->stream_create(&l->stream, STREAM_NON_BLOCKING) &&
               !l->event_create(&l->first, EVENT_DEFAULT) &&
               !l->event_create(&l->last, EVENT_DEFAULT);
        l->pop(&popped);
    }
    if (!made)
        snprintf(l->absent, sizeof l->absent, "no stream or events in the CUcontext");
    return made;
}

bool lane_cuda_open(lane_cuda *l, attn_ctx *ctx)
{
    static const char *const usual[] = { "libcuda.so.1", NULL };

    *l = (lane_cuda){ 0 };
    l->library = library_open("ATTN_CUDA_LIB", usual, l->absent, sizeof l->absent);
    if (l->library && find_functions(l) && find_context(l, ctx) && make_stream(l)) {
        l->absent[0] = '\0';
        return true;
    }
    lane_cuda_close(l);
    return false;
}

/* In a thread of the driver; the stream waits for it. */
static void sleep_a_while(void *with)
{
    (void)with;
    timing_idle(HOLD_S);
}

bool lane_cuda_hold(const lane_cuda *l)
{
    CUcontext popped;
    bool held = !l->push(l->context);

    if (held) {
        held = !l->host_function(l->stream, sleep_a_while, NULL);
        l->pop(&popped);
    }
    return held;
}

bool lane_cuda_begin(const lane_cuda *l)
{
    CUcontext popped;

    if (l->push(l->context))
        return false;
    if (!l->host_function(l->stream, sleep_a_while, NULL) &&
        !l->event_record(l->first, l->stream))
        return true;
    l->pop(&popped);
    return false;
}

bool lane_cuda_end(const lane_cuda *l, double *ms)
{
    CUcontext popped;
    float elapsed = 0;
    const bool good = !l->event_record(l->last, l->stream) && !l->event_wait(l->last) &&
                      !l->event_elapsed(&elapsed, l->first, l->last);

    l->pop(&popped);
    *ms = (double)elapsed;
    return good;
}

void lane_cuda_close(lane_cuda *l)
{
    CUcontext popped;

    if (l->context && !l->push(l->context)) {
        if (l->first)
            l->event_destroy(l->first);
        if (l->last)
            l->event_destroy(l->last);
        if (l->stream)
            l->stream_destroy(l->stream);
        l->pop(&popped);
    }
    l->context = NULL;
    l->first = l->last = NULL;
    l->stream = NULL;
    if (l->library)
        dlclose(l->library);
    l->library = NULL;
}
