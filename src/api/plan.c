/* SPDX-License-Identifier: MIT */
/* api/plan.c: choose, prepare, and what the device then teaches the planner. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "core/size.h"
#include "core/status.h"

static bool is_proven(const attn_ctx *ctx, const attn_kernel *kernel)
{
    for (size_t i = 0; i < ctx->n_proven; i++)
        if (ctx->proven[i] == kernel)
            return true;
    return false;
}

/* All kernels of a choice at once: they were tested together. */
static attn_status set_proven(attn_ctx *ctx, const attn_kernel *const kernel[], int n)
{
    const attn_kernel **grown =
        realloc(ctx->proven, (ctx->n_proven + (size_t)n) * sizeof *ctx->proven);

    if (!grown)
        return attn_fail(ATTN_ERR_NO_MEMORY, "list of tested kernels");
    ctx->proven = grown;
    for (int i = 0; i < n; i++)
        if (!is_proven(ctx, kernel[i]))
            ctx->proven[ctx->n_proven++] = kernel[i];
    return ATTN_OK;
}

/* A kernel can't be launched in the groups that were planned for it: smaller
 * groups, or tiles with less local memory (drivers keep some for themselves); and
 * if the planner has no smaller one, never. */
static void learn(attn_verdict *verdict, const attn_step *step, int64_t limit)
{
    if (limit >= 1)
        verdict->max_group = limit;
    else if (step->fast_bytes > 1 &&
             (!verdict->fast_bytes || step->fast_bytes <= verdict->fast_bytes))
        verdict->fast_bytes = step->fast_bytes - 1;
    else
        snprintf(verdict->denial, sizeof verdict->denial, "%.119s", attn_last_error());
}

/* Whether a self-test that did not end is the answer of a vendor's library, which has
 * limits of its own and gives it again: not if memory is short, the device broken, or the
 * call out of place (in a capture). Keeps the error. */
static bool is_librarys_answer(const attn_ctx *ctx, const attn_variant *variant,
                               attn_status st)
{
    attn_error_text why;
    bool works;

    if (!(variant->traits & ATTN_TRAIT_VENDOR) || st == ATTN_ERR_INVALID ||
        st == ATTN_ERR_NO_MEMORY)
        return false;
    attn_error_save(&why);
    works = ctx->backend->wait(ctx->device) == ATTN_OK;
    attn_error_restore(&why);
    return works;
}

/* Makes the kernels of a choice ready. *again: the device taught the planner
 * something that rules the choice out. Context lock held. */
static attn_status prepare(attn_ctx *ctx, attn_plan *plan, bool *again)
{
    attn_choice *c = &plan->choice;
    attn_verdict *verdict = &ctx->target.verdict[c->index];
    bool proven = true; /* each of its kernels */
    attn_status st;

    *again = false;
    for (int i = 0; i < c->n_steps; i++) {
        int64_t limit = 0;

        st = ctx->backend->kernel(ctx->device, &c->step[i], &plan->kernel[i], &limit);
        if (st != ATTN_OK)
            return st;
        if (c->step[i].block > limit) {
            learn(verdict, &c->step[i], limit);
            *again = true;
            return ATTN_OK;
        }
        proven = proven && is_proven(ctx, plan->kernel[i]);
    }
    if (proven || ctx->backend->on_host) /* no compiler of a driver in between */
        return ATTN_OK;
    st = attn_selftest(ctx, &plan->problem, c, plan->kernel, verdict->denial,
                       sizeof verdict->denial);
    if (st != ATTN_OK && is_librarys_answer(ctx, c->variant, st))
        snprintf(verdict->denial, sizeof verdict->denial, "%.119s", attn_last_error());
    else if (st != ATTN_OK)
        return attn_fail_in(st, "self-test of %s", c->variant->name);
    *again = verdict->failed = verdict->denial[0] != '\0';
    return *again ? ATTN_OK : set_proven(ctx, plan->kernel, c->n_steps);
}

attn_status attn_plan_problem(attn_ctx *ctx, const attn_problem *problem,
                              const attn_options *options, attn_plan **out)
{
    attn_plan *plan = calloc(1, sizeof *plan);
    attn_status st = ATTN_OK;
    attn_error_text before;
    bool again = true;

    attn_error_save(&before);
    if (!plan)
        return attn_fail(ATTN_ERR_NO_MEMORY, "plan: %zu bytes", sizeof *plan);
    plan->ctx = ctx;
    plan->problem = *problem;

    /* Each turn rules out a variant or lowers a limit, so this ends. */
    pthread_mutex_lock(&ctx->lock);
    while (again && st == ATTN_OK) {
        st = attn_choose(problem, &ctx->target, options, &plan->choice);
        if (st == ATTN_OK)
            st = prepare(ctx, plan, &again);
    }
    pthread_mutex_unlock(&ctx->lock);
    if (st != ATTN_OK) {
        attn_plan_destroy(&plan);
        return st;
    }
    attn_error_restore(&before); /* what was learned on the way is no error */
    *out = plan;
    return ATTN_OK;
}

/* What both forms check before they read the descriptor. */
static attn_status begin(const attn_ctx *ctx, const attn_options *options, attn_options *o,
                         attn_plan **out)
{
    if (!out)
        return attn_fail(ATTN_ERR_INVALID, "out is NULL");
    *out = NULL;
    if (!ctx)
        return attn_fail(ATTN_ERR_INVALID, "ctx is NULL");
    return attn_options_read(o, options);
}

attn_status attn_plan_softmax_with(attn_ctx *ctx, const attn_softmax_desc *desc,
                                   const attn_options *options, attn_plan **out)
{
    attn_softmax_desc d;
    attn_options o;
    attn_problem problem;
    attn_status st;

    if ((st = begin(ctx, options, &o, out)) != ATTN_OK ||
        (st = attn_softmax_desc_read(&d, desc)) != ATTN_OK)
        return st;
    attn_problem_from_softmax(&problem, &d);
    return attn_plan_problem(ctx, &problem, &o, out);
}

attn_status attn_plan_linear_with(attn_ctx *ctx, const attn_linear_desc *desc,
                                  const attn_options *options, attn_plan **out)
{
    attn_linear_desc d;
    attn_options o;
    attn_problem problem;
    attn_status st;

    if ((st = begin(ctx, options, &o, out)) != ATTN_OK ||
        (st = attn_linear_desc_read(&d, desc)) != ATTN_OK)
        return st;
    attn_problem_from_linear(&problem, &d);
    return attn_plan_problem(ctx, &problem, &o, out);
}

attn_status attn_plan_linear(attn_ctx *ctx, const attn_linear_desc *desc, attn_plan **out)
{
    return attn_plan_linear_with(ctx, desc, NULL, out);
}

attn_status attn_plan_softmax(attn_ctx *ctx, const attn_softmax_desc *desc, attn_plan **out)
{
    return attn_plan_softmax_with(ctx, desc, NULL, out);
}

void attn_plan_destroy(attn_plan **plan)
{
    if (!plan)
        return;
    free(*plan); /* its kernels belong to the device */
    *plan = NULL;
}

size_t attn_plan_workspace_bytes(const attn_plan *plan)
{
    return plan ? (size_t)plan->choice.workspace_bytes : 0;
}

static attn_status list_variants(attn_ctx *ctx, const attn_problem *problem,
                                 attn_variant_info *out, size_t cap, size_t *n)
{
    size_t have = 0;

    pthread_mutex_lock(&ctx->lock);
    for (int i = 0; ctx->target.variants[i]; i++) {
        const char *reason = attn_refusal(problem, &ctx->target, i);
        const size_t at = have;
        const attn_verdict *verdict = &ctx->target.verdict[i];
        const bool applicable = !reason;
        const bool failed = reason == verdict->denial && verdict->failed;

        if (!attn_variant_computes(problem, &ctx->target, i) || have++ >= cap)
            continue;
        if (applicable)
            reason = attn_drawback(problem, &ctx->target, i);
        out[at] = (attn_variant_info){ .name = ctx->target.variants[i]->name,
                                       .applicable = applicable,
                                       .failed = failed,
                                       .traits = ctx->target.variants[i]->traits };
        snprintf(out[at].reason, sizeof out[at].reason, "%s", reason ? reason : "");
    }
    pthread_mutex_unlock(&ctx->lock);
    *n = have;
    return ATTN_OK;
}

static attn_status check_list(const attn_ctx *ctx, const attn_variant_info *out, size_t cap,
                              const size_t *n)
{
    if (!ctx || !n || (cap && !out))
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", !ctx ? "ctx" : !n ? "n" : "out");
    return ATTN_OK;
}

attn_status attn_softmax_variants(attn_ctx *ctx, const attn_softmax_desc *desc,
                                  attn_variant_info *out, size_t cap, size_t *n)
{
    attn_softmax_desc d;
    attn_problem problem;
    attn_status st;

    if ((st = check_list(ctx, out, cap, n)) != ATTN_OK ||
        (st = attn_softmax_desc_read(&d, desc)) != ATTN_OK)
        return st;
    attn_problem_from_softmax(&problem, &d);
    return list_variants(ctx, &problem, out, cap, n);
}

attn_status attn_linear_variants(attn_ctx *ctx, const attn_linear_desc *desc,
                                 attn_variant_info *out, size_t cap, size_t *n)
{
    attn_linear_desc d;
    attn_problem problem;
    attn_status st;

    if ((st = check_list(ctx, out, cap, n)) != ATTN_OK ||
        (st = attn_linear_desc_read(&d, desc)) != ATTN_OK)
        return st;
    attn_problem_from_linear(&problem, &d);
    return list_variants(ctx, &problem, out, cap, n);
}
