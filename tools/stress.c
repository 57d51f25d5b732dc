/* SPDX-License-Identifier: MIT */
/* tools/stress.c: runs, threads and contexts in numbers; rows alone. */
#include "stress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "timing.h"
#include "visible.h"

enum { MAX_VARIANTS = 32, TEXT_BYTES = 700, THREAD_RUNS = 10 };

/* What is repeated: causal, several tiles and a tail. */
static const char repeated[] =
    "softmax_fwd:f32,b2,hq4,hkv2,lq33,lk300,d16,causal,align=br,lse";

/* A batch of 64; keys enough for a split. */
static const char batch[] = "softmax_fwd:f32,b64,hq2,hkv1,lq3,lk1030,d16,lse";

static attn_ctx *ctx_of(const stress *s)
{
    return s->report->device[s->device].ctx;
}

void stress_note(const stress *s, outcome how, double start, const char *what,
                 const char *format, ...)
{
    char text[160];
    record one = { .device = s->device,
                   .variant = REPORT_API,
                   .text = text,
                   .type = ATTN_F32,
                   .outcome = how,
                   .seconds = timing_now() - start,
                   .what = (char *)what };
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    report_add(s->report, &one);
}

static bool same_results(const trial *a, const trial *b)
{
    const attn_softmax_desc *d = &a->in->desc;
    const size_t rows = (size_t)(d->batch * d->heads_q * d->len_q);

    return !memcmp(a->o, b->o, rows * (size_t)visible_dim_v(d) * sizeof *a->o) &&
           !memcmp(a->lse, b->lse, rows * sizeof *a->lse);
}

static bool inputs_of(inputs *in, const char *text, uint64_t seed)
{
    attn_softmax_desc d;

    return attn_softmax_parse(text, &d) == ATTN_OK &&
           inputs_make(in, &d, (input_how){ .kind = INPUT_CLEAR }, seed);
}

static attn_status plan_for(attn_ctx *ctx, const attn_softmax_desc *d, const char *variant,
                            attn_plan **out)
{
    const attn_options options = { .size = sizeof options, .variant = variant };
    return attn_plan_softmax_with(ctx, d, &options, out);
}

/* Checks of a variant: each returns NULL or what is wrong. */

static const char *check_runs(const stress *s, const char *variant, char what[TEXT_BYTES])
{
    inputs in = { .q = NULL };
    attn_plan *plan = NULL;
    trial t = { .ctx = ctx_of(s), .in = &in, .repeat = s->runs };
    const char *wrong = NULL;

    if (!inputs_of(&in, repeated, s->report->seed))
        return "no memory for the inputs";
    if (plan_for(t.ctx, &in.desc, variant, &plan) != ATTN_OK)
        wrong = attn_last_error();
    t.plan = plan;
    if (!wrong && (!trial_open(&t) || !trial_run(&t)))
        wrong = t.what;
    snprintf(what, TEXT_BYTES, "%s", wrong ? wrong : "");
    trial_free(&t);
    attn_plan_destroy(&plan);
    inputs_free(&in);
    return wrong ? what : NULL;
}

/* Runs row i of every head alone, through the same plan: it is the same bits as in the
 * whole, whose results `o` and `lse` begin with the same head, and the other rows stay as
 * they were. */
static bool row_alone(trial *t, int64_t i, const float *o, const float *lse)
{
    attn_tensor *const rows[3] = { &t->args.q, &t->args.o, &t->args.lse };
    const attn_args kept = t->args;
    const int64_t dv = visible_dim_v(&t->in->desc), lq = t->in->desc.len_q;
    const int64_t heads = t->in->desc.batch * t->in->desc.heads_q;
    bool same;

    if (!trial_poison(t))
        return false;
    for (int k = 0; k < 3; k++) {
        rows[k]->offset += i * rows[k]->stride[2];
        rows[k]->size[2] = 1;
    }
    same = trial_run_row(t, i);
    t->args = kept;
    for (int64_t h = 0; h < heads && same; h++) {
        const int64_t n = h * lq + i;

        same = !memcmp(t->o + n * dv, o + n * dv, (size_t)dv * sizeof *o) &&
               t->lse[n] == lse[n];
        if (!same)
            snprintf(t->what, sizeof t->what,
                     "row %lld of head %lld is other bits alone than in its batch",
                     (long long)i, (long long)h);
    }
    return same;
}

/* The results of `t`, to be freed; NULL: no memory. LSE follows O. */
static float *keep_results(const trial *t, size_t *n_o)
{
    const attn_softmax_desc *d = &t->in->desc;
    const size_t rows = (size_t)(d->batch * d->heads_q * d->len_q);
    float *to = malloc(rows * (size_t)(visible_dim_v(d) + 1) * sizeof *to);

    *n_o = rows * (size_t)visible_dim_v(d);
    if (to) {
        memcpy(to, t->o, *n_o * sizeof *to);
        memcpy(to + *n_o, t->lse, rows * sizeof *to);
    }
    return to;
}

/* Of a batch, the last one alone, and single rows of both, against the whole. */
static const char *compare_company(trial *t, trial *one)
{
    const attn_softmax_desc *d = &t->in->desc;
    const int64_t first = (d->batch - 1) * d->heads_q * d->len_q;
    const int64_t dv = visible_dim_v(d), rows = one->in->desc.heads_q * d->len_q;
    const char *wrong = NULL;
    float *o, *lse;
    size_t n_o;

    if (!trial_open(t) || !trial_run(t))
        return t->what;
    if (!trial_open(one) || !trial_run(one))
        return one->what;
    if (!(o = keep_results(t, &n_o)))
        return "no memory for the results";
    lse = o + n_o;
    if (memcmp(one->o, o + first * dv, (size_t)(rows * dv) * sizeof *o) ||
        memcmp(one->lse, lse + first, (size_t)rows * sizeof *lse))
        wrong = "the last head alone is other bits than in a batch of 64";
    for (int64_t i = 0; i < d->len_q && !wrong; i++) {
        if (!row_alone(t, i, o, lse))
            wrong = t->what;
        else if (!row_alone(one, i, o + first * dv, lse + first))
            wrong = one->what;
    }
    free(o);
    return wrong;
}

static const char *check_company(const stress *s, const char *variant,
                                 char what[TEXT_BYTES])
{
    inputs in = { .q = NULL }, cut = { .q = NULL };
    attn_plan *plan = NULL, *alone = NULL;
    trial t = { .ctx = ctx_of(s), .in = &in, .repeat = 1 };
    trial one = { .ctx = ctx_of(s), .in = &cut, .repeat = 1 };
    const char *wrong = NULL;

    if (!inputs_of(&in, batch, s->report->seed) ||
        !inputs_cut(&cut, &in, in.desc.batch - 1, 0)) {
        inputs_free(&in);
        return "no memory for the inputs";
    }
    if (plan_for(t.ctx, &in.desc, variant, &plan) != ATTN_OK ||
        plan_for(t.ctx, &cut.desc, variant, &alone) != ATTN_OK)
        wrong = attn_last_error();
    t.plan = plan;
    one.plan = alone;
    if (!wrong)
        wrong = compare_company(&t, &one);
    snprintf(what, TEXT_BYTES, "%s", wrong ? wrong : "");
    trial_free(&t);
    trial_free(&one);
    attn_plan_destroy(&plan);
    attn_plan_destroy(&alone);
    inputs_free(&in);
    inputs_free(&cut);
    return wrong ? what : NULL;
}

static bool wanted(const stress *s, const char *variant)
{
    for (int i = 0; i < s->n_only; i++)
        if (!strcmp(s->only[i], variant))
            return true;
    return !s->n_only;
}

static void check_variants(const stress *s)
{
    attn_variant_info list[MAX_VARIANTS];
    char what[TEXT_BYTES];
    attn_softmax_desc d;
    size_t n = 0;

    if (attn_softmax_parse(repeated, &d) != ATTN_OK ||
        attn_softmax_variants(ctx_of(s), &d, list, MAX_VARIANTS, &n) != ATTN_OK) {
        stress_note(s, OUTCOME_FAILED, timing_now(), attn_last_error(),
                    "list the variants");
        return;
    }
    for (size_t i = 0; i < n && i < MAX_VARIANTS; i++) {
        const char *name = list[i].name, *wrong;
        double start = timing_now();

        if (!wanted(s, name))
            continue;
        cli_progress("%d runs, and rows alone: %s", s->runs, name);
        if (!list[i].applicable) {
            stress_note(s, list[i].failed ? OUTCOME_FAILED : OUTCOME_NO, start,
                        list[i].reason, "%s: many runs, rows alone", name);
            continue;
        }
        wrong = check_runs(s, name, what);
        stress_note(s, wrong ? OUTCOME_FAILED : OUTCOME_PASSED, start, wrong,
                    "%s: %d runs are the same bits", name, s->runs);
        if (list[i].traits & ATTN_TRAIT_BY_SIZE) /* promises nothing of the kind */
            continue;
        start = timing_now();
        wrong = check_company(s, name, what);
        stress_note(s, wrong ? OUTCOME_FAILED : OUTCOME_PASSED, start, wrong,
                    "%s: heads and rows of a batch of 64 are the same bits alone", name);
    }
}

/* Threads. */

typedef struct worker {
    pthread_t thread;
    trial t;
    const trial *want;
    attn_plan *own;
    bool started, ok;
} worker;

static void *work(void *argument)
{
    worker *w = argument;

    if (!w->t.plan && plan_for(w->t.ctx, &w->t.in->desc, NULL, &w->own) != ATTN_OK) {
        snprintf(w->t.what, sizeof w->t.what, "%.500s", attn_last_error());
        return NULL;
    }
    if (w->own)
        w->t.plan = w->own;
    w->ok = trial_open(&w->t) && trial_run(&w->t);
    if (w->ok && !same_results(&w->t, w->want)) {
        w->ok = false;
        snprintf(w->t.what, sizeof w->t.what, "other bits than from one thread");
    }
    trial_free(&w->t);
    return NULL;
}

const char *stress_threads(const trial *like, void *const with[STRESS_THREADS],
                           const trial *want)
{
    static char what[TEXT_BYTES];
    worker w[STRESS_THREADS];

    what[0] = '\0';
    for (int i = 0; i < STRESS_THREADS; i++) {
        w[i] = (worker){ .t = *like, .want = want };
        w[i].t.repeat = THREAD_RUNS;
        w[i].t.with = with ? with[i] : NULL;
        w[i].started = !pthread_create(&w[i].thread, NULL, work, &w[i]);
    }
    for (int i = 0; i < STRESS_THREADS; i++) {
        if (w[i].started)
            pthread_join(w[i].thread, NULL);
        attn_plan_destroy(&w[i].own);
        if (!w[i].started || !w[i].ok)
            snprintf(what, sizeof what, "thread %d: %.600s", i + 1,
                     w[i].started ? w[i].t.what : "it could not be started");
    }
    return what[0] ? what : NULL;
}

static void check_threads(const stress *s, const inputs *in, const trial *want)
{
    const trial own = { .ctx = want->ctx, .in = in };
    const trial shared = { .ctx = want->ctx, .in = in, .plan = want->plan };
    double start = timing_now();
    const char *wrong = stress_threads(&own, NULL, want);

    stress_note(s, wrong ? OUTCOME_FAILED : OUTCOME_PASSED, start, wrong,
                "%d threads on one context, a plan each", STRESS_THREADS);
    start = timing_now();
    wrong = stress_threads(&shared, NULL, want);
    stress_note(s, wrong ? OUTCOME_FAILED : OUTCOME_PASSED, start, wrong,
                "%d threads with one plan, a workspace each", STRESS_THREADS);
}

/* Opens the device anew, runs once, closes it. */
static const char *one_context(const char *selector, const inputs *in, const trial *want)
{
    static char what[TEXT_BYTES];
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;
    trial t = { .in = in, .repeat = 1 };
    const char *wrong = NULL;

    if (attn_ctx_create(selector, &ctx) != ATTN_OK ||
        plan_for(ctx, &in->desc, NULL, &plan) != ATTN_OK)
        wrong = attn_last_error();
    t.ctx = ctx;
    t.plan = plan;
    if (!wrong && (!trial_open(&t) || !trial_run(&t)))
        wrong = t.what;
    else if (!wrong && !same_results(&t, want))
        wrong = "other bits than in the first context";
    snprintf(what, sizeof what, "%s", wrong ? wrong : "");
    trial_free(&t);
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
    return wrong ? what : NULL;
}

static void check_contexts(const stress *s, const inputs *in, const trial *want)
{
    const char *selector = s->report->device[s->device].info.selector, *wrong = NULL;
    const double start = timing_now();
    const int n = (s->runs + 1) / 2;

    for (int i = 0; i < n && !wrong; i++)
        wrong = one_context(selector, in, want);
    stress_note(s, wrong ? OUTCOME_FAILED : OUTCOME_PASSED, start, wrong,
                "%d contexts made, used and destroyed", n);
}

void stress_run(const stress *s)
{
    inputs in = { .q = NULL };
    attn_plan *plan = NULL;
    trial want = { .ctx = ctx_of(s), .in = &in, .repeat = 1 };
    const char *wrong = NULL;

    check_variants(s);
    if (!inputs_of(&in, repeated, s->report->seed))
        wrong = "no memory for the inputs";
    else if (plan_for(want.ctx, &in.desc, NULL, &plan) != ATTN_OK)
        wrong = attn_last_error();
    want.plan = plan;
    if (!wrong && (!trial_open(&want) || !trial_run(&want)))
        wrong = want.what;
    if (wrong) {
        stress_note(s, OUTCOME_FAILED, timing_now(), wrong, "threads, queues and contexts");
    } else {
        cli_progress("threads and contexts on %s",
                     s->report->device[s->device].info.selector);
        check_threads(s, &in, &want);
        check_contexts(s, &in, &want);
        stress_queues(s, &in, &want);
    }
    trial_free(&want);
    attn_plan_destroy(&plan);
    inputs_free(&in);
}
