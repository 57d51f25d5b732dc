/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_fwd_chunk.c: causal linear attention in chunks on tensor cores. */
#include "core/size.h"
#include "plan/cuda/variants.h"

/* As cuda_kernels/linear/chunk.cuh, fwd_chunk_mma.cu and fwd_chunk_tf32.cu have them. */
enum {
    CHUNK = 64,
    COLUMNS = 64,
    THREADS = 128,
    WARPS = THREADS / 32,
    SCAN_THREADS = 256,
    N_CLASSES = 2
};

enum {
    FEW_QUERIES = 32, /* fewer are sooner taken token by token                    */
    LEAST_CHUNKS = 4, /* of a segment: its state is half a chunk's rows, twice     */
    MOST_ADDED = 8    /* states of segments that the last step adds up itself      */
};

/* A class of head sizes: D is padded up to it. Chunks in shared memory, groups that a
 * multiprocessor holds at once, copies of the state for all warps. Of two kernels each: f16
 * and bf16; f32 to full accuracy and in TF32. */
typedef struct class
{
    int32_t d, stages, blocks, copies;
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
    { 64, 2, 3, 2, KERNELS_16("64", "_sums"), KERNELS_16("64", "_output") },
    { 128, 2, 2, 1, KERNELS_16("128", "_sums"), KERNELS_16("128", "_output") },
};
static const class classes_32[N_CLASSES] = {
    { 64, 2, 2, 1, KERNELS_32("64", "_sums"), KERNELS_32("64", "_output") },
    { 128, 1, 2, 1, KERNELS_32("128", "_sums"), KERNELS_32("128", "_output") },
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
    int64_t keys, queries, state;
} budget;

static budget budget_of(const attn_problem *p, const class *k)
{
    const int64_t rows = (int64_t)attn_type_bytes(p->type) * k->stages * CHUNK;

    return (budget){
        .keys = rows * (k->d + COLUMNS),
        .queries = rows * k->d,
        .state = is_f32(p) ? 4 * k->d * (COLUMNS + 1)
                           : k->copies * (2 * k->d * (COLUMNS + 8) + 4 * WARPS),
    };
}

/* How the tokens are cut: not at all where the heads fill three quarters of the
 * multiprocessors, since segments want K and V a second time; else so that all groups run
 * at once. In tokens of a segment; 0: one. */
static int64_t piece_of(const attn_problem *p, const attn_caps *c)
{
    const int64_t chunks = attn_ceil_div(p->lq, CHUNK);
    const int64_t units = attn_max(p->b * p->hq * attn_ceil_div(p->dv, COLUMNS), 1);
    const int64_t room = attn_max(c->compute_units, 1) * find_class(p)->blocks;
    const int64_t n = attn_min(room / units, chunks / LEAST_CHUNKS);

    if (n < 2 || 4 * units >= 3 * c->compute_units)
        return 0;
    return attn_ceil_div(chunks, n) * CHUNK;
}

static int64_t segments_of(const attn_problem *p, int64_t piece)
{
    return piece ? attn_max(attn_ceil_div(p->lq, piece), 1) : 1;
}

static bool has_slots(const attn_problem *p, int64_t piece)
{
    return segments_of(p, piece) > 1 || p->features & ATTN_FEAT_STATE_IN;
}

/* A slot of each segment of each state; false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, int64_t piece, int64_t *out)
{
    *out = 0;
    return !has_slots(p, piece) || (attn_mul(p->b * p->hkv, segments_of(p, piece), out) &&
                                    attn_mul(*out, 4 * p->d * (p->dv + 1), out));
}

static bool aligned(const attn_problem *p)
{
    const int64_t each = 16 / (int64_t)attn_type_bytes(p->type);

    for (int i = 0; i < ATTN_TENSOR_COUNT; i++)
        if (p->layout[i] != ATTN_LAYOUT_16)
            return false;
    return p->d % each == 0 && p->dv % each == 0;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const class *const k = find_class(p);
    const double slices = (double)attn_ceil_div(p->dv, COLUMNS);
    int64_t bytes;
    budget b;

    if (c->capability < 80)
        return "wants compute capability 8.0 or more";
    if (!(p->features & ATTN_FEAT_CAUSAL))
        return "computes the causal form alone";
    if (!k || p->dv > 65536)
        return "D is over 128, or Dv over 65536";
    if (!aligned(p))
        return "wants rows that are moved 16 bytes at a time, and whose bytes 16 divides";
    if (!attn_cuda_counts(p))
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    b = budget_of(p, k);
    if (b.keys + b.queries + b.state > c->fast_bytes || SCAN_THREADS > c->max_group)
        return "chunks do not fit the shared memory, or a group the limit of threads";
    if ((double)p->b * (double)p->hq * slices > 0x1p31 - 1)
        return "more groups than a grid can have, 2^31 - 1";
    if (!work_bytes(p, piece_of(p, c), &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's memory";
    return NULL;
}

static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->lq < FEW_QUERIES)
        return "takes it, but so few queries are sooner taken token by token";
    return NULL;
}

static attn_step *add_step(const attn_problem *p, const char *kernel, int64_t piece,
                           bool grouped, int64_t threads, bool scanned, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grouped = grouped;
    step->tile_q = step->tile_k = CHUNK;
    step->columns = COLUMNS;
    step->piece = piece;
    step->block = threads;
    step->overlaps = out->n_steps > 1;
    attn_cuda_linear_step(p, step);
    attn_step_define(step, "LINEAR_SCANNED", scanned);
    return step;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const class *const k = find_class(p);
    const budget b = budget_of(p, k);
    const int64_t piece = piece_of(p, c), segments = segments_of(p, piece);
    const bool scanned = segments > MOST_ADDED;
    const int which = is_f32(p) ? p->allow_tf32 != 0 : p->type == ATTN_BF16;

    out->splits = 0;
    work_bytes(p, piece, &out->workspace_bytes);
    if (has_slots(p, piece))
        add_step(p, k->sums[which], piece, true, THREADS, scanned, out)->fast_bytes =
            b.keys;
    if (scanned)
        add_step(p, "linear_fwd_scan", piece, true, SCAN_THREADS, scanned, out);
    add_step(p, k->output[which], piece, false, THREADS, scanned, out);
    attn_choice_instance(out, "chunk%d,columns%d,segments%lld,dim%d,d%lld,dv%lld,%s%s",
                         CHUNK, COLUMNS, (long long)segments, k->d, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type),
                         is_f32(p) && p->allow_tf32 ? ",tf32" : "");
    out->tile_reason = "segments: one where there are heads for three quarters of the "
                       "multiprocessors, else as many as run at once";
    attn_choice_budget(out, "chunks of k and v", b.keys);
    attn_choice_budget(out, "chunks of q", b.queries);
    attn_choice_budget(out, "the state for all warps", b.state);
}

const attn_variant attn_cuda_linear_fwd_chunk_variant = {
    .name = "linear_fwd_chunk",
    .about = "causal: chunks of tokens as products of matrices on tensor cores; "
             "segments of the sequence where there are few heads",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
