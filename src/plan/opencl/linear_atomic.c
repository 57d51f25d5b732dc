/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_atomic.c: linear attention and its gradients token by token on OpenCL
 * devices, parts of the result added atomically. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    PART = 8, /* rows of the state, of a group                        */
    RUN = 8,  /* tokens from barrier to barrier                       */
    TILE = 8, /* rows of a tensor, of a group of the other steps      */
    LANES_OF_ROW = 8,
    ITEMS = 128,    /* columns of a group at a time                         */
    CPU_ITEMS = 32, /* ... of a processor, which runs them in turn          */
    FAST_BYTES = 4 * 2 * 2 * RUN * (PART + 1),
    SCAN_O = 4 /* as cl_kernels/linear/scan.clh counts it              */
};

static bool is_backward(const attn_problem *p)
{
    return p->pass == ATTN_PASS_BWD;
}

static bool normalizes(const attn_problem *p)
{
    return p->features & ATTN_FEAT_NORMALIZE;
}

static double queries_of(const attn_problem *p)
{
    return (double)p->b * (double)p->hq * (double)p->lq;
}

/* Floats of the sums of a scan. */
static double floats_of(const attn_problem *p, int scan)
{
    const double keys = (double)p->b * (double)p->hkv * (double)p->lk;

    if (scan == SCAN_O)
        return queries_of(p) * (double)(p->dv + 2);
    if (scan == ATTN_SCAN_Q)
        return queries_of(p) * (double)p->d;
    return keys * (double)(scan == ATTN_SCAN_V ? p->dv : p->d);
}

static bool wants(const attn_problem *p, int scan)
{
    return scan == SCAN_O ? !is_backward(p)
                          : is_backward(p) && p->grad & attn_linear_scan_grads[scan];
}

/* c, then the sums: the scans have them in one place, one after the other. */
static double work_bytes(const attn_problem *p)
{
    double most = wants(p, SCAN_O) ? floats_of(p, SCAN_O) : 0;

    for (int s = 0; s < ATTN_SCANS; s++)
        if (wants(p, s) && floats_of(p, s) > most)
            most = floats_of(p, s);
    return 4 * ((is_backward(p) && normalizes(p) ? queries_of(p) : 0) + most);
}

static int64_t items_of(const attn_caps *c)
{
    int64_t items = c->kind == ATTN_DEVICE_CPU ? CPU_ITEMS : ITEMS;

    while (items > c->max_group && items > 1)
        items /= 2;
    return items;
}

/* Tokens of a walk: queries of the heads of a group, and in the full form keys. */
static double tokens_of(const attn_problem *p)
{
    const double share = p->hkv ? (double)p->hq / (double)p->hkv : 1;

    return share * (double)p->lq + (p->features & ATTN_FEAT_CAUSAL ? 0 : (double)p->lk);
}

/* Iterations of a work-item's loops; the loop that adds turns twice where another came between. */
static double loops_of(const attn_problem *p, const attn_caps *c)
{
    const int64_t width = attn_max(p->d, p->dv + 1), items = items_of(c);
    const double token = 2 * (PART + 1) + 4,
                 places = 2.0 * RUN * (PART + 1) / (double)items + 1;

    return (double)attn_ceil_div(width, items) *
               ((tokens_of(p) / RUN + 2) * (RUN * token + 2 * places) + 2 * (PART + 1)) +
           (double)p->lk;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const double heads = (double)p->b * (double)p->hq;
    const int64_t rows = attn_ceil_div(attn_max(p->d, p->dv), PART);
    const int64_t tiles = attn_ceil_div(attn_max(p->lq, p->lk), 1);

    if (FAST_BYTES + 4 > c->fast_bytes)
        return "a group does not fit the limit of work-items, or rows the local memory";
    if (attn_max(p->lq, p->lk) > INT32_MAX - 1024 || tokens_of(p) > INT32_MAX - 1024 ||
        attn_max(p->d, p->dv) > 1 << 24)
        return "so many queries, keys or elements are counted beyond 2^31 - 1";
    if (heads * (double)attn_max(rows, tiles) > INT32_MAX)
        return "more groups than a grid can have, 2^31 - 1";
    if (work_bytes(p) > (double)c->max_alloc_bytes)
        return "a workspace with the sums exceeds the device's memory";
    if (c->max_loops && loops_of(p, c) > (double)c->max_loops)
        return "the driver cuts loops off before so many tokens are walked";
    return NULL;
}

/* Sums of zero, what is added to them, the result of them. The walk is over rows of the state,
 * which are those of D of O and of dV. */
static void add_scan(const attn_problem *p, const attn_caps *c, int scan, attn_choice *out)
{
    static const char *const names[2][3] = {
        { "linear_fwd_atomic_begin", "linear_fwd_atomic", "linear_fwd_atomic_finish" },
        { "linear_bwd_atomic_begin", "linear_bwd_atomic", "linear_bwd_atomic_finish" },
    };
    const bool keys = scan == ATTN_SCAN_K || scan == ATTN_SCAN_V;

    for (int i = 0; i < 3; i++) {
        attn_step *step = attn_opencl_linear_step(p, names[is_backward(p)][i], out);
        const bool walks = i == 1;
        int64_t rows = TILE, lanes = LANES_OF_ROW;

        while (rows * lanes > c->max_group && rows > 1)
            rows /= 2;
        while (rows * lanes > c->max_group && lanes > 1)
            lanes /= 2;
        step->grad = scan == SCAN_O ? 0 : p->grad & attn_linear_scan_grads[scan];
        attn_step_define(step, "SCAN", scan);
        if (walks) {
            step->columns = PART;
            step->by_d = scan == SCAN_O || scan == ATTN_SCAN_V;
            step->block = items_of(c);
            step->fast_bytes = FAST_BYTES;
            attn_step_define(step, "ITEMS", step->block);
            attn_step_define(step, "PART", PART);
            attn_step_define(step, "RUN", RUN);
            continue;
        }
        step->over = keys ? ATTN_OVER_KEYS : ATTN_OVER_QUERIES;
        step->grouped = false;
        step->tile_q = step->tile_k = rows;
        step->block = rows * lanes;
        attn_step_define(step, "ROWS", rows);
        attn_step_define(step, "LANES_OF_ROW", lanes);
    }
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    out->splits = 0;
    out->workspace_bytes = (int64_t)work_bytes(p);
    if (is_backward(p) && normalizes(p) && p->grad & ~(uint32_t)ATTN_GRAD_V)
        attn_opencl_linear_begin(p, c, out);
    if (wants(p, SCAN_O))
        add_scan(p, c, SCAN_O, out);
    for (int i = 0; i < ATTN_SCANS; i++)
        if (wants(p, attn_linear_scan_order[i]))
            add_scan(p, c, attn_linear_scan_order[i], out);
    attn_choice_instance(out, "rows%d,run%d,d%lld,dv%lld,%s", PART, RUN, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        "8 rows of a state for each group, all of its columns; what they make of "
        "a token is added atomically";
}

#define VARIANT(which, pass_of, text)                           \
    const attn_variant attn_opencl_linear_##which##_variant = { \
        .name = "linear_" #which,                               \
        .about = text,                                          \
        .op = ATTN_OP_LINEAR,                                   \
        .pass = pass_of,                                        \
        .features = ATTN_FEATURES_LINEAR,                       \
        .traits = ATTN_TRAIT_NONDET,                            \
        .applicable = applicable,                               \
        .lower = lower,                                         \
    }

VARIANT(fwd_atomic, ATTN_PASS_FWD,
        "token by token, 8 rows of the state for each group, whose parts of the result are "
        "added atomically: bits may differ from run to run");
VARIANT(
    bwd_atomic, ATTN_PASS_BWD,
    "gradients token by token, 8 rows of a state for each group, whose parts of a gradient "
    "are added atomically: bits may differ from run to run");
