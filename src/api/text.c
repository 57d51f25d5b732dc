/* SPDX-License-Identifier: MIT */
/* api/text.c: problems and plans as text, and the explanation of a plan. */
#include <attn/text.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/context.h"
#include "core/size.h"
#include "core/status.h"

static attn_status finish(const attn_text *text, size_t *len)
{
    if (len)
        *len = text->len;
    return ATTN_OK;
}

static attn_status check_text(const char *text, size_t cap)
{
    return cap && !text ? attn_fail(ATTN_ERR_INVALID, "text is NULL with cap = %zu", cap)
                        : ATTN_OK;
}

static attn_status problem_text(const attn_problem *problem, char *text, size_t cap,
                                size_t *len)
{
    attn_text out = attn_text_in(text, cap);

    attn_problem_text(problem, &out);
    return finish(&out, len);
}

attn_status attn_softmax_text(const attn_softmax_desc *desc, char *text, size_t cap,
                              size_t *len)
{
    attn_softmax_desc d;
    attn_problem problem;
    attn_status st;

    if ((st = check_text(text, cap)) != ATTN_OK ||
        (st = attn_softmax_desc_read(&d, desc)) != ATTN_OK)
        return st;
    attn_problem_from_softmax(&problem, &d);
    return problem_text(&problem, text, cap, len);
}

attn_status attn_linear_text(const attn_linear_desc *desc, char *text, size_t cap,
                             size_t *len)
{
    attn_linear_desc d;
    attn_problem problem;
    attn_status st;

    if ((st = check_text(text, cap)) != ATTN_OK ||
        (st = attn_linear_desc_read(&d, desc)) != ATTN_OK)
        return st;
    attn_problem_from_linear(&problem, &d);
    return problem_text(&problem, text, cap, len);
}

/* Reads a problem, which must be of that operation. */
static attn_status parse_of(attn_op op, const char *text, const void *desc,
                            attn_problem *problem)
{
    attn_status st;

    if (!text || !desc)
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", text ? "desc" : "text");
    if ((st = attn_problem_parse(problem, text)) == ATTN_OK && problem->op != op)
        st = attn_fail(ATTN_ERR_INVALID,
                       "problem text, position 0: \"%.40s\", want one of %s attention",
                       text, op == ATTN_OP_LINEAR ? "linear" : "softmax");
    return st;
}

attn_status attn_softmax_parse(const char *text, attn_softmax_desc *desc)
{
    attn_problem problem;
    const attn_status st = parse_of(ATTN_OP_SOFTMAX, text, desc, &problem);

    if (st == ATTN_OK)
        attn_problem_to_softmax(&problem, desc);
    return st;
}

attn_status attn_linear_parse(const char *text, attn_linear_desc *desc)
{
    attn_problem problem;
    const attn_status st = parse_of(ATTN_OP_LINEAR, text, desc, &problem);

    if (st == ATTN_OK)
        attn_problem_to_linear(&problem, desc);
    return st;
}

attn_status attn_plan_text(const attn_plan *plan, char *text, size_t cap, size_t *len)
{
    attn_text out;

    if (!plan || (cap && !text))
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", plan ? "text" : "plan");
    out = attn_text_in(text, cap);
    attn_choice_text(&plan->choice, &plan->ctx->target, &out);
    attn_text_add(&out, " ");
    attn_problem_text(&plan->problem, &out);
    return finish(&out, len);
}

/* The parts of "backend:variant[instance] problem". */
static bool split_plan_text(const char *text, char backend[32], char variant[64],
                            const char **problem)
{
    const char *space = strchr(text, ' '), *colon = strchr(text, ':');
    const char *bracket = strchr(text, '[');

    if (!space || !colon || !bracket || !(colon < bracket && bracket < space) ||
        space[-1] != ']' || colon - text >= 32 || bracket - colon > 63)
        return false;
    snprintf(backend, 32, "%.*s", (int)(colon - text), text);
    snprintf(variant, 64, "%.*s", (int)(bracket - colon - 1), colon + 1);
    *problem = space + 1;
    return true;
}

static attn_status parse_plan(attn_ctx *ctx, const char *text, attn_plan **out)
{
    char backend[32], variant[64], have[128];
    attn_text name = attn_text_in(have, sizeof have);
    const size_t n = strcspn(text, " ");
    attn_options o = { .size = sizeof o, .variant = variant };
    const char *rest;
    attn_problem problem;
    attn_status st;

    if (!split_plan_text(text, backend, variant, &rest))
        return attn_fail(ATTN_ERR_INVALID,
                         "plan text \"%.80s\", want "
                         "BACKEND:VARIANT[INSTANCE] PROBLEM, or a problem",
                         text);
    if (strcmp(backend, ctx->target.backend))
        return attn_fail(ATTN_ERR_INVALID,
                         "plan text of back end \"%s\", want \"%s\" as the "
                         "context",
                         backend, ctx->target.backend);
    if ((st = attn_problem_parse(&problem, rest)) != ATTN_OK ||
        (st = attn_plan_problem(ctx, &problem, &o, out)) != ATTN_OK)
        return st;
    attn_choice_text(&(*out)->choice, &ctx->target, &name);
    if (n == strlen(have) && !memcmp(have, text, n))
        return ATTN_OK;
    attn_plan_destroy(out);
    return attn_fail(ATTN_ERR_UNSUPPORTED,
                     "plan text names %.*s, but this library plans %s", (int)n, text, have);
}

attn_status attn_plan_parse(attn_ctx *ctx, const char *text, attn_plan **out)
{
    attn_problem problem;
    attn_status st;

    if (!out)
        return attn_fail(ATTN_ERR_INVALID, "out is NULL");
    *out = NULL;
    if (!ctx || !text)
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", ctx ? "text" : "ctx");
    if (strchr(text, ' '))
        return parse_plan(ctx, text, out);
    if ((st = attn_problem_parse(&problem, text)) != ATTN_OK)
        return st;
    return attn_plan_problem(ctx, &problem, NULL, out);
}

static attn_status explain(attn_ctx *ctx, const attn_problem *problem,
                           const attn_options *options, char *text, size_t cap, size_t *len)
{
    attn_error_text before;
    attn_text out = attn_text_in(text, cap);
    attn_status st;

    attn_error_save(&before);
    pthread_mutex_lock(&ctx->lock);
    st = attn_explain(problem, &ctx->target, options, &out);
    pthread_mutex_unlock(&ctx->lock);
    if (st != ATTN_OK)
        return st;
    attn_error_restore(&before); /* "no variant takes it" is an answer here */
    return finish(&out, len);
}

static attn_status check_explain(const attn_ctx *ctx, const attn_options *options,
                                 attn_options *o, const char *text, size_t cap)
{
    if (!ctx || (cap && !text))
        return attn_fail(ATTN_ERR_INVALID, "%s is NULL", ctx ? "text" : "ctx");
    return attn_options_read(o, options);
}

attn_status attn_softmax_explain(attn_ctx *ctx, const attn_softmax_desc *desc,
                                 const attn_options *options, char *text, size_t cap,
                                 size_t *len)
{
    attn_options o;
    attn_softmax_desc d;
    attn_problem problem;
    attn_status st;

    if ((st = check_explain(ctx, options, &o, text, cap)) != ATTN_OK ||
        (st = attn_softmax_desc_read(&d, desc)) != ATTN_OK)
        return st;
    attn_problem_from_softmax(&problem, &d);
    return explain(ctx, &problem, &o, text, cap, len);
}

attn_status attn_linear_explain(attn_ctx *ctx, const attn_linear_desc *desc,
                                const attn_options *options, char *text, size_t cap,
                                size_t *len)
{
    attn_options o;
    attn_linear_desc d;
    attn_problem problem;
    attn_status st;

    if ((st = check_explain(ctx, options, &o, text, cap)) != ATTN_OK ||
        (st = attn_linear_desc_read(&d, desc)) != ATTN_OK)
        return st;
    attn_problem_from_linear(&problem, &d);
    return explain(ctx, &problem, &o, text, cap, len);
}
