/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_fwd_chunk.c: linear attention in chunks on tensor cores. */
#include "core/size.h"
#include "plan/cuda/linear.h"

enum {
    N_CLASSES = 3,
    FEW_TOKENS = 32 /* fewer are sooner taken one by one */
};

/* A class of head sizes: D is padded up to it. Of its rows so many elements are in shared
 * memory at once; columns of a group; parts of chunks in shared memory, of the last step and
 * of sums, groups that a multiprocessor holds at once, copies of the state for all warps. Of
 * two kernels each: f16 and bf16; f32 to full accuracy and in TF32. */
typedef struct class
{
    int32_t d, part, columns, stages, sum_stages, blocks, copies;
    const char *sums[2], *output[2];
} class;

#define KERNELS_16(dim, part)                                                         \
    {                                                                                 \
        "linear_fwd_chunk_mma_f16_d" dim part, "linear_fwd_chunk_mma_bf16_d" dim part \
    }
#define KERNELS_32(dim, part)                                                          \
    {                                                                                  \
        "linear_fwd_chunk_tf32_d" dim part, "linear_fwd_chunk_tf32_d" dim part "_tf32" \
    }
static const class classes_16[N_CLASSES] = {
    { 64, 64, 64, 2, 4, 3, 2, KERNELS_16("64", "_sums"), KERNELS_16("64", "_output") },
    { 128, 128, 64, 2, 4, 2, 1, KERNELS_16("128", "_sums"), KERNELS_16("128", "_output") },
    { 256, 64, 32, 2, 4, 2, 1, KERNELS_16("256", "_sums"), KERNELS_16("256", "_output") },
};
static const class classes_32[N_CLASSES] = {
    { 64, 64, 64, 2, 3, 2, 1, KERNELS_32("64", "_sums"), KERNELS_32("64", "_output") },
    { 128, 128, 64, 1, 2, 2, 1, KERNELS_32("128", "_sums"), KERNELS_32("128", "_output") },
    { 256, 64, 32, 2, 3, 2, 1, KERNELS_32("256", "_sums"), KERNELS_32("256", "_output") },
};

static bool is_f32(const attn_problem *p)
{
    return p->type == ATTN_F32;
}

/* NULL: D is over the largest. */
static const class *find_class(const attn_problem *p)
{
    const class *const classes = is_f32(p) ? classes_32 : classes_16;

    for (int i = 0; i < N_CLASSES; i++)
        if (p->d <= classes[i].d)
            return &classes[i];
    return NULL;
}

/* Shared memory, line by line, as the kernels' structs have it. */
typedef struct budget {
    int64_t sums, keys, queries, state;
} budget;

static budget budget_of(const attn_problem *p, const class *k)
{
    const int64_t row = (int64_t)attn_type_bytes(p->type) * ATTN_CUDA_CHUNK;

    return (budget){
        .sums = row * k->sum_stages * (k->part + k->columns),
        .keys = row * k->stages * (k->part + k->columns),
        .queries = row * k->stages * k->part,
        .state = is_f32(p)
                     ? 4 * k->d * (k->columns + 1)
                     : k->copies * (2 * k->d * (k->columns + 8) + 4 * ATTN_CUDA_WARPS),
    };
}

static bool is_causal(const attn_problem *p)
{
    return p->features & ATTN_FEAT_CAUSAL;
}

/* How a problem is cut: tokens of a segment of the first steps and of the last one, slots
 * of each state. The causal form is not where the heads fill three quarters of the
 * multiprocessors, since segments want K and V a second time. */
typedef struct cuts {
    int64_t sums, output, slots;
} cuts;

static cuts find_cuts(const attn_problem *p, const attn_caps *c)
{
    const class *const k = find_class(p);
    const int64_t slices = attn_ceil_div(p->dv, k->columns), blocks = k->blocks;
    cuts x = { 0 };

    if (is_causal(p)) {
        if (4 * p->b * p->hq * slices < 3 * c->compute_units)
            x.sums = x.output =
                attn_cuda_linear_cut(c, p->lq, p->b * p->hq * slices, blocks);
        x.slots = x.sums ? attn_ceil_div(p->lq, x.sums) : 1;
        return x;
    }
    x.output = attn_cuda_linear_cut(c, p->lq, p->b * p->hq * slices, blocks);
    x.sums = attn_cuda_linear_cut(c, p->lk, p->b * p->hkv * slices, blocks);
    if (!x.sums)
        x.sums = attn_round_up(attn_max(p->lk, ATTN_CUDA_LEAST_PIECE), ATTN_CUDA_CHUNK);
    x.slots = 1 + attn_max(attn_ceil_div(p->lk, x.sums), 1);
    return x;
}

static bool has_slots(const attn_problem *p, cuts x)
{
    return x.slots > 1 || p->features & ATTN_FEAT_STATE_IN;
}

/* A slot of each segment of each state; false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, cuts x, int64_t *out)
{
    *out = 0;
    return !has_slots(p, x) || (attn_mul(p->b * p->hkv, x.slots, out) &&
                                attn_mul(*out, 4 * p->d * (p->dv + 1), out));
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const class *const k = find_class(p);
    int64_t bytes;
    budget b;

    if (c->capability < 80)
        return "wants compute capability 8.0 or more";
    if (!k || p->dv > 65536)
        return "D is over 256, or Dv over 65536";
    if (!attn_cuda_linear_aligned(p))
        return "wants rows that are moved 16 bytes at a time, and whose bytes 16 divides";
    if (!attn_cuda_counts(p))
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    b = budget_of(p, k);
    if (attn_max(b.sums, b.keys + b.queries + b.state) > c->fast_bytes ||
        ATTN_CUDA_SCAN_THREADS > c->max_group)
        return "chunks do not fit the shared memory, or a group the limit of threads";
    if ((double)p->b * (double)p->hq * (double)attn_ceil_div(p->dv, k->columns) >
        0x1p31 - 1)
        return "more groups than a grid can have, 2^31 - 1";
    if (!work_bytes(p, find_cuts(p, c), &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's memory";
    return NULL;
}

static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->lq < FEW_TOKENS && (is_causal(p) || p->lk < FEW_TOKENS))
        return "takes it, but so few tokens are sooner taken one by one";
    return NULL;
}

static attn_step *add_step(const attn_problem *p, cuts x, const char *kernel,
                           int64_t columns, bool output, bool scanned, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grouped = !output;
    step->tile_q = step->tile_k = ATTN_CUDA_CHUNK;
    step->columns = columns;
    step->piece = output ? x.output : x.sums;
    step->merges = is_causal(p) ? 0 : x.sums;
    step->block = ATTN_CUDA_THREADS;
    step->overlaps = out->n_steps > 1;
    attn_cuda_linear_step(p, step);
    if (!output && !is_causal(p))
        step->over = ATTN_OVER_KEY_STATES;
    attn_step_define(step, "LINEAR_SCANNED", scanned);
    return step;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const class *const k = find_class(p);
    const budget b = budget_of(p, k);
    const cuts x = find_cuts(p, c);
    const bool scanned = x.slots > (is_causal(p) ? ATTN_CUDA_MOST_ADDED : 2);
    const int which = is_f32(p) ? p->allow_tf32 != 0 : p->type == ATTN_BF16;

    out->splits = 0;
    work_bytes(p, x, &out->workspace_bytes);
    if (has_slots(p, x))
        add_step(p, x, k->sums[which], k->columns, false, scanned, out)->fast_bytes =
            b.sums;
    if (scanned)
        add_step(p, x, "linear_fwd_scan", ATTN_CUDA_SCAN_COLUMNS, false, scanned, out)
            ->block = ATTN_CUDA_SCAN_THREADS;
    add_step(p, x, k->output[which], k->columns, true, scanned, out);
    attn_choice_instance(out, "chunk%d,columns%d,states%lld,dim%d,d%lld,dv%lld,%s%s",
                         ATTN_CUDA_CHUNK, k->columns, (long long)x.slots, k->d,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type),
                         is_f32(p) && p->allow_tf32 ? ",tf32" : "");
    out->tile_reason = "segments: one where there are heads for three quarters of the "
                       "multiprocessors, else as many as run at once";
    attn_choice_budget(out, "chunks of k and v", b.keys);
    attn_choice_budget(out, "chunks of q", b.queries);
    attn_choice_budget(out, "the state for all warps", b.state);
}

const attn_variant attn_cuda_linear_fwd_chunk_variant = {
    .name = "linear_fwd_chunk",
    .about = "chunks of tokens as products of matrices on tensor cores; "
             "segments of the sequence where there are few heads",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
