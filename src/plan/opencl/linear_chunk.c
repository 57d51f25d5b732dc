/* SPDX-License-Identifier: MIT */
/* plan/opencl/linear_chunk.c: tiles, segments and local memory of the kernels that take linear
 * attention in chunks. */
#include "plan/opencl/linear_chunk.h"

#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    LEAST_PIECE = 128, /* tokens of the only one: a self-test has 67               */
    LEAST_CHUNKS = 4,  /* of a segment, since its state costs as much as some rows */
    MOST_ADDED = 8,    /* states of segments that the last step adds up itself     */
    MOST_ROWS = 8,     /* of a register tile                                       */
    RESIDENT = 4       /* groups that a GPU's compute unit runs at once            */
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

/* The largest power of two that is no more than n, from 1 to MOST_ROWS. */
static int64_t rows_for(int64_t n)
{
    int64_t rows = 1;

    while (rows < MOST_ROWS && 2 * rows <= n)
        rows *= 2;
    return rows;
}

/* Rows of register tiles: on GPUs so many that each item has one tile. */
static attn_chunk_shape shape_of(const attn_chunk_scan *x, const attn_caps *c,
                                 const tile *t)
{
    attn_chunk_shape s = {
        .chunk = t->chunk, .columns = t->columns, .items = t->items, .vw = 4, .rn = 1
    };

    if (t->cpu) {
        s.vw = c->vector_width >= 16 ? 16 : c->vector_width >= 8 ? 8 : 4;
        s.rn = s.columns >= 2 * s.vw && s.chunk >= 2 * s.vw ? 2 : 1;
        s.rows_p = s.rows_o = s.rows_s = s.vw == 16 ? 8 : 4;
        return s;
    }
    s.rows_p = rows_for(s.chunk * s.chunk / (s.vw * s.items));
    s.rows_o = rows_for(s.chunk * s.columns / (s.vw * s.items));
    s.rows_s = rows_for(x->features * s.columns / (s.vw * s.items));
    return s;
}

static int64_t pad_of(const attn_chunk_shape *s)
{
    return s->items > 1 ? 4 : 0;
}

/* Features in vectors; rows of the state in register tiles. */
static int64_t wide_of(const attn_chunk_scan *x, const attn_chunk_shape *s)
{
    return attn_round_up(x->features, s->vw);
}

static int64_t tall_of(const attn_chunk_scan *x, const attn_chunk_shape *s)
{
    return attn_max(wide_of(x, s), attn_round_up(x->features, s->rows_s));
}

attn_chunk_budget attn_chunk_budget_of(const attn_chunk_scan *x, const attn_chunk_shape *s)
{
    const int64_t pad = pad_of(s), keys = x->causal ? 4 : 0;
    const int64_t lanes = attn_max(s->items / s->chunk, 1);

    return (attn_chunk_budget){
        .queries = 4 * s->chunk * (wide_of(x, s) + pad),
        .keys = keys * tall_of(x, s) * (s->chunk + pad),
        .values = keys * s->chunk * s->columns,
        .pairs = keys * s->chunk *
                 (s->chunk + pad + (x->adds_heads && s->items == 1 ? s->columns : 0)),
        .state = 4 * tall_of(x, s) * s->columns,
        .rows = 4 * (attn_max(wide_of(x, s), s->columns) + s->chunk * (2 + lanes)),
    };
}

int64_t attn_chunk_walk_bytes(const attn_chunk_scan *x, const attn_chunk_shape *s)
{
    const attn_chunk_budget b = attn_chunk_budget_of(x, s);

    return b.queries + b.keys + b.values + b.pairs + b.state + b.rows;
}

/* Keys, values and the state, in both forms. */
int64_t attn_chunk_sums_bytes(const attn_chunk_scan *x, const attn_chunk_shape *s)
{
    return 4 * (tall_of(x, s) * (s->chunk + pad_of(s)) +
                (s->chunk + tall_of(x, s) + 1) * s->columns + wide_of(x, s) + s->chunk);
}

/* Columns that a row does not have are avoided. */
bool attn_chunk_find_shape(const attn_chunk_scan *x, const attn_caps *c,
                           attn_chunk_shape *out)
{
    for (int i = 0; i < N_TILES; i++) {
        const tile *t = &tiles[i];

        *out = shape_of(x, c, t);
        if (t->cpu == (c->kind == ATTN_DEVICE_CPU) && t->items <= c->max_group &&
            (t->columns < 2 * x->width || t->columns <= 16) &&
            (!t->cpu || t->columns >= out->vw) &&
            attn_max(attn_chunk_walk_bytes(x, out), attn_chunk_sums_bytes(x, out)) <=
                c->fast_bytes - ATTN_CHUNK_RESERVE)
            return true;
    }
    return false;
}

/* Groups that run at once; a core has one. */
static int64_t room_of(const attn_caps *c)
{
    return attn_max(c->compute_units, 1) * (c->kind == ATTN_DEVICE_CPU ? 1 : RESIDENT);
}

/* Tokens of a segment, so that all groups of so many units run at once; 0: one segment. */
static int64_t cut(const attn_chunk_shape *s, const attn_caps *c, int64_t units,
                   int64_t tokens)
{
    const int64_t chunks = attn_ceil_div(tokens, s->chunk);
    const int64_t n = attn_min(room_of(c) / attn_max(units, 1), chunks / LEAST_CHUNKS);

    return n < 2 ? 0 : attn_ceil_div(chunks, n) * s->chunk;
}

static int64_t slices_of(const attn_chunk_scan *x, const attn_chunk_shape *s)
{
    return attn_ceil_div(x->width, s->columns);
}

attn_chunk_cuts attn_chunk_cut_causal(const attn_chunk_scan *x, const attn_chunk_shape *s,
                                      const attn_caps *c, int64_t units, int64_t tokens)
{
    const int64_t groups = units * slices_of(x, s);
    attn_chunk_cuts cuts = { .slots = 1 };

    /* half of a GPU's room still keeps all of its units busy */
    if ((c->kind == ATTN_DEVICE_CPU ? 1 : 2) * groups < room_of(c))
        cuts.sums = cuts.output = cut(s, c, groups, tokens);
    if (cuts.sums)
        cuts.slots = attn_ceil_div(tokens, cuts.sums);
    return cuts;
}

attn_chunk_cuts attn_chunk_cut_full(const attn_chunk_scan *x, const attn_chunk_shape *s,
                                    const attn_caps *c, int64_t states, int64_t summed,
                                    int64_t units, int64_t tokens)
{
    attn_chunk_cuts cuts = {
        .sums = cut(s, c, states * slices_of(x, s), summed),
        .output = cut(s, c, units * slices_of(x, s), tokens),
    };

    if (!cuts.sums)
        cuts.sums = attn_round_up(attn_max(summed, LEAST_PIECE), s->chunk);
    cuts.slots = 1 + attn_max(attn_ceil_div(summed, cuts.sums), 1);
    return cuts;
}

bool attn_chunk_scanned(const attn_chunk_scan *x, attn_chunk_cuts cuts)
{
    return cuts.slots > (x->causal ? MOST_ADDED : 2);
}

double attn_chunk_loops(const attn_chunk_scan *x, const attn_chunk_shape *s, int64_t tokens,
                        int64_t heads, int64_t slots)
{
    const double chunk = (double)s->chunk, columns = (double)s->columns;
    const double items = (double)s->items, d = (double)x->features;
    const double vw = (double)s->vw, nw = (double)(s->vw * s->rn);
    const double at_once = s->vw == 4 ? 4 : 1; /* of a product's depth */
    const double deep = d / at_once + 1, wide = chunk / at_once + 1;
    const double stage = chunk / items * (2 * (d / vw + 1) + columns / vw) + 3;
    const double pairs = (chunk / (double)s->rows_p * (chunk / nw) / items + 1) * deep;
    const double rows =
        (chunk / (double)s->rows_o * (columns / nw) / items + 1) * (deep + wide + 2 * vw);
    const double state = ((d / (double)s->rows_s + 1) * (columns / nw) / items + 1) * wide +
                         d * (chunk / vw + 2);
    const double tamed = chunk * (2 * d + 4);

    return ((double)tokens / chunk + 1) * (double)heads *
               (stage + pairs + rows + state + tamed + 16) +
           (d + 1) * columns / items * ((double)slots + 2);
}

bool attn_chunk_wide(const attn_problem *p, const attn_chunk_shape *s, int tensor)
{
    const int64_t bytes = attn_layout_bytes(p->layout[tensor], p->type);
    const int64_t each = (int64_t)attn_type_bytes(p->type);

    return s->vw == 4 ? bytes >= 4 * each && p->d % 4 == 0 && p->dv % 4 == 0
                      : bytes >= each;
}

attn_step *attn_chunk_step(const attn_problem *p, const attn_chunk_shape *s,
                           attn_chunk_cuts x, const char *kernel, bool summed,
                           attn_choice *out)
{
    const struct {
        const char *name;
        int64_t value;
    } all[] = {
        { "CHUNK", s->chunk },   { "COLUMNS", s->columns }, { "ITEMS", s->items },
        { "VW", s->vw },         { "RN", s->rn },           { "ROWS_P", s->rows_p },
        { "ROWS_O", s->rows_o }, { "ROWS_S", s->rows_s },
    };
    attn_step *step = attn_opencl_linear_step(p, kernel, out);

    step->tile_q = step->tile_k = s->chunk;
    step->columns = s->columns;
    step->piece = summed ? x.sums : x.output;
    step->block = s->items;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        attn_step_define(step, all[i].name, all[i].value);
    return step;
}
