/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_fwd_chunk.c: linear attention in chunks of tokens on OpenCL devices: in
 * one pass over the sequence, or in segments of it where there are few heads. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    RESERVE = 256,     /* bytes that drivers keep of the local memory              */
    FEW_TOKENS = 32,   /* fewer are sooner taken one by one                        */
    LEAST_PIECE = 128, /* tokens of the only one: a self-test has 67               */
    LEAST_CHUNKS = 4,  /* of a segment, since its state costs as much as some rows */
    MOST_ADDED = 8,    /* states of segments that the last step adds up itself     */
    MOST_ROWS = 8      /* of a register tile                                       */
};

/* Tokens of a chunk, columns of a group, its work-items. Best first: the first that keeps the
 * device's limits is taken. On processors one item has all tiles of a group. */
typedef struct tile {
    int32_t chunk, columns, items;
    bool cpu;
} tile;

static const tile tiles[] = {
    { 32, 64, 128, false }, /* 47 KiB of local memory at D 64  */
    { 32, 32, 128, false }, /* 37 KiB                          */
    { 16, 32, 64, false },  /* 21 KiB; 38 at D 128             */
    { 16, 16, 64, false },  /* 16 KiB; 29 at D 128             */
    { 8, 16, 32, false },   /* 38 KiB at D 256                 */
    { 32, 64, 1, true },    { 32, 32, 1, true }, { 32, 16, 1, true }, { 16, 16, 1, true },
};

enum { N_TILES = sizeof tiles / sizeof tiles[0] };

/* The numbers of an instance, as chunk.clh names them. */
typedef struct shape {
    const tile *t;
    int64_t vw, rn, rows_p, rows_o, rows_s;
} shape;

/* Local memory of the last step, line by line. */
typedef struct budget {
    int64_t queries, keys, values, pairs, state, rows;
} budget;

static bool has(const attn_problem *p, uint32_t feature)
{
    return (p->features & feature) != 0;
}

static bool is_causal(const attn_problem *p)
{
    return has(p, ATTN_FEAT_CAUSAL);
}

/* The largest power of two that is no more than n, from 1 to MOST_ROWS. */
static int64_t rows_for(int64_t n)
{
    int64_t rows = 1;

    while (rows < MOST_ROWS && 2 * rows <= n)
        rows *= 2;
    return rows;
}

/* Rows of register tiles: on GPUs so many that each item has one tile. */
static shape shape_of(const attn_problem *p, const attn_caps *c, const tile *t)
{
    shape s = { .t = t, .vw = 4, .rn = 1 };

    if (t->cpu) {
        s.vw = c->vector_width >= 16 ? 16 : c->vector_width >= 8 ? 8 : 4;
        s.rn = t->columns >= 2 * s.vw && t->chunk >= 2 * s.vw ? 2 : 1;
        s.rows_p = s.rows_o = s.rows_s = s.vw == 16 ? 8 : 4;
        return s;
    }
    s.rows_p = rows_for(t->chunk * t->chunk / (s.vw * t->items));
    s.rows_o = rows_for(t->chunk * t->columns / (s.vw * t->items));
    s.rows_s = rows_for(p->d * t->columns / (s.vw * t->items));
    return s;
}

static budget budget_of(const attn_problem *p, shape s)
{
    const int64_t chunk = s.t->chunk, columns = s.t->columns;
    const int64_t pad = s.t->items > 1 ? 4 : 0, keys = is_causal(p) ? 4 : 0;
    const int64_t wide = attn_round_up(p->d, s.vw);
    const int64_t tall = attn_max(wide, attn_round_up(p->d, s.rows_s));
    const int64_t lanes = attn_max(s.t->items / chunk, 1);

    return (budget){
        .queries = 4 * chunk * (wide + pad),
        .keys = keys * tall * (chunk + pad),
        .values = keys * chunk * columns,
        .pairs = keys * chunk * (chunk + pad),
        .state = 4 * tall * columns,
        .rows = 4 * (wide + chunk * (2 + lanes)),
    };
}

static int64_t sum(budget b)
{
    return b.queries + b.keys + b.values + b.pairs + b.state + b.rows;
}

/* Of the first step, which has K, V and the state in both forms. */
static int64_t sums_bytes(const attn_problem *p, shape s)
{
    const int64_t tall = attn_max(attn_round_up(p->d, s.vw), attn_round_up(p->d, s.rows_s));

    return 4 * (tall * (s.t->chunk + (s.t->items > 1 ? 4 : 0)) +
                (s.t->chunk + tall) * s.t->columns + attn_round_up(p->d, s.vw));
}

/* false: none keeps the limits. Columns that a value row does not have are avoided. */
static bool find_shape(const attn_problem *p, const attn_caps *c, shape *out)
{
    for (int i = 0; i < N_TILES; i++) {
        const tile *t = &tiles[i];

        *out = shape_of(p, c, t);
        if (t->cpu == (c->kind == ATTN_DEVICE_CPU) && t->items <= c->max_group &&
            (t->columns < 2 * p->dv || t->columns <= 16) &&
            (!t->cpu || t->columns >= out->vw) &&
            attn_max(sum(budget_of(p, *out)), sums_bytes(p, *out)) <=
                c->fast_bytes - RESERVE)
            return true;
    }
    return false;
}

/* Groups that a compute unit runs at once: as many as share its local memory; a core one. */
static int64_t resident(const attn_caps *c)
{
    return c->kind == ATTN_DEVICE_CPU ? 1 : 4;
}

/* Tokens of a segment, so that all groups of so many heads run at once; 0: one segment. */
static int64_t cut(const attn_problem *p, const attn_caps *c, shape s, int64_t tokens,
                   int64_t heads)
{
    const int64_t chunk = s.t->chunk, chunks = attn_ceil_div(tokens, chunk);
    const int64_t units = attn_max(p->b * heads * attn_ceil_div(p->dv, s.t->columns), 1);
    const int64_t room = attn_max(c->compute_units, 1) * resident(c);
    const int64_t n = attn_min(room / units, chunks / LEAST_CHUNKS);

    return n < 2 ? 0 : attn_ceil_div(chunks, n) * chunk;
}

/* How a problem is cut: tokens of a segment of the first steps and of the last one, slots
 * of each state. The causal form is not where the heads fill the device well enough, since
 * segments want K and V a second time, and their product. */
typedef struct cuts {
    int64_t sums, output, slots;
} cuts;

static cuts find_cuts(const attn_problem *p, const attn_caps *c, shape s)
{
    const int64_t units = p->b * p->hq * attn_ceil_div(p->dv, s.t->columns);
    cuts x = { 0 };

    if (is_causal(p)) {
        if (2 * units < resident(c) * c->compute_units)
            x.sums = x.output = cut(p, c, s, p->lq, p->hq);
        x.slots = x.sums ? attn_ceil_div(p->lq, x.sums) : 1;
        return x;
    }
    x.output = cut(p, c, s, p->lq, p->hq);
    x.sums = cut(p, c, s, p->lk, p->hkv);
    if (!x.sums)
        x.sums = attn_round_up(attn_max(p->lk, LEAST_PIECE), s.t->chunk);
    x.slots = 1 + attn_max(attn_ceil_div(p->lk, x.sums), 1);
    return x;
}

static bool has_slots(const attn_problem *p, cuts x)
{
    return x.slots > 1 || has(p, ATTN_FEAT_STATE_IN);
}

/* A slot of each segment of each state; false: more than 2^63 - 1. */
static bool work_bytes(const attn_problem *p, cuts x, int64_t *out)
{
    *out = 0;
    return !has_slots(p, x) || (attn_mul(p->b * p->hkv, x.slots, out) &&
                                attn_mul(*out, 4 * p->d * (p->dv + 1), out));
}

/* Iterations of a work-item's loops in a segment of the last step. */
static double loops_of(const attn_problem *p, shape s, cuts x)
{
    const double chunk = s.t->chunk, columns = s.t->columns, items = s.t->items;
    const double d = (double)p->d, vw = (double)s.vw, nw = (double)(s.vw * s.rn);
    const double at_once = s.vw == 4 ? 4 : 1; /* of a product's depth */
    const double deep = d / at_once + 1, wide = chunk / at_once + 1;
    const double stage = chunk / items * (2 * (d / vw + 1) + columns / vw) + 3;
    const double pairs = (chunk / (double)s.rows_p * (chunk / nw) / items + 1) * deep;
    const double rows =
        (chunk / (double)s.rows_o * (columns / nw) / items + 1) * (deep + wide + 2 * vw);
    const double state = ((d / (double)s.rows_s + 1) * (columns / nw) / items + 1) * wide +
                         d * (chunk / vw + 2);
    const double tamed = chunk * (2 * d + 4);
    const double tokens = (double)(x.output ? attn_min(x.output, p->lq) : p->lq);

    return (tokens / chunk + 1) * (stage + pairs + rows + state + tamed + 16) +
           d * columns / items * ((double)x.slots + 2);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    int64_t bytes;
    double groups;
    shape s;
    cuts x;

    if (!find_shape(p, c, &s))
        return "no chunk fits the local memory and the work-group limit";
    if (p->lq > INT32_MAX - 4096 || p->lk > INT32_MAX - 4096)
        return "the chunks of so many queries or keys end beyond 2^31 - 1";
    x = find_cuts(p, c, s);
    groups = (double)p->b * (double)p->hq * (double)attn_ceil_div(p->dv, s.t->columns);
    if (groups * (double)attn_max(x.slots, 1) > INT32_MAX)
        return "more than 2^31 - 1 groups";
    if (!work_bytes(p, x, &bytes) || bytes > c->max_alloc_bytes)
        return "a workspace with the states exceeds the device's largest block";
    if (c->max_loops && loops_of(p, s, x) > (double)c->max_loops)
        return "the driver cuts loops off before so many tokens are taken";
    return NULL;
}

static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->lq < FEW_TOKENS && (is_causal(p) || p->lk < FEW_TOKENS))
        return "takes it, but so few tokens are sooner taken one by one";
    return NULL;
}

/* Whether vectors of a tensor lie together; those of four elements are loaded as such. */
static bool wide(const attn_problem *p, shape s, int tensor)
{
    const int64_t bytes = attn_layout_bytes(p->layout[tensor], p->type);
    const int64_t each = (int64_t)attn_type_bytes(p->type);
    const int64_t dim = tensor == ATTN_TENSOR_V || tensor == ATTN_TENSOR_O ? p->dv : p->d;

    return s.vw == 4 ? bytes >= 4 * each && dim % 4 == 0 : bytes >= each;
}

static attn_step *add_step(const attn_problem *p, shape s, cuts x, const char *kernel,
                           bool output, bool scanned, attn_choice *out)
{
    const struct {
        const char *name;
        int64_t value;
    } all[] = {
        { "CHUNK", s.t->chunk },
        { "COLUMNS", s.t->columns },
        { "ITEMS", s.t->items },
        { "VW", s.vw },
        { "RN", s.rn },
        { "ROWS_P", s.rows_p },
        { "ROWS_O", s.rows_o },
        { "ROWS_S", s.rows_s },
        { "WIDE", wide(p, s, ATTN_TENSOR_Q) && wide(p, s, ATTN_TENSOR_K) &&
                      wide(p, s, ATTN_TENSOR_V) },
        { "WIDE_O", wide(p, s, ATTN_TENSOR_O) },
        { "PIECE", output ? x.output : x.sums },
        { "SUMS_PIECE", x.sums },
        { "SCANNED", scanned },
    };
    attn_step *step = attn_opencl_linear_step(p, kernel, out);

    step->grouped = !output;
    step->tile_q = step->tile_k = s.t->chunk;
    step->columns = s.t->columns;
    step->piece = output ? x.output : x.sums;
    step->merges = is_causal(p) ? 0 : x.sums;
    step->block = s.t->items;
    if (!output && !is_causal(p))
        step->over = ATTN_OVER_KEY_STATES;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        attn_step_define(step, all[i].name, all[i].value);
    return step;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    bool scanned;
    budget b;
    shape s;
    cuts x;

    find_shape(p, c, &s);
    x = find_cuts(p, c, s);
    b = budget_of(p, s);
    scanned = x.slots > (is_causal(p) ? MOST_ADDED : 2);
    out->splits = 0;
    work_bytes(p, x, &out->workspace_bytes);
    if (has_slots(p, x))
        add_step(p, s, x, "linear_fwd_chunk_sums", false, scanned, out)->fast_bytes =
            sums_bytes(p, s);
    if (scanned)
        add_step(p, s, x, "linear_fwd_chunk_scan", false, scanned, out);
    add_step(p, s, x, "linear_fwd_chunk", true, scanned, out);
    attn_choice_instance(out, "chunk%d,columns%d,items%d,vw%lld,states%lld,d%lld,dv%lld,%s",
                         s.t->chunk, s.t->columns, s.t->items, (long long)s.vw,
                         (long long)x.slots, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason =
        "the first of a list, largest first, that keeps the work-group limit "
        "and the local memory; segments where heads do not fill the device";
    attn_choice_budget(out, "a chunk of q", b.queries);
    attn_choice_budget(out, "a chunk of k, the other way round", b.keys);
    attn_choice_budget(out, "a chunk of v", b.values);
    attn_choice_budget(out, "products of q and k", b.pairs);
    attn_choice_budget(out, "the state", b.state);
    attn_choice_budget(out, "z, and what belongs to rows of q", b.rows);
}

const attn_variant attn_opencl_linear_fwd_chunk_variant = {
    .name = "linear_fwd_chunk",
    .about = "chunks of tokens as products of matrices on register tiles fed from local "
             "memory; segments of the sequence where there are few heads",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
