/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_fwd_split.c: OpenCL for few queries and many keys: pieces of
 * the keys fill the device, and a second step merges them. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    MOST_DIM = 256,
    RESERVE = 256,     /* bytes that drivers keep of the local memory */
    PIECE = 512,       /* keys; fixed, so that bits and splits depend on Lk alone */
    LONG_PIECE = 2048, /* as LONG in the kernel */
    MOST_ROWS = 16,
    FEW_KEYS = 256,
    FEW_QUERIES = 8,
    ROUND_BYTES = 256 << 20 /* of workspace: more goes in rounds of queries */
};

/* Best first. The rows of a block are as many as there are, within the limit; rt of
 * them make a register tile with kt keys and with ct vectors of a value row. Processors
 * go through K and V row by row and turn from one to the other soon, as the prefetchers
 * of their caches want it. */
typedef struct tile {
    int32_t items, td, vw, rows, rt, kt, ct, bc;
    int32_t seg; /* keys of a row that one item weighs; 0: all of a chunk */
} tile;

static const tile for_cpu[] = {
    { 1, 1, 16, MOST_ROWS, 2, 1, 8, 16, 0 },
    { 1, 1, 8, MOST_ROWS, 2, 1, 4, 16, 0 },
    { 1, 1, 4, MOST_ROWS, 2, 1, 4, 16, 0 },
    { 1, 1, 4, 1, 1, 1, 4, 4, 0 },
};

static const tile for_gpu[] = {
    { 128, 8, 4, 8, 4, 2, 1, 64, 4 }, { 128, 8, 4, 4, 4, 2, 1, 64, 4 },
    { 64, 8, 4, 4, 4, 2, 1, 32, 4 },  { 64, 8, 4, 1, 1, 2, 1, 32, 4 },
    { 32, 4, 4, 1, 1, 2, 1, 16, 4 },  { 8, 4, 4, 1, 1, 2, 1, 4, 4 },
    { 1, 1, 4, 1, 1, 1, 4, 4, 0 },
};

/* The numbers of one instance. */
typedef struct instance {
    const tile *t;
    int64_t r, rt, ct, bc, seg, piece;
} instance;

/* Local memory, line by line, as the kernel declares it. */
typedef struct budget {
    int64_t q, s, w, o, rest, rows;
} budget;

static budget budget_of(const attn_problem *p, const instance *x)
{
    const int64_t vw = x->t->vw, dvp = attn_round_up(p->dv, vw);
    const int64_t columns = attn_ceil_div(dvp / vw, x->ct);
    const int64_t kg = x->t->items / attn_min(columns, x->t->items);

    return (budget){
        .q = 4 * x->r * attn_round_up(p->d, vw),
        .s = 4 * (x->t->td * (x->r * x->bc + 4) - 4),
        .w = 4 * (x->t->items > 1 ? x->r * x->bc : 1),
        .o = 4 * kg * x->r * dvp,
        .rest = 4 * (p->type == ATTN_F32 && x->piece > LONG_PIECE ? kg * x->r * dvp : 1),
        .rows = 4 * (2 * x->r * (x->bc / x->seg) + 5 * x->r),
    };
}

static int64_t sum(budget b)
{
    return b.q + b.s + b.w + b.o + b.rest + b.rows;
}

/* The queries of all heads that share a key/value head. */
static int64_t rows_of(const attn_problem *p)
{
    return attn_max(p->hkv ? p->hq / p->hkv * p->lq : p->lq, 1);
}

/* Keys of a piece: chunks of bc, or one smaller chunk. */
static void set_piece(instance *x, const attn_problem *p, int64_t splits)
{
    const int64_t unit = attn_max(x->t->kt * x->t->items / x->t->td, x->t->vw);
    const int64_t want = splits ? attn_ceil_div(attn_max(p->lk, 1), splits) : PIECE;

    x->bc = attn_min(x->t->bc, attn_round_up(want, unit));
    x->piece = attn_round_up(want, x->bc);
    x->seg = x->t->seg ? x->t->seg : x->bc;
}

static int64_t pieces_of(const attn_problem *p, const instance *x)
{
    return attn_max(attn_ceil_div(p->lk, x->piece), 1);
}

/* Whether rows of `depth` elements are loaded by vectors; else lane by lane. */
static bool by_vectors(const attn_problem *p, int t, int64_t depth, int64_t vw)
{
    return p->layout[t] != ATTN_LAYOUT_ANY && depth % vw == 0;
}

/* Iterations of a work-item in step 1, for one piece. */
static int64_t piece_loops(const attn_problem *p, const instance *x)
{
    const tile *t = x->t;
    const int64_t keys = attn_min(x->piece, attn_round_up(attn_max(p->lk, 1), x->bc));
    const int64_t tiles = attn_ceil_div(x->r, x->rt), chunks = attn_ceil_div(keys, x->bc);
    const int64_t lanes_k = by_vectors(p, ATTN_TENSOR_K, p->d, t->vw) ? 0 : t->kt * t->vw;
    const int64_t lanes_v = by_vectors(p, ATTN_TENSOR_V, p->dv, t->vw) ? 0 : x->ct * t->vw;
    const int64_t vectors = attn_ceil_div(p->dv, t->vw);
    const int64_t columns = attn_ceil_div(vectors, x->ct);
    const int64_t turns = attn_ceil_div(columns, t->items);
    const int64_t kg = attn_max(t->items / columns, 1);
    const int64_t scores =
        attn_ceil_div(keys, t->kt * t->items / t->td) *
        (1 + tiles * (1 + attn_ceil_div(p->d, t->td * t->vw) * (1 + lanes_k)));
    const int64_t weighed = chunks * attn_ceil_div(x->r * (x->bc / x->seg), t->items);
    const int64_t terms = p->features & ATTN_FEATURES_TERMS ? t->vw : 0;
    const int64_t weights = weighed * (2 + x->bc / x->seg + x->seg / t->vw * (2 + terms));
    const int64_t values = turns * tiles * attn_ceil_div(keys, kg) * (1 + lanes_v) +
                           turns * chunks * (x->r * (1 + x->ct) + 1 + tiles);

    return scores + weights + values + chunks * (1 + x->r) +
           attn_ceil_div(x->r * (p->d + 2 * p->dv + 2 * t->vw), t->items);
}

/* Of either step. */
static int64_t loops_of(const attn_problem *p, const instance *x)
{
    const int64_t columns = attn_ceil_div(p->dv, x->t->vw);

    return attn_max(piece_loops(p, x),
                    pieces_of(p, x) *
                            (2 + columns * (p->dv % x->t->vw ? 1 + x->t->vw : 1)) +
                        columns * (1 + x->t->vw));
}

static bool too_long(const attn_problem *p, const attn_caps *c, const instance *x)
{
    return c->max_loops && loops_of(p, x) > c->max_loops;
}

/* The first tile that fits; of fewer rows, and smaller pieces than were wished for, where
 * the driver cuts loops off. */
static bool find(const attn_problem *p, const attn_caps *c, int64_t splits, instance *x)
{
    const bool cpu = c->kind == ATTN_DEVICE_CPU;
    const tile *list = cpu ? for_cpu : for_gpu;
    const size_t n =
        cpu ? sizeof for_cpu / sizeof *for_cpu : sizeof for_gpu / sizeof *for_gpu;

    for (size_t i = 0; i < n; i++) {
        const tile *t = &list[i];

        *x = (instance){ .t = t, .r = 1 };
        if (t->items > c->max_group || t->vw > attn_max(c->vector_width, 4))
            continue;
        while (x->r < rows_of(p) && x->r < t->rows)
            x->r *= 2;
        x->rt = attn_min(x->r, t->rt);
        x->ct = attn_min(t->ct, attn_ceil_div(p->dv, t->vw));
        set_piece(x, p, splits);
        while (too_long(p, c, x) && x->r > 1)
            x->r /= 2;
        while (too_long(p, c, x) && x->piece >= 2 * PIECE)
            x->piece = attn_round_up(x->piece / 2, x->bc);
        x->rt = attn_min(x->r, t->rt);
        if (sum(budget_of(p, x)) <= c->fast_bytes - RESERVE)
            return true;
    }
    return false;
}

/* Workspace of one query of all heads, and how many queries go in one round; 0: not
 * even one. */
static int64_t round_of(const attn_problem *p, const attn_caps *c, const instance *x,
                        int64_t *bytes)
{
    const int64_t most = c->max_alloc_bytes ? c->max_alloc_bytes : INT64_MAX;
    int64_t n = 0;

    if (!attn_mul(p->b * p->hq, pieces_of(p, x) * (p->dv + 2) * 4, bytes) || *bytes > most)
        return 0;
    n = *bytes ? attn_max(attn_min(ROUND_BYTES, most) / *bytes, 1) : p->lq;
    return attn_max(attn_min(n, p->lq), 1);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    instance x;
    int64_t bytes;

    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 256";
    if (!find(p, c, 0, &x))
        return "no tile fits the local memory and the work-group limit";
    if (!round_of(p, c, &x, &bytes))
        return "the partial results of one query of all heads fit no allocation";
    if (too_long(p, c, &x))
        return "the driver cuts loops off before so many pieces are merged";
    return NULL;
}

/* By measurement on processors: from about 10 queries on, and below about 200 keys, tiles
 * of queries are no slower. Never by batch or heads: a row's bits must not depend on them. */
static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->lk < FEW_KEYS)
        return "takes it, but so few keys are not worth a second step";
    if (p->lq > FEW_QUERIES)
        return "takes it, but so many queries reuse K and V without it";
    return NULL;
}

/* K and V can be loaded a vector at a time. */
static bool aligned(const attn_problem *p, int64_t vw)
{
    const int64_t bytes = vw * (int64_t)attn_type_bytes(p->type);

    return p->d % vw == 0 && p->dv % vw == 0 &&
           attn_layout_bytes(p->layout[ATTN_TENSOR_K], p->type) >= bytes &&
           attn_layout_bytes(p->layout[ATTN_TENSOR_V], p->type) >= bytes;
}

static void lower_merge(const attn_problem *p, const attn_caps *c, const instance *x,
                        attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const int64_t vw = x->t->vw;
    int64_t items = 1;

    while (x->t->items > 1 && items * vw < p->dv && items < attn_min(64, c->max_group))
        items *= 2;
    items = attn_min(items, x->t->items);
    step->kernel = "softmax_fwd_split_merge";
    step->tile_q = 1;
    step->tile_k = x->piece;
    step->block = items;
    attn_step_softmax(step, p,
                      ATTN_READS_TYPE | ATTN_READS_DV | ATTN_READS_QUERIES |
                          ATTN_READS_SINKS | ATTN_READS_LSE | ATTN_READS_O);
    attn_step_define(step, "PIECE", x->piece);
    attn_step_define(step, "ITEMS", items);
    attn_step_define(step, "VW", vw);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    int64_t bytes, queries;
    instance x;
    budget b;

    find(p, c, out->splits, &x);
    if (!round_of(p, c, &x, &bytes) || too_long(p, c, &x))
        find(p, c, 0, &x); /* the wish is more than the device can do */
    queries = round_of(p, c, &x, &bytes);
    b = budget_of(p, &x);
    out->splits = pieces_of(p, &x);
    out->workspace_bytes = bytes * queries;
    step->kernel = "softmax_fwd_split";
    step->grouped = true;
    step->tile_q = x.r;
    step->tile_k = x.bc;
    step->piece = x.piece;
    step->block = x.t->items;
    attn_step_softmax(step, p,
                      ATTN_READS_ALL & ~(ATTN_READS_SINKS | ATTN_READS_LSE | ATTN_READS_O));
    attn_step_define(step, "PIECE", x.piece);
    attn_step_define(step, "ITEMS", x.t->items);
    attn_step_define(step, "TD", x.t->td);
    attn_step_define(step, "VW", x.t->vw);
    attn_step_define(step, "R", x.r);
    attn_step_define(step, "RT", x.rt);
    attn_step_define(step, "KT", x.t->kt);
    attn_step_define(step, "CT", x.ct);
    attn_step_define(step, "BC", x.bc);
    attn_step_define(step, "SEG", x.seg);
    attn_step_define(step, "ALIGNED", aligned(p, x.t->vw));
    attn_choice_instance(out, "p%lld,r%lld,bc%lld,items%d,td%d,vw%d,d%lld,dv%lld,%s",
                         (long long)x.piece, (long long)x.r, (long long)x.bc, x.t->items,
                         x.t->td, x.t->vw, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason = "r: the queries of all heads that share K and V, read once for all; "
                       "the first of the list that keeps the device's limits";
    attn_choice_budget(out, "q, in f32", b.q);
    attn_choice_budget(out, "scores of a chunk, in parts", b.s);
    attn_choice_budget(out, "weights (one item: in place of scores)", b.w);
    attn_choice_budget(out, "o, in parts, in f32", b.o);
    attn_choice_budget(out, "o's rest (f32, long pieces)", b.rest);
    attn_choice_budget(out, "row states", b.rows);
    lower_merge(p, c, &x, out);
    for (int i = 0; i < out->n_steps; i++)
        out->step[i].round_queries = queries < p->lq ? queries : 0;
}

const attn_variant attn_opencl_softmax_fwd_split_variant = {
    .name = "softmax_fwd_split",
    .about = "few queries: keys in pieces over the whole device, merged by a second step",
    .features = ATTN_FEATURES_ALL,
    .splits = true,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
