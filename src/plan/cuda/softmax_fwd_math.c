/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_math.c: CUDA's general way: f32 matrices in the workspace and two
 * products of them by cuBLAS. Takes heads of any size. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/variants.h"
#include "plan/math_round.h"

/* As cuda_kernels/softmax/math.cuh has them. */
enum {
    THREADS = 128,
    WARPS = THREADS / 32,
    CHUNK = 16, /* rows of a tensor that a group moves */
};

enum {
    ROUND_BYTES = 256 << 20,
    MOST_PAIRS = 65535, /* of one batched product: the largest z of a grid */

    /* cuBLAS's own room. 16 KiB would do; products of few columns are split with more. The
     * back end begins it at a multiple of 256 bytes, and the workspace is one of 64. */
    LIBRARY_BYTES = 4 << 20,
    ALIGNMENT = 256
};

enum { N_TYPES = 3 };

enum { PACK_Q, PACK_K, PACK_V, UNPACK, N_MOVES };

#define MOVES(type)                                                              \
    {                                                                            \
        "softmax_fwd_math_pack_" type "_q", "softmax_fwd_math_pack_" type "_k",  \
            "softmax_fwd_math_pack_" type "_v", "softmax_fwd_math_unpack_" type, \
    }
static const char *const moves[N_TYPES][N_MOVES] = { MOVES("f32"), MOVES("f16"),
                                                     MOVES("bf16") };

/* cuBLAS takes ints, so the matrices stay within 2^31 elements together. */
static bool find_round(const attn_problem *p, const attn_caps *c, attn_math_round *out)
{
    const attn_math_units units = { .queries = 1, .columns = 1, .rows = 1 };
    const int64_t most = c->max_alloc_bytes - LIBRARY_BYTES - ALIGNMENT;
    const attn_math_limits limits = { .wanted_bytes = attn_min(ROUND_BYTES, most / 2),
                                      .most_bytes = most,
                                      .most_pairs = MOST_PAIRS,
                                      .library = 1 };

    return attn_math_find_round(p, &units, &limits, out);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    attn_math_round round;
    int64_t heads;

    if (!c->blas)
        return "cuBLAS was not found (ATTN_CUBLAS_LIB: the library or its folder)";
    if (c->max_group < THREADS)
        return "the device runs no group of 128 threads";
    if (!attn_mul(p->b, p->hq, &heads) || heads > INT32_MAX)
        return "more heads of all batches than 2^31 - 1";
    if (!find_round(p, c, &round))
        return "keys, values and the scores of one query exceed the device's memory, or "
               "the "
               "2^31 elements that cuBLAS counts";
    return NULL;
}

/* What a step's groups are made for. */
typedef struct grid {
    int64_t queries, keys; /* of a group; keys 0: all               */
    bool grouped;          /* queries of all heads that share keys  */
} grid;

static void add_step(const attn_problem *p, const attn_math_round *round,
                     const char *kernel, grid g, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->tile_q = g.queries;
    step->tile_k = THREADS;
    step->piece = g.keys;
    step->grouped = g.grouped;
    step->block = THREADS;
    step->round_heads = round->heads;
    step->round_queries = round->queries;
    attn_step_softmax(step, p, ATTN_READS_ALL);
}

static void add_product(const attn_problem *p, const attn_math_round *round,
                        const char *kernel, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->tile_q = 1;
    step->tile_k = THREADS;
    step->block = 1;
    step->scratch_bytes = LIBRARY_BYTES;
    step->round_heads = round->heads;
    step->round_queries = round->queries;
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const char *const *move = moves[p->type - ATTN_F32];
    const grid chunks = { .queries = CHUNK }, rows = { .queries = 1 };
    grid keys = { .keys = CHUNK, .grouped = true };
    attn_math_round r;

    find_round(p, c, &r);
    keys.queries = attn_max(r.queries * attn_math_group(p), 1);
    add_step(p, &r, move[PACK_Q], chunks, out);
    add_step(p, &r, move[PACK_K], keys, out);
    add_step(p, &r, move[PACK_V], keys, out);
    add_product(p, &r, "cublas_scores", out);
    add_step(p, &r, "softmax_fwd_math_softmax", rows, out);
    attn_choice_budget(out, "maxima and sums of the warps", 4 * WARPS);
    add_product(p, &r, "cublas_output", out);
    add_step(p, &r, move[UNPACK], chunks, out);
    out->workspace_bytes = 4 * (int64_t)r.floats + LIBRARY_BYTES + ALIGNMENT;
    attn_choice_instance(out, "heads%lld,queries%lld,d%lld,dv%lld,%s", (long long)r.heads,
                         (long long)r.queries, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason = "no tile of ours; rounds of so many heads and queries keep the "
                       "matrices within 256 MiB, and cuBLAS's indices within 31 bits";
}

const attn_variant attn_cuda_softmax_fwd_math_variant = {
    .name = "softmax_fwd_math",
    .about = "unfused: packed f32 matrices, two products by cuBLAS; heads of any size",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_VENDOR | ATTN_TRAIT_FINITE_V | ATTN_TRAIT_BY_SIZE,
    .applicable = applicable,
    .lower = lower,
};
