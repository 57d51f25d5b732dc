/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_bwd_math.c: gradients, unfused: f32 matrices in the workspace and
 * products of them by cuBLAS. Takes heads of any size. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/backward.h"
#include "plan/cuda/cublas.h"

enum { N_TYPES = 3 };
enum { MOST_THREADS = 256 }; /* of a group, in the steps that all variants share */

enum { PACK_Q, PACK_K, UNPACK_Q, UNPACK_K, N_MOVES };

#define MOVES(type)                                                                     \
    {                                                                                   \
        "softmax_bwd_math_pack_" type "_q", "softmax_bwd_math_pack_" type "_k",         \
            "softmax_bwd_math_unpack_" type "_q", "softmax_bwd_math_unpack_" type "_k", \
    }
static const char *const moves[N_TYPES][N_MOVES] = { MOVES("f32"), MOVES("f16"),
                                                     MOVES("bf16") };

/* Floats of the workspace that lie before the matrices: delta, as WORK_DELTA. */
static int64_t before(const attn_problem *p)
{
    return attn_round_up(p->b * p->hq * p->lq, 16);
}

static bool find_round(const attn_problem *p, const attn_caps *c, attn_math_round *out)
{
    return attn_cublas_round(p, c, before(p), out);
}

/* dBias, if it has every pair to itself, in tiles. */
static bool in_a_grid(const attn_problem *p)
{
    int64_t n;

    return !(p->grad & ATTN_GRAD_BIAS) ||
           (attn_mul(attn_ceil_div(p->lq, ATTN_CUBLAS_CHUNK),
                     attn_ceil_div(p->lk, ATTN_CUBLAS_THREADS), &n) &&
            attn_mul(n, p->b * p->hq, &n) && n <= INT32_MAX);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    attn_math_round round;
    const char *reason = attn_cublas_refusal(p, c);

    if (reason ||
        (reason = attn_cuda_back_refusal(p, c, ATTN_CUBLAS_CHUNK, ATTN_CUBLAS_CHUNK)))
        return reason;
    if (c->max_group < MOST_THREADS)
        return "the device runs no group of 256 threads";
    if (!in_a_grid(p))
        return "more groups for the gradient of a bias than a grid can have, 2^31 - 1";
    return find_round(p, c, &round) ? NULL : attn_cublas_too_long;
}

/* A step over what `over` says, `queries` or `keys` of a group. */
static attn_step *add_step(const attn_problem *p, const attn_math_round *r,
                           const char *kernel, attn_over over, uint32_t grad,
                           int64_t queries, int64_t keys, attn_choice *out)
{
    attn_step *step = attn_cublas_kernel(p, r, kernel, queries, out);

    step->over = over;
    step->grad = grad;
    step->tile_k = keys;
    return step;
}

static void add_product(const attn_problem *p, const attn_math_round *r, const char *kernel,
                        uint32_t grad, attn_choice *out)
{
    attn_cublas_product(p, r, kernel, out)->grad = grad;
}

/* Weights and gradients of scores, of what has been packed. */
static void add_weights(const attn_problem *p, const attn_math_round *r, bool capped,
                        uint32_t grad, attn_choice *out)
{
    add_product(p, r, "cublas_bwd_scores", grad, out);
    add_step(p, r,
             capped ? "softmax_bwd_math_weights_capped" : "softmax_bwd_math_weights_plain",
             ATTN_OVER_QUERIES, grad, 1, ATTN_CUBLAS_THREADS, out);
}

/* A gradient of a bias wants gradients of scores before the cap: where there is one, scores
 * are computed a second time for the others. */
static void add_scores(const attn_problem *p, const attn_math_round *r, attn_choice *out)
{
    const char *const *move = moves[p->type - ATTN_F32];
    const uint32_t qkv = p->grad & (ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V);
    const uint32_t all = p->grad & ~(uint32_t)ATTN_GRAD_SINKS;
    const bool bias = (p->grad & ATTN_GRAD_BIAS) != 0;
    const bool twice = bias && p->features & ATTN_FEAT_SOFTCAP;
    attn_step *step;

    add_step(p, r, move[PACK_Q], ATTN_OVER_QUERIES, all, ATTN_CUBLAS_CHUNK, 1, out);
    step = add_step(p, r, move[PACK_K], ATTN_OVER_QUERIES, all,
                    attn_max(r->queries * attn_math_group(p), 1), 1, out);
    step->piece = ATTN_CUBLAS_CHUNK;
    step->grouped = true;
    if (bias) {
        add_weights(p, r, !twice, twice ? ATTN_GRAD_BIAS : all, out);
        add_step(p, r, "softmax_bwd_math_bias", ATTN_OVER_BIAS, ATTN_GRAD_BIAS,
                 ATTN_CUBLAS_CHUNK, ATTN_CUBLAS_THREADS, out);
    }
    if (qkv && (!bias || twice))
        add_weights(p, r, true, qkv, out);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const char *const *move = moves[p->type - ATTN_F32];
    const uint32_t kv = p->grad & (ATTN_GRAD_K | ATTN_GRAD_V);
    attn_math_round r;

    find_round(p, c, &r);
    if (p->grad & ~(uint32_t)ATTN_GRAD_V)
        attn_cuda_back_delta(p, out);
    if (p->grad & ~(uint32_t)ATTN_GRAD_SINKS)
        add_scores(p, &r, out);
    if (p->grad & ATTN_GRAD_Q) {
        add_product(p, &r, "cublas_bwd_q", ATTN_GRAD_Q, out);
        add_step(p, &r, move[UNPACK_Q], ATTN_OVER_QUERIES, ATTN_GRAD_Q, ATTN_CUBLAS_CHUNK,
                 1, out);
    }
    if (kv) {
        add_product(p, &r, "cublas_bwd_kv", kv, out);
        add_step(p, &r, move[UNPACK_K], ATTN_OVER_KEYS, kv, 1, ATTN_CUBLAS_CHUNK, out);
    }
    attn_cuda_back_sinks(p, out);
    attn_cublas_describe(p, &r, before(p), out);
}

const attn_variant attn_cuda_softmax_bwd_math_variant = {
    .name = "softmax_bwd_math",
    .about = "gradients, unfused: packed f32 matrices, products by cuBLAS; any head size",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD,
    .traits = ATTN_TRAIT_VENDOR | ATTN_TRAIT_BY_SIZE,
    .applicable = applicable,
    .lower = lower,
};
