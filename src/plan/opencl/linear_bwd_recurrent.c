/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_bwd_recurrent.c: gradients of linear attention token by token on
 * OpenCL devices. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    COLUMNS = 32,  /* of a state, of a group              */
    SLICES = 8,    /* items that share one, on a GPU      */
    MOST_KEPT = 17 /* rows of an item that registers hold */
};

/* Where an item's part of a column lies; as PLACE of the kernel. */
typedef enum place { IN_PRIVATE, IN_LOCAL, IN_GLOBAL } place;

/* Best first, and of few columns where a group may not have many items. */
typedef struct shape {
    int64_t columns, slices;
} shape;

enum { N_SCANS = ATTN_SCANS };

typedef attn_linear_scan scan;

static bool normalizes(const attn_problem *p)
{
    return p->features & ATTN_FEAT_NORMALIZE;
}

/* A processor runs the items of a group in turn: none share a column there. */
static shape shape_of(const attn_caps *c)
{
    shape s = { COLUMNS, c->kind == ATTN_DEVICE_CPU ? 1 : SLICES };

    while (s.columns * s.slices > c->max_group && s.slices > 1)
        s.slices /= 2;
    while (s.columns > c->max_group && s.columns > 1)
        s.columns /= 2;
    return s;
}

/* Rows of a scan's state, in multiples of the slices, and its tiles of columns. */
static int64_t rows_of(const attn_problem *p, scan s, shape x)
{
    return attn_round_up(s == ATTN_SCAN_V ? p->d : p->dv + normalizes(p), x.slices);
}

static int64_t tiles_of(const attn_problem *p, scan s, shape x)
{
    return attn_ceil_div(s == ATTN_SCAN_V ? p->dv : p->d, x.columns);
}

/* Local memory, line by line. */
static int64_t rows_bytes(const attn_problem *p, scan s, shape x)
{
    return 4 * 4 * rows_of(p, s, x);
}

static int64_t sums_bytes(shape x)
{
    return 4 * 2 * x.columns * x.slices;
}

static int64_t state_bytes(const attn_problem *p, scan s, shape x)
{
    return 4 * rows_of(p, s, x) * x.columns;
}

static place place_of(const attn_problem *p, const attn_caps *c, scan s, shape x)
{
    if (rows_of(p, s, x) <= MOST_KEPT * x.slices)
        return IN_PRIVATE;
    return rows_bytes(p, s, x) + sums_bytes(x) + state_bytes(p, s, x) <= c->fast_bytes
               ? IN_LOCAL
               : IN_GLOBAL;
}

/* The columns of all groups, if they lie in the workspace. */
static double work_bytes(const attn_problem *p, const attn_caps *c, scan s, shape x)
{
    return p->grad & attn_linear_scan_grads[s] && place_of(p, c, s, x) == IN_GLOBAL
               ? (double)state_bytes(p, s, x) * (double)tiles_of(p, s, x) * (double)p->b *
                     (double)p->hkv
               : 0;
}

/* Tokens of a walk: queries of the heads of a group, and in the full form keys. */
static double tokens_of(const attn_problem *p)
{
    const double share = p->hkv ? (double)p->hq / (double)p->hkv : 1;

    return share * (double)p->lq + (p->features & ATTN_FEAT_CAUSAL ? 0 : (double)p->lk);
}

/* Iterations of a work-item's loops. */
static double loops_of(const attn_problem *p, scan s, shape x)
{
    const double rows = (double)rows_of(p, s, x) / (double)x.slices;
    const double shared = (double)rows_of(p, s, x) / (double)(x.columns * x.slices);

    return (tokens_of(p) + 2) * (2 * rows + shared + (double)x.slices + 8) + (double)p->lk;
}

/* Workspace that cannot be counted is refused first. */
static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const double queries = (double)p->b * (double)p->hq * (double)p->lq;
    const double heads = (double)p->b * (double)p->hkv;
    const shape x = shape_of(c);
    double most = 0;

    for (int s = 0; s < N_SCANS; s++) {
        const double bytes = work_bytes(p, c, s, x);

        most = bytes > most ? bytes : most;
        if (rows_bytes(p, s, x) + sums_bytes(x) + 4 > c->fast_bytes)
            return "rows of the state do not fit local memory";
        if (heads * (double)tiles_of(p, s, x) > INT32_MAX)
            return "more than 2^31 - 1 groups";
        if (c->max_loops && loops_of(p, s, x) > (double)c->max_loops)
            return "the driver cuts loops off before so many tokens are walked";
    }
    if (queries > INT32_MAX || tokens_of(p) > INT32_MAX)
        return "more than 2^31 - 1 queries of all heads, or tokens of a walk";
    if ((normalizes(p) ? 4 * queries : 0) + most > (double)c->max_alloc_bytes)
        return "a workspace with columns of the states exceeds the device's largest block";
    return NULL;
}

static void lower_scan(const attn_problem *p, const attn_caps *c, scan s, attn_choice *out)
{
    const shape x = shape_of(c);
    const place where = place_of(p, c, s, x);
    attn_step *step = attn_opencl_linear_step(p, "linear_bwd_recurrent", out);

    step->grad = attn_linear_scan_grads[s] & p->grad;
    step->columns = x.columns;
    step->by_d = s != ATTN_SCAN_V;
    step->block = x.columns * x.slices;
    step->fast_bytes = rows_bytes(p, s, x) + sums_bytes(x) +
                       (where == IN_LOCAL ? state_bytes(p, s, x) : 0);
    attn_step_define(step, "SCAN", s);
    attn_step_define(step, "COLUMNS", x.columns);
    attn_step_define(step, "SLICES", x.slices);
    attn_step_define(step, "PLACE", where);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    static const char *const names[] = { "private", "local", "global" };
    const shape x = shape_of(c);
    place last = IN_PRIVATE;
    double most = 0;

    out->splits = 0;
    if (normalizes(p) && p->grad & ~(uint32_t)ATTN_GRAD_V)
        attn_opencl_linear_begin(p, c, out);
    for (int i = 0; i < N_SCANS; i++) {
        const scan s = attn_linear_scan_order[i];
        const double bytes = work_bytes(p, c, s, x);

        if (!(attn_linear_scan_grads[s] & p->grad))
            continue;
        lower_scan(p, c, s, out);
        most = bytes > most ? bytes : most;
        last = place_of(p, c, s, x);
    }
    out->workspace_bytes = (normalizes(p) ? 4 * p->b * p->hq * p->lq : 0) + (int64_t)most;
    attn_choice_instance(out, "columns%lld,slices%lld,%s,d%lld,dv%lld,%s",
                         (long long)x.columns, (long long)x.slices, names[last],
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "32 columns of a state for each group, on GPUs eight work-items for "
                       "each, in private memory up to 17 rows of each, else in local "
                       "memory if they fit; of the last step";
}

const attn_variant attn_opencl_linear_bwd_recurrent_variant = {
    .name = "linear_bwd_recurrent",
    .about = "gradients token by token, a scan for each; a column of the state for each "
             "work-item, or for eight",
    .op = ATTN_OP_LINEAR,
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .lower = lower,
};
