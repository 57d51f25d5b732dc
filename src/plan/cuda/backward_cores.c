/* SPDX-License-Identifier: MIT */
/* plan/cuda/backward_cores.c: the steps around passes over tiles of keys alone, whose groups
 * add to dQ one after the other. */
#include <math.h>

#include "core/size.h"
#include "plan/cuda/backward.h"

/* As the kernel files have them. */
enum {
    FLAG_ROWS = 32, /* queries of a flag, for whom groups wait */
    ROWS = 64,      /* of a group, a warp for eight            */
    THREADS = 256,
    N_TYPES = 3
};

/* Of sums that threads add to; and of those that the copy engine does. */
#define NAMES(name)                                         \
    {                                                       \
        { name "_f32", name "_f16", name "_bf16" },         \
        {                                                   \
            NULL, name "_f16_by_copy", name "_bf16_by_copy" \
        }                                                   \
    }
static const char *const begin[2][N_TYPES] = NAMES("softmax_bwd_mma_begin");
static const char *const finish[2][N_TYPES] = NAMES("softmax_bwd_mma_finish");

/* As cuda_kernels/softmax/bwd_mma_work.cuh lays it out; false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, bool by_copy, int64_t *out)
{
    const int64_t columns = by_copy ? attn_max(p->d, p->dv) : p->d;
    const int64_t pitch = attn_round_up(columns, !by_copy ? 8 : columns <= 128 ? 64 : 256);
    int64_t rows, sums, flags, all;

    return attn_mul(p->b * p->hq, p->lq, &rows) && attn_mul(rows, pitch, &sums) &&
           attn_mul(p->b * p->hq, attn_ceil_div(p->lq, FLAG_ROWS), &flags) &&
           attn_mul(rows, 3, &all) && attn_add(all, 3 + 1, &all) &&
           attn_add(all, sums, &all) && attn_add(all, flags, &all) && attn_mul(all, 4, out);
}

const char *attn_cuda_cores_refusal(const attn_problem *p, const attn_caps *c, int64_t bm_k,
                                    bool by_copy)
{
    const char *const refusal = attn_cuda_back_refusal(p, c, ROWS, bm_k);
    int64_t bytes;

    if (refusal)
        return refusal;
    if (p->type != ATTN_F32 && fabsf(p->scale) > 0x1p127f)
        return "takes logarithms to base 2, where a scale beyond 2^127 overflows";
    if (!work_bytes(p, by_copy, &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace of f32 sums for dQ exceeds the device's memory";
    return NULL;
}

static void add_rows(const attn_problem *p, const char *kernel, uint32_t grad,
                     unsigned reads, int tensor, int64_t dim, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->over = ATTN_OVER_QUERIES;
    step->grad = grad;
    step->tile_q = ROWS;
    step->tile_k = 1;
    step->block = THREADS;
    attn_step_softmax(step, p, ATTN_READS_TYPE | ATTN_READS_QUERIES | reads);
    attn_step_define(step, "WIDE_O", attn_cuda_aligned(p, ATTN_TENSOR_O, p->dv, 4));
    attn_step_define(step, "WIDE_GRADS", attn_cuda_aligned(p, tensor, dim, 4));
}

void attn_cuda_cores_begin(const attn_problem *p, bool by_copy, attn_choice *out)
{
    add_rows(p, begin[by_copy][p->type - ATTN_F32], 0,
             ATTN_READS_DV | ATTN_READS_D | ATTN_READS_O | ATTN_READS_GRAD_O |
                 ATTN_READS_KEYS | /* without keys nobody else tells of their lengths */
                 ATTN_READS_SOFTCAP | ATTN_READS_TERMS,
             ATTN_TENSOR_GRAD_O, p->dv, out);
}

void attn_cuda_cores_finish(const attn_problem *p, bool by_copy, attn_choice *out)
{
    if (p->grad & ATTN_GRAD_Q)
        add_rows(p, finish[by_copy][p->type - ATTN_F32], ATTN_GRAD_Q,
                 ATTN_READS_DV | ATTN_READS_D | ATTN_READS_GRAD_Q, ATTN_TENSOR_GRAD_Q, p->d,
                 out);
    attn_cuda_back_sinks(p, out);
    work_bytes(p, by_copy, &out->workspace_bytes);
}
