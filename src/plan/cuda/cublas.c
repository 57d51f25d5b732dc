/* SPDX-License-Identifier: MIT */
/* plan/cuda/cublas.c: what the unfused variants share. */
#include "plan/cuda/cublas.h"

#include "core/size.h"

enum {
    ROUND_BYTES = 256 << 20,
    MOST_PAIRS = 65535, /* of one batched product: the largest z of a grid */

    /* cuBLAS's own room. 16 KiB would do; products of few columns are split with more. The
     * back end begins it at a multiple of 256 bytes, and the workspace is one of 64. */
    LIBRARY_BYTES = 4 << 20,
    ALIGNMENT = 256
};

const char attn_cublas_too_long[] =
    "keys, values and the scores of one query exceed the device's memory, or the 2^31 "
    "elements that cuBLAS counts";

const char *attn_cublas_refusal(const attn_problem *p, const attn_caps *c)
{
    int64_t heads;

    if (!c->blas)
        return "cuBLAS was not found (ATTN_CUBLAS_LIB: the library or its folder)";
    if (c->max_group < ATTN_CUBLAS_THREADS)
        return "the device runs no group of 128 threads";
    if (!attn_mul(p->b, p->hq, &heads) || heads > INT32_MAX)
        return "more heads of all batches than 2^31 - 1";
    return NULL;
}

/* cuBLAS takes ints, so the matrices stay within 2^31 elements together. */
bool attn_cublas_round(const attn_problem *p, const attn_caps *c, int64_t before,
                       attn_math_round *out)
{
    const attn_math_units units = { .queries = 1, .columns = 1, .rows = 1 };
    const int64_t most = c->max_alloc_bytes - LIBRARY_BYTES - ALIGNMENT;
    const attn_math_limits limits = { .wanted_bytes = attn_min(ROUND_BYTES, most / 2),
                                      .most_bytes = most,
                                      .most_pairs = MOST_PAIRS,
                                      .library = 1,
                                      .before = before };

    return attn_math_find_round(p, &units, &limits, out);
}

attn_step *attn_cublas_kernel(const attn_problem *p, const attn_math_round *round,
                              const char *kernel, int64_t queries, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->tile_q = queries;
    step->tile_k = ATTN_CUBLAS_THREADS;
    step->block = ATTN_CUBLAS_THREADS;
    step->round_heads = round->heads;
    step->round_queries = round->queries;
    attn_step_softmax(step, p, ATTN_READS_ALL);
    return step;
}

attn_step *attn_cublas_product(const attn_problem *p, const attn_math_round *round,
                               const char *kernel, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->tile_q = 1;
    step->tile_k = ATTN_CUBLAS_THREADS;
    step->block = 1;
    step->scratch_bytes = LIBRARY_BYTES;
    step->round_heads = round->heads;
    step->round_queries = round->queries;
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    return step;
}

void attn_cublas_describe(const attn_problem *p, const attn_math_round *round,
                          int64_t before, attn_choice *out)
{
    for (int i = 0; i < out->n_steps; i++) {
        out->step[i].round_heads = round->heads;
        out->step[i].round_queries = round->queries;
    }
    out->workspace_bytes =
        4 * (before + (int64_t)round->floats) + LIBRARY_BYTES + ALIGNMENT;
    attn_choice_instance(out, "heads%lld,queries%lld,d%lld,dv%lld,%s",
                         (long long)round->heads, (long long)round->queries,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "no tile of ours; rounds of so many heads and queries keep the "
                       "matrices within 256 MiB, and cuBLAS's indices within 31 bits";
}
