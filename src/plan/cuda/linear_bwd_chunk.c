/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_bwd_chunk.c: gradients of linear attention in chunks on tensor cores. */
#include "core/size.h"
#include "plan/cuda/linear.h"

enum {
    N_CLASSES = 3,
    BEGIN_THREADS = 8 * ATTN_CUDA_BEGIN_ROWS,
    FEW_TOKENS = 32 /* fewer are sooner taken one by one */
};

/* The kernels of a type, or of f32 to full accuracy and in TF32. */
typedef struct kernels {
    const char *sums[2], *walk[3]; /* of dQ, and of dK and dV; of dQ, dV and dK */
} kernels;

/* A class of head sizes, of rows that are multiplied with each other: Dv in the scans of dQ and
 * dK, D in that of dV. They are padded up to it. Of them so many elements are in shared memory
 * at once; columns of a group, parts of chunks in shared memory, groups that a multiprocessor
 * holds at once, parts of the state for all warps. */
typedef struct class
{
    int32_t dim, part, columns, stages, blocks, parts;
    kernels of[2]; /* f16 and bf16; f32 exact and in TF32 */
} class;

#define KERNELS(name, more)                                \
    {                                                      \
        { name "_q_sums" more, name "_k_sums" more },      \
        {                                                  \
            name "_q" more, name "_v" more, name "_k" more \
        }                                                  \
    }
#define KERNELS_16(dim)                                    \
    {                                                      \
        KERNELS("linear_bwd_chunk_mma_f16_d" dim, ""),     \
            KERNELS("linear_bwd_chunk_mma_bf16_d" dim, "") \
    }
#define KERNELS_32(dim)                                     \
    {                                                       \
        KERNELS("linear_bwd_chunk_tf32_d" dim, ""),         \
            KERNELS("linear_bwd_chunk_tf32_d" dim, "_tf32") \
    }
static const class classes_16[N_CLASSES] = {
    { 64, 64, 64, 2, 3, 2, KERNELS_16("64") },
    { 128, 128, 64, 2, 2, 2, KERNELS_16("128") },
    { 256, 64, 32, 2, 2, 2, KERNELS_16("256") },
};
static const class classes_32[N_CLASSES] = {
    { 64, 64, 64, 2, 2, 1, KERNELS_32("64") },
    { 128, 128, 64, 1, 2, 1, KERNELS_32("128") },
    { 256, 64, 32, 2, 2, 1, KERNELS_32("256") },
};
static const char *const begins[] = { "linear_bwd_chunk_begin_f32",
                                      "linear_bwd_chunk_begin_f16",
                                      "linear_bwd_chunk_begin_bf16" };

static bool is_f32(const attn_problem *p)
{
    return p->type == ATTN_F32;
}

static bool is_causal(const attn_problem *p)
{
    return p->features & ATTN_FEAT_CAUSAL;
}

/* Shared memory, line by line, as the kernels' structs have it. */
typedef struct budget {
    int64_t adds, reads, state;
} budget;

static budget budget_of(const attn_problem *p, const class *k)
{
    const int64_t each = (int64_t)attn_type_bytes(p->type);
    const int64_t rows = each * k->stages * ATTN_CUDA_CHUNK;

    return (budget){
        .adds = rows * (k->part + k->columns) + 4 * k->stages * ATTN_CUDA_CHUNK,
        .reads = rows * k->part,
        .state = k->parts * each * k->dim * k->columns + 4 * k->columns +
                 (is_f32(p) ? 0 : 4 * ATTN_CUDA_WARPS),
    };
}

/* Of a walk. */
static int64_t bytes_of(const attn_problem *p, const class *k)
{
    const budget b = budget_of(p, k);

    return b.adds + b.reads + b.state;
}

/* Of rows of so many elements: the first whose chunks fit the shared memory, or the last; NULL:
 * over the largest. */
static const class *find_class(const attn_problem *p, const attn_caps *c, int64_t elements)
{
    const class *const classes = is_f32(p) ? classes_32 : classes_16, *found = NULL;

    for (int i = 0; i < N_CLASSES; i++) {
        if (elements > classes[i].dim)
            continue;
        found = &classes[i];
        if (bytes_of(p, found) <= c->fast_bytes)
            break;
    }
    return found;
}

/* How the scans of dQ, or those backwards in time, are cut: tokens of a segment of their
 * sums, 0: there are none, and of their walk, 0: one; states of each head. Their groups have
 * columns of D, or of Dv, the states those of D. */
typedef struct cuts {
    int64_t sums, walk, slots;
} cuts;

static cuts find_cuts(const attn_problem *p, const attn_caps *c, bool back)
{
    const class *const k = find_class(p, c, p->dv);
    const int64_t blocks = k->blocks, slices = attn_ceil_div(p->d, k->columns);
    const int64_t states = p->b * p->hkv * slices;
    const int64_t walks = back ? states : p->b * p->hq * slices;
    const int64_t adding = back ? p->lq : p->lk, reading = back ? p->lk : p->lq;
    const bool given = p->features & (back ? ATTN_FEAT_STATE_OUT : ATTN_FEAT_STATE_IN);
    cuts x = { 0 };

    if (is_causal(p)) {
        if (4 * walks < 3 * c->compute_units)
            x.sums = x.walk = attn_cuda_linear_cut(c, p->lq, walks, blocks);
        x.slots = x.sums ? attn_ceil_div(p->lq, x.sums) : given ? 1 : 0;
        return x;
    }
    x.walk = attn_cuda_linear_cut(c, reading, walks, blocks);
    x.sums = attn_cuda_linear_cut(c, adding, states, blocks);
    if (!x.sums)
        x.sums = attn_round_up(attn_max(adding, ATTN_CUDA_LEAST_PIECE), ATTN_CUDA_CHUNK);
    x.slots = 1 + attn_max(attn_ceil_div(adding, x.sums), 1);
    return x;
}

static bool wants_back(const attn_problem *p)
{
    return p->grad & ~(uint32_t)ATTN_GRAD_Q;
}

/* Numbers of each query in the workspace. */
static int64_t row_floats(const attn_problem *p)
{
    return p->type == ATTN_F16 ? 4 : p->features & ATTN_FEAT_NORMALIZE ? 2 : 0;
}

/* Those, and behind them the states of the segments, of dQ and then of dK and dV in the same
 * place. false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, const attn_caps *c, int64_t *out)
{
    const int64_t q = p->grad & ATTN_GRAD_Q ? find_cuts(p, c, false).slots : 0;
    const int64_t back = wants_back(p) ? find_cuts(p, c, true).slots : 0;
    int64_t rows;

    return attn_mul(row_floats(p) * p->b * p->hq, p->lq, &rows) &&
           attn_mul(p->b * p->hkv * p->d, attn_max(q, back), out) &&
           attn_mul(*out, p->dv + 1, out) && attn_add(*out, rows, out) &&
           attn_mul(4, *out, out);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const class *const of_k = find_class(p, c, p->dv), *const of_v = find_class(p, c, p->d);
    const double heads = (double)p->b * (double)p->hq;
    double slices;
    int64_t bytes;

    if (c->capability < 80)
        return "wants compute capability 8.0 or more";
    if (!of_k || !of_v)
        return "D or Dv is over 256";
    if (!attn_cuda_linear_aligned(p))
        return "wants rows that are moved 16 bytes at a time, and whose bytes 16 divides";
    if (!attn_cuda_counts(p))
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    if (attn_max(bytes_of(p, of_k), bytes_of(p, of_v)) > c->fast_bytes ||
        ATTN_CUDA_SCAN_THREADS > c->max_group)
        return "chunks do not fit the shared memory, or a group the limit of threads";
    slices = (double)attn_max(attn_ceil_div(p->d, of_k->columns),
                              attn_ceil_div(p->dv, of_v->columns));
    if (heads * slices > 0x1p31 - 1 ||
        heads * (double)attn_ceil_div(p->lq, ATTN_CUDA_BEGIN_ROWS) > 0x1p31 - 1)
        return "more groups than a grid can have, 2^31 - 1";
    if (!work_bytes(p, c, &bytes) || bytes > c->max_alloc_bytes)
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

void attn_cuda_linear_begin(const attn_problem *p, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = begins[p->type - ATTN_F32];
    step->tile_q = ATTN_CUDA_BEGIN_ROWS;
    step->tile_k = 1;
    step->block = BEGIN_THREADS;
    attn_cuda_linear_step(p, step);
    step->over = ATTN_OVER_QUERIES;
}

/* What the steps of a scan and of its sums have in common. */
typedef struct scan {
    bool back;
    uint32_t grad;
    cuts cut;
    bool scanned;
} scan;

static attn_step *add_step(const attn_problem *p, const scan *s, const char *kernel,
                           int64_t columns, uint32_t grad, bool walks, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grad = grad;
    step->grouped = s->back || !walks;
    step->tile_q = step->tile_k = ATTN_CUDA_CHUNK;
    step->columns = columns;
    step->by_d = !walks || grad != ATTN_GRAD_V;
    step->piece = walks ? s->cut.walk : s->cut.sums;
    step->merges = is_causal(p) ? 0 : s->cut.sums;
    step->merges_queries = s->back;
    step->row_floats = row_floats(p);
    step->block = ATTN_CUDA_THREADS;
    step->overlaps = out->n_steps > 1;
    attn_cuda_linear_step(p, step);
    if (!is_causal(p) && s->back == walks)
        step->over = ATTN_OVER_KEY_STATES;
    attn_step_define(step, "LINEAR_SCANNED", s->scanned);
    attn_step_define(step, "LINEAR_SLOTS", s->cut.slots > 0);
    return step;
}

static void add_sums(const attn_problem *p, const scan *s, const class *k, int which,
                     attn_choice *out)
{
    if (!s->cut.slots)
        return;
    add_step(p, s, k->of[which].sums[s->back], k->columns, s->grad, false, out)
        ->fast_bytes = budget_of(p, k).adds;
    if (s->scanned) {
        attn_step *const step =
            add_step(p, s, "linear_fwd_scan", ATTN_CUDA_SCAN_COLUMNS, s->grad, false, out);

        step->block = ATTN_CUDA_SCAN_THREADS;
        step->by_d = false;
    }
}

/* `walk`: of dQ, dV, dK. */
static void add_walk(const attn_problem *p, const scan *s, const class *k, int which,
                     int walk, uint32_t grad, attn_choice *out)
{
    add_step(p, s, k->of[which].walk[walk], k->columns, grad, true, out)->fast_bytes =
        bytes_of(p, k);
}

static scan make_scan(const attn_problem *p, const attn_caps *c, bool back)
{
    scan s = { .back = back, .cut = find_cuts(p, c, back) };

    s.grad = p->grad & (back ? ~(uint32_t)ATTN_GRAD_Q : (uint32_t)ATTN_GRAD_Q);
    s.scanned = s.cut.slots > (is_causal(p) ? ATTN_CUDA_MOST_ADDED : 2);
    return s;
}

/* dV before dK: that one writes dS_in, which may lie where dS does. */
static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const class *const k = find_class(p, c, p->dv), *const v = find_class(p, c, p->d);
    /* what the normaliser adds may cancel what has been rounded */
    const bool tf32 = is_f32(p) && p->allow_tf32 && !(p->features & ATTN_FEAT_NORMALIZE);
    const int which = is_f32(p) ? tf32 : p->type == ATTN_BF16;
    const uint32_t of_k = p->grad & (ATTN_GRAD_K | ATTN_GRAD_STATE);
    scan s;

    out->splits = 0;
    work_bytes(p, c, &out->workspace_bytes);
    if (row_floats(p))
        attn_cuda_linear_begin(p, out);
    if (p->grad & ATTN_GRAD_Q) {
        s = make_scan(p, c, false);
        add_sums(p, &s, k, which, out);
        add_walk(p, &s, k, which, 0, s.grad, out);
    }
    if (wants_back(p)) {
        s = make_scan(p, c, true);
        add_sums(p, &s, k, which, out);
        if (p->grad & ATTN_GRAD_V)
            add_walk(p, &s, v, which, 1, ATTN_GRAD_V, out);
        if (of_k)
            add_walk(p, &s, k, which, 2, of_k, out);
    }
    attn_choice_instance(out, "chunk%d,dims%d:%d,d%lld,dv%lld,%s%s", ATTN_CUDA_CHUNK,
                         v->dim, k->dim, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type), tf32 ? ",tf32" : "");
    out->tile_reason = "segments: one where there are heads for three quarters of the "
                       "multiprocessors, else as many as run at once";
}

const attn_variant attn_cuda_linear_bwd_chunk_variant = {
    .name = "linear_bwd_chunk",
    .about = "gradients in chunks of tokens as products of matrices on tensor cores; "
             "segments of the sequence where there are few heads",
    .op = ATTN_OP_LINEAR,
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
