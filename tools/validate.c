/* SPDX-License-Identifier: MIT */
/* tools/validate.c: rounds of inputs and layouts, held against the oracle. */
#include "validate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "compare.h"
#include "inputs.h"
#include "oracle.h"
#include "timing.h"
#include "trial.h"
#include "visible.h"

enum { MAX_VARIANTS = 32, LONGER_Q = 3, LONGER_K = 70, WHAT_BYTES = 1024 };

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
} session;

static attn_ctx *ctx_of(const session *s, const entry *e)
{
    return s->v->report->device[e->device].ctx;
}

static void fail(entry *e, const char *where, const char *what)
{
    e->record.outcome = OUTCOME_FAILED;
    snprintf(e->what, sizeof e->what, "%s%s%s", where, *where ? ": " : "", what);
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
    if (attn_softmax_variants(ctx, &s->item->desc, list, MAX_VARIANTS, &n) != ATTN_OK) {
        record one = { .device = device,
                       .variant = "(all)",
                       .text = s->item->text,
                       .type = s->item->desc.type,
                       .outcome = OUTCOME_FAILED,
                       .what = (char *)attn_last_error() };
        report_add(s->v->report, &one);
        return;
    }
    for (size_t i = 0; i < n && i < MAX_VARIANTS; i++) {
        entry *e = &s->entry[s->n];
        if (!wanted(s->v, list[i].name))
            continue;
        *e = (entry){ .device = device,
                      .info = list[i],
                      .chosen = list[i].applicable && !chosen };
        e->record = (record){ .device = device,
                              .variant = list[i].name,
                              .text = s->item->text,
                              .type = s->item->desc.type,
                              .outcome = OUTCOME_PASSED };
        chosen = chosen || list[i].applicable;
        s->n++;
    }
}

static attn_status plan(const session *s, const entry *e, const attn_softmax_desc *d,
                        attn_plan **out)
{
    const attn_options options = { .size = sizeof options, .variant = e->info.name };
    return attn_plan_softmax_with(ctx_of(s, e), d, &options, out);
}

/* Plans one variant, or notes why not. */
static void prepare(session *s, entry *e)
{
    const double work = visible_flop(&s->item->desc, NULL) / 1e9;
    const double most = s->v->report->max_work;
    attn_status st;

    if (!e->info.applicable) {
        e->record.outcome = OUTCOME_NO;
        snprintf(e->what, sizeof e->what, "%s", e->info.reason);
        return;
    }
    if (work > most) {
        e->record.outcome = OUTCOME_SKIPPED;
        snprintf(e->what, sizeof e->what, "more than %g GFLOP", most);
        return;
    }
    st = plan(s, e, &s->item->desc, &e->plan);
    if (st == ATTN_ERR_UNSUPPORTED) {
        e->record.outcome = OUTCOME_NO;
        snprintf(e->what, sizeof e->what, "%s", attn_last_error());
    } else if (st != ATTN_OK) {
        fail(e, attn_status_name(st), attn_last_error());
    }
}

/* Layouts of the round: all plain, or one of those that each tensor's class allows. */
static void choose_views(const session *s, view_kind kind[TRIAL_TENSORS])
{
    for (int i = 0; i < TRIAL_TENSORS; i++) {
        const uint64_t bits = random_bits(s->seed, 100 + (uint64_t)s->round, (uint64_t)i);
        const bool any = !trial_class_bytes(&s->item->desc, (trial_block)i);

        kind[i] = VIEW_PLAIN;
        if (s->round == 0)
            continue;
        if (s->round % 4 == 2 && (i == TRIAL_K || i == TRIAL_V))
            kind[i] = VIEW_SHARED;
        else if (any && bits >> 32 & 1)
            kind[i] = bits & 1 ? VIEW_TRANSPOSED : VIEW_SPREAD;
        else
            kind[i] = (view_kind)(bits % VIEW_SHARED);
    }
}

static void describe(const session *s, const trial *t, char *text, size_t cap)
{
    snprintf(text, cap, "round %d, %s inputs, q %s, k %s, v %s, o %s%s%s", s->round,
             input_kind_name(s->in.kind), view_kind_name(t->kind[TRIAL_Q]),
             view_kind_name(t->kind[TRIAL_K]), view_kind_name(t->kind[TRIAL_V]),
             view_kind_name(t->kind[TRIAL_O]), t->bytes[TRIAL_LSE] ? ", lse " : "",
             t->bytes[TRIAL_LSE] ? view_kind_name(t->kind[TRIAL_LSE]) : "");
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
    inputs cut;
    trial t = { .ctx = whole->ctx, .in = &cut, .repeat = 1 };
    attn_plan *alone = NULL;
    bool ok = false;

    if (d->batch * d->heads_kv < 2 || !rows)
        return true;
    if (!inputs_cut(&cut, &s->in, d->batch - 1, d->heads_kv - 1)) {
        snprintf(what, cap, "the last head alone: no memory");
        return false;
    }
    if (plan(s, e, &cut.desc, &alone) != ATTN_OK) {
        snprintf(what, cap, "the last head alone: %s", attn_last_error());
        goto done;
    }
    t.plan = alone;
    if (!trial_open(&t) || !trial_run(&t)) {
        snprintf(what, cap, "the last head alone: %s", t.what);
        goto done;
    }
    ok = !memcmp(t.o, whole->o + first * dv, rows * dv * sizeof *t.o) &&
         (!t.lse || !memcmp(t.lse, whole->lse + first, rows * sizeof *t.lse));
    if (!ok)
        snprintf(what, cap, "the last head alone gives other bits than in company");

done:
    trial_free(&t);
    attn_plan_destroy(&alone);
    inputs_free(&cut);
    return ok;
}

static bool check_left_out(trial *t)
{
    return !t->bytes[TRIAL_LSE] || !t->bytes[TRIAL_O] ||
           (trial_run_without(t, TRIAL_O) && trial_run_without(t, TRIAL_LSE));
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

/* The checks of one variant in this round. */
static void run(session *s, entry *e, trial *t)
{
    comparison c = { 0 };
    char where[256], what[600] = "";
    bool ok = trial_open(t) && trial_run(t);

    describe(s, t, where, sizeof where);
    if (!ok) {
        fail(e, where, t->what);
        return;
    }
    compare(&s->in, &s->ref, t->o, t->lse, &c);
    e->record.norm = fmax(e->record.norm, c.norm);
    e->record.share = fmax(e->record.share, c.share);
    if (c.share > 1)
        fail(e, where, c.what);
    else if (s->round == 0 && !check_alone(s, e, t, what, sizeof what))
        fail(e, where, what);
    else if (s->round == 1 && !check_left_out(t))
        fail(e, where, t->what);
    if (s->round == 0 && e->chosen)
        compare_devices(s, e, t);
}

static void run_entry(session *s, entry *e)
{
    trial t = {
        .ctx = ctx_of(s, e), .plan = e->plan, .in = &s->in, .repeat = s->v->report->repeat
    };
    attn_softmax_desc longer = s->item->desc;
    attn_plan *longer_plan = NULL;
    attn_status st = ATTN_OK;

    choose_views(s, t.kind);
    if (s->round % 4 == 3) {
        longer.len_q += LONGER_Q;
        longer.len_kv += LONGER_K;
        st = plan(s, e, &longer, &longer_plan);
        if (st == ATTN_ERR_UNSUPPORTED) /* another problem, another answer */
            return;
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

static void run_round(session *s)
{
    const attn_softmax_desc *d = &s->item->desc;
    const uint64_t seed = s->seed + (uint64_t)s->round;
    const input_kind kind = (input_kind)((s->seed + (uint64_t)s->round) % INPUT_KINDS);
    const char *trouble = NULL;

    if (!inputs_make(&s->in, d, kind, s->round % 4 == 2, seed))
        trouble = "no memory for the inputs";
    else if (oracle_run(s->v->oracle, &s->in, &s->ref) != ATTN_OK)
        trouble = attn_last_error();
    for (size_t i = 0; i < s->n; i++) {
        entry *e = &s->entry[i];
        const double start = timing_now();

        if (!e->plan)
            continue;
        if (trouble)
            fail(e, "the oracle", trouble);
        else
            run_entry(s, e);
        e->record.seconds += timing_now() - start;
    }
    inputs_free(&s->in);
    oracle_free(&s->ref);
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
