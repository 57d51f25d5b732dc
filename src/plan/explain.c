/* SPDX-License-Identifier: MIT */
/* plan/explain.c: the plan of a problem in words, for attn-info --explain. */
#include <attn/device.h>

#include "core/size.h"
#include "core/status.h"
#include "plan/plan.h"

/* Floating-point operations, and bytes of all tensors once. */
typedef struct work {
    const char *over;
    double flops, bytes;
} work;

/* Backward, five products of matrices stand for the forward's two, three of them with D
 * and two with Dv; and beside Q, K, V and O go dO, dQ, dK and dV. */
static work softmax_work(const attn_problem *p)
{
    const bool backward = p->pass == ATTN_PASS_BWD;
    const double heads = (double)p->b * (double)p->hq;
    const double pairs = heads * attn_problem_visible(p);
    const double d = (double)p->d, dv = (double)p->dv;
    const double elem = (double)attn_type_bytes(p->type);

    return (work){
        .over = "visible scores",
        .flops = 2.0 * pairs * (backward ? 3 * d + 2 * dv : d + dv),
        .bytes = (backward ? 2 : 1) * elem *
                     (heads * (double)p->lq * (d + dv) +
                      (double)p->b * (double)p->hkv * (double)p->lk * (d + dv)) +
                 (p->features & ATTN_FEAT_LSE ? 4.0 * heads * (double)p->lq : 0),
    };
}

/* The recurrence: each key adds to the state, each query reads it. Backward, S is built
 * again, R besides, and each is read: of the state once for dQ, twice for dK and dV; and
 * beside Q, K and V go dO, dQ, dK and dV. */
static work linear_work(const attn_problem *p)
{
    const bool backward = p->pass == ATTN_PASS_BWD;
    const double queries = (double)p->b * (double)p->hq * (double)p->lq;
    const double keys = (double)p->b * (double)p->hkv * (double)p->lk;
    const double d = (double)p->d, dv = (double)p->dv;
    const double states = (double)p->b * (double)p->hkv * d * dv * 4;
    const int n_states = ((p->features & ATTN_FEAT_STATE_IN) != 0) +
                         ((p->features & ATTN_FEAT_STATE_OUT) != 0) +
                         ((p->grad & ATTN_GRAD_STATE) != 0);
    const double elem = (double)attn_type_bytes(p->type);

    return (work){
        .over = "the state",
        .flops = 2.0 * d * dv * (backward ? 2 * queries + 3 * keys : queries + keys),
        .bytes = elem * (backward ? queries * (2 * d + dv) + 2 * keys * (d + dv)
                                  : queries * (d + dv) + keys * (d + dv)) +
                 n_states * states,
    };
}

static void explain_work(const attn_problem *p, const attn_target *target, attn_text *text)
{
    const attn_caps *c = &target->caps;
    const work w = p->op == ATTN_OP_LINEAR ? linear_work(p) : softmax_work(p);
    const double flops = w.flops, bytes = w.bytes;
    /* a multiply-add counts two; two vector units a core on processors, one f32
     * unit of 128 lanes a compute unit on other devices */
    const bool gpu = c->kind == ATTN_DEVICE_GPU || c->kind == ATTN_DEVICE_OTHER;
    const double lanes = gpu ? 128 : 2.0 * (double)c->vector_width;
    const double peak = (double)c->compute_units * lanes * 2 * (double)c->clock_mhz * 1e6;

    attn_text_add(text,
                  "work       %.4g GFLOP over %s, %.4g MB of tensors once, "
                  "%.3g FLOP/byte\n",
                  flops / 1e9, w.over, bytes / 1e6, bytes > 0 ? flops / bytes : 0);
    if (peak > 0)
        attn_text_add(text,
                      "roofline   compute: at least %.4g ms at about %.4g GFLOP/s "
                      "(units x lanes x 2 x clock); memory: the device does not tell its "
                      "bandwidth\n",
                      flops / peak * 1e3, peak / 1e9);
    else
        attn_text_add(text, "roofline   the device tells neither clock nor bandwidth\n");
}

/* As plan/step.h counts them, in one round; of a bias that was not broadcast. */
static double groups_of(const attn_problem *p, const attn_step *s)
{
    const double tiles_q = (double)attn_ceil_div(p->lq, s->tile_q);
    const double tiles_k = (double)attn_ceil_div(p->lk, s->tile_k);
    const int64_t group = s->grouped && p->hkv ? p->hq / p->hkv : 1;
    const int64_t queries = s->round_queries ? attn_min(s->round_queries, p->lq) : p->lq;
    const int64_t heads =
        s->round_heads ? attn_min(s->round_heads, p->b * p->hq) : p->b * p->hq;
    const int64_t keys = s->share ? s->share : s->piece;
    const int64_t pieces = keys ? attn_max(attn_ceil_div(p->lk, keys), 1) : 1;

    switch (s->over) {
    case ATTN_OVER_KEYS: return tiles_k * (double)p->hkv * (double)p->b;
    case ATTN_OVER_BIAS: return tiles_q * tiles_k * (double)p->hq * (double)p->b;
    case ATTN_OVER_HEADS: return (double)p->hq;
    case ATTN_OVER_KEY_STATES:
    case ATTN_OVER_STATES: break; /* of linear attention */
    case ATTN_OVER_QUERIES: break;
    }
    return (double)attn_ceil_div(queries * group, s->tile_q) *
           ((double)heads / (double)group) * (double)pieces;
}

/* Of the step that has most: the budget is of one. */
static int64_t fast_bytes_of(const attn_choice *choice)
{
    int64_t most = 0;

    for (int i = 0; i < choice->n_steps; i++)
        most = attn_max(most, choice->step[i].fast_bytes);
    return most;
}

/* Groups of a step of linear attention: of columns of each state, or of each head, and of
 * segments of its tokens; backward of each of the three gradients. */
static void explain_linear_step(const attn_problem *p, const attn_target *target,
                                const attn_step *s, int i, attn_text *text)
{
    const int64_t units = attn_max(target->caps.compute_units, 1);
    const int64_t columns = s->columns ? s->columns : attn_max(p->d, p->dv);
    const int64_t by_d = attn_ceil_div(p->d, columns);
    const int64_t by_dv = attn_ceil_div(p->dv, columns);
    const bool states = s->over == ATTN_OVER_STATES || s->over == ATTN_OVER_KEY_STATES;
    const int64_t heads = states && s->grouped ? p->hkv : p->hq;
    const int64_t len = s->over == ATTN_OVER_KEY_STATES ? p->lk : p->lq;
    const int64_t lead = s->lead ? s->lead : s->piece;
    const int64_t segments =
        s->piece ? 1 + attn_ceil_div(attn_max(len - lead, 0), s->piece) : 1;
    double groups = (double)(p->b * (states ? heads : p->hkv)) * (double)segments;

    if (states)
        groups *= (double)(s->by_d ? by_d : by_dv);
    else if (!s->columns)
        groups = (double)(p->b * p->hq) * (double)attn_ceil_div(p->lq, s->tile_q);
    else
        groups *= (double)(p->pass == ATTN_PASS_BWD ? 2 * by_d + by_dv : by_dv);
    attn_text_add(text,
                  "step %d     %s: chunks of %lld tokens x %lld %s of the state, "
                  "%.0f groups of %lld, %.2f waves over %lld units\n",
                  i + 1, s->kernel, (long long)s->tile_q, (long long)columns,
                  s->by_d ? "rows" : "columns", groups, (long long)s->block,
                  groups / (double)units, (long long)units);
}

static void explain_step(const attn_problem *p, const attn_target *target,
                         const attn_step *s, int i, attn_text *text)
{
    const int64_t units = attn_max(target->caps.compute_units, 1);
    double groups;

    if (p->op == ATTN_OP_LINEAR) {
        explain_linear_step(p, target, s, i, text);
        return;
    }
    groups = groups_of(p, s);
    attn_text_add(text,
                  "step %d     %s: tiles of %lld %s x %lld keys, %.0f groups of "
                  "%lld, %.2f waves over %lld units\n",
                  i + 1, s->kernel, (long long)s->tile_q,
                  s->grouped ? "rows (query, head of a group)" : "queries",
                  (long long)s->tile_k, groups, (long long)s->block, groups / (double)units,
                  (long long)units);
}

static void explain_choice(const attn_problem *p, const attn_target *target,
                           const attn_choice *choice, attn_text *text)
{
    attn_text_add(text, "plan       ");
    attn_choice_text(choice, target, text);
    attn_text_add(text, "\n           %s\n", choice->variant->about);
    for (int i = 0; i < choice->n_steps; i++)
        explain_step(p, target, &choice->step[i], i, text);
    if (choice->tile_reason)
        attn_text_add(text, "tile       %s\n", choice->tile_reason);
    for (int i = 0; i < choice->n_budget; i++)
        attn_text_add(text, "%s %10lld bytes  %s\n", i ? "          " : "fast memory",
                      (long long)choice->budget[i].bytes, choice->budget[i].what);
    if (choice->n_budget)
        attn_text_add(text, "           %10lld bytes  of %lld that a group has\n",
                      (long long)fast_bytes_of(choice), (long long)target->caps.fast_bytes);
    if (choice->splits)
        attn_text_add(text, "splits     %lld pieces of up to %lld keys\n",
                      (long long)choice->splits, (long long)choice->step[0].piece);
    else if (p->op == ATTN_OP_SOFTMAX)
        attn_text_add(text, "splits     keys are not split\n");
    if (choice->step[0].round_heads || choice->step[0].round_queries)
        attn_text_add(text, "rounds     of %lld heads of all batches and %lld queries\n",
                      (long long)(choice->step[0].round_heads ? choice->step[0].round_heads
                                                              : p->b * p->hq),
                      (long long)(choice->step[0].round_queries
                                      ? choice->step[0].round_queries
                                      : p->lq));
    attn_text_add(text, "workspace  %lld bytes\n", (long long)choice->workspace_bytes);
}

attn_status attn_explain(const attn_problem *p, const attn_target *target,
                         const attn_options *options, attn_text *text)
{
    const char *const only = options ? options->variant : NULL;
    attn_choice choice;
    const attn_status st = attn_choose(p, target, options, &choice);
    const bool planned = st == ATTN_OK;

    if (!planned && st != ATTN_ERR_UNSUPPORTED)
        return st;
    attn_text_add(text, "problem    ");
    attn_problem_text(p, text);
    attn_text_add(text, "\n");
    if (planned)
        explain_choice(p, target, &choice, text);
    else
        attn_text_add(text, "plan       none: no variant takes it\n");
    explain_work(p, target, text);
    for (int i = 0; target->variants[i]; i++) {
        const char *reason = attn_refusal(p, target, i);
        if ((planned && i == choice.index) || !attn_variant_computes(p, target, i))
            continue;
        if (!reason && !only)
            reason = attn_drawback(p, target, i);
        attn_text_add(text, "not        %s: %s\n", target->variants[i]->name,
                      reason ? reason
                      : only ? "takes it, but another was asked for by name"
                             : "takes it, but comes later in the order of preference");
    }
    return ATTN_OK;
}
