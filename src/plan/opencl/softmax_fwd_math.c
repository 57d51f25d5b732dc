/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_fwd_math.c: OpenCL's general way: f32 matrices in the workspace and
 * two products of them, ours or CLBlast's. Takes heads of any size. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/math.h"
#include "plan/opencl/variants.h"

enum {
    CHUNK = 32,  /* rows that a group packs or unpacks                 */
    DEPTH = 128, /* rows of a panel that stay in the first cache       */
    SLICE = 64,  /* keys of a group in the first product               */
    SPAN = 256   /* keys of an inner loop of the softmax               */
};

static const char too_long[] =
    "keys, values and the scores of one query exceed the device's largest block";

/* Rows of O that a group computes in the second product: all, for panels are reused
 * then; few where loops must stay short. */
static int64_t slice_of(const attn_problem *p, const attn_caps *c, const attn_math_shape *s)
{
    return c->max_loops || !s->panels ? s->mr : attn_round_up(p->dv, s->mr);
}

/* Iterations of a work-item in its longest kernel; twice, for where a grid is one group
 * short of its work and a group goes round again. */
static int64_t loops_of(const attn_problem *p, const attn_caps *c, const attn_math_shape *s)
{
    const int64_t pack = CHUNK * (attn_max(p->d, p->dv) + s->mr) + CHUNK;
    const int64_t scores =
        (SLICE / s->mr) * (p->d + attn_ceil_div(p->d, DEPTH)) + attn_ceil_div(p->d, DEPTH);
    const int64_t softmax = 2 * p->lk + p->lk / SPAN + s->pitch + s->mr;
    const int64_t values = slice_of(p, c, s) / s->mr * (p->lk + 2 * p->lk / DEPTH + s->mr);
    const int64_t ours = s->library ? 0 : attn_max(scores, values);

    return 2 * attn_max(attn_max(pack, softmax), ours);
}

static const char *refusal(const attn_problem *p, const attn_caps *c, bool library)
{
    const attn_math_shape s = attn_math_shape_of(p, c, library);
    attn_math_round round;

    if (c->max_group < 1)
        return "the device runs no work-group";
    if (!attn_math_cl_round(p, c, &s, &round))
        return too_long;
    if (c->max_loops && loops_of(p, c, &s) > c->max_loops)
        return "the driver cuts loops off before so many keys are read";
    return NULL;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    return refusal(p, c, false);
}

static const char *applicable_clblast(const attn_problem *p, const attn_caps *c)
{
    if (!c->blas)
        return attn_no_clblast;
    return refusal(p, c, true);
}

/* What a step's groups are made for; the kernels take any number of them. */
typedef struct grid {
    int64_t queries, keys; /* of a group; keys 0: all               */
    bool grouped;          /* queries of all heads that share keys  */
} grid;

static attn_step *add_step(const attn_problem *p, const attn_math_shape *s,
                           const attn_math_round *round, const char *kernel, grid g,
                           unsigned reads, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->tile_q = g.queries;
    step->tile_k = SLICE;
    step->piece = g.keys;
    step->grouped = g.grouped;
    step->block = s->block;
    step->round_heads = round->heads;
    step->round_queries = round->queries;
    attn_step_softmax(step, p, ATTN_READS_D | ATTN_READS_DV | reads);
    attn_step_define(step, "MR", s->mr);
    attn_step_define(step, "PITCH", s->pitch);
    attn_step_define(step, "PANELS", s->panels);
    attn_step_define(step, "BLOCK", s->block);
    return step;
}

static void add_pack(const attn_problem *p, const attn_math_shape *s,
                     const attn_math_round *round, int what, attn_choice *out)
{
    static const unsigned reads[] = {
        ATTN_READS_Q,
        ATTN_READS_KEYS | ATTN_READS_RANGE | ATTN_READS_K,
        ATTN_READS_KEYS | ATTN_READS_RANGE | ATTN_READS_V,
    };
    const grid g = { .queries = what ? round->queries * attn_math_group(p) : CHUNK,
                     .keys = what ? CHUNK : 0,
                     .grouped = true };
    attn_step *step = add_step(p, s, round, "softmax_fwd_math_pack", g,
                               ATTN_READS_TYPE | ATTN_READS_QUERIES | reads[what], out);

    attn_step_define(step, "NR", s->nr);
    attn_step_define(step, "PACK", what);
    attn_step_define(step, "CHUNK", CHUNK);
}

/* C = A^T B, S or O. */
static void add_product(const attn_problem *p, const attn_caps *c, const attn_math_shape *s,
                        const attn_math_round *round, bool output, attn_choice *out)
{
    const int64_t slice = output ? slice_of(p, c, s) : SLICE;
    const int64_t slices = output ? attn_ceil_div(p->dv, slice) : 1;
    const grid g = { .queries = attn_max(s->nr * s->block / slices, 1),
                     .keys = output ? 0 : slice,
                     .grouped = true };
    attn_step *step = add_step(p, s, round, "softmax_fwd_math_product", g, 0, out);

    attn_step_define(step, "VW", s->vw);
    attn_step_define(step, "NV", s->nv);
    attn_step_define(step, "DEPTH", DEPTH);
    attn_step_define(step, "SLICE", slice);
    attn_step_define(step, "OUTPUT", output);
}

/* The same by CLBlast; the back end reads tile_q as the pitch's unit. */
static void add_library(const attn_problem *p, const attn_math_shape *s,
                        const attn_math_round *round, bool output, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = output ? "clblast_output" : "clblast_scores";
    step->tile_q = s->pitch;
    step->tile_k = SLICE;
    step->block = 1;
    step->round_heads = round->heads;
    step->round_queries = round->queries;
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
}

static void lower_with(const attn_problem *p, const attn_caps *c, bool library,
                       attn_choice *out)
{
    const attn_math_shape s = attn_math_shape_of(p, c, library);
    attn_step *step;
    attn_math_round r;

    attn_math_cl_round(p, c, &s, &r);
    for (int what = 0; what < 3; what++)
        add_pack(p, &s, &r, what, out);
    library ? add_library(p, &s, &r, false, out) : add_product(p, c, &s, &r, false, out);
    step = add_step(
        p, &s, &r, "softmax_fwd_math_softmax", (grid){ .queries = s.pitch * s.block },
        ATTN_READS_QUERIES | ATTN_READS_KEYS | ATTN_READS_RANGE | ATTN_READS_SOFTCAP |
            ATTN_READS_TERMS | ATTN_READS_SINKS | ATTN_READS_LSE,
        out);
    attn_step_define(step, "NR", s.nr);
    library ? add_library(p, &s, &r, true, out) : add_product(p, c, &s, &r, true, out);
    step = add_step(p, &s, &r, "softmax_fwd_math_unpack", (grid){ .queries = CHUNK },
                    ATTN_READS_TYPE | ATTN_READS_QUERIES | ATTN_READS_O, out);
    attn_step_define(step, "NR", s.nr);
    attn_step_define(step, "CHUNK", CHUNK);
    out->workspace_bytes = 4 * (int64_t)r.floats;
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

const attn_variant attn_opencl_softmax_fwd_math_variant = {
    .name = "softmax_fwd_math",
    .about = "unfused: packed f32 matrices, two products of our own; heads of any size",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_FINITE_V,
    .applicable = applicable,
    .lower = lower,
};

const attn_variant attn_opencl_softmax_fwd_math_clblast_variant = {
    .name = "softmax_fwd_math_clblast",
    .about = "unfused: packed f32 matrices, two products by CLBlast",
    .features = ATTN_FEATURES_ALL,
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_VENDOR | ATTN_TRAIT_FINITE_V,
    .applicable = applicable_clblast,
    .lower = lower_clblast,
};
