/* SPDX-License-Identifier: MIT */
/* tools/lane_cuda.h: a stream of a CUDA context, its events, and a way to let the host run
 * ahead of it. The driver is opened as the library opens it; no toolkit is needed. */
#ifndef ATTN_TOOLS_LANE_CUDA_H
#define ATTN_TOOLS_LANE_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include <attn/cuda.h>

typedef struct CUevent_st *CUevent; /* as <cuda.h> has it */

/* Functions return a CUresult, 0: good. */
typedef struct lane_cuda {
    void *library;
    int (*push)(CUcontext);
    int (*pop)(CUcontext *);
    int (*pointer)(unsigned n, const int *what, void *const *where, CUdeviceptr at);
    int (*stream_create)(void **, unsigned flags);
    int (*stream_destroy)(void *);
    int (*event_create)(CUevent *, unsigned flags);
    int (*event_destroy)(CUevent);
    int (*event_record)(CUevent, void *stream);
    int (*event_wait)(CUevent);
    int (*event_elapsed)(float *ms, CUevent from, CUevent to);
    int (*host_function)(void *stream, void (*run)(void *), void *with);
    int (*copy)(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream);

    CUcontext context;
    void *stream;
    CUevent first, last;
    char absent[256];        /* why it did not open; "": it did */
} lane_cuda;

/* Opens the driver, and a stream in the CUcontext of ctx, which must outlive it. false:
 * `absent` says why not. */
bool lane_cuda_open(lane_cuda *l, attn_ctx *ctx);

/* Holds what is enqueued next back for as long as the host needs to enqueue it. */
bool lane_cuda_hold(const lane_cuda *l);

/* Times what is enqueued between the two, held back, by the device's clock. In between the
 * context is current. begin() that fails needs no end(). */
bool lane_cuda_begin(const lane_cuda *l);
bool lane_cuda_end(const lane_cuda *l, double *ms);

/* Accepts one that did not open. */
void lane_cuda_close(lane_cuda *l);

#endif
