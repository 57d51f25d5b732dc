/* SPDX-License-Identifier: MIT */
/* backend/cuda/merge.c: enqueues a merge: a kernel for each part, one after another. */
#include <inttypes.h>

#include "backend/cuda/cuda.h"
#include "common/params.h"
#include "core/size.h"
#include "core/status.h"

#define ROWS(a, name, t)                       \
    do {                                       \
        (a)->name = (t)->data;                 \
        (a)->name##_offset = (t)->offset;      \
        (a)->name##_stride_b = (t)->stride[0]; \
        (a)->name##_stride_h = (t)->stride[1]; \
        (a)->name##_stride_l = (t)->stride[2]; \
    } while (0)

/* What all parts have in common. */
static void fill(attn_merge_kparams *a, const attn_merge_args *m)
{
    const attn_tensor *rows = &m->part_lse[0];
    const bool want_o = m->o.type != ATTN_TYPE_NONE;

    *a = (attn_merge_kparams){
        .work = m->workspace,
        .o_stride_d = m->o.stride[3],
        .batch = (int32_t)rows->size[0],
        .heads = (int32_t)rows->size[1],
        .len = (int32_t)rows->size[2],
        .depth = want_o ? (int32_t)m->o.size[3] : 0,
        .want_o = want_o && m->o.size[3] > 0,
        .want_lse = m->lse.type != ATTN_TYPE_NONE,
    };
    ROWS(a, o, &m->o);
    ROWS(a, lse, &m->lse);
}

static void fill_part(attn_merge_kparams *a, const attn_merge_args *m, int64_t p)
{
    ROWS(a, part_lse, &m->part_lse[p]);
    if (a->want_o) {
        ROWS(a, part, &m->part_o[p]);
        a->part_stride_d = m->part_o[p].stride[3];
    }
    a->first = p == 0;
    a->last = p + 1 == m->n_parts;
    a->odd = (int32_t)(p % 2);
}

static attn_status grid_size(const attn_step *step, const attn_merge_args *m, unsigned *out)
{
    const int64_t *size = m->part_lse[0].size;
    int64_t rows;

    if (!attn_mul(size[0] * size[1], size[2], &rows) ||
        attn_ceil_div(rows, step->tile_q) > INT32_MAX)
        return attn_fail(ATTN_ERR_UNSUPPORTED,
                         "a merge of %" PRId64 " x %" PRId64 " x %" PRId64 " rows, %" PRId64
                         " a group, has more than 2^31 - 1 groups",
                         size[0], size[1], size[2], step->tile_q);
    *out = (unsigned)attn_ceil_div(rows, step->tile_q);
    return ATTN_OK;
}

/* The context is current. */
static attn_status enqueue_parts(const attn_device *dev, CUstream stream,
                                 const attn_kernel *const kernel[], const attn_step step[],
                                 const attn_merge_args *m)
{
    const attn_cu *cu = dev->cu;
    attn_status st = ATTN_OK;
    attn_merge_kparams a;
    void *params[] = { &a };

    fill(&a, m);
    for (int64_t p = 0; p < m->n_parts; p++) {
        const attn_type type = m->o.type != ATTN_TYPE_NONE ? m->part_o[p].type : ATTN_F32;
        unsigned groups = 0;

        fill_part(&a, m, p);
        if ((st = grid_size(&step[type], m, &groups)) != ATTN_OK)
            return st;
        CU(cu->cuLaunchKernel(kernel[type]->function, groups, 1, 1,
                              (unsigned)step[type].block, 1, 1, 0, stream, params, NULL));
    }
fail:
    return st;
}

attn_status attn_cu_merge(attn_device *dev, const attn_kernel *const kernel[],
                          const attn_step step[], const attn_merge_args *args,
                          const attn_stream *stream)
{
    const attn_tensor *rows = args ? &args->part_lse[0] : NULL;
    CUstream to = NULL;
    attn_status st;

    if ((st = attn_cu_enter(dev)) != ATTN_OK)
        return st;
    if ((st = attn_cu_find_stream(dev, stream, &to)) == ATTN_OK && rows && rows->size[0] &&
        rows->size[1] && rows->size[2])
        st = enqueue_parts(dev, to, kernel, step, args);
    attn_cu_leave(dev);
    return st;
}
