/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_atomic.c: linear attention and its gradients token by token on CUDA, parts of
 * the result added atomically. */
#include "core/size.h"
#include "plan/cuda/variants.h"

/* As cuda_kernels/linear/atomic.cuh and bwd_begin.cu have them. */
enum {
    ROWS = 8, /* of the state, of a group                        */
    RUN = 8,  /* tokens from barrier to barrier                  */
    TILE = 8, /* rows of a tensor, of a group of the other steps */
    THREADS = 256,
    FAST_BYTES = 4 * 2 * 2 * RUN * (ROWS + 1),
    N_TYPES = 3,
    N_SCANS = 3
};

/* The steps of a scan: sums of zero, what is added to them, the result of them. */
typedef enum part { BEGIN, WALK, FINISH, N_PARTS } part;

typedef const char *const names[N_TYPES][N_PARTS];
#define PARTS(name)                                 \
    {                                               \
        name "_begin", name "_walk", name "_finish" \
    }
#define TYPES(pass, which)                             \
    {                                                  \
        PARTS("linear_" pass "_atomic_f32" which),     \
            PARTS("linear_" pass "_atomic_f16" which), \
            PARTS("linear_" pass "_atomic_bf16" which) \
    }
static names outputs = TYPES("fwd", "");

/* dV before dK: that one writes dS_in, which may lie where dS does. */
static const struct {
    uint32_t grad;
    const char *kernel[N_TYPES][N_PARTS];
} scans[N_SCANS] = {
    { ATTN_GRAD_Q, TYPES("bwd", "_q") },
    { ATTN_GRAD_V, TYPES("bwd", "_v") },
    { ATTN_GRAD_K | ATTN_GRAD_STATE, TYPES("bwd", "_k") },
};
static const char *const begins[N_TYPES] = { "linear_bwd_begin_f32", "linear_bwd_begin_f16",
                                             "linear_bwd_begin_bf16" };

static bool is_backward(const attn_problem *p)
{
    return p->pass == ATTN_PASS_BWD;
}

static bool normalizes(const attn_problem *p)
{
    return p->features & ATTN_FEAT_NORMALIZE;
}

/* Floats of c, before the sums. */
static double floats_of_c(const attn_problem *p)
{
    return is_backward(p) && normalizes(p)
               ? (double)p->b * (double)p->hq * (double)p->lq + 1
               : 0;
}

/* Floats of the sums of a gradient, 0: of O. */
static double floats_of(const attn_problem *p, uint32_t grad)
{
    const double queries = (double)p->b * (double)p->hq * (double)p->lq;
    const double keys = (double)p->b * (double)p->hkv * (double)p->lk;

    if (!grad)
        return queries * (double)((p->dv + 2) / 2 * 2 + 2);
    if (grad == ATTN_GRAD_Q)
        return queries * (double)attn_round_up(p->d, 2);
    return keys * (double)attn_round_up(grad == ATTN_GRAD_V ? p->dv : p->d, 2);
}

/* The scans have the sums in one place, one after the other. */
static double work_bytes(const attn_problem *p)
{
    double most = is_backward(p) ? 0 : floats_of(p, 0);

    for (int i = 0; i < N_SCANS; i++)
        if (p->grad & scans[i].grad && floats_of(p, scans[i].grad) > most)
            most = floats_of(p, scans[i].grad);
    return 4 * (floats_of_c(p) + most);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const double heads = (double)p->b * (double)p->hq;
    const int64_t rows = attn_ceil_div(attn_max(p->d, p->dv), ROWS);
    const int64_t tiles = attn_ceil_div(attn_max(p->lq, p->lk), TILE);

    if (THREADS > c->max_group || FAST_BYTES > c->fast_bytes)
        return "a group does not fit the limit of threads, or rows the shared memory";
    if (!attn_cuda_counts(p) || attn_max(p->d, p->dv) > 1 << 24)
        return "so many queries, keys or elements are counted beyond 2^31 - 1";
    if (heads * (double)attn_max(rows, tiles) > 0x1p31 - 1)
        return "more groups than a grid can have, 2^31 - 1";
    if (work_bytes(p) > (double)c->max_alloc_bytes)
        return "a workspace with the sums exceeds the device's memory";
    return NULL;
}

static attn_step *add_step(const attn_problem *p, const char *kernel, uint32_t grad,
                           attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grad = grad;
    step->tile_q = step->tile_k = TILE;
    step->block = THREADS;
    attn_cuda_linear_step(p, step);
    step->over = ATTN_OVER_QUERIES;
    return step;
}

/* Sums of rows of queries or keys; the walk is over rows of the state, which are those of D of
 * O and of dV. */
static void add_scan(const attn_problem *p, const char *const kernel[N_PARTS],
                     uint32_t grad, bool keys, bool by_d, attn_choice *out)
{
    for (int i = 0; i < N_PARTS; i++) {
        attn_step *const step = add_step(p, kernel[i], grad, out);

        if (i != WALK) {
            step->over = keys ? ATTN_OVER_KEYS : ATTN_OVER_QUERIES;
            continue;
        }
        step->over = ATTN_OVER_STATES;
        step->grouped = true;
        step->tile_q = step->tile_k = 1;
        step->columns = ROWS;
        step->by_d = by_d;
        step->fast_bytes = FAST_BYTES;
    }
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const int type = p->type - ATTN_F32;
    const uint32_t with_c = p->grad & ~(uint32_t)ATTN_GRAD_V;

    (void)c;
    out->splits = 0;
    out->workspace_bytes = attn_round_up((int64_t)work_bytes(p), 8);
    if (is_backward(p) && normalizes(p) && with_c)
        add_step(p, begins[type], with_c, out);
    if (!is_backward(p))
        add_scan(p, outputs[type], 0, false, true, out);
    for (int i = 0; i < N_SCANS; i++)
        if (p->grad & scans[i].grad)
            add_scan(p, scans[i].kernel[type], p->grad & scans[i].grad,
                     scans[i].grad != ATTN_GRAD_Q, scans[i].grad == ATTN_GRAD_V, out);
    attn_choice_instance(out, "rows%d,run%d,d%lld,dv%lld,%s", ROWS, RUN, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        "8 rows of a state for each group, all of its columns; what they make of "
        "a token is added atomically";
}

#define VARIANT(which, pass_of, text)                         \
    const attn_variant attn_cuda_linear_##which##_variant = { \
        .name = "linear_" #which,                             \
        .about = text,                                        \
        .op = ATTN_OP_LINEAR,                                 \
        .pass = pass_of,                                      \
        .features = ATTN_FEATURES_LINEAR,                     \
        .traits = ATTN_TRAIT_NONDET,                          \
        .applicable = applicable,                             \
        .lower = lower,                                       \
    }

VARIANT(fwd_atomic, ATTN_PASS_FWD,
        "token by token, 8 rows of the state for each group, whose parts of the result are "
        "added atomically: bits may differ from run to run");
VARIANT(
    bwd_atomic, ATTN_PASS_BWD,
    "gradients token by token, 8 rows of a state for each group, whose parts of a gradient "
    "are added atomically: bits may differ from run to run");
