/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_math.c: CUDA's general way: f32 matrices in the workspace and two
 * products of them by cuBLAS. Takes heads of any size. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/cublas.h"

enum { WARPS = ATTN_CUBLAS_THREADS / 32 };

enum { N_TYPES = 3 };

enum { PACK_Q, PACK_K, PACK_V, UNPACK, N_MOVES };

#define MOVES(type)                                                              \
    {                                                                            \
        "softmax_fwd_math_pack_" type "_q", "softmax_fwd_math_pack_" type "_k",  \
            "softmax_fwd_math_pack_" type "_v", "softmax_fwd_math_unpack_" type, \
    }
static const char *const moves[N_TYPES][N_MOVES] = { MOVES("f32"), MOVES("f16"),
                                                     MOVES("bf16") };

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const char *const reason = attn_cublas_refusal(p, c);
    attn_math_round round;

    if (reason)
        return reason;
    return attn_cublas_round(p, c, 0, &round) ? NULL : attn_cublas_too_long;
}

/* What a step's groups are made for. */
typedef struct grid {
    int64_t queries, keys; /* of a group; keys 0: all               */
    bool grouped;          /* queries of all heads that share keys  */
} grid;

static void add_step(const attn_problem *p, const attn_math_round *round,
                     const char *kernel, grid g, attn_choice *out)
{
    attn_step *step = attn_cublas_kernel(p, round, kernel, g.queries, out);

    step->piece = g.keys;
    step->grouped = g.grouped;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const char *const *move = moves[p->type - ATTN_F32];
    const grid chunks = { .queries = ATTN_CUBLAS_CHUNK }, rows = { .queries = 1 };
    grid keys = { .keys = ATTN_CUBLAS_CHUNK, .grouped = true };
    attn_math_round r;

    attn_cublas_round(p, c, 0, &r);
    keys.queries = attn_max(r.queries * attn_math_group(p), 1);
    add_step(p, &r, move[PACK_Q], chunks, out);
    add_step(p, &r, move[PACK_K], keys, out);
    add_step(p, &r, move[PACK_V], keys, out);
    attn_cublas_product(p, &r, "cublas_scores", out);
    add_step(p, &r, "softmax_fwd_math_softmax", rows, out);
    attn_choice_budget(out, "maxima and sums of the warps", 4 * WARPS);
    attn_cublas_product(p, &r, "cublas_output", out);
    add_step(p, &r, move[UNPACK], chunks, out);
    attn_cublas_describe(p, &r, 0, out);
}

const attn_variant attn_cuda_softmax_fwd_math_variant = {
    .name = "softmax_fwd_math",
    .about = "unfused: packed f32 matrices, two products by cuBLAS; heads of any size",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_VENDOR | ATTN_TRAIT_FINITE_V | ATTN_TRAIT_BY_SIZE,
    .applicable = applicable,
    .lower = lower,
};
