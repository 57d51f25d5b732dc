/* SPDX-License-Identifier: MIT */
/* tools/validate.c: rounds of inputs and layouts, held against the oracle. */
#include "validate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "compare.h"
#include "gradients.h"
#include "inputs.h"
#include "linear_compare.h"
#include "oracle.h"
#include "timing.h"
#include "trial.h"
#include "visible.h"

enum { MAX_VARIANTS = 32, LONGER_Q = 3, LONGER_K = 70, WHAT_BYTES = 1200, FAR = 10000 };

/* One variant of one device at the problem in hand. */
typedef struct entry {
    int device;
    attn_variant_info info;
    bool chosen;     /* what the planner would take on that device */
    attn_plan *plan; /* NULL: nothing (more) to run                */
    record record;
    char what[WHAT_BYTES];
} entry;

/* The problem in hand. */
typedef struct session {
    const validation *v;
    const case_item *item;
    uint64_t seed;
    entry *entry;
    size_t n;
    float **o; /* each device's own answer in round 0, or NULL */

    int round;
    inputs in;
    oracle ref;
    gradients grads;     /* backward, instead of ref */
    linear_plain linear; /* linear attention, instead of both */
} session;

static attn_ctx *ctx_of(const session *s, const entry *e)
{
    return s->v->report->device[e->device].ctx;
}

static bool is_linear(const session *s)
{
    return s->item->problem.is_linear;
}

static bool is_backward(const session *s)
{
    return !is_linear(s) && s->item->problem.softmax.use & ATTN_USE_GRAD;
}

static void fail(entry *e, const char *where, const char *what)
{
    e->record.outcome = OUTCOME_FAILED;
    snprintf(e->what, sizeof e->what, "%s%s%s", where, *where ? ": " : "", what);
    attn_plan_destroy(&e->plan);
}

static void skip(entry *e, const char *what)
{
    e->record.outcome = OUTCOME_SKIPPED;
    snprintf(e->what, sizeof e->what, "%s", what);
    attn_plan_destroy(&e->plan);
}

static bool wanted(const validation *v, const char *variant)
{
    for (int i = 0; i < v->n_only; i++)
        if (!strcmp(v->only[i], variant))
            return true;
    return !v->n_only;
}

/* Asks the device which variants take the problem. */
static void ask(session *s, int device)
{
    attn_variant_info list[MAX_VARIANTS];
    attn_ctx *ctx = s->v->report->device[device].ctx;
    bool chosen = false;
    size_t n = 0;

    if (!ctx)
        return;
    if (problem_variants(ctx, &s->item->problem, list, MAX_VARIANTS, &n) != ATTN_OK) {
        record one = { .device = device,
                       .variant = "(all)",
                       .text = (char *)s->item->text,
                       .type = problem_type(&s->item->problem),
                       .outcome = OUTCOME_FAILED,
                       .what = (char *)attn_last_error() };
        report_add(s->v->report, &one);
        return;
    }
    for (size_t i = 0; i < n && i < MAX_VARIANTS; i++) {
        /* with a reason it stands back as long as another takes the problem */
        const bool takes = list[i].applicable && !list[i].reason[0];
        entry *e = &s->entry[s->n];
        if (!wanted(s->v, list[i].name))
            continue;
        *e = (entry){ .device = device, .info = list[i], .chosen = takes && !chosen };
        e->record = (record){ .device = device,
                              .variant = list[i].name,
                              .traits = list[i].traits,
                              .text = (char *)s->item->text,
                              .type = problem_type(&s->item->problem),
                              .outcome = OUTCOME_PASSED };
        chosen = chosen || takes;
        s->n++;
    }
}

static attn_status plan(const session *s, const entry *e, const problem *p, attn_plan **out)
{
    const attn_options options = { .size = sizeof options, .variant = e->info.name };
    return problem_plan(ctx_of(s, e), p, &options, out);
}

/* Whether a variant that has no plan for `p` does not take it, and is not broken. */
static bool says_no(const session *s, const entry *e, const problem *p)
{
    attn_variant_info list[MAX_VARIANTS];
    size_t n = 0;

    if (problem_variants(ctx_of(s, e), p, list, MAX_VARIANTS, &n) != ATTN_OK)
        return false;
    for (size_t i = 0; i < n && i < MAX_VARIANTS; i++)
        if (!strcmp(list[i].name, e->info.name))
            return !list[i].applicable && !list[i].failed;
    return false;
}

/* Plans one variant, or notes why not. */
static void prepare(session *s, entry *e)
{
    const double work = problem_flop(&s->item->problem) / 1e9;
    const double most = s->v->report->max_work;
    attn_status st;

    if (!e->info.applicable) {
        e->record.outcome = e->info.failed ? OUTCOME_FAILED : OUTCOME_NO;
        snprintf(e->what, sizeof e->what, "%s", e->info.reason);
        return;
    }
    if (work > most) {
        e->record.outcome = OUTCOME_SKIPPED;
        snprintf(e->what, sizeof e->what, "more than %g GFLOP", most);
        return;
    }
    st = plan(s, e, &s->item->problem, &e->plan);
    if (st == ATTN_ERR_UNSUPPORTED && says_no(s, e, &s->item->problem)) {
        e->record.outcome = OUTCOME_NO;
        snprintf(e->what, sizeof e->what, "%s", attn_last_error());
    } else if (st == ATTN_ERR_NO_MEMORY) {
        skip(e, attn_last_error());
    } else if (st != ATTN_OK) {
        fail(e, attn_status_name(st), attn_last_error());
    }
}

/* Layouts of the round: all plain, or one of those that each tensor's class allows. */
static void choose_views(const session *s, const entry *e, trial *t)
{
    t->expanded = s->round ? random_bits(s->seed, 100 + (uint64_t)s->round, 1000) : 0;
    for (int i = 0; i < TRIAL_TENSORS; i++) {
        const uint64_t bits = random_bits(s->seed, 100 + (uint64_t)s->round, (uint64_t)i);
        const bool any = !trial_class_bytes(&s->in.desc, (trial_block)i);

        t->kind[i] = VIEW_PLAIN;
        if (s->round == 0)
            continue;
        if (s->round % 4 == 2 && (i == TRIAL_K || i == TRIAL_V))
            t->kind[i] = VIEW_SHARED;
        else if (any && bits >> 32 & 1)
            t->kind[i] = bits & 1 ? VIEW_TRANSPOSED : VIEW_SPREAD;
        else
            t->kind[i] = (view_kind)(bits % VIEW_SHARED);
        if (e->info.traits & ATTN_TRAIT_FORWARD && t->kind[i] == VIEW_REVERSED)
            t->kind[i] = VIEW_PADDED;
    }
}

/* The round, and each tensor that is there with its layout. */
static void describe(const session *s, const trial *t, char *text, size_t cap)
{
    size_t n = (size_t)snprintf(text, cap, "round %d, %s inputs", s->round,
                                input_kind_name(s->in.kind));

    for (int i = 0; i < TRIAL_TENSORS && n < cap; i++)
        if (t->view[i].tensor.type != ATTN_TYPE_NONE)
            n += (size_t)snprintf(text + n, cap - n, ", %s %s", trial_name((trial_block)i),
                                  view_kind_name(t->kind[i]));
}

/* Whether `rows` rows of n numbers are those of the whole from `first` on; not there: yes. */
static bool same_rows(const float *alone, const float *whole, size_t first, size_t rows,
                      size_t n)
{
    return !alone || !memcmp(alone, whole + first * n, rows * n * sizeof *alone);
}

/* The last batch and key/value head as a problem of its own, through the same
 * variant: rows alone give the same bits as in company. */
static bool check_alone(const session *s, const entry *e, const trial *whole, char *what,
                        size_t cap)
{
    const attn_softmax_desc *d = &s->in.desc;
    const int64_t group = d->heads_kv ? d->heads_q / d->heads_kv : 0;
    const size_t rows = (size_t)(group * d->len_q), dv = (size_t)visible_dim_v(d);
    const size_t first = (size_t)(d->batch * d->heads_q * d->len_q) - rows;
    const size_t keys = (size_t)d->len_kv, dim = (size_t)d->dim_qk;
    const size_t first_key = (size_t)(d->batch * d->heads_kv * d->len_kv) - keys;
    inputs cut;
    trial t = { .ctx = whole->ctx, .in = &cut, .repeat = 1, .finite_v = whole->finite_v };
    attn_plan *alone = NULL;
    problem last;
    bool ok = false;

    /* linear attention may cut sequences by the number of heads; dropout tells heads apart */
    if (d->batch * d->heads_kv < 2 || !rows || is_linear(s) || visible_dropout(d) > 0)
        return true;
    if (!inputs_cut(&cut, &s->in, d->batch - 1, d->heads_kv - 1)) {
        snprintf(what, cap, "the last head alone: no memory");
        return false;
    }
    last = inputs_problem(&cut);
    if (plan(s, e, &last, &alone) != ATTN_OK) {
        snprintf(what, cap, "the last head alone: %s", attn_last_error());
        goto done;
    }
    t.plan = alone;
    if (!trial_open(&t) || !trial_run(&t)) {
        snprintf(what, cap, "the last head alone: %s", t.what);
        goto done;
    }
    ok = same_rows(t.o, whole->o, first, rows, dv) &&
         same_rows(t.lse, whole->lse, first, rows, 1) &&
         same_rows(t.grad[GRADIENT_Q], whole->grad[GRADIENT_Q], first, rows, dim) &&
         same_rows(t.grad[GRADIENT_K], whole->grad[GRADIENT_K], first_key, keys, dim) &&
         same_rows(t.grad[GRADIENT_V], whole->grad[GRADIENT_V], first_key, keys, dv);
    if (!ok)
        snprintf(what, cap, "the last head alone gives other bits than in company");

done:
    trial_free(&t);
    attn_plan_destroy(&alone);
    inputs_free(&cut);
    return ok;
}

/* Each of several outputs once. */
static bool check_left_out(trial *t)
{
    int n = 0;

    for (int i = 0; i < TRIAL_TENSORS; i++)
        n += trial_is_output(t, i);
    for (int i = 0; i < TRIAL_TENSORS && n > 1; i++)
        if (trial_is_output(t, i) && !trial_run_without(t, (trial_block)i))
            return false;
    return true;
}

/* How far the devices' own choices are apart; keeps this one's answer. */
static void compare_devices(session *s, const entry *e, trial *t)
{
    const attn_type type = s->in.desc.type;
    report *r = s->v->report;

    for (int other = 0; other < r->n_devices; other++) {
        const bool before = other < e->device;
        difference *x = &r->between[before ? other * r->n_devices + e->device
                                           : e->device * r->n_devices + other];
        double norm;

        if (!s->o[other] || other == e->device)
            continue;
        norm = compare_results(&s->in, &s->ref, t->o, s->o[other]);
        x->problems[type - 1]++;
        if (norm > x->norm[type - 1]) {
            x->norm[type - 1] = norm;
            x->text[type - 1] = s->item->text;
        }
    }
    s->o[e->device] = t->o;
    t->o = NULL;
}

static void compare_linear(const session *s, const trial *t, comparison *c)
{
    linear_comparison found = { .norm = 0 };

    for (int i = 0; i < LINEAR_OUTPUTS; i++)
        if (t->linear[i])
            linear_compare(&s->linear, (linear_output)i, t->linear[i], &found);
    c->norm = found.norm;
    c->share = found.share;
    memcpy(c->what, found.what, sizeof c->what);
}

/* The checks of one variant in this round. */
static void run(session *s, entry *e, trial *t)
{
    comparison c = { 0 };
    char where[400], what[600] = "";
    bool ok = trial_open(t) && trial_run(t);

    describe(s, t, where, sizeof where);
    if (!ok && t->no_memory) {
        skip(e, t->what);
        return;
    }
    if (!ok) {
        fail(e, where, t->what);
        return;
    }
    if (is_linear(s))
        compare_linear(s, t, &c);
    else if (is_backward(s))
        gradients_compare(&s->in, &s->grads, t->grad, &c);
    else
        compare(&s->in, &s->ref, t->o, t->lse, e->info.traits & ATTN_TRAIT_ROUNDED, &c);
    e->record.norm = fmax(e->record.norm, c.norm);
    e->record.share = fmax(e->record.share, c.share);
    if (c.share > 1)
        fail(e, where, c.what);
    else if (s->round == 0 && !(e->info.traits & ATTN_TRAIT_BY_SIZE) &&
             !check_alone(s, e, t, what, sizeof what))
        fail(e, where, what);
    else if (s->round == 1 && !check_left_out(t))
        fail(e, where, t->what);
    if (s->round == 0 && e->chosen && e->plan && !is_backward(s) && !is_linear(s))
        compare_devices(s, e, t);
}

/* The same problem as a plan for longer sequences has it. A bias or mask has the planned
 * sizes where sequences are packed, and pages hold the planned keys: these stay. */
static problem longer_of(const problem *p)
{
    const attn_softmax_desc *d = &p->softmax;
    const bool pairs = d->use & (ATTN_USE_BIAS | ATTN_USE_MASK);
    attn_softmax_desc longer = *d;

    if (p->is_linear) {
        attn_linear_desc l = p->linear;

        l.len_q += LONGER_Q;
        l.len_kv += LONGER_K;
        return problem_of_linear(&l);
    }

    if (!(d->use & ATTN_USE_PACKED_Q && pairs))
        longer.len_q += LONGER_Q;
    if (!(d->use & ATTN_USE_PACKED_K && pairs) && !(d->use & ATTN_USE_PAGES))
        longer.len_kv += LONGER_K;
    return problem_of_softmax(&longer);
}

static void run_entry(session *s, entry *e)
{
    const problem longer = longer_of(&s->item->problem);
    trial t = { .ctx = ctx_of(s, e),
                .plan = e->plan,
                .in = &s->in,
                .repeat = s->v->report->repeat,
                .any_bits = e->info.traits & ATTN_TRAIT_NONDET,
                .finite_v = e->info.traits & ATTN_TRAIT_FINITE_V,
                .status = s->round % 2 == 0 };
    attn_plan *longer_plan = NULL;
    attn_status st = ATTN_OK;

    choose_views(s, e, &t);
    if (s->round % 4 == 3) {
        st = plan(s, e, &longer, &longer_plan);
        if (st == ATTN_ERR_UNSUPPORTED && says_no(s, e, &longer))
            return; /* another problem, another answer */
        if (st != ATTN_OK) {
            fail(e, "a plan for longer sequences", attn_last_error());
            return;
        }
        t.plan = longer_plan;
    }
    run(s, e, &t);
    trial_free(&t);
    attn_plan_destroy(&longer_plan);
}

/* Scores rounded to 16 bits say nothing where ALiBi makes them large, and keys differ by
 * what is rounded away. */
static bool is_beyond(const session *s, const entry *e)
{
    const attn_softmax_desc *d = &s->item->problem.softmax;

    return !is_linear(s) && e->info.traits & ATTN_TRAIT_ROUNDED && d->type != ATTN_F32 &&
           d->use & ATTN_USE_ALIBI && llabs(d->offset) > FAR;
}

/* Scores rounded to f16 overflow where the oracle's do not, and so does a bias; what stands
 * for "never" is rounded, too: such a variant is spared these inputs. */
static bool spared(const session *s, const entry *e, input_kind kind)
{
    const attn_softmax_desc *d = &s->item->problem.softmax;

    return !is_linear(s) && e->info.traits & ATTN_TRAIT_ROUNDED && d->type != ATTN_F32 &&
           ((kind == INPUT_HUGE && d->type == ATTN_F16) ||
            (kind != INPUT_NORMAL && d->use & ATTN_USE_BIAS));
}

/* The entries that are spared inputs of `kind`, or those that are not, through `how`. */
static void run_entries(session *s, input_kind kind, input_how how, bool those_spared)
{
    const char *trouble = NULL;
    attn_status st = ATTN_ERR_NO_MEMORY;
    bool any = false;

    for (size_t i = 0; i < s->n; i++)
        any = any || (s->entry[i].plan && spared(s, &s->entry[i], kind) == those_spared);
    if (!any)
        return;
    s->ref = (oracle){ 0 };
    s->grads = (gradients){ .score = NULL };
    s->linear = (linear_plain){ .q = NULL };
    if (!inputs_make_problem(&s->in, &s->item->problem, how, s->seed + (uint64_t)s->round))
        trouble = "no memory for the inputs";
    else if (is_linear(s))
        trouble =
            inputs_answer_linear(&s->in, &s->linear) ? NULL : "no memory for the oracle";
    else if (is_backward(s))
        trouble = gradients_evaluate(&s->in, &s->grads) ? NULL : "no memory for the oracle";
    else if ((st = oracle_run(s->v->oracle, &s->in, &s->ref)) != ATTN_OK)
        trouble = s->ref.what;
    for (size_t i = 0; i < s->n; i++) {
        entry *e = &s->entry[i];
        const double start = timing_now();

        if (!e->plan || spared(s, e, kind) != those_spared)
            continue;
        if (is_beyond(s, e))
            skip(e, "scores that are rounded to 16 bits say nothing so far from query 0");
        else if (trouble && st == ATTN_ERR_NO_MEMORY)
            skip(e, trouble);
        else if (trouble)
            fail(e, "the oracle", trouble);
        else
            run_entry(s, e);
        e->record.seconds += timing_now() - start;
    }
    inputs_free(&s->in);
    oracle_free(&s->ref);
    gradients_free(&s->grads);
    linear_plain_free(&s->linear);
}

static void run_round(session *s)
{
    const input_kind kind = (input_kind)((s->seed + (uint64_t)s->round) % INPUT_KINDS);
    input_how how = { .kind = kind,
                      .same_heads = s->round % 4 == 2,
                      .wild_lists = s->round % 4 != 3 };

    run_entries(s, kind, how, false);
    how.kind = INPUT_NORMAL;
    run_entries(s, kind, how, true);
}

static bool any_left(const session *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->entry[i].plan)
            return true;
    return false;
}

void validate_case(const validation *v, const case_item *item)
{
    const int n = v->report->n_devices;
    session s = { .v = v,
                  .item = item,
                  .seed = random_seed_of(item->text, v->report->seed) };

    s.entry = calloc((size_t)n * MAX_VARIANTS, sizeof *s.entry);
    s.o = calloc((size_t)n, sizeof *s.o);
    if (!s.entry || !s.o) {
        v->report->lost = true;
        goto done;
    }
    for (int d = 0; d < n; d++)
        ask(&s, d);
    for (size_t i = 0; i < s.n; i++) {
        const double start = timing_now();
        prepare(&s, &s.entry[i]);
        s.entry[i].record.seconds = timing_now() - start;
    }
    for (s.round = 0; s.round < v->report->rounds && any_left(&s); s.round++)
        run_round(&s);
    for (size_t i = 0; i < s.n; i++) {
        entry *e = &s.entry[i];
        e->record.what = e->what[0] ? e->what : NULL;
        report_add(v->report, &e->record);
        attn_plan_destroy(&e->plan);
    }

done:
    for (int d = 0; s.o && d < n; d++)
        free(s.o[d]);
    free(s.o);
    free(s.entry);
}
