/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_bwd_tile_gpu.c: gradients on GPUs by OpenCL: delta, then a pass over
 * tiles of queries, one over tiles of keys and one for a bias, that share no output. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/gradients.h"
#include "plan/opencl/variants.h"

enum {
    HIDES = ATTN_FEAT_BIAS | ATTN_FEAT_MASK, /* these have marks */
    MOST_DIM = 256,
    RESERVE = 256 /* bytes that drivers keep of the local memory */
};

/* Best first: tx x ty work-items on bm owned rows x bn visited ones. The first that keeps
 * the device's limits is taken, for all passes and whatever is asked for: the bits of a
 * gradient depend on it. An item holds 2 bm/ty x bn/tx numbers of pairs, and bm/ty rows of
 * ceil(d / 4 tx) + ceil(dv / 4 tx) float4s of gradients, twice for f32. */
typedef struct tile {
    int32_t tx, ty, bm, bn, dim_most;
    bool cpu; /* small register tiles: compilers for processors need minutes for more */
} tile;

static const tile tiles[] = {
    { 16, 8, 64, 64, 64, false },  /* 37 KiB of local memory */
    { 16, 8, 32, 32, 256, false }, /* 14 KiB */
    { 8, 4, 16, 32, 128, false },  /* work-groups of 32, or short sequences */
    { 16, 2, 8, 32, 256, false },  /* the same */
    { 8, 4, 16, 16, 128, true },   /* 6 KiB */
    { 16, 4, 8, 16, 256, true },   /* 6 KiB */
    { 16, 2, 4, 16, 256, true },   /* work-groups of 32 */
    { 4, 4, 8, 8, 256, true },     /* of 16 */
    { 1, 1, 1, 4, 256, true },     /* of one */
};

enum { N_TILES = sizeof tiles / sizeof tiles[0] };

/* Local memory, line by line, as the kernels declare it at most; and the chunks: dc
 * columns of rows, jc whole rows. */
typedef struct budget {
    int64_t own, visited, pairs, rows, marks;
    int64_t dc, jc;
} budget;

static budget budget_of(const attn_problem *p, const tile *t)
{
    const int64_t dc = attn_min(32, attn_round_up(attn_max(p->d, p->dv), 4));
    const int64_t pitch = attn_round_up(attn_max(p->d, p->dv), 4 * t->tx);
    int64_t jc = attn_min(32, t->bn);

    while (jc > 4 && jc * pitch > t->bn * (dc + 4))
        jc /= 2;
    return (budget){
        .own = 4 * t->bm * (dc + 4),
        .visited = 4 * attn_max(t->bn * (dc + 4), jc * pitch),
        .pairs = 4 * t->bm * (t->bn + 4),
        .rows = 8 * attn_max(t->bm, t->bn),
        .marks = 4 * (p->features & HIDES ? t->bn : 1),
        .dc = dc,
        .jc = jc,
    };
}

static int64_t sum(budget b)
{
    return b.own + b.visited + b.pairs + b.rows + b.marks;
}

static const tile *find_tile(const attn_problem *p, const attn_caps *c)
{
    for (int i = 0; i < N_TILES; i++) {
        const tile *t = &tiles[i];

        if (t->tx * t->ty > c->max_group || attn_max(p->d, p->dv) > t->dim_most)
            continue;
        if ((c->kind == ATTN_DEVICE_CPU) > t->cpu)
            continue;
        if (t->bm > 16 && t->bm >= 2 * attn_max(p->lq, p->lk))
            continue; /* half of its rows would not exist */
        if (sum(budget_of(p, t)) <= c->fast_bytes - RESERVE)
            return t;
    }
    return NULL;
}

/* Iterations of a work-item's loops in the longest kernel. A step computes two products
 * and adds up to two sums of rows, and brings its share of all that to local memory. */
static int64_t loops_of(const attn_problem *p, const tile *t)
{
    const int64_t items = t->tx * t->ty, dims = attn_round_up(p->d + p->dv, 64);
    const int64_t step =
        p->d + p->dv + 2 * t->bn + attn_ceil_div((t->bm + 3 * t->bn) * dims, items) + 32;
    const int64_t group = p->hkv ? p->hq / p->hkv : 1;
    const int64_t q = attn_ceil_div(p->lk, t->bn), k = group * attn_ceil_div(p->lq, t->bn);
    double most = (double)attn_max(q, k) * (double)step;

    if (p->grad & ATTN_GRAD_BIAS) /* one that was broadcast wholly */
        most = (double)p->b * (double)p->hq * (double)q *
               (double)attn_ceil_div(p->lq, t->bm) * (double)step;
    if (p->grad & ATTN_GRAD_SINKS)
        most += (double)p->b * (double)p->lq;
    return most < 0x1p62 ? (int64_t)most : INT64_MAX;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const tile *t;

    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 256";
    if (!(t = find_tile(p, c)))
        return "no tile fits the local memory and the work-group limit";
    if (c->max_loops && loops_of(p, t) > c->max_loops)
        return "the driver cuts loops off before so many rows are read";
    return attn_gradients_refusal(p, c);
}

/* Rows can be loaded four elements at a time. */
static bool wide(const attn_problem *p)
{
    static const int loaded[] = { ATTN_TENSOR_Q, ATTN_TENSOR_K, ATTN_TENSOR_V,
                                  ATTN_TENSOR_GRAD_O };
    const int64_t bytes = 4 * (int64_t)attn_type_bytes(p->type);
    bool all = p->d % 4 == 0 && p->dv % 4 == 0;

    for (int i = 0; i < 4; i++)
        all = all && attn_layout_bytes(p->layout[loaded[i]], p->type) >= bytes;
    return all;
}

/* A pass over pairs. */
static attn_step *add_pass(const attn_problem *p, const char *kernel, attn_over over,
                           uint32_t grad, const tile *t, unsigned reads, attn_choice *out)
{
    const budget b = budget_of(p, t);
    attn_step *step =
        attn_gradients_step(p, kernel, over, grad, ATTN_GRADIENTS_READ | reads, out);

    step->tile_q = t->bm;
    step->tile_k = t->bn;
    step->block = t->tx * t->ty;
    step->fast_bytes = sum(b);
    attn_step_define(step, "BM", t->bm);
    attn_step_define(step, "BN", t->bn);
    attn_step_define(step, "TX", t->tx);
    attn_step_define(step, "TY", t->ty);
    attn_step_define(step, "DC", b.dc);
    attn_step_define(step, "JC", b.jc);
    attn_step_define(step, "VEC", wide(p) ? 4 : 1);
    return step;
}

static void add_passes(const attn_problem *p, const tile *t, attn_choice *out)
{
    const uint32_t kv = ATTN_GRAD_K | ATTN_GRAD_V;
    attn_step *step;

    if (p->grad & ATTN_GRAD_Q)
        add_pass(p, "softmax_bwd_tile_gpu", ATTN_OVER_QUERIES, ATTN_GRAD_Q, t,
                 ATTN_READS_GRAD_Q, out);
    if (p->grad & kv) {
        step = add_pass(p, "softmax_bwd_tile_gpu", ATTN_OVER_KEYS, kv, t,
                        ATTN_READS_GRAD_K | ATTN_READS_GRAD_V, out);
        step->tile_q = t->bn;
        step->tile_k = t->bm;
        attn_step_define(step, "KEYS", 1);
    }
    if (p->grad & ATTN_GRAD_BIAS)
        add_pass(p, "softmax_bwd_tile_gpu_bias", ATTN_OVER_BIAS, ATTN_GRAD_BIAS, t, 0, out);
}

/* Of the last step; that of the other passes is the same. */
static void add_budget(const budget *b, attn_choice *out)
{
    out->step[out->n_steps - 1].fast_bytes = 0;
    attn_choice_budget(out, "a chunk of the rows that a group owns", b->own);
    attn_choice_budget(out, "a chunk of the rows that it visits", b->visited);
    attn_choice_budget(out, "weights, or gradients of scores", b->pairs);
    attn_choice_budget(out, "LSE and delta", b->rows);
    attn_choice_budget(out, "marks of rows (none without bias and mask)", b->marks);
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    const tile *t = find_tile(p, c);
    const budget b = budget_of(p, t);
    const bool pairs = (p->grad & ~(uint32_t)ATTN_GRAD_SINKS) != 0;

    attn_gradients_delta(p, c, out);
    if (pairs) {
        add_passes(p, t, out);
        add_budget(&b, out);
    }
    attn_gradients_sinks(p, c, out);
    out->workspace_bytes = attn_gradients_workspace(p);
    attn_choice_instance(out, "bm%d,bn%d,tx%d,ty%d,dc%lld,jc%lld,vec%d,d%lld,dv%lld,%s",
                         t->bm, t->bn, t->tx, t->ty, (long long)b.dc, (long long)b.jc,
                         wide(p) ? 4 : 1, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason =
        "bm queries of a group that visits keys, bm keys of one that visits queries; the "
        "first of the list, largest first, that keeps the work-group limit and the local "
        "memory";
}

const attn_variant attn_opencl_softmax_bwd_tile_gpu_variant = {
    .name = "softmax_bwd_tile_gpu",
    .about =
        "gradients in passes over tiles of queries and of keys; work-groups share tiles "
        "in local memory, for GPUs",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
