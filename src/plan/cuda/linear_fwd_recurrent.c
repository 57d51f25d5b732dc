/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_fwd_recurrent.c: linear attention token by token on CUDA devices. */
#include "core/size.h"
#include "plan/cuda/variants.h"

/* As cuda_kernels/linear/fwd_recurrent.cu and fwd_begin.cu have them. */
enum {
    COLUMNS = 32,
    SLICES = 8,
    THREADS = COLUMNS * SLICES,
    BEGIN_THREADS = 64,
    BUFFERS = 3 * 2 + 1, /* rows of k, q and decay twice, and z           */
    SUMS_BYTES = 4 * (3 * THREADS + 4 * SLICES)
};

/* Where a thread's column of the state lies. */
typedef enum place { IN_64, IN_128, IN_SHARED, IN_GLOBAL, N_PLACES } place;

enum { N_TYPES = 3 };

static const char *const place_name[N_PLACES] = { "registers", "registers", "shared",
                                                  "global" };
#define PLACES(type)                                                                       \
    {                                                                                      \
        "linear_fwd_recurrent_" type "_d64", "linear_fwd_recurrent_" type "_d128",         \
            "linear_fwd_recurrent_" type "_shared", "linear_fwd_recurrent_" type "_global" \
    }
static const char *const kernels[N_TYPES][N_PLACES] = { PLACES("f32"), PLACES("f16"),
                                                        PLACES("bf16") };

static int64_t rows_bytes(const attn_problem *p)
{
    const int64_t pitch = p->d <= 64 ? 64 : p->d <= 128 ? 128 : p->d;

    return 4 * BUFFERS * pitch;
}

static int64_t columns_bytes(const attn_problem *p)
{
    return 4 * COLUMNS * p->d;
}

static place place_of(const attn_problem *p, const attn_caps *c)
{
    if (p->d <= 128)
        return p->d <= 64 ? IN_64 : IN_128;
    return rows_bytes(p) + SUMS_BYTES + columns_bytes(p) <= c->fast_bytes ? IN_SHARED
                                                                          : IN_GLOBAL;
}

/* z is copied where several groups of a head read it, since the last of them may find
 * what the first wrote. */
static bool copies_z(const attn_problem *p)
{
    const uint32_t both = ATTN_FEAT_NORMALIZE | ATTN_FEAT_STATE_IN;

    return (p->features & both) == both && p->dv > COLUMNS;
}

/* Workspace that cannot be counted is refused first. */
static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const double units = (double)p->b * (double)p->hkv;

    if (rows_bytes(p) + SUMS_BYTES > c->fast_bytes || THREADS > c->max_group)
        return "rows of D elements do not fit shared memory, or a group the limit of "
               "threads";
    if (units * (double)p->d * (double)attn_round_up(p->dv, COLUMNS) > 0x1p50)
        return "the states are more than can be addressed";
    if (units * (double)attn_ceil_div(p->dv, COLUMNS) > INT32_MAX)
        return "more groups than a grid can have, 2^31 - 1";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const place where = place_of(p, c);
    const int64_t states = p->b * p->hkv;
    attn_step *step;

    out->splits = 0;
    out->workspace_bytes = 0;
    if (copies_z(p)) {
        step = &out->step[out->n_steps++];
        step->kernel = "linear_fwd_begin";
        step->grouped = true;
        step->tile_q = step->tile_k = 1;
        step->columns = p->dv;
        step->block = BEGIN_THREADS;
        attn_cuda_linear_step(p, step);
        out->workspace_bytes = 4 * states * p->d;
    }
    step = &out->step[out->n_steps++];
    step->kernel = kernels[p->type - ATTN_F32][where];
    step->grouped = true;
    step->tile_q = step->tile_k = 1;
    step->columns = COLUMNS;
    step->block = THREADS;
    attn_cuda_linear_step(p, step);
    if (where == IN_GLOBAL)
        out->workspace_bytes += states * attn_ceil_div(p->dv, COLUMNS) * columns_bytes(p);
    attn_choice_instance(out, "columns%d,%s,d%lld,dv%lld,%s", COLUMNS, place_name[where],
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "32 columns of the state for each group, a lane for each, in "
                       "registers up to D 128, else in shared memory if they fit";
    attn_choice_budget(out, "rows of k, q, decay and z", rows_bytes(p));
    attn_choice_budget(out, "sums of the warps", SUMS_BYTES);
    if (where == IN_SHARED)
        attn_choice_budget(out, "columns of the state", columns_bytes(p));
}

const attn_variant attn_cuda_linear_fwd_recurrent_variant = {
    .name = "linear_fwd_recurrent",
    .about = "token by token, every rule; a column of the state for each lane, its rows "
             "over eight warps",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR | ATTN_FEAT_DECAY | ATTN_FEAT_BETA,
    .applicable = applicable,
    .lower = lower,
};
