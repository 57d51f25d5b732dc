/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_fwd_chunk.c: causal linear attention in chunks on tensor cores. */
#include "core/size.h"
#include "plan/cuda/variants.h"

/* As cuda_kernels/linear/chunk.cuh and fwd_chunk_mma.cu have them. */
enum {
    CHUNK = 64,
    COLUMNS = 64,
    STAGES = 2,
    THREADS = 128,
    WARPS = THREADS / 32,
    SCAN_THREADS = 256,
    N_TYPES = 3,
    N_CLASSES = 2
};

enum {
    FEW_QUERIES = 32, /* fewer are sooner taken token by token                    */
    LEAST_CHUNKS = 4, /* of a segment: its state is half a chunk's rows, twice     */
    MOST_ADDED = 8    /* states of segments that the last step adds up itself      */
};

/* A class of head sizes: D is padded up to it. Groups that a multiprocessor holds at once,
 * and copies of the state in the type. */
typedef struct class
{
    int32_t d, blocks, copies;
    const char *sums[N_TYPES], *output[N_TYPES];
} class;

#define KERNELS(dim, part)                           \
    {                                                \
        NULL, "linear_fwd_chunk_mma_f16_d" dim part, \
            "linear_fwd_chunk_mma_bf16_d" dim part   \
    }
static const class classes[N_CLASSES] = {
    { 64, 3, 2, KERNELS("64", "_sums"), KERNELS("64", "_output") },
    { 128, 2, 1, KERNELS("128", "_sums"), KERNELS("128", "_output") },
};

/* Shared memory, line by line, as the kernel's structs have it. */
typedef struct budget {
    int64_t keys, queries, state;
} budget;

static budget budget_of(const class *k)
{
    return (budget){
        .keys = 2 * STAGES * CHUNK * (k->d + COLUMNS),
        .queries = 2 * STAGES * CHUNK * k->d,
        .state = k->copies * (2 * k->d * (COLUMNS + 8) + 4 * WARPS),
    };
}

static const class *find_class(const attn_problem *p)
{
    return p->d <= classes[0].d ? &classes[0] : p->d <= classes[1].d ? &classes[1] : NULL;
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
    for (int i = 0; i < ATTN_TENSOR_COUNT; i++)
        if (p->layout[i] != ATTN_LAYOUT_16)
            return false;
    return p->d % 8 == 0 && p->dv % 8 == 0;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const class *const k = find_class(p);
    const double slices = (double)attn_ceil_div(p->dv, COLUMNS);
    int64_t bytes;

    if (c->capability < 80)
        return "wants compute capability 8.0 or more";
    if (p->type == ATTN_F32)
        return "takes f16 and bf16, not f32";
    if (!(p->features & ATTN_FEAT_CAUSAL))
        return "computes the causal form alone";
    if (!k || p->dv > 65536)
        return "D is over 128, or Dv over 65536";
    if (!aligned(p))
        return "wants D and Dv to be multiples of 8, and rows that are moved 16 bytes at a "
               "time";
    if (!attn_cuda_counts(p))
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    if (budget_of(k).keys + budget_of(k).queries + budget_of(k).state > c->fast_bytes ||
        SCAN_THREADS > c->max_group)
        return "two chunks do not fit the shared memory, or a group the limit of threads";
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
    const budget b = budget_of(k);
    const int64_t piece = piece_of(p, c), segments = segments_of(p, piece);
    const bool scanned = segments > MOST_ADDED;
    const int type = (int)(p->type - ATTN_F32);

    out->splits = 0;
    work_bytes(p, piece, &out->workspace_bytes);
    if (has_slots(p, piece))
        add_step(p, k->sums[type], piece, true, THREADS, scanned, out)->fast_bytes = b.keys;
    if (scanned)
        add_step(p, "linear_fwd_scan", piece, true, SCAN_THREADS, scanned, out);
    add_step(p, k->output[type], piece, false, THREADS, scanned, out);
    attn_choice_instance(out, "chunk%d,columns%d,segments%lld,dim%d,d%lld,dv%lld,%s", CHUNK,
                         COLUMNS, (long long)segments, k->d, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason = "segments: one where there are heads for three quarters of the "
                       "multiprocessors, else as many as run at once";
    attn_choice_budget(out, "two chunks of k and v", b.keys);
    attn_choice_budget(out, "two chunks of q", b.queries);
    attn_choice_budget(out, "the state in the type", b.state);
}

const attn_variant attn_cuda_linear_fwd_chunk_variant = {
    .name = "linear_fwd_chunk",
    .about =
        "causal, f16 and bf16: chunks of tokens as products of matrices on tensor cores; "
        "segments of the sequence where there are few heads",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
