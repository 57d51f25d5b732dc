/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_fwd_tile_cpu.c: OpenCL on processors: one work-item owns a
 * tile of queries, which lie along its vector lanes. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    FEATURES = ATTN_FEAT_CAUSAL | ATTN_FEAT_ALIGN_BR | ATTN_FEAT_OFFSET | ATTN_FEAT_WINDOW |
               ATTN_FEAT_LENS_KV | ATTN_FEAT_LSE,
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
    int64_t q, o, total, scores, rows, k, v;
} budget;

static budget budget_of(const attn_problem *p, const tile *t)
{
    const int64_t dvp = attn_round_up(p->dv, t->mr), bcp = attn_round_up(t->bc, t->mr);
    const bool f32 = p->type == ATTN_F32;
    const bool k_direct = f32 && p->layout[ATTN_TENSOR_K] != ATTN_LAYOUT_ANY;
    const bool v_direct = f32 && p->layout[ATTN_TENSOR_V] != ATTN_LAYOUT_ANY;

    return (budget){
        .q = 4 * t->br * p->d,
        .o = 4 * t->br * dvp,
        .total = 4 * t->br * dvp,
        .scores = 4 * bcp * t->nv * t->vw,
        .rows = 16 * t->br,
        .k = 4 * (k_direct ? 1 : t->bc * p->d),
        .v = 4 * (v_direct ? 1 : t->bc * p->dv),
    };
}

static int64_t sum(budget b)
{
    return b.q + b.o + b.total + b.scores + b.rows + b.k + b.v;
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
static bool find_tile(const attn_problem *p, const attn_caps *c, tile *t)
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

/* Iterations of a work-item: for each panel a key takes D / mr of the scores' loop and
 * Dv / mr of the values', and 1 around them; loading and storing a tile come once. */
static int64_t loops_of(const attn_problem *p, const tile *t)
{
    const int64_t panels = t->br / (t->nv * t->vw), dims = p->d + p->dv;

    return panels * p->lk * (attn_ceil_div(dims, t->mr) + 1) + t->br * dims;
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
    attn_step_softmax(step, p);
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
    attn_choice_budget(out, "row states", b.rows);
    attn_choice_budget(out, "k rows in f32 (none for contiguous f32)", b.k);
    attn_choice_budget(out, "v rows in f32 (none for contiguous f32)", b.v);
}

const attn_variant attn_opencl_softmax_fwd_tile_cpu_variant = {
    .name = "softmax_fwd_tile_cpu",
    .about = "fused, online softmax; one work-item a tile of queries, for processors",
    .features = FEATURES,
    .applicable = applicable,
    .lower = lower,
};
