/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_fwd_tile_cpu.c: OpenCL on processors: one work-item owns a
 * tile of queries, which lie along its vector lanes. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    HIDES = ATTN_FEAT_BIAS | ATTN_FEAT_MASK, /* these have a tile of terms */
    MOST_DIM = 256,
    RESERVE = 256,           /* bytes that drivers keep of the local memory */
    MOST_BYTES = 256 * 1024, /* beyond that a tile leaves the core's own caches */
    MOST_PANELS = 4          /* more reuse K and V no better, and split the work worse */
};

/* The numbers of one instance; vw floats to a vector, nv vectors to a panel. */
typedef struct tile {
    int64_t vw, nv, mr, br, bc;
} tile;

/* Local memory, line by line, as the kernel declares it. */
typedef struct budget {
    int64_t q, o, total, scores, terms, rows, k, v;
} budget;

static budget budget_of(const attn_problem *p, const tile *t)
{
    const int64_t dvp = attn_round_up(p->dv, t->mr), bcp = attn_round_up(t->bc, t->mr);
    const int64_t terms = p->features & HIDES ? attn_round_up(t->bc, t->vw) : 0;
    const bool f32 = p->type == ATTN_F32;
    const bool k_direct = f32 && p->layout[ATTN_TENSOR_K] != ATTN_LAYOUT_ANY;
    const bool v_direct = f32 && p->layout[ATTN_TENSOR_V] != ATTN_LAYOUT_ANY;

    return (budget){
        .q = 4 * t->br * p->d,
        .o = 4 * t->br * dvp,
        .total = 4 * t->br * dvp,
        .scores = 4 * bcp * t->nv * t->vw,
        .terms = 4 * t->vw * attn_max(terms * t->nv, 1),
        .rows = 16 * t->br,
        .k = 4 * (k_direct ? 1 : t->bc * p->d),
        .v = 4 * (v_direct ? 1 : t->bc * p->dv),
    };
}

static int64_t sum(budget b)
{
    return b.q + b.o + b.total + b.scores + b.terms + b.rows + b.k + b.v;
}

/* The total is seldom touched: it need not stay in the core's own caches. */
static bool fits(budget b, const attn_caps *c)
{
    return sum(b) <= c->fast_bytes - RESERVE && sum(b) - b.total <= MOST_BYTES;
}

/* Whether a tile has panels, or a panel has vectors, that no query fills. */
static bool empty_lanes(const attn_problem *p, const tile *t, int64_t panels)
{
    const int64_t panel = t->nv * t->vw;

    return (panels > 1 && (panels - 1) * panel >= p->lq) ||
           (t->nv > 1 && (t->nv - 1) * t->vw >= p->lq);
}

/* The largest that fits. What costs most to lose goes last: first panels of
 * queries (they share K and V from the cache), then vectors of a panel (they share
 * a broadcast), then lanes, then keys (folding a tile into O is paid for once each). */
static bool find_narrow(const attn_problem *p, const attn_caps *c, tile *t)
{
    static const int64_t keys[] = { 64, 16, 4 };
    const int64_t widest = c->vector_width >= 16 ? 16 : c->vector_width >= 8 ? 8 : 4;

    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        for (int64_t vw = widest; vw >= 4; vw /= 2)
            for (int64_t nv = 3; nv >= 1; nv--)
                for (int64_t panels = MOST_PANELS; panels >= 1; panels--) {
                    *t = (tile){ .vw = vw,
                                 .nv = nv,
                                 .mr = vw == 16 ? 8 : 4,
                                 .br = panels * nv * vw,
                                 .bc = keys[k] };
                    if (!empty_lanes(p, t, panels) && fits(budget_of(p, t), c))
                        return true;
                }
    return false;
}

/* With terms twice the keys if that costs nothing else: then rows of bias and mask,
 * which lie far apart, are read further along. */
static bool find_tile(const attn_problem *p, const attn_caps *c, tile *t)
{
    tile wide;

    if (!find_narrow(p, c, t))
        return false;
    wide = *t;
    wide.bc *= 2;
    if (p->features & HIDES && t->bc == 64 && fits(budget_of(p, &wide), c))
        *t = wide;
    return true;
}

/* Iterations of a loop that loads a row to f32. */
static int64_t row_loops(const attn_problem *p, int tensor, int64_t depth, int64_t vw)
{
    if (p->layout[tensor] == ATTN_LAYOUT_ANY)
        return depth;
    return p->type == ATTN_F32 ? 0 : depth / vw + depth % vw;
}

/* Iterations of all loops of a work-item. Those that the kernel unrolls are none. */
static int64_t loops_of(const attn_problem *p, const tile *t)
{
    const int64_t panels = t->br / (t->nv * t->vw), steps = attn_ceil_div(p->lk, t->bc);
    const int64_t scores = attn_ceil_div(t->bc, t->mr) * (p->d + 1);
    const int64_t dropout = p->features & ATTN_FEAT_DROPOUT ? t->nv * (t->bc + 1) : 0;
    const int64_t weights = t->nv * (t->bc + 1) + dropout;
    const int64_t values = attn_ceil_div(p->dv, t->mr) * (t->bc + 1);
    const int64_t terms =
        p->features & HIDES ? t->nv * (attn_round_up(t->bc, t->vw) + 1) + t->bc : 0;
    const int64_t rows = t->bc * (3 + row_loops(p, ATTN_TENSOR_K, p->d, t->vw) +
                                  row_loops(p, ATTN_TENSOR_V, p->dv, t->vw));
    const int64_t total = t->nv * (p->dv + 1) + 2;
    const int64_t once = t->br * (p->d + 2 * p->dv + 4);

    return steps * (rows + panels * (scores + weights + values + terms + 1) + 1) +
           (steps / 16 + 2) * panels * total + once;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    tile t;

    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 256";
    if (c->max_group < 1)
        return "the device runs no work-group";
    if (!find_tile(p, c, &t))
        return "not even one vector of queries fits the local memory";
    if (c->max_loops && loops_of(p, &t) > c->max_loops)
        return "the driver cuts loops off before so many keys are read";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    tile t;
    budget b;

    find_tile(p, c, &t);
    b = budget_of(p, &t);
    step->kernel = "softmax_fwd_tile_cpu";
    step->tile_q = t.br;
    step->tile_k = t.bc;
    step->block = 1;
    attn_step_softmax(step, p, ATTN_READS_ALL | ATTN_READS_DROPOUT);
    attn_step_define(step, "VW", t.vw);
    attn_step_define(step, "NV", t.nv);
    attn_step_define(step, "MR", t.mr);
    attn_step_define(step, "BR", t.br);
    attn_step_define(step, "BC", t.bc);
    attn_choice_instance(out, "br%lld,bc%lld,vw%lld,nv%lld,d%lld,dv%lld,%s",
                         (long long)t.br, (long long)t.bc, (long long)t.vw, (long long)t.nv,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        "br: panels of nv x vw queries, one register tile each, as many as reuse "
        "K and V from the cache; bc: scores of a panel stay in the first cache";
    attn_choice_budget(out, "q, transposed", b.q);
    attn_choice_budget(out, "o, in f32", b.o);
    attn_choice_budget(out, "o of all key tiles before, in f32", b.total);
    attn_choice_budget(out, "scores of one panel", b.scores);
    attn_choice_budget(out, "terms of one panel (none without bias and mask)", b.terms);
    attn_choice_budget(out, "row states", b.rows);
    attn_choice_budget(out, "k rows in f32 (none for contiguous f32)", b.k);
    attn_choice_budget(out, "v rows in f32 (none for contiguous f32)", b.v);
}

const attn_variant attn_opencl_softmax_fwd_tile_cpu_variant = {
    .name = "softmax_fwd_tile_cpu",
    .about = "fused, online softmax; one work-item a tile of queries, for processors",
    .features = ATTN_FEATURES_ALL | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
