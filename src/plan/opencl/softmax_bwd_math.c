/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_bwd_math.c: gradients, unfused: f32 matrices in the workspace and
 * products of them, ours or CLBlast's. Takes heads of any size. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/gradients.h"
#include "plan/opencl/math.h"
#include "plan/opencl/variants.h"

enum {
    CHUNK = 32,  /* rows that a group packs or unpacks              */
    DEPTH = 128, /* rows of a panel that stay in the first cache    */
    SLICE = 64,  /* rows of C of a group in a product               */
    BIAS_I = 4,  /* elements of dBias of a work-item                */
    BIAS_J = 8
};

/* What lies where, and which keys a query sees. */
static const unsigned ROWS = ATTN_READS_QUERIES | ATTN_READS_KEYS | ATTN_READS_RANGE;

/* What a product step computes; OF in the kernel. */
typedef enum product { SCORES, GRAD_Q, GRAD_KV } product;

/* Rows of C that a work-item computes: all of dQ, for panels are reused then; few where
 * loops must stay short, or where the others of a GPU would have nothing to do. */
static int64_t slice_of(const attn_problem *p, const attn_caps *c, const attn_math_shape *s,
                        product of)
{
    if (c->max_loops || (!s->panels && of != SCORES))
        return s->mr;
    return of == GRAD_Q && s->panels ? attn_round_up(p->d, s->mr) : SLICE;
}

/* Iterations of a work-item in its longest kernel; twice, for where a grid is one group
 * short of its work and a group goes round again. */
static int64_t loops_of(const attn_problem *p, const attn_caps *c, const attn_math_shape *s,
                        const attn_math_round *r)
{
    const int64_t dims = p->d + p->dv, columns = r->queries * attn_math_group(p) + s->nr;
    const int64_t pack = CHUNK * (2 * dims + s->mr) + CHUNK;
    const int64_t weights = p->lk * (s->pitch + 2) + s->pitch + 1;
    const int64_t depth = s->panels ? attn_min(DEPTH, s->nr) : DEPTH;
    const int64_t scores = slice_of(p, c, s, SCORES) / s->mr * (dims + 2);
    const int64_t of_q = slice_of(p, c, s, GRAD_Q) / s->mr * (p->lk + p->lk / DEPTH + 2);
    const int64_t of_kv =
        2 * (slice_of(p, c, s, GRAD_KV) / s->mr) * (columns + columns / depth + 2);
    const int64_t ours = s->library ? 0 : attn_max(scores, attn_max(of_q, of_kv));
    const int64_t sinks = p->grad & ATTN_GRAD_SINKS ? p->b * p->lq : 0;
    /* one that was broadcast wholly */
    const double bias = p->grad & ATTN_GRAD_BIAS
                            ? (double)r->heads * (double)r->queries * (double)(p->lk + 2)
                            : 0;
    const int64_t most = attn_max(2 * attn_max(attn_max(pack, weights), ours), sinks);

    return bias <= (double)most ? most : bias < 0x1p62 ? (int64_t)bias : INT64_MAX;
}

static const char *refusal(const attn_problem *p, const attn_caps *c, bool library)
{
    const attn_math_shape s = attn_math_shape_of(p, c, library);
    attn_math_round round;

    if (c->max_group < 1)
        return "the device runs no work-group";
    if (!attn_math_cl_round(p, c, &s, &round))
        return "keys, values and the scores of one query exceed the device's largest block";
    if (c->max_loops && loops_of(p, c, &s, &round) > c->max_loops)
        return "the driver cuts loops off before so many rows are read";
    return NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    return refusal(p, c, false);
}

static const char *applicable_clblast(const attn_problem *p, const attn_caps *c)
{
    return c->blas ? refusal(p, c, true) : attn_no_clblast;
}

static void set_round(attn_step *step, const attn_math_round *r)
{
    step->round_heads = r->heads;
    step->round_queries = r->queries;
}

/* A step whose kernel takes any number of groups: best one for so many queries of all heads
 * that share keys, or so many keys. */
static attn_step *add_step(const attn_problem *p, const attn_math_shape *s,
                           const attn_math_round *r, const char *kernel, attn_over over,
                           uint32_t grad, int64_t rows, unsigned reads, attn_choice *out)
{
    attn_step *step = attn_gradients_step(p, kernel, over, grad,
                                          ATTN_READS_D | ATTN_READS_DV | reads, out);

    step->tile_q = step->tile_k = attn_max(rows, 1);
    step->grouped = over == ATTN_OVER_QUERIES;
    step->block = s->block;
    set_round(step, r);
    attn_step_define(step, "MR", s->mr);
    attn_step_define(step, "NR", s->nr);
    attn_step_define(step, "NB", s->nb);
    attn_step_define(step, "PITCH", s->pitch);
    attn_step_define(step, "PANELS", s->panels);
    attn_step_define(step, "BLOCK", s->block);
    return step;
}

/* By CLBlast; the back end reads tile_q as the pitch's unit. */
static void add_library(const attn_problem *p, const attn_math_shape *s,
                        const attn_math_round *r, product of, uint32_t grad,
                        attn_choice *out)
{
    static const char *const kernels[] = { "clblast_bwd_scores", "clblast_bwd_q",
                                           "clblast_bwd_kv" };
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernels[of];
    step->grad = grad;
    step->tile_q = s->pitch;
    step->tile_k = SLICE;
    step->block = 1;
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    set_round(step, r);
}

static void add_product(const attn_problem *p, const attn_caps *c, const attn_math_shape *s,
                        const attn_math_round *r, product of, uint32_t grad,
                        attn_choice *out)
{
    const bool over_keys = of != GRAD_Q;
    const int64_t slice = slice_of(p, c, s, of);
    const int64_t slices = attn_ceil_div(p->d, slice);
    attn_step *step;

    if (s->library) {
        add_library(p, s, r, of, grad, out);
        return;
    }
    /* over queries, times pieces of keys: C has those rows; dK and dV have few columns */
    step = add_step(p, s, r, "softmax_bwd_math_product", ATTN_OVER_QUERIES, grad,
                    of == GRAD_Q ? s->nr * s->block / slices : s->nr * s->block, 0, out);
    step->piece = over_keys ? slice : 0;
    if (of == GRAD_KV)
        step->tile_q = attn_max(r->queries * attn_math_group(p) * s->nb * s->block /
                                    attn_round_up(attn_max(p->d, p->dv), s->nb),
                                1);
    attn_step_define(step, "VW", of == GRAD_KV ? s->vwb : s->vw);
    attn_step_define(step, "NV", of == GRAD_KV ? s->nvb : s->nv);
    attn_step_define(step, "DEPTH", DEPTH);
    attn_step_define(step, "SLICE", slice);
    attn_step_define(step, "OF", of);
}

/* Weights and gradients of scores, of what is in the workspace already. */
static void add_weights(const attn_problem *p, const attn_caps *c, const attn_math_shape *s,
                        const attn_math_round *r, bool capped, uint32_t grads,
                        attn_choice *out)
{
    attn_step *step;

    add_product(p, c, s, r, SCORES, grads, out);
    step = add_step(p, s, r, "softmax_bwd_math_weights", ATTN_OVER_QUERIES, grads,
                    s->pitch * s->block, ROWS | ATTN_READS_SOFTCAP | ATTN_READS_TERMS, out);
    attn_step_define(step, "CAPPED", capped);
}

static void add_bias(const attn_problem *p, const attn_math_shape *s,
                     const attn_math_round *r, attn_choice *out)
{
    attn_step *step = add_step(p, s, r, "softmax_bwd_math_bias", ATTN_OVER_BIAS,
                               ATTN_GRAD_BIAS, BIAS_I, 0, out);

    step->tile_k = BIAS_J * s->block;
    attn_step_define(step, "BI", BIAS_I);
    attn_step_define(step, "BJ", BIAS_J);
}

/* A gradient of a bias wants gradients of scores before the cap: where there is one, scores
 * are computed a second time for the others. */
static void add_scores(const attn_problem *p, const attn_caps *c, const attn_math_shape *s,
                       const attn_math_round *r, attn_choice *out)
{
    const uint32_t qkv = p->grad & (ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V);
    const bool bias = (p->grad & ATTN_GRAD_BIAS) != 0;
    const bool twice = bias && p->features & ATTN_FEAT_SOFTCAP;
    attn_step *step = add_step(p, s, r, "softmax_bwd_math_pack", ATTN_OVER_QUERIES,
                               p->grad & ~(uint32_t)ATTN_GRAD_SINKS, CHUNK,
                               ATTN_READS_TYPE | ROWS | ATTN_READS_Q | ATTN_READS_K |
                                   ATTN_READS_V | ATTN_READS_GRAD_O,
                               out);

    attn_step_define(step, "CHUNK", CHUNK);
    if (bias) {
        add_weights(p, c, s, r, !twice, twice ? ATTN_GRAD_BIAS : qkv | ATTN_GRAD_BIAS, out);
        add_bias(p, s, r, out);
    }
    if (qkv && (!bias || twice))
        add_weights(p, c, s, r, true, qkv, out);
}

static void add_gradients(const attn_problem *p, const attn_caps *c,
                          const attn_math_shape *s, const attn_math_round *r,
                          attn_choice *out)
{
    const uint32_t kv = p->grad & (ATTN_GRAD_K | ATTN_GRAD_V);
    attn_step *step;

    if (p->grad & ATTN_GRAD_Q) {
        add_product(p, c, s, r, GRAD_Q, ATTN_GRAD_Q, out);
        step =
            add_step(p, s, r, "softmax_bwd_math_unpack", ATTN_OVER_QUERIES, ATTN_GRAD_Q,
                     CHUNK, ATTN_READS_TYPE | ATTN_READS_QUERIES | ATTN_READS_GRAD_Q, out);
        attn_step_define(step, "CHUNK", CHUNK);
    }
    if (kv) {
        add_product(p, c, s, r, GRAD_KV, kv, out);
        step = add_step(
            p, s, r, "softmax_bwd_math_unpack", ATTN_OVER_KEYS, kv, CHUNK,
            ATTN_READS_TYPE | ATTN_READS_KEYS | ATTN_READS_GRAD_K | ATTN_READS_GRAD_V, out);
        attn_step_define(step, "CHUNK", CHUNK);
        attn_step_define(step, "KEYS", 1);
    }
}

static void lower_with(const attn_problem *p, const attn_caps *c, bool library,
                       attn_choice *out)
{
    const attn_math_shape s = attn_math_shape_of(p, c, library);
    attn_math_round r;

    attn_math_cl_round(p, c, &s, &r);
    attn_gradients_delta(p, c, out);
    if (p->grad & ~(uint32_t)ATTN_GRAD_SINKS)
        add_scores(p, c, &s, &r, out);
    add_gradients(p, c, &s, &r, out);
    attn_gradients_sinks(p, c, out);
    set_round(&out->step[0], &r);
    set_round(&out->step[out->n_steps - 1], &r);
    out->workspace_bytes = 4 * (attn_math_before(p) + (int64_t)r.floats);
    attn_math_describe(p, &s, out);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_with(p, c, false, out);
}

static void lower_clblast(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    lower_with(p, c, true, out);
}

const attn_variant attn_opencl_softmax_bwd_math_variant = {
    .name = "softmax_bwd_math",
    .about = "gradients, unfused: packed f32 matrices, products of our own; any head size",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD,
    .applicable = applicable,
    .lower = lower,
};

const attn_variant attn_opencl_softmax_bwd_math_clblast_variant = {
    .name = "softmax_bwd_math_clblast",
    .about = "gradients, unfused: packed f32 matrices, products by CLBlast",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD,
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_VENDOR,
    .applicable = applicable_clblast,
    .lower = lower_clblast,
};
