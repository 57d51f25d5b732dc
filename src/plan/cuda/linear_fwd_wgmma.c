/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_fwd_wgmma.c: causal linear attention in chunks on Hopper's tensor cores,
 * compute capability 9.0 alone. */
#include "core/size.h"
#include "plan/cuda/linear.h"

/* As cuda_kernels/linear/fwd_wgmma.cu has them. */
enum {
    SUM_BLOCK = 256,
    BLOCK = 384,                           /* 128 more where two warpgroups have queries */
    TILE_BYTES = 2 * 64 * ATTN_CUDA_CHUNK, /* 64 columns, read or not */
    BARRIER_BYTES = 256,
    N_TYPES = 3,
    N_CLASSES = 4
};

/* D is padded up to dim; columns of a group. A group computes the pairs of its chunks whatever
 * its columns, so the wider ones are better where the heads fill the device with them. */
typedef struct class
{
    int32_t dim, columns;
    const char *sums[N_TYPES], *output[N_TYPES];
} class;

#define KERNELS(name)                                               \
    {                                                               \
        "linear_fwd_wgmma_f32_" name, "linear_fwd_wgmma_f16_" name, \
            "linear_fwd_wgmma_bf16_" name                           \
    }
static const class classes[N_CLASSES] = {
    { 64, 32, KERNELS("d64_c32_sums"), KERNELS("d64_c32_output") },
    { 64, 64, KERNELS("d64_c64_sums"), KERNELS("d64_c64_output") },
    { 128, 32, KERNELS("d128_c32_sums"), KERNELS("d128_c32_output") },
    { 128, 64, KERNELS("d128_c64_sums"), KERNELS("d128_c64_output") },
};

/* A group's columns and rows fill its shared memory, and one warpgroup has the queries. */
static bool is_large(const attn_problem *p)
{
    return p->type == ATTN_F32 && p->d > 64;
}

/* NULL: D is over the largest. */
static const class *find_class(const attn_problem *p, const attn_caps *c)
{
    const bool full = 4 * p->b * p->hq * attn_ceil_div(p->dv, 64) >= 3 * c->compute_units;
    const int wide = p->dv > 32 && (full || is_large(p));

    return p->d > 128 ? NULL : &classes[(p->d > 64) * 2 + wide];
}

/* Shared memory, line by line, as the kernel's structs have it. */
typedef struct budget {
    int64_t sums, keys, states;
} budget;

static int64_t block_of(const attn_problem *p, const class *k)
{
    return BLOCK + (k->columns == 32 && !is_large(p) ? 128 : 0);
}

static budget budget_of(const attn_problem *p, const class *k)
{
    const bool f32 = p->type == ATTN_F32, large = is_large(p);
    const int64_t parts = f32 ? 3 : p->type == ATTN_F16 ? 2 : 1; /* of bf16 */
    const int64_t panels = k->dim / 64, row = 4 * k->dim;
    const int64_t stage = parts * TILE_BYTES * (panels + 1) + 4 * row;
    const int64_t state = attn_max(parts, 2) * TILE_BYTES * panels + row;

    return (budget){ .sums = (f32 ? 2 : 3) * stage + BARRIER_BYTES,
                     .keys = (large        ? 2
                              : parts == 1 ? 4
                                           : 3) *
                             stage,
                     .states = (large ? 1 : 2) * state + BARRIER_BYTES };
}

static int64_t units(const attn_problem *p, const attn_caps *c)
{
    return p->b * p->hq * attn_ceil_div(p->dv, find_class(p, c)->columns);
}

/* Tokens of a segment, 0: one; more than one where the heads do not fill three quarters of the
 * multiprocessors. */
static int64_t find_piece(const attn_problem *p, const attn_caps *c)
{
    return 4 * units(p, c) < 3 * c->compute_units
               ? attn_cuda_linear_cut(c, p->lq, units(p, c), 1)
               : 0;
}

static int64_t find_slots(const attn_problem *p, const attn_caps *c)
{
    const int64_t piece = find_piece(p, c);

    return piece ? attn_ceil_div(p->lq, piece) : 1;
}

static bool has_slots(const attn_problem *p, const attn_caps *c)
{
    return find_slots(p, c) > 1 || p->features & ATTN_FEAT_STATE_IN;
}

/* A slot of each segment of each state; false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, const attn_caps *c, int64_t *out)
{
    *out = 0;
    return !has_slots(p, c) || (attn_mul(p->b * p->hkv, find_slots(p, c), out) &&
                                attn_mul(*out, 4 * p->d * (p->dv + 1), out));
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const char *const why = attn_cuda_hopper_refusal(c);
    const class *const k = find_class(p, c);
    int64_t bytes;
    budget b;

    if (why)
        return why;
    if (!(p->features & ATTN_FEAT_CAUSAL))
        return "takes the causal form alone";
    if (!k || p->dv > 65536)
        return "D is over 128, or Dv over 65536";
    if (!attn_cuda_linear_aligned(p))
        return "wants rows that are moved 16 bytes at a time, and whose bytes 16 divides";
    if (!attn_cuda_counts(p))
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    b = budget_of(p, k);
    if (b.keys + b.states > c->fast_bytes || block_of(p, k) > c->max_group)
        return "chunks do not fit the shared memory, or a group the limit of threads";
    if ((double)p->b * (double)p->hq * (double)attn_ceil_div(p->dv, 32) > 0x1p31 - 1)
        return "more groups than a grid can have, 2^31 - 1";
    if (!work_bytes(p, c, &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's memory";
    return NULL;
}

/* On an H200 1.6 to 2.5 times as fast as chunks in f32; in 16 bits 0.8 to 1.16 times, with a
 * normaliser 0.5 to 1.1 (docs/performance_h200.md). */
static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->type != ATTN_F32)
        return "takes it, but linear_fwd_chunk is faster in 16 bits at most sizes";
    return p->allow_tf32
               ? "takes it, but TF32, which is allowed, takes a sixth of its products"
               : NULL;
}

static attn_step *add_step(const attn_problem *p, const attn_caps *c, const char *kernel,
                           int64_t columns, int64_t block, bool scanned, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grouped = block < BLOCK; /* all but the last: of heads of K and V */
    step->tile_q = step->tile_k = ATTN_CUDA_CHUNK;
    step->columns = columns;
    step->piece = find_piece(p, c);
    step->block = block;
    step->overlaps = out->n_steps > 1;
    attn_cuda_linear_step(p, step);
    attn_step_define(step, "LINEAR_SCANNED", scanned);
    return step;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const class *const k = find_class(p, c);
    const budget b = budget_of(p, k);
    const int64_t slots = find_slots(p, c);
    const bool scanned = slots > ATTN_CUDA_MOST_ADDED;

    out->splits = 0;
    work_bytes(p, c, &out->workspace_bytes);
    if (has_slots(p, c))
        add_step(p, c, k->sums[p->type - ATTN_F32], k->columns, SUM_BLOCK, scanned, out)
            ->fast_bytes = b.sums;
    if (scanned)
        add_step(p, c, "linear_fwd_scan", ATTN_CUDA_SCAN_COLUMNS, ATTN_CUDA_SCAN_THREADS,
                 scanned, out);
    add_step(p, c, k->output[p->type - ATTN_F32], k->columns, block_of(p, k), scanned, out);
    attn_choice_instance(out, "chunk%d,columns%d,states%lld,dim%d,d%lld,dv%lld,%s",
                         ATTN_CUDA_CHUNK, k->columns, (long long)slots, k->dim,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "segments: one where there are heads for three quarters of the "
                       "multiprocessors, else as many as run at once";
    attn_choice_budget(out, "chunks of k and v", b.keys);
    attn_choice_budget(out, "the state for the queries", b.states);
}

const attn_variant attn_cuda_linear_fwd_wgmma_variant = {
    .name = "linear_fwd_wgmma",
    .about =
        "causal, chunks of tokens on Hopper's tensor cores (wgmma); f32 as sums of three "
        "numbers of bf16",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
