/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_fwd_wgmma.c: causal linear attention in chunks on Hopper's tensor cores,
 * compute capability 9.0 alone. */
#include "core/size.h"
#include "plan/cuda/linear.h"

/* As cuda_kernels/linear/fwd_wgmma.cu and fwd_wgmma_bf16.cu have them. */
enum {
    TILE_BYTES = 2 * 64 * ATTN_CUDA_CHUNK, /* 64 columns, read or not */
    BARRIER_BYTES = 512,                   /* and the number of a group */
    ONES_BYTES = 2 * 16 * 64,
    BEGIN_THREADS = 128,
    COUNTER_BYTES = 16, /* of the workspace */
    SCAN_THREADS = 256,
    FEW_TOKENS = 32,  /* as in linear_fwd_chunk.c */
    MOST_PASSED = 16, /* segments that hand states on in one launch */
    PHI_TIME = 8,     /* added to sum_time: both take phi of keys */
    N_DIMS = 2
};

/* D is padded up to dim. A group computes the pairs of its chunks whatever its columns, so the
 * wider ones are better where the heads fill the device with them, and at D 64 where segments are
 * needed either way. Chunks and states in shared memory, and warpgroups, of the sums and of the
 * last step. */
typedef struct class
{
    int32_t dim, columns, sum_stages, stages, states, sum_groups, groups;
    int32_t sum_units, units; /* 64 columns of a chunk, to be taken apart */
    int32_t sum_time;         /* what a chunk of keys takes to be summed up, in hundredths
                                 of what it takes to be walked over */
    const char *begin, *sums, *scan, *output;
} class;

#define PREFIX "linear_fwd_wgmma_"
#define KERNELS(name) \
    PREFIX name "_begin", PREFIX name "_sums", PREFIX name "_scan", PREFIX name "_output"

/* By D and width. */
static const class classes_f32[N_DIMS][2] = {
    { { 64, 32, 2, 2, 1, 2, 4, 8, 4, 44, KERNELS("f32_d64_c32") },
      { 64, 64, 2, 2, 1, 2, 4, 8, 4, 44, KERNELS("f32_d64_c64") } },
    { { 128, 32, 2, 2, 1, 2, 3, 4, 0, 52, KERNELS("f32_d128_c32") },
      { 128, 64, 2, 2, 1, 2, 3, 4, 0, 52, KERNELS("f32_d128_c64") } },
};
static const class classes_f16[N_DIMS][2] = {
    { { 64, 32, 2, 2, 1, 2, 4, 8, 4, 44, KERNELS("f16_d64_c32") },
      { 64, 64, 2, 2, 1, 2, 4, 8, 4, 44, KERNELS("f16_d64_c64") } },
    { { 128, 32, 2, 2, 1, 2, 4, 8, 4, 52, KERNELS("f16_d128_c32") },
      { 128, 64, 2, 2, 1, 2, 4, 8, 4, 52, KERNELS("f16_d128_c64") } },
};
static const class classes_bf16[N_DIMS][2] = {
    { { 64, 32, 6, 8, 2, 2, 4, 0, 0, 44, KERNELS("bf16_d64_c32") },
      { 64, 64, 6, 8, 2, 2, 4, 0, 0, 44, KERNELS("bf16_d64_c64") } },
    { { 128, 64, 4, 4, 2, 2, 4, 0, 0, 52, KERNELS("bf16_d128_c64") },
      { 128, 128, 4, 3, 2, 3, 4, 0, 0, 52, KERNELS("bf16_d128_c128") } },
};

static bool fills(const attn_problem *p, const attn_caps *c, const class *k)
{
    return 4 * p->b * p->hq * attn_ceil_div(p->dv, k->columns) >= 3 * c->compute_units;
}

/* Whether two segments are better than narrower columns: in f32, where products are what takes
 * time, and in bf16 where phi is. */
static bool halves(const attn_problem *p, const attn_caps *c, const class *k)
{
    const int64_t units = p->b * p->hq * attn_ceil_div(p->dv, k->columns);

    return (p->type == ATTN_F32 || (p->type == ATTN_BF16 && p->d <= 64 && p->phi)) &&
           2 * units <= c->compute_units && attn_cuda_linear_cut(c, p->lq, units, 1);
}

/* NULL: D is over the largest. */
static const class *find_class(const attn_problem *p, const attn_caps *c)
{
    const int large = p->d > 64;
    const class *const of = p->type == ATTN_F32   ? classes_f32[large]
                            : p->type == ATTN_F16 ? classes_f16[large]
                                                  : classes_bf16[large];

    if (p->d > 128)
        return NULL;
    if (p->dv <= of[0].columns)
        return &of[0];
    if (p->type == ATTN_F32 && large)
        return &of[1];
    return &of[fills(p, c, &of[1]) || (!large && !fills(p, c, &of[0])) ||
               halves(p, c, &of[1])];
}

/* Shared memory, line by line, as the kernel's structs have it. */
typedef struct budget {
    int64_t sums, keys, queries, states;
} budget;

static budget budget_of(const attn_problem *p, const class *k)
{
    const bool own = p->type == ATTN_BF16; /* the tensor's bits are the operands */
    const int64_t parts = p->type == ATTN_F32 ? 3 : own ? 1 : 2; /* of bf16 */
    const int64_t panels = k->dim / 64, row = 4 * k->dim;
    const int64_t wide = attn_ceil_div(k->columns, 64);
    const int64_t unit = (int64_t)attn_type_bytes(p->type) * 64 * ATTN_CUDA_CHUNK;
    const int64_t stage = parts * TILE_BYTES * (panels + wide) + (own ? 0 : 4 * row);
    const int64_t state = parts * TILE_BYTES * panels * wide + row;
    const int64_t walking = own ? k->stages : k->groups - 2; /* chunks of queries there */
    const int64_t rest = (own ? ONES_BYTES : 0) + BARRIER_BYTES;

    return (budget){ .sums = k->sum_stages * stage + k->sum_units * unit + rest,
                     .keys = k->stages * stage + k->units * unit,
                     .queries = walking > 1 ? walking * panels * unit : 0,
                     .states = k->states * state + rest };
}

static int64_t units(const attn_problem *p, const attn_caps *c)
{
    return p->b * p->hq * attn_ceil_div(p->dv, find_class(p, c)->columns);
}

/* Tokens of segments; piece 0: there is one. More than one where the heads do not fill three
 * quarters of the multiprocessors. */
static attn_cuda_cut find_cut(const attn_problem *p, const attn_caps *c)
{
    const int64_t equal = 4 * units(p, c) < 3 * c->compute_units
                              ? attn_cuda_linear_cut(c, p->lq, units(p, c), 1)
                              : 0;
    const int64_t n = equal ? attn_ceil_div(p->lq, equal) : 1;

    if (n == 1 || n > MOST_PASSED)
        return (attn_cuda_cut){ equal, equal };
    return attn_cuda_linear_relay(attn_ceil_div(p->lq, ATTN_CUDA_CHUNK), n,
                                  find_class(p, c)->sum_time + (p->phi ? PHI_TIME : 0));
}

static int64_t find_slots(const attn_problem *p, const attn_caps *c)
{
    const attn_cuda_cut x = find_cut(p, c);

    return x.piece ? 1 + attn_ceil_div(p->lq - x.lead, x.piece) : 1;
}

static bool has_slots(const attn_problem *p, const attn_caps *c)
{
    return find_slots(p, c) > 1 || p->features & ATTN_FEAT_STATE_IN;
}

/* A slot of each segment of each state and slice of columns, and the groups' counter
 * (cuda_kernels/linear/wgmma_relay.cuh); false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, const attn_caps *c, int64_t *out)
{
    const class *const k = find_class(p, c);
    const int64_t panels = k->dim / 64, state_tiles = panels * (k->columns / 8);
    const int64_t tiles = state_tiles + (p->type == ATTN_BF16 ? panels : 1); /* z's */

    *out = 0;
    return !has_slots(p, c) ||
           (attn_mul(p->b * p->hkv, find_slots(p, c), out) &&
            attn_mul(*out, attn_ceil_div(p->dv, k->columns), out) &&
            attn_mul(*out, tiles * 128 * 16, out) && attn_add(*out, COUNTER_BYTES, out));
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
    if (attn_max(b.sums, b.keys + b.queries + b.states) > c->fast_bytes ||
        128 * k->groups > c->max_group)
        return "chunks do not fit the shared memory, or a group the limit of threads";
    if ((double)p->b * (double)p->hq * (double)attn_ceil_div(p->dv, 32) > 0x1p31 - 1)
        return "more groups than a grid can have, 2^31 - 1";
    if (!work_bytes(p, c, &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's memory";
    return NULL;
}

/* On an H200 1.6 to 2.5 times as fast as chunks in f32, 1.1 to 1.7 times in bf16
 * (docs/performance_h200.md). */
static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->type == ATTN_F16)
        return "takes it, but linear_fwd_chunk is faster in f16 at most sizes";
    if (p->type == ATTN_BF16 && p->lq < FEW_TOKENS)
        return "takes it, but so few tokens are sooner taken one by one";
    return p->allow_tf32
               ? "takes it, but TF32, which is allowed, takes a sixth of its products"
               : NULL;
}

static attn_step *add_step(const attn_problem *p, const attn_caps *c, const char *kernel,
                           int64_t columns, int64_t block, bool output, attn_choice *out)
{
    const attn_cuda_cut x = find_cut(p, c);
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grouped = !output; /* of heads of K and V */
    step->tile_q = step->tile_k = ATTN_CUDA_CHUNK;
    step->columns = columns;
    step->piece = x.piece;
    step->lead = x.lead;
    step->block = block;
    step->overlaps = out->n_steps > 1;
    attn_cuda_linear_step(p, step);
    attn_step_define(step, "LINEAR_SCANNED", find_slots(p, c) > MOST_PASSED);
    return step;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const class *const k = find_class(p, c);
    const budget b = budget_of(p, k);
    const int64_t slots = find_slots(p, c);

    out->splits = 0;
    work_bytes(p, c, &out->workspace_bytes);
    if (slots > MOST_PASSED) {
        add_step(p, c, k->sums, k->columns, 128 * k->sum_groups, false, out)->fast_bytes =
            b.sums;
        add_step(p, c, k->scan, k->columns, SCAN_THREADS, false, out);
    } else if (has_slots(p, c)) {
        add_step(p, c, k->begin, k->columns, BEGIN_THREADS, false, out);
    }
    add_step(p, c, k->output, k->columns, 128 * k->groups, true, out);
    attn_choice_instance(out, "chunk%d,columns%d,states%lld,dim%d,d%lld,dv%lld,%s",
                         ATTN_CUDA_CHUNK, k->columns, (long long)slots, k->dim,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "segments: one where there are heads for three quarters of the "
                       "multiprocessors, else as many as run at once";
    attn_choice_budget(out, "chunks of k and v", b.keys);
    if (b.queries)
        attn_choice_budget(out, "chunks of q", b.queries);
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
