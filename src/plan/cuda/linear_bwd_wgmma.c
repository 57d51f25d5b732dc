/* SPDX-License-Identifier: MIT */
/* plan/cuda/linear_bwd_wgmma.c: gradients of causal linear attention in chunks on Hopper's
 * tensor cores, compute capability 9.0 alone. */
#include "core/size.h"
#include "plan/cuda/linear.h"

/* As cuda_kernels/linear/bwd_wgmma.cu has them. */
enum {
    SUM_BLOCK = 384,
    BLOCK = 384, /* 128 more where two warpgroups have rows */
    TILE_BYTES = 2 * 64 * ATTN_CUDA_CHUNK,
    WHOLE_BLOCK = 512,
    WHOLE_BYTES = 2 * 2 * 3 * 2 * TILE_BYTES, /* stages, B and X, parts, panels */
    NUMBER_BYTES =
        4 * (2 * ATTN_CUDA_CHUNK + 4 * 64), /* of a normalised problem, of a chunk */
    Z_BYTES = 4 * 64,                       /* and of a state */
    BARRIER_BYTES = 256,
    PHI_ROWS = 16,    /* bwd_phi.cu: a group's, of eight threads each */
    LEAST_BESIDE = 8, /* chunks of a segment where all scans run at once */
    N_TYPES = 3,
    N_CLASSES = 3
};

/* `both`: the walk of dV and dK, or NULL. Beside each other: all sums, the step between, and all
 * walks, each of which may be NULL. */
typedef struct kernels {
    const char *q_sums, *k_sums, *q, *k, *v, *both, *sums, *scan, *all;
} kernels;

/* D and Dv are padded up to dim; columns of a group. A group computes the pairs of its chunks
 * whatever its columns, so fewer are better only where they fill the device and more do not. */
typedef struct class
{
    int32_t dim, columns;
    kernels of[N_TYPES];
} class;

#define KERNELS(name, both, sums, scan, all)                                               \
    {                                                                                      \
        name "_q_sums", name "_k_sums", name "_q", name "_k", name "_v", both, sums, scan, \
            all                                                                            \
    }
#define BOTH(name) KERNELS(name, name "_kv", NULL, NULL, NULL)
#define EACH(name) KERNELS(name, NULL, NULL, NULL, NULL)
#define ALL(name)  KERNELS(name, name "_kv", name "_sums", name "_scan", name "_all")
#define SUMS(name) KERNELS(name, NULL, name "_sums", name "_scan", NULL)
#define TYPES(f32, f16, shape)                                                  \
    {                                                                           \
        f32("linear_bwd_wgmma_f32_" shape), f16("linear_bwd_wgmma_f16_" shape), \
            f16("linear_bwd_wgmma_bf16_" shape),                                \
    }
static const class classes[N_CLASSES] = {
    { 64, 64, TYPES(ALL, BOTH, "d64_c64") },
    { 64, 32, TYPES(EACH, EACH, "d64_c32") },
    { 128, 64, TYPES(SUMS, EACH, "d128_c64") },
};
/* Of normalised problems, f32, which others lose by. */
static const class normalized[] = {
    { 64, 64, { ALL("linear_bwd_wgmma_f32_d64_c64_n") } },
    { 64, 32, { EACH("linear_bwd_wgmma_f32_d64_c32_n") } },
};

static bool is_normalized(const attn_problem *p)
{
    return p->features & ATTN_FEAT_NORMALIZE;
}

/* Groups of a walk whose heads have rows of `width` elements, without segments. */
static int64_t walks_of(const attn_problem *p, bool back, int64_t width, int64_t columns)
{
    return p->b * (back ? p->hkv : p->hq) * attn_ceil_div(width, columns);
}

/* Three quarters of the multiprocessors have one. */
static bool is_full(const attn_caps *c, int64_t walks)
{
    return 4 * walks >= 3 * c->compute_units;
}

static bool wants_back(const attn_problem *p)
{
    return p->grad & ~(uint32_t)ATTN_GRAD_Q;
}

/* dK and dV by one walk, which has all columns; one of them alone, too, where heads share keys. */
static bool wants_both(const attn_problem *p)
{
    const uint32_t both = ATTN_GRAD_K | ATTN_GRAD_V;

    return wants_back(p) && ((p->grad & both) == both || p->hq != p->hkv) &&
           attn_max(p->d, p->dv) <= 64;
}

/* Of the scans of dQ, or those backwards in time. NULL: D or Dv is over the largest. */
static const class *find_class(const attn_problem *p, const attn_caps *c, bool back)
{
    const int64_t width = back ? attn_max(p->d, p->dv) : p->d;
    const class *const all = is_normalized(p) && p->type == ATTN_F32 ? normalized : classes;

    if (attn_max(p->d, p->dv) > 128)
        return NULL;
    if (attn_max(p->d, p->dv) > 64)
        return &classes[2];
    return &all[!(back && wants_both(p)) && !is_full(c, walks_of(p, back, width, 64)) &&
                is_full(c, walks_of(p, back, width, 32))];
}

/* Shared memory, line by line, as the kernel's structs have it. */
typedef struct budget {
    int64_t sums, adds, states;
} budget;

/* Whether there are kernels with a normaliser for the type and D and Dv; that of tiles is one. */
static bool takes_numbers(const attn_problem *p)
{
    return p->type == ATTN_F32 && attn_max(p->d, p->dv) <= 64;
}

static budget budget_of(const attn_problem *p, const class *k)
{
    const bool f32 = p->type == ATTN_F32, large = f32 && k->dim > 64;
    const int64_t parts = f32 ? 3 : p->type == ATTN_F16 ? 2 : 1; /* of bf16 */
    const int64_t panels = k->dim / 64, stage = parts * TILE_BYTES * (panels + 1);
    const int64_t stages = large ? 2 : parts == 1 ? 4 : 3, states = large ? 1 : 2;
    const int64_t numbers = is_normalized(p) ? NUMBER_BYTES : 0;

    return (budget){
        .sums = (f32 ? 2 : 3) * (stage + numbers) + BARRIER_BYTES,
        .adds = stages * (stage + numbers),
        .states = states * attn_max(parts, 2) * TILE_BYTES * panels +
                  (numbers ? states * Z_BYTES : 0) + BARRIER_BYTES,
    };
}

/* Whether sums, and walks where one kernel has all, run beside each other, in segments of the same
 * tokens: all gradients, of heads that share no keys. */
static bool is_beside(const attn_problem *p, const attn_caps *c)
{
    const class *const k = find_class(p, c, true);

    return p->grad == (ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V) && p->hq == p->hkv &&
           find_class(p, c, false) == k && k->of[p->type - ATTN_F32].sums;
}

/* Tokens of a segment of a scan, 0: one. */
static int64_t find_piece(const attn_problem *p, const attn_caps *c, bool back)
{
    const int64_t width = back ? attn_max(p->d, p->dv) : p->d;
    const class *const k = find_class(p, c, back);
    const int64_t walks = walks_of(p, back, width, k->columns);
    const int64_t piece = is_full(c, walks) ? 0 : attn_cuda_linear_cut(c, p->lq, walks, 1);

    if (piece && is_beside(p, c) &&
        k->of[p->type - ATTN_F32].all) /* other scans fill the device */
        return attn_max(piece, LEAST_BESIDE * ATTN_CUDA_CHUNK);
    return piece;
}

/* States of each head; 0: none. */
static int64_t find_slots(const attn_problem *p, const attn_caps *c, bool back)
{
    const int64_t piece = find_piece(p, c, back);

    return piece ? attn_ceil_div(p->lq, piece) : 0;
}

/* What cuda_kernels/linear/bwd_wgmma_tiles.cu has, of D and Dv up to dim. */
typedef struct tiles {
    int32_t dim;
    int64_t sum_tiles, walk_tiles,
        number_bytes; /* numbers of queries, last rows of states */
    int64_t back_cost,
        q_cost; /* of a chunk, as measured with two parts of the state in dQ alone */
    const char *sums, *scan, *walk;
} tiles;

/* Tokens of a segment that is the only one: of calls longer than planned too. */
static const int64_t tiles_whole = INT32_MAX / ATTN_CUDA_CHUNK * ATTN_CUDA_CHUNK;

enum {
    TILES_BLOCK = 512,
    TILES_SUM = 256,
    TILES_SCAN = 256,
    TILES_LAST = 256, /* floats of a state's last row in a slot, by threads */
    TILES_ADDED = 12  /* 64 x 64 numbers each that a walk adds up itself */
};

#define TILES(dim)                                   \
    "linear_bwd_wgmma_tiles_bf16_d" dim "_sums",     \
        "linear_bwd_wgmma_tiles_bf16_d" dim "_scan", \
        "linear_bwd_wgmma_tiles_bf16_d" dim "_walk"
static const tiles tiles_64 = {
    64, 2 * 4, 3 * 6 + 4, 256 * (2 * 6 + 2), 7, 5, TILES("64")
};
static const tiles tiles_128 = { 128, 4 * 6, 6 * 4 + 4,   256 * (2 * 4 + 2),
                                 1,   1,     TILES("128") };

/* NULL: it takes another type, or no heads that share keys. */
static const tiles *find_tiles(const attn_problem *p)
{
    if (p->type != ATTN_BF16 || p->hq != p->hkv || attn_max(p->d, p->dv) > 128)
        return NULL;
    return attn_max(p->d, p->dv) > 64 ? &tiles_128 : &tiles_64;
}

/* Tokens of the segments of dK and dV, and of dQ. */
typedef struct tile_cut {
    int64_t back, q;
} tile_cut;

/* Chunks of a segment where a head has about n: no fewer than its state costs. */
static int64_t chunks_of(int64_t chunks, int64_t n)
{
    return attn_max(attn_ceil_div(chunks, attn_max(n, 1)),
                    attn_min(chunks, ATTN_CUDA_LEAST_CHUNKS));
}

static int64_t tokens_of(int64_t chunks, int64_t each)
{
    return each < chunks ? each * ATTN_CUDA_CHUNK : tiles_whole;
}

/* So that all groups run at once and end together. */
static tile_cut cut_tiles(const attn_problem *p, const attn_caps *c, const tiles *t)
{
    const int64_t chunks = attn_max(attn_ceil_div(p->lq, ATTN_CUDA_CHUNK), 1);
    const int64_t heads = attn_max(p->b * p->hq, 1), units = attn_max(c->compute_units, 1);
    const int64_t cost_q = p->grad & ATTN_GRAD_Q ? t->q_cost : 0;
    const int64_t cost_back = wants_back(p) ? t->back_cost : 0;
    int64_t back = chunks, q = chunks;

    if (!is_full(c, heads * ((cost_back > 0) + (cost_q > 0)))) {
        const int64_t n = units / heads, of_back = n * cost_back / (cost_back + cost_q);

        back = chunks_of(chunks, of_back);
        q = chunks_of(chunks, n - of_back);
    }
    return (tile_cut){ tokens_of(chunks, back), tokens_of(chunks, q) };
}

static int64_t segments_of(const attn_problem *p, int64_t piece)
{
    return attn_max(attn_ceil_div(p->lq, piece), 1);
}

static bool has_segments(const attn_problem *p, tile_cut x)
{
    return attn_min(x.back, x.q) < p->lq;
}

/* Numbers of each query in the workspace: two, and two that let states begin at 16 bytes. */
static int64_t row_floats(const attn_problem *p)
{
    return is_normalized(p) ? 4 : 0;
}

static bool has_phi(const attn_problem *p)
{
    return p->phi != ATTN_PHI_IDENTITY;
}

/* Whether a step before the scans, which have no time for it, takes phi, into the workspace; that
 * of tiles divides queries, too. */
static bool is_copied(const attn_problem *p)
{
    return find_tiles(p) ? has_phi(p) || is_normalized(p)
                         : p->type == ATTN_F32 && has_phi(p);
}

/* In bytes: numbers, and phi of queries and keys. */
static bool rows_work_bytes(const attn_problem *p, int64_t *out)
{
    const int64_t heads = p->b * (p->hq + (has_phi(p) ? p->hkv : 0));
    const int64_t row = p->d * (int64_t)attn_type_bytes(p->type);
    int64_t copies = 0;

    return attn_mul(4 * row_floats(p) * p->b * p->hq, p->lq, out) &&
           (!is_copied(p) ||
            (attn_mul(heads, p->lq, &copies) && attn_mul(copies, row, &copies))) &&
           attn_add(*out, copies, out);
}

static bool tiles_work_bytes(const attn_problem *p, const attn_caps *c, const tiles *t,
                             int64_t *out)
{
    const tile_cut x = cut_tiles(p, c, t);
    const int64_t last = is_normalized(p) ? TILES_LAST : 0;
    int64_t rows;

    *out = 0;
    if (has_segments(p, x) &&
        !(attn_mul(p->b * p->hq, segments_of(p, x.back) + segments_of(p, x.q), out) &&
          attn_mul(*out, (int64_t)4 * (t->dim * t->dim + last), out)))
        return false;
    return rows_work_bytes(p, &rows) && attn_add(*out, rows, out);
}

/* The states of the segments, of dQ and then of dK and dV in the same place. false: more than
 * 2^63 - 1. */
static bool work_bytes(const attn_problem *p, const attn_caps *c, int64_t *out)
{
    const tiles *const t = find_tiles(p);

    if (t)
        return tiles_work_bytes(p, c, t, out);

    const int64_t q = p->grad & ATTN_GRAD_Q ? find_slots(p, c, false) : 0;
    const int64_t back = wants_back(p) ? find_slots(p, c, true) : 0;
    const int64_t slots = is_beside(p, c) ? 2 * back : attn_max(q, back);
    int64_t rows;

    return attn_mul(p->b * p->hkv, slots, out) &&
           attn_mul(*out, 4 * p->d * (p->dv + 1), out) && rows_work_bytes(p, &rows) &&
           attn_add(*out, rows, out);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const char *const why = attn_cuda_hopper_refusal(c);
    const class *const k = find_class(p, c, false);
    int64_t bytes;
    budget b;

    if (why)
        return why;
    if (!(p->features & ATTN_FEAT_CAUSAL))
        return "takes the causal form alone";
    if (!k)
        return "D or Dv is over 128";
    if (wants_back(p) && p->hq != p->hkv && !wants_both(p))
        return "of heads that share keys takes dK and dV up to D and Dv of 64";
    if (!attn_cuda_linear_aligned(p))
        return "wants rows that are moved 16 bytes at a time, and whose bytes 16 divides";
    if (!attn_cuda_counts(p))
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    b = budget_of(p, k);
    if (b.adds + b.states > c->fast_bytes || BLOCK + 128 > c->max_group)
        return "chunks do not fit the shared memory, or a group the limit of threads";
    if (is_normalized(p) && !find_tiles(p) && !takes_numbers(p))
        return "takes the normaliser in f32 up to D and Dv of 64, in bf16 of heads that "
               "share no keys";
    if ((double)p->b * (double)p->hq *
            (double)attn_max(4, attn_ceil_div(p->lq, ATTN_CUDA_BEGIN_ROWS)) >
        0x1p31 - 1)
        return "more groups than a grid can have, 2^31 - 1";
    if (!work_bytes(p, c, &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's memory";
    return NULL;
}

static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    return p->type == ATTN_F32 && p->allow_tf32
               ? "takes it, but TF32, which is allowed, takes a sixth of its products"
               : NULL;
}

/* What the steps of a scan and of its sums have in common. */
typedef struct scan {
    const class *class;
    bool back, scanned, beside;
    int64_t piece;
    uint32_t grad;
} scan;

static attn_step *add_step(const attn_problem *p, const scan *s, const char *kernel,
                           int64_t block, bool by_d, uint32_t grad, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grad = grad;
    step->grouped = s->back;
    step->tile_q = step->tile_k = ATTN_CUDA_CHUNK;
    step->columns = s->class->columns;
    step->by_d = by_d;
    step->piece = s->piece;
    step->block = block;
    step->overlaps = out->n_steps > 1;
    step->row_floats = row_floats(p);
    step->copied = is_copied(p);
    attn_cuda_linear_step(p, step);
    attn_step_define(step, "LINEAR_SCANNED", s->scanned);
    attn_step_define(step, "LINEAR_SLOTS", s->piece > 0);
    attn_step_define(step, "LINEAR_BESIDE", s->beside);
    return step;
}

/* What the rows of segments add to the state: of dQ columns of D, of dK and dV of Dv. */
static void add_sums(const attn_problem *p, const scan *s, const char *kernel,
                     attn_choice *out)
{
    attn_step *step;

    if (!s->piece)
        return;
    step = add_step(p, s, kernel, SUM_BLOCK, !s->back, s->grad, out);
    step->grouped = true; /* of heads of K and V */
    step->fast_bytes = budget_of(p, s->class).sums;
    if (!s->scanned)
        return;
    step = add_step(p, s, "linear_fwd_scan", ATTN_CUDA_SCAN_THREADS, false, s->grad, out);
    step->grouped = true;
    step->columns = ATTN_CUDA_SCAN_COLUMNS;
}

static void add_walk(const attn_problem *p, const scan *s, const char *kernel,
                     int64_t block, bool by_d, uint32_t grad, attn_choice *out)
{
    const budget b = budget_of(p, s->class);

    add_step(p, s, kernel, block, by_d, grad, out)->fast_bytes = b.adds + b.states;
}

static scan make_scan(const attn_problem *p, const attn_caps *c, bool back)
{
    const bool beside = is_beside(p, c);

    return (scan){
        .beside = beside,
        .class = find_class(p, c, back),
        .back = back,
        .scanned = find_slots(p, c, back || beside) > ATTN_CUDA_MOST_ADDED,
        .piece = find_piece(p, c, back || beside),
        .grad = p->grad & (back ? ~(uint32_t)ATTN_GRAD_Q : (uint32_t)ATTN_GRAD_Q),
    };
}

/* Of a walk. */
static int64_t block_of(const attn_problem *p, const scan *s)
{
    return s->class->dim > 64 && p->type != ATTN_BF16 ? BLOCK : BLOCK + 128;
}

/* All sums in one step. */
static void add_all_sums(const attn_problem *p, const scan *s, const kernels *k,
                         attn_choice *out)
{
    attn_step *step;

    if (!s->piece)
        return;
    step = add_step(p, s, k->sums, SUM_BLOCK, p->d > p->dv, p->grad, out);
    step->fast_bytes = budget_of(p, s->class).sums;
    step->scans = 2;
    if (s->class->dim > 64) { /* all columns a group */
        step->block = WHOLE_BLOCK;
        step->columns = s->class->dim;
        step->fast_bytes = WHOLE_BYTES + BARRIER_BYTES;
    }
    if (!s->scanned)
        return;
    step = add_step(p, s, k->scan, ATTN_CUDA_SCAN_THREADS, false, p->grad, out);
    step->columns = 0;
    step->scans = 2;
}

static const kernels *kernels_of(const attn_problem *p, const scan *s)
{
    return &s->class->of[p->type - ATTN_F32];
}

/* A step of all scans. */
static attn_step *add_tiles(const attn_problem *p, tile_cut x, const char *kernel,
                            int64_t block, int64_t fast, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = kernel;
    step->grad = p->grad;
    step->tile_q = step->tile_k = ATTN_CUDA_CHUNK;
    step->piece = x.back;
    step->piece_q = x.q;
    step->block = block;
    step->overlaps = out->n_steps > 1;
    step->fast_bytes = fast;
    step->row_floats = row_floats(p);
    step->copied = is_copied(p);
    attn_cuda_linear_step(p, step);
    return step;
}

/* The steps before the scans: numbers of queries, and phi. */
static void add_first(const attn_problem *p, attn_choice *out)
{
    attn_step *step;

    if (row_floats(p))
        attn_cuda_linear_begin(p, out);
    if (!is_copied(p))
        return;
    step = &out->step[out->n_steps++];
    step->kernel = p->type == ATTN_F32 ? "linear_bwd_phi_f32" : "linear_bwd_phi_bf16";
    step->tile_q = PHI_ROWS;
    step->tile_k = 1;
    step->block = 8 * PHI_ROWS;
    step->overlaps = out->n_steps > 1;
    step->row_floats = row_floats(p);
    attn_cuda_linear_step(p, step);
    step->over = ATTN_OVER_QUERIES;
}

static void lower_tiles(const attn_problem *p, const attn_caps *c, const tiles *t,
                        attn_choice *out)
{
    const tile_cut x = cut_tiles(p, c, t);
    const bool scanned =
        attn_max(segments_of(p, x.back), segments_of(p, x.q)) * t->dim / 64 > TILES_ADDED;
    attn_step *step;

    out->ungrouped = true;
    add_first(p, out);
    if (has_segments(p, x))
        add_tiles(p, x, t->sums, TILES_SUM,
                  t->sum_tiles * TILE_BYTES + t->number_bytes + BARRIER_BYTES, out);
    if (has_segments(p, x) && scanned)
        add_tiles(p, x, t->scan, TILES_SCAN, 0, out);
    step = add_tiles(p, x, t->walk, TILES_BLOCK,
                     t->walk_tiles * TILE_BYTES + t->number_bytes + BARRIER_BYTES, out);
    attn_step_define(step, "LINEAR_SCANNED", scanned);
    attn_choice_instance(out, "chunk%d,dim%d,tiles,d%lld,dv%lld,%s", ATTN_CUDA_CHUNK,
                         t->dim, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
}

/* One scan after another. */
static void add_walks(const attn_problem *p, const scan *q, const scan *back,
                      attn_choice *out)
{
    const kernels *const of_q = kernels_of(p, q), *const of_k = kernels_of(p, back);

    if (p->grad & ATTN_GRAD_Q) {
        if (!q->beside)
            add_sums(p, q, of_q->q_sums, out);
        add_walk(p, q, of_q->q, block_of(p, q), true, q->grad, out);
    }
    if (wants_back(p) && !back->beside)
        add_sums(p, back, of_k->k_sums, out);
    if (wants_both(p)) {
        add_walk(p, back, of_k->both, block_of(p, back), false, back->grad, out);
    } else {
        if (p->grad & ATTN_GRAD_V)
            add_walk(p, back, of_k->v, block_of(p, back), false, ATTN_GRAD_V, out);
        if (p->grad & ATTN_GRAD_K)
            add_walk(p, back, of_k->k, block_of(p, back), true, ATTN_GRAD_K, out);
    }
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const scan q = make_scan(p, c, false), back = make_scan(p, c, true);
    const kernels *const of_k = kernels_of(p, &back);

    out->splits = 0;
    out->tile_reason = "segments: one where there are heads for three quarters of the "
                       "multiprocessors, else as many as run at once";
    work_bytes(p, c, &out->workspace_bytes);
    if (find_tiles(p)) {
        lower_tiles(p, c, find_tiles(p), out);
        return;
    }
    out->ungrouped = back.beside || (wants_back(p) && !wants_both(p));
    add_first(p, out);
    if (back.beside)
        add_all_sums(p, &back, of_k, out);
    if (back.beside && of_k->all) {
        add_walk(p, &back, of_k->all, block_of(p, &back), false, p->grad, out);
        out->step[out->n_steps - 1].scans = 2;
    } else {
        add_walks(p, &q, &back, out);
    }
    attn_choice_instance(out, "chunk%d,dim%d,columns%d:%d,d%lld,dv%lld,%s", ATTN_CUDA_CHUNK,
                         q.class->dim, q.class->columns, back.class->columns,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
}

const attn_variant attn_cuda_linear_bwd_wgmma_variant = {
    .name = "linear_bwd_wgmma",
    .about =
        "causal gradients, chunks of tokens on Hopper's tensor cores (wgmma); f32 as sums "
        "of three numbers of bf16",
    .op = ATTN_OP_LINEAR,
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEAT_CAUSAL | ATTN_FEAT_LENS_KV | ATTN_FEAT_NORMALIZE | ATTN_FEAT_DEN,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
