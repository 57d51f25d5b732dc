/* SPDX-License-Identifier: MIT */
/* plan/host/softmax_fwd_tile.c: the fused kernel on the processor. */
#include "core/size.h"
#include "plan/host/variants.h"

enum {
    MOST_DIM = 4096,  /* beyond that one panel leaves every cache           */
    LEAST_PANELS = 4, /* fewer pay too much for packing K and V             */
    MOST_PANELS = 8,  /* more hardly gain, and split the work worse         */
    LEAST_KEYS = 64,  /* folding a key tile into O is paid for once each    */
    MOST_KEYS = 128,  /* scores of a panel that stay in the first cache     */
    UNITS_EACH = 4    /* tiles for each thread, so that none waits long     */
};

/* Scratch of one thread, in floats, as src/host/softmax_fwd_tile.c lays it out. */
typedef struct scratch {
    int64_t q, o, total, state, scores, k, v, terms;
} scratch;

static scratch scratch_of(const attn_problem *p, int64_t panel, int64_t br, int64_t bc)
{
    const int64_t queries = attn_round_up(br, panel), rows = attn_round_up(bc, 8);
    const int64_t dv8 = attn_round_up(p->dv, 8);
    const bool terms = p->features & ATTN_FEATURES_TERMS;

    return (scratch){ .q = queries * p->d,
                      .o = queries * dv8,
                      .total = queries * dv8,
                      .state = queries * 4,
                      .scores = rows * panel,
                      .k = rows * p->d,
                      .v = (rows + 5) * dv8,
                      .terms = terms ? panel * (rows + 24) + rows + 2 : 0 };
}

static int64_t sum(scratch s)
{
    return s.q + s.o + s.total + s.state + s.scores + s.k + s.v + s.terms;
}

/* Keys by the published rule for half of the core's cache; queries in whole panels,
 * as many as keep Q and O in three quarters of it (the total is seldom touched). The
 * bits of a row depend on bc but not on br: bc comes from head sizes and cache alone,
 * br may follow the number of tiles. */
static scratch find_tile(const attn_problem *p, const attn_caps *c, int64_t *br,
                         int64_t *bc)
{
    const int64_t panel = attn_max(c->subgroup, 1); /* of queries, in registers */
    const int64_t floats = attn_max(c->fast_bytes, 64 * 1024) / 4;
    const int64_t heads = attn_max(p->b * p->hq, 1),
                  threads = attn_max(c->compute_units, 1);
    int64_t panels = floats / 4 * 3 / (panel * (p->d + p->dv));

    *br = *bc = 1;
    attn_tile_rule(floats / 2, p->d, p->dv, br, bc);
    *bc = attn_round_down(attn_max(LEAST_KEYS, attn_min(MOST_KEYS, *bc)), 8);
    panels = attn_max(LEAST_PANELS, attn_min(MOST_PANELS, panels));
    while (panels > 1 &&
           heads * attn_ceil_div(p->lq, panels * panel) < UNITS_EACH * threads)
        panels /= 2;
    *br = panels * panel;
    return scratch_of(p, panel, *br, *bc);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 4096";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    int64_t br, bc;
    const scratch s = find_tile(p, c, &br, &bc);

    step->kernel = "softmax_fwd_tile";
    step->tile_q = br;
    step->tile_k = bc;
    step->block = 1;
    step->threads = attn_max(c->compute_units, 1);
    step->scratch_bytes = attn_round_up(4 * sum(s), 64);
    out->splits = 0;
    out->workspace_bytes = step->threads * step->scratch_bytes;
    attn_step_softmax(step, p, ATTN_READS_ALL | ATTN_READS_DROPOUT);
    attn_choice_instance(out, "br%lld,bc%lld,lanes%lld,d%lld,dv%lld,%s", (long long)br,
                         (long long)bc, (long long)c->vector_width, (long long)p->d,
                         (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        "br: panels of queries that fill the registers, 4 to 8 of them to share "
        "the packing of K and V, fewer to give each thread 4 tiles; bc: scores "
        "of a panel stay in the first cache";
    attn_choice_budget(out, "q, transposed", 4 * s.q);
    attn_choice_budget(out, "o, in f32", 4 * s.o);
    attn_choice_budget(out, "o of all key tiles before, in f32", 4 * s.total);
    attn_choice_budget(out, "row states", 4 * s.state);
    attn_choice_budget(out, "scores of one panel", 4 * s.scores);
    attn_choice_budget(out, "k rows in f32", 4 * s.k);
    attn_choice_budget(out, "v rows, packed", 4 * s.v);
    if (s.terms)
        attn_choice_budget(out, "bias, mask, ALiBi of one panel", 4 * s.terms);
}

const attn_variant attn_host_softmax_fwd_tile_variant = {
    .name = "softmax_fwd_tile",
    .about = "fused, online softmax; tiles of queries along the vector lanes, OpenMP",
    .features = ATTN_FEATURES_ALL | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
