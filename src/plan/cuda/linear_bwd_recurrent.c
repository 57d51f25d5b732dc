/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_bwd_recurrent.c: gradients of linear attention token by token on CUDA. */
#include "core/size.h"
#include "plan/cuda/variants.h"

/* As cuda_kernels/linear/bwd_recurrent.cu and bwd_begin.cu have them. */
enum {
    COLUMNS = 32,
    SLICES = 8,
    THREADS = COLUMNS * SLICES,
    KEPT_ROWS = 17 * SLICES,
    BEGIN_ROWS = 8,
    SUMS_BYTES = 4 * 2 * THREADS
};

/* Where a thread's column of a state lies. */
typedef enum place { KEPT, SHARED, GLOBAL, N_PLACES } place;

enum { N_TYPES = 3, N_SCANS = 3 };

/* A scan: which gradients it is for, and its kernels. */
typedef struct scan {
    uint32_t grad;
    const char *kernels[N_TYPES][N_PLACES];
} scan;

#define PLACES(name)                                 \
    {                                                \
        name "_kept", name "_shared", name "_global" \
    }
#define TYPES(which)                                  \
    {                                                 \
        PLACES("linear_bwd_recurrent_f32" which),     \
            PLACES("linear_bwd_recurrent_f16" which), \
            PLACES("linear_bwd_recurrent_bf16" which) \
    }
/* dV before dK: that one writes dS_in, which may lie where dS does. */
static const scan scans[N_SCANS] = {
    { ATTN_GRAD_Q, TYPES("_q") },
    { ATTN_GRAD_V, TYPES("_v") },
    { ATTN_GRAD_K | ATTN_GRAD_STATE, TYPES("_k") },
};
static const char *const begins[N_TYPES] = { "linear_bwd_begin_f32", "linear_bwd_begin_f16",
                                             "linear_bwd_begin_bf16" };

static bool normalizes(const attn_problem *p)
{
    return p->features & ATTN_FEAT_NORMALIZE;
}

static bool is_of_v(const scan *s)
{
    return s->grad == ATTN_GRAD_V;
}

/* Rows of a scan's state, in multiples of the warps, and its columns. */
static int64_t rows_of(const attn_problem *p, const scan *s)
{
    return attn_round_up(is_of_v(s) ? p->d : p->dv + normalizes(p), SLICES);
}

static int64_t tiles_of(const attn_problem *p, const scan *s)
{
    return attn_ceil_div(is_of_v(s) ? p->dv : p->d, COLUMNS);
}

static int64_t rows_bytes(const attn_problem *p, const scan *s)
{
    return 4 * 4 * attn_max(rows_of(p, s), KEPT_ROWS);
}

static place place_of(const attn_problem *p, const attn_caps *c, const scan *s)
{
    if (rows_of(p, s) <= KEPT_ROWS)
        return KEPT;
    return rows_bytes(p, s) + SUMS_BYTES + 4 * COLUMNS * rows_of(p, s) <= c->fast_bytes
               ? SHARED
               : GLOBAL;
}

static double columns_of(const attn_problem *p, const attn_caps *c, const scan *s)
{
    return place_of(p, c, s) == GLOBAL && s->grad & p->grad
               ? 4.0 * COLUMNS * (double)rows_of(p, s) * (double)tiles_of(p, s) *
                     (double)p->b * (double)p->hkv
               : 0;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const double queries = (double)p->b * (double)p->hq * (double)p->lq;
    double most = 0;

    if (THREADS > c->max_group)
        return "a group does not fit the limit of threads";
    for (int i = 0; i < N_SCANS; i++) {
        const double columns = columns_of(p, c, &scans[i]);

        most = columns > most ? columns : most;
        if (rows_bytes(p, &scans[i]) + SUMS_BYTES > c->fast_bytes)
            return "rows of the state do not fit shared memory";
        if ((double)p->b * (double)p->hkv * (double)tiles_of(p, &scans[i]) > INT32_MAX)
            return "more groups than a grid can have, 2^31 - 1";
    }
    if ((double)p->b * (double)p->hq * (double)attn_ceil_div(p->lq, BEGIN_ROWS) > INT32_MAX)
        return "more groups than a grid can have, 2^31 - 1";
    if ((normalizes(p) ? 4 * queries : 0) + most > (double)c->max_alloc_bytes)
        return "the workspace exceeds the device's memory";
    return NULL;
}

static void lower_begin(const attn_problem *p, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = begins[p->type - ATTN_F32];
    step->grad = p->grad & ~(uint32_t)ATTN_GRAD_V;
    step->tile_q = BEGIN_ROWS;
    step->tile_k = 1;
    step->block = 32 * BEGIN_ROWS;
    attn_cuda_linear_step(p, step);
    step->over = ATTN_OVER_QUERIES;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    int64_t most = 0;

    out->splits = 0;
    out->workspace_bytes = 0;
    if (normalizes(p) && p->grad & ~(uint32_t)ATTN_GRAD_V)
        lower_begin(p, out);
    if (normalizes(p))
        out->workspace_bytes = 4 * p->b * p->hq * p->lq;
    for (int i = 0; i < N_SCANS; i++) {
        const scan *const s = &scans[i];
        const place where = place_of(p, c, s);
        attn_step *step;

        if (!(s->grad & p->grad))
            continue;
        step = &out->step[out->n_steps++];
        step->kernel = s->kernels[p->type - ATTN_F32][where];
        step->grad = s->grad & p->grad;
        step->grouped = true;
        step->tile_q = step->tile_k = 1;
        step->columns = COLUMNS;
        step->by_d = !is_of_v(s);
        step->block = THREADS;
        attn_cuda_linear_step(p, step);
        step->fast_bytes = rows_bytes(p, s) + SUMS_BYTES +
                           (where == SHARED ? 4 * COLUMNS * rows_of(p, s) : 0);
        most = attn_max(most, (int64_t)columns_of(p, c, s));
    }
    out->workspace_bytes += most;
    attn_choice_instance(out, "columns%d,d%lld,dv%lld,%s", COLUMNS, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        "32 columns of a state for each group, a lane for each, in registers "
        "up to 136 rows, else in shared memory if they fit";
}

const attn_variant attn_cuda_linear_bwd_recurrent_variant = {
    .name = "linear_bwd_recurrent",
    .about =
        "gradients token by token, a scan for each; a column of the state for each lane",
    .op = ATTN_OP_LINEAR,
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .lower = lower,
};
