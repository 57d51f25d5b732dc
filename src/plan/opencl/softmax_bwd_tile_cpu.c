/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_bwd_tile_cpu.c: gradients by OpenCL on processors: delta, then a pass
 * over tiles of queries, one over tiles of keys and one for a bias; one work-item owns a
 * tile, which lies along its vector lanes. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/gradients.h"
#include "plan/opencl/variants.h"

enum {
    HIDES = ATTN_FEAT_BIAS | ATTN_FEAT_MASK, /* these have a tile of terms */
    MOST_DIM = 256,
    GAP = 8,                 /* floats between rows                       */
    RESERVE = 256,           /* bytes that drivers keep of the local memory */
    MOST_BYTES = 256 * 1024, /* beyond that a tile leaves the core's own caches */
    MOST_PANELS = 4          /* more reuse rows no better, and split the work worse */
};

typedef enum owner { QUERIES, KEYS, BIAS } owner; /* whose pass it is */

/* The numbers of one instance; vw floats to a vector, nv vectors to a panel. */
typedef struct tile {
    int64_t vw, nv, mr, br, bc;
} tile;

/* Local memory, line by line, as the kernels declare it. */
typedef struct budget {
    int64_t own, sums, total, rows, pairs, terms;
} budget;

static budget budget_of(const attn_problem *p, const tile *t, owner pass)
{
    const int64_t panel = t->nv * t->vw, bcp = attn_round_up(t->bc, t->mr);
    const int64_t dp = attn_round_up(p->d, t->mr), dvp = attn_round_up(p->dv, t->mr);
    const int64_t sums =
        4 * t->br * (pass == KEYS ? dp + dvp : dp) + (pass == KEYS ? 0 : 8 * t->vw);
    const int64_t terms = p->features & HIDES ? attn_round_up(t->bc, t->vw) : 0;

    return (budget){
        .own = 4 * t->br * (p->d + p->dv),
        .sums = pass == BIAS ? 4 * t->bc * panel : sums,
        .total = pass == BIAS ? 4 * t->bc * panel : sums,
        .rows = 4 * t->bc * (p->d + p->dv + 2 * GAP) + 8 * (pass == KEYS ? t->bc : t->br),
        .pairs = 8 * bcp * panel,
        .terms = 4 * t->vw * attn_max(terms * t->nv, 1),
    };
}

static int64_t sum(budget b)
{
    return b.own + b.sums + b.total + b.rows + b.pairs + b.terms;
}

/* The total is seldom touched: it need not stay in the core's own caches. */
static bool fits(budget b, const attn_caps *c)
{
    return sum(b) <= c->fast_bytes - RESERVE && sum(b) - b.total <= MOST_BYTES;
}

static int64_t widest(const attn_caps *c)
{
    return c->vector_width >= 16 ? 16 : c->vector_width >= 8 ? 8 : 4;
}

static tile tile_with(int64_t vw, int64_t nv, int64_t panels, int64_t bc)
{
    return (tile){
        .vw = vw, .nv = nv, .mr = vw == 16 ? 8 : 4, .br = panels * nv * vw, .bc = bc
    };
}

/* Rows of a step, for all passes and whatever is asked for, since the bits of a gradient
 * depend on them: as many as leave a pass over keys two wide vectors, or else one narrow
 * one. 0: none. */
static int64_t find_rows(const attn_problem *p, const attn_caps *c)
{
    static const int64_t rows[] = { 64, 32, 16, 4, 2 };
    enum { N_ROWS = sizeof rows / sizeof rows[0] };

    for (int narrow = 0; narrow < 2; narrow++)
        for (int i = 0; i < N_ROWS; i++) {
            const tile t =
                narrow ? tile_with(4, 1, 1, rows[i]) : tile_with(widest(c), 2, 1, rows[i]);

            if (fits(budget_of(p, &t, KEYS), c) && fits(budget_of(p, &t, BIAS), c))
                return rows[i];
        }
    return 0;
}

/* The largest of so many rows that fits: panels go first (they share rows from the cache),
 * then vectors of a panel (they share a broadcast), then lanes. None that nothing fills. */
static tile find_tile(const attn_problem *p, const attn_caps *c, owner pass, int64_t rows)
{
    const int64_t len = pass == KEYS ? p->lk : p->lq;

    for (int64_t vw = widest(c); vw >= 4; vw /= 2)
        for (int64_t nv = 3; nv >= 1; nv--)
            for (int64_t panels = pass == BIAS ? 1 : MOST_PANELS; panels >= 1; panels--) {
                const tile t = tile_with(vw, nv, panels, rows);
                const bool empty = (panels > 1 && (panels - 1) * nv * vw >= len) ||
                                   (nv > 1 && (nv - 1) * vw >= len);

                if (!empty && fits(budget_of(p, &t, pass), c))
                    return t;
            }
    return tile_with(4, 1, 1, rows); /* find_rows() saw that it fits */
}

/* Iterations of a loop that loads a row to f32. */
static int64_t row_loops(const attn_problem *p, int tensor, int64_t depth, int64_t vw)
{
    return p->layout[tensor] == ATTN_LAYOUT_ANY ? depth : depth / vw + depth % vw;
}

/* Iterations of the loops of one step; those that the kernel unrolls are none. */
static int64_t step_loops(const attn_problem *p, const tile *t, owner pass)
{
    const int64_t rows = t->bc, panels = t->br / (t->nv * t->vw), pairs = t->nv * rows;
    const int64_t load =
        row_loops(p, pass == KEYS ? ATTN_TENSOR_Q : ATTN_TENSOR_K, p->d, t->vw) +
        row_loops(p, pass == KEYS ? ATTN_TENSOR_GRAD_O : ATTN_TENSOR_V, p->dv, t->vw) + 3;
    const int64_t products = attn_ceil_div(rows, t->mr) * (p->d + p->dv + 2);
    const int64_t terms =
        p->features & HIDES ? pairs * (pass == KEYS ? t->vw + 1 : 1) + rows : 0;
    int64_t sums = attn_ceil_div(p->d, t->mr);

    if (pass == KEYS)
        sums += attn_ceil_div(p->dv, t->mr);
    sums = pass == BIAS ? pairs : sums * (rows + 1);
    return rows * load + panels * (products + terms + rows + sums + 1) + 1;
}

/* ... of the work-item that has most. A tile loads what it owns, moves its sums after every
 * 16 steps, and stores them; one of a bias that was broadcast wholly visits all pairs. */
static int64_t loops_of(const attn_problem *p, const attn_caps *c, owner pass, int64_t rows)
{
    const tile t = find_tile(p, c, pass, rows);
    const int64_t dims = p->d + p->dv, group = p->hkv ? p->hq / p->hkv : 1;
    const double own = (double)t.br * (double)(dims + 3);
    const double sums = (double)(t.br / t.vw * dims),
                 step = (double)step_loops(p, &t, pass);
    const double q = (double)attn_ceil_div(p->lq, pass == KEYS ? rows : t.br);
    const double k = (double)attn_ceil_div(p->lk, pass == KEYS ? t.br : rows);
    const double steps = pass == KEYS ? (double)group * q : k;
    double most = (steps / 16 + (double)group + 1) * sums + steps * step + 2 * own;

    if (pass == BIAS)
        most = (double)p->b * (double)p->hq * q * k * (step + own) + (double)(t.bc * t.br);
    return most < 0x1p62 ? (int64_t)most : INT64_MAX;
}

/* Whether the driver lets all passes that are asked for come to their end. */
static bool ends(const attn_problem *p, const attn_caps *c, int64_t rows)
{
    static const struct {
        uint32_t grad;
        owner pass;
    } passes[] = { { ATTN_GRAD_Q, QUERIES },
                   { ATTN_GRAD_K | ATTN_GRAD_V, KEYS },
                   { ATTN_GRAD_BIAS, BIAS } };

    for (int i = 0; c->max_loops && i < 3; i++)
        if (p->grad & passes[i].grad && loops_of(p, c, passes[i].pass, rows) > c->max_loops)
            return false;
    return !c->max_loops || !(p->grad & ATTN_GRAD_SINKS) || p->b * p->lq <= c->max_loops;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    int64_t rows;

    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 256";
    if (!(rows = find_rows(p, c)))
        return "not even a tile of 4 queries and 2 keys fits the local memory";
    if (!ends(p, c, rows))
        return "the driver cuts loops off before so many rows are read";
    return attn_gradients_refusal(p, c);
}

static void add_pass(const attn_problem *p, const char *kernel, attn_over over,
                     uint32_t grad, const tile *t, unsigned reads, attn_choice *out)
{
    attn_step *step =
        attn_gradients_step(p, kernel, over, grad, ATTN_GRADIENTS_READ | reads, out);

    step->tile_q = over == ATTN_OVER_KEYS ? t->bc : t->br;
    step->tile_k = over == ATTN_OVER_KEYS ? t->br : t->bc;
    attn_step_define(step, "VW", t->vw);
    attn_step_define(step, "NV", t->nv);
    attn_step_define(step, "MR", t->mr);
    attn_step_define(step, "BC", t->bc);
    if (over != ATTN_OVER_BIAS) {
        attn_step_define(step, "BR", t->br);
        attn_step_define(step, "KEYS", over == ATTN_OVER_KEYS);
    }
}

/* Of the last step. */
static void add_budget(budget b, attn_choice *out)
{
    attn_choice_budget(out, "the rows that a tile owns, transposed", b.own);
    attn_choice_budget(out, "their gradients, in f32; of a bias, its sums", b.sums);
    attn_choice_budget(out, "those of all steps before; of a bias, what sums lost",
                       b.total);
    attn_choice_budget(out, "the rows that it visits, in f32; LSE and delta", b.rows);
    attn_choice_budget(out, "weights and gradients of scores of one panel", b.pairs);
    attn_choice_budget(out, "terms of one panel (none without bias and mask)", b.terms);
}

/* Of the pass that comes last, which has most. */
static tile add_passes(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const uint32_t kv = ATTN_GRAD_K | ATTN_GRAD_V;
    const int64_t rows = find_rows(p, c);
    tile t = find_tile(p, c, QUERIES, rows);
    budget b = budget_of(p, &t, QUERIES);

    if (p->grad & ATTN_GRAD_Q)
        add_pass(p, "softmax_bwd_tile_cpu", ATTN_OVER_QUERIES, ATTN_GRAD_Q, &t,
                 ATTN_READS_GRAD_Q, out);
    if (p->grad & ATTN_GRAD_BIAS) {
        const tile of_bias = find_tile(p, c, BIAS, rows);

        if (!(p->grad & (ATTN_GRAD_Q | kv))) {
            t = of_bias;
            b = budget_of(p, &t, BIAS);
        }
        add_pass(p, "softmax_bwd_tile_cpu_bias", ATTN_OVER_BIAS, ATTN_GRAD_BIAS, &of_bias,
                 0, out);
    }
    if (p->grad & kv) {
        t = find_tile(p, c, KEYS, rows);
        b = budget_of(p, &t, KEYS);
        add_pass(p, "softmax_bwd_tile_cpu", ATTN_OVER_KEYS, kv, &t,
                 ATTN_READS_GRAD_K | ATTN_READS_GRAD_V, out);
    }
    if (p->grad & ~(uint32_t)ATTN_GRAD_SINKS)
        add_budget(b, out);
    return t;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    tile t;

    attn_gradients_delta(p, c, out);
    t = add_passes(p, c, out);
    attn_gradients_sinks(p, c, out);
    out->workspace_bytes = attn_gradients_workspace(p);
    attn_choice_instance(out, "br%lld,bc%lld,vw%lld,nv%lld,d%lld,dv%lld,%s",
                         (long long)t.br, (long long)t.bc, (long long)t.vw, (long long)t.nv,
                         (long long)p->d, (long long)p->dv, attn_type_name(p->type));
    out->tile_reason =
        "bc: rows that a step visits, so that weights of a panel stay in the first cache; "
        "br: panels of nv x vw owned queries or keys, as many as share those rows from the "
        "core's own caches";
}

const attn_variant attn_opencl_softmax_bwd_tile_cpu_variant = {
    .name = "softmax_bwd_tile_cpu",
    .about =
        "gradients in passes over tiles of queries and of keys; one work-item a tile, for "
        "processors",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
