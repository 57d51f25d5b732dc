/* SPDX-License-Identifier: MIT */
/* backend/opencl/merge.c: enqueues a merge: a kernel for each part, one after another. */
#include <inttypes.h>

#include "backend/opencl/opencl.h"
#include "common/params.h"
#include "core/size.h"
#include "core/status.h"

typedef cl_mem c_PART, c_OUT, c_F32, c_FLOATS;
typedef cl_long c_LONG;
typedef cl_int c_INT, c_END;

typedef struct arguments {
#define FIELD(KIND, name) c_##KIND name;
    MERGE_PARAMS(FIELD)
#undef FIELD
} arguments;

static const attn_cl_param params[] = {
#define ROW(KIND, name) { #name, offsetof(arguments, name), sizeof(c_##KIND) },
    MERGE_PARAMS(ROW)
#undef ROW
};
enum { N_PARAMS = sizeof params / sizeof params[0] };

const cl_uint attn_cl_n_merge_params = N_PARAMS;

#define ROWS(a, name, t)                       \
    do {                                       \
        (a)->name##_offset = (t)->offset;      \
        (a)->name##_stride_b = (t)->stride[0]; \
        (a)->name##_stride_h = (t)->stride[1]; \
        (a)->name##_stride_l = (t)->stride[2]; \
    } while (0)

/* What all parts have in common. What is left out is bound to the first LSE's buffer and
 * never touched. */
static void fill(arguments *a, const attn_merge_args *m)
{
    const attn_tensor *rows = &m->part_lse[0];
    const bool want_o = m->o.type != ATTN_TYPE_NONE;
    const bool want_lse = m->lse.type != ATTN_TYPE_NONE;

    *a = (arguments){
        .part = rows->data,
        .o = want_o && m->o.data ? m->o.data : rows->data,
        .lse = want_lse ? m->lse.data : rows->data,
        .work = m->workspace ? m->workspace : rows->data,
        .o_stride_d = m->o.stride[3],
        .batch = (cl_int)rows->size[0],
        .heads = (cl_int)rows->size[1],
        .len = (cl_int)rows->size[2],
        .depth = want_o ? (cl_int)m->o.size[3] : 0,
        .want_o = want_o && m->o.size[3] > 0,
        .want_lse = want_lse,
    };
    ROWS(a, o, &m->o);
    ROWS(a, lse, &m->lse);
}

static void fill_part(arguments *a, const attn_merge_args *m, int64_t p)
{
    const attn_tensor *lse = &m->part_lse[p];

    a->part_lse = lse->data;
    ROWS(a, part_lse, lse);
    if (a->want_o) {
        a->part = m->part_o[p].data;
        ROWS(a, part, &m->part_o[p]);
        a->part_stride_d = m->part_o[p].stride[3];
    }
    a->first = p == 0;
    a->last = p + 1 == m->n_parts;
    a->odd = (cl_int)(p % 2);
}

static attn_status global_size(const attn_device *dev, const attn_step *step,
                               const attn_merge_args *m, size_t *out)
{
    const attn_tensor *rows = &m->part_lse[0];
    int64_t n;

    if (!attn_mul(rows->size[0] * rows->size[1], rows->size[2], &n) ||
        !attn_mul(attn_ceil_div(n, step->tile_q), step->block, &n) ||
        (uint64_t)n > SIZE_MAX || (dev->address_bits < 64 && n >> dev->address_bits))
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "a merge of %" PRId64 " x %" PRId64 " x %" PRId64
                         " rows has more work-items than %s can count",
                         rows->size[0], rows->size[1], rows->size[2], dev->info.name);
    *out = (size_t)n;
    return ATTN_OK;
}

/* Each part after the one before, on an out-of-order queue too. */
static attn_status enqueue_parts(attn_device *dev, attn_cl_target *to,
                                 const attn_kernel *const kernel[], const attn_step step[],
                                 const attn_merge_args *m, cl_event *done)
{
    cl_event before = NULL;
    attn_status st = ATTN_OK;
    size_t global = 0;
    arguments a;

    fill(&a, m);
    for (int64_t p = 0; p < m->n_parts && st == ATTN_OK; p++) {
        const attn_type type = m->o.type != ATTN_TYPE_NONE ? m->part_o[p].type : ATTN_F32;
        const bool named = p + 1 < m->n_parts || done;
        cl_event link = NULL;

        fill_part(&a, m, p);
        st = global_size(dev, &step[type], m, &global);
        if (st == ATTN_OK)
            st = attn_cl_enqueue(to, kernel[type], params, N_PARAMS, &a, global,
                                 (size_t)step[type].block, named ? &link : NULL);
        if (before)
            dev->cl->clReleaseEvent(before);
        before = link;
        to->wait = &before;
        to->n_wait = 1;
    }
    if (st == ATTN_OK && done)
        *done = before;
    else if (before)
        dev->cl->clReleaseEvent(before);
    return st;
}

attn_status attn_cl_merge(attn_device *dev, const attn_kernel *const kernel[],
                          const attn_step step[], const attn_merge_args *args,
                          const attn_stream *stream)
{
    cl_event last = NULL, *const done = stream->done;
    const attn_tensor *rows = args ? &args->part_lse[0] : NULL;
    attn_cl_target to;
    attn_status st;

    if ((st = attn_cl_find_queue(dev, stream, &to)) != ATTN_OK)
        return st;
    if (rows && rows->size[0] && rows->size[1] && rows->size[2])
        return enqueue_parts(dev, &to, kernel, step, args, done);
    if (!done && !to.n_wait)
        return ATTN_OK;
    CL(to.cl->clEnqueueMarkerWithWaitList(to.queue, to.n_wait, to.wait, &last));
    if (done)
        *done = last;
    else
        to.cl->clReleaseEvent(last);
fail:
    return st;
}
