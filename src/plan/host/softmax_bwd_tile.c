/* SPDX-License-Identifier: MIT */
/* plan/host/softmax_bwd_tile.c: gradients by tiles on the processor. */
#include "core/size.h"
#include "plan/host/variants.h"

enum {
    MOST_DIM = 4096, /* as softmax_fwd_tile                                */
    MOST_PANELS = 4, /* more hardly gain, and split the work worse         */
    LEAST_ROWS = 32, /* adding a tile to the sums is paid for once each    */
    MOST_ROWS = 64,  /* weights of a panel that stay in the first cache    */
    UNITS_EACH = 4   /* tiles for each thread, so that none waits long     */
};

/* Scratch of one thread, in floats, as src/host/back.h lays it out. */
typedef struct scratch {
    int64_t panels, pairs, sums, rows, terms;
} scratch;

static scratch scratch_of(const attn_problem *p, int64_t panel, int64_t own, int64_t rows)
{
    const int64_t d8 = attn_round_up(p->d, 8), dv8 = attn_round_up(p->dv, 8);

    return (scratch){ .panels = own * (3 * (d8 + dv8) + 2),
                      .pairs = (p->features & ATTN_FEAT_DROPOUT ? 4 : 3) * rows * panel,
                      .sums = 2 * rows * panel,
                      .rows = rows * (d8 + dv8 + 16 + 2) + rows + 16,
                      .terms = panel * (rows + 24) + panel };
}

static int64_t sum(scratch s)
{
    return s.panels + s.pairs + s.sums + s.rows + s.terms;
}

/* The bits of a row depend on the rows of a tile, which come from head sizes and cache
 * alone, and not on the panels that a unit owns. */
static scratch find_tile(const attn_problem *p, const attn_caps *c, int64_t *own,
                         int64_t *rows)
{
    const int64_t panel = attn_max(c->subgroup, 1);
    const int64_t floats = attn_max(c->fast_bytes, 64 * 1024) / 4;
    const int64_t units_q = attn_max(p->b * p->hq, 1), units_k = attn_max(p->b * p->hkv, 1);
    const int64_t units = UNITS_EACH * attn_max(c->compute_units, 1);
    int64_t panels = MOST_PANELS;

    *rows = attn_max(LEAST_ROWS, attn_min(MOST_ROWS, floats / 4 / (p->d + p->dv)));
    *rows = attn_round_down(*rows, 8);
    while (panels > 1 && (panels * panel * 3 * (p->d + p->dv) > floats / 2 ||
                          units_q * attn_ceil_div(p->lq, panels * panel) < units ||
                          units_k * attn_ceil_div(p->lk, panels * panel) < units))
        panels /= 2;
    *own = panels * panel;
    return scratch_of(p, panel, *own, *rows);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 4096";
    if ((double)p->b * (double)p->hq * (double)p->lq > 0x1p56)
        return "4 bytes of workspace for each query are more than can be addressed";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    int64_t own, rows;
    const scratch s = find_tile(p, c, &own, &rows);

    step->kernel = "softmax_bwd_tile";
    step->tile_q = own;
    step->tile_k = rows;
    step->block = 1;
    step->threads = attn_max(c->compute_units, 1);
    step->scratch_bytes = attn_round_up(4 * sum(s), 64);
    out->splits = 0;
    out->workspace_bytes = step->threads * step->scratch_bytes + 4 * p->b * p->hq * p->lq;
    attn_step_softmax(step, p, ATTN_READS_ALL | ATTN_READS_DROPOUT);
    attn_choice_instance(out, "own%lld,rows%lld,lanes%lld,d%lld,dv%lld,%s", (long long)own,
                         (long long)rows, (long long)c->vector_width, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        "own: panels of queries, or of keys, that fill the registers, up to 4 "
        "to share the rows that they visit, fewer to give each thread 4 "
        "tiles; rows: weights of a panel stay in the first cache";
    attn_choice_budget(out, "q and do, or k and v, transposed; gradients in f32",
                       4 * s.panels);
    attn_choice_budget(out, "weights and gradients of scores of one panel", 4 * s.pairs);
    attn_choice_budget(out, "sums for a bias, in double", 4 * s.sums);
    attn_choice_budget(out, "rows in f32", 4 * s.rows);
    attn_choice_budget(out, "bias, mask, ALiBi of one panel", 4 * s.terms);
}

const attn_variant attn_host_softmax_bwd_tile_variant = {
    .name = "softmax_bwd_tile",
    .about = "gradients in passes over tiles of queries and of keys; vectors, OpenMP",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
