/* SPDX-License-Identifier: MIT */
/* plan/opencl/softmax_fwd_tile_gpu.c: OpenCL on GPUs: a work-group shares tiles
 * of Q, K and V in local memory; each work-item owns a register tile. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/variants.h"

enum {
    HIDES = ATTN_FEAT_BIAS | ATTN_FEAT_MASK, /* these have marks of keys */
    MOST_DIM = 256,
    RESERVE = 256 /* bytes that drivers keep of the local memory; NVIDIA's 16 */
};

/* Best first: tx x ty work-items on bm queries x bn keys. The first that keeps the
 * device's limits is taken. An item holds bm/ty x bn/tx scores and bm/ty rows of
 * ceil(dv / 4 tx) float4s of O in registers, so wide values want fewer queries. */
typedef struct tile {
    int32_t tx, ty, bm, bn, dv_most;
    bool cpu; /* small register tiles: compilers for processors need minutes for more */
} tile;

static const tile tiles[] = {
    { 16, 8, 64, 64, 128, false },
    { 16, 8, 32, 64, 256, false },
    { 8, 16, 64, 32, 128, false }, /* 32 KiB */
    { 16, 8, 32, 32, 256, false },
    { 8, 4, 16, 32, 128, false }, /* work-groups of 32, or few queries */
    { 16, 2, 8, 32, 256, false },
    { 8, 4, 16, 16, 128, true },
    { 16, 4, 8, 16, 256, true },
    { 16, 2, 4, 16, 256, true },
    { 4, 4, 8, 8, 256, true },
    { 1, 1, 1, 4, 256, true }, /* a work-group of one */
};

enum { N_TILES = sizeof tiles / sizeof tiles[0] };

/* Local memory, line by line, as the kernel declares it; and the chunks: dc columns
 * of Q and K, jc rows of V, which share one place. */
typedef struct budget {
    int64_t q, kv, scores, rows, marks;
    int64_t dc, jc;
} budget;

static budget budget_of(const attn_problem *p, const tile *t, bool q_whole)
{
    const int64_t dc = attn_min(32, attn_round_up(p->d, 4));
    const int64_t q_pitch = (q_whole ? attn_round_up(p->d, dc) : dc) + 4;
    const int64_t v_pitch = attn_round_up(p->dv, 4 * t->tx);
    int64_t jc = attn_min(32, t->bn);

    while (jc > 4 && jc * v_pitch > t->bn * (dc + 4))
        jc /= 2;
    return (budget){
        .q = 4 * t->bm * q_pitch,
        .kv = 4 * attn_max(t->bn * (dc + 4), attn_max(jc, t->ty) * v_pitch),
        .scores = 4 * t->bm * (t->bn + 4),
        .rows = 4 * t->bm * (t->tx + 4),
        .marks = 4 * (p->features & HIDES ? t->bn : 1),
        .dc = dc,
        .jc = jc,
    };
}

static int64_t sum(budget b)
{
    return b.q + b.kv + b.scores + b.rows + b.marks;
}

static const tile *find_tile(const attn_problem *p, const attn_caps *c, bool *q_whole)
{
    for (int i = 0; i < N_TILES; i++) {
        const tile *t = &tiles[i];

        if (t->tx * t->ty > c->max_group || p->dv > t->dv_most)
            continue;
        if ((c->kind == ATTN_DEVICE_CPU) > t->cpu)
            continue;
        if (t->bm > 16 && t->bm >= 2 * p->lq)
            continue; /* half of its queries would not exist */
        *q_whole = sum(budget_of(p, t, true)) <= c->fast_bytes - RESERVE;
        if (*q_whole || sum(budget_of(p, t, false)) <= c->fast_bytes - RESERVE)
            return t;
    }
    return NULL;
}

/* Iterations of a work-item: a step of bn keys takes D of the scores' loop and bn of
 * the values', its share of the loads, and some around them. */
static int64_t loops_of(const attn_problem *p, const tile *t)
{
    const int64_t items = t->tx * t->ty, dims = attn_round_up(p->d + p->dv, 32);
    const int64_t dropout =
        p->features & ATTN_FEAT_DROPOUT ? attn_ceil_div(t->bm * t->bn / 4, items) : 0;
    const int64_t step = p->d + t->bn + attn_ceil_div(t->bn * dims, items) + dropout + 16;

    return attn_ceil_div(p->lk, t->bn) * step + attn_ceil_div(t->bm * dims + t->bn, items);
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    const tile *t;
    bool q_whole;

    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 256";
    if (!(t = find_tile(p, c, &q_whole)))
        return "no tile fits the local memory and the work-group limit";
    if (c->max_loops && loops_of(p, t) > c->max_loops)
        return "the driver cuts loops off before so many keys are read";
    return NULL;
}

/* Rows can be loaded n elements at a time. */
static bool wide(const attn_problem *p, int n)
{
    const int64_t bytes = n * (int64_t)attn_type_bytes(p->type);
    const attn_layout *l = p->layout;

    return bytes <= 16 && p->d % n == 0 && p->dv % n == 0 &&
           attn_layout_bytes(l[ATTN_TENSOR_Q], p->type) >= bytes &&
           attn_layout_bytes(l[ATTN_TENSOR_K], p->type) >= bytes &&
           attn_layout_bytes(l[ATTN_TENSOR_V], p->type) >= bytes;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    bool q_whole;
    const tile *t = find_tile(p, c, &q_whole);
    const budget b = budget_of(p, t, q_whole);
    const int vec = wide(p, 8) ? 8 : wide(p, 4) ? 4 : 1;

    step->kernel = "softmax_fwd_tile_gpu";
    step->tile_q = t->bm;
    step->tile_k = t->bn;
    step->block = t->tx * t->ty;
    attn_step_softmax(step, p, ATTN_READS_ALL | ATTN_READS_DROPOUT);
    attn_step_define(step, "BM", t->bm);
    attn_step_define(step, "BN", t->bn);
    attn_step_define(step, "TX", t->tx);
    attn_step_define(step, "TY", t->ty);
    attn_step_define(step, "DC", b.dc);
    attn_step_define(step, "JC", b.jc);
    attn_step_define(step, "Q_WHOLE", q_whole);
    attn_step_define(step, "VEC", vec);
    attn_choice_instance(out, "bm%d,bn%d,tx%d,ty%d,dc%lld,jc%lld%s,vec%d,d%lld,dv%lld,%s",
                         t->bm, t->bn, t->tx, t->ty, (long long)b.dc, (long long)b.jc,
                         q_whole ? ",q" : "", vec, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason =
        "the first of the list, largest first, that keeps the work-group limit "
        "and the local memory";
    attn_choice_budget(out, q_whole ? "q, the whole tile" : "q, one chunk of columns", b.q);
    attn_choice_budget(out, "a chunk of k or of v", b.kv);
    attn_choice_budget(out, "scores", b.scores);
    attn_choice_budget(out, "row maxima and sums", b.rows);
    attn_choice_budget(out, "marks of keys (none without bias and mask)", b.marks);
}

const attn_variant attn_opencl_softmax_fwd_tile_gpu_variant = {
    .name = "softmax_fwd_tile_gpu",
    .about = "fused, online softmax; work-groups share tiles in local memory, for GPUs",
    .features = ATTN_FEATURES_ALL | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
