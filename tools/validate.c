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
    bool chosen;               /* what the planner would take on that device */
    attn_plan *plan;           /* NULL: nothing (more) to run                */
    record record;
    char what[WHAT_BYTES];
} entry;

/* The problem in hand. */
typedef struct bench {
    const validation *v;
    const case_item *item;
    uint64_t seed;
    entry *entry;
    size_t n;
    float **o;                 /* each device's own answer in round 0, or NULL */

    int round;
    inputs in;
    oracle ref;
} bench;

static attn_ctx *ctx_of(const bench *b, const entry *e)
{
    return b->v->report->device[e->device].ctx;
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
static void ask(bench *b, int device)
{
    attn_variant_info list[MAX_VARIANTS];
    attn_ctx *ctx = b->v->report->device[device].ctx;
    bool chosen = false;
    size_t n = 0;

    if (!ctx)
        return;
    if (attn_softmax_variants(ctx, &b->item->desc, list, MAX_VARIANTS, &n) != ATTN_OK) {
        record one = { .device = device, .variant = "(all)", .text = b->item->text,
                       .type = b->item->desc.type, .outcome = OUTCOME_FAILED,
                       .what = (char *)attn_last_error() };
        report_add(b->v->report, &one);
        return;
    }
    for (size_t i = 0; i < n && i < MAX_VARIANTS; i++) {
        entry *e = &b->entry[b->n];
        if (!wanted(b->v, list[i].name))
            continue;
        *e = (entry){ .device = device, .info = list[i],
                      .chosen = list[i].applicable && !chosen };
        e->record = (record){ .device = device, .variant = list[i].name,
                              .text = b->item->text, .type = b->item->desc.type,
                              .outcome = OUTCOME_PASSED };
        chosen = chosen || list[i].applicable;
        b->n++;
    }
}

static attn_status plan(const bench *b, const entry *e, const attn_softmax_desc *d,
                        attn_plan **out)
{
    const attn_options options = { .size = sizeof options, .variant = e->info.name };
    return attn_plan_softmax_with(ctx_of(b, e), d, &options, out);
}

/* Plans one variant, or notes why not. */
static void prepare(bench *b, entry *e)
{
    const double work = visible_flop(&b->item->desc, NULL) / 1e9;
    const double most = b->v->report->max_work;
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
    st = plan(b, e, &b->item->desc, &e->plan);
    if (st == ATTN_ERR_UNSUPPORTED) {
        e->record.outcome = OUTCOME_NO;
        snprintf(e->what, sizeof e->what, "%s", attn_last_error());
    } else if (st != ATTN_OK) {
        fail(e, attn_status_name(st), attn_last_error());
    }
}

/* Layouts of the round: all plain, or one of those that each tensor's class allows. */
static void choose_views(const bench *b, view_kind kind[TRIAL_TENSORS])
{
    for (int i = 0; i < TRIAL_TENSORS; i++) {
        const uint64_t bits = random_bits(b->seed, 100 + (uint64_t)b->round, (uint64_t)i);
        const bool any = !trial_class_bytes(&b->item->desc, (trial_block)i);

        kind[i] = VIEW_PLAIN;
        if (b->round == 0)
            continue;
        if (b->round % 4 == 2 && (i == TRIAL_K || i == TRIAL_V))
            kind[i] = VIEW_SHARED;
        else if (any && bits >> 32 & 1)
            kind[i] = bits & 1 ? VIEW_TRANSPOSED : VIEW_SPREAD;
        else
            kind[i] = (view_kind)(bits % VIEW_SHARED);
    }
}

static void describe(const bench *b, const trial *t, char *text, size_t cap)
{
    snprintf(text, cap, "round %d, %s inputs, q %s, k %s, v %s, o %s%s%s", b->round,
             input_kind_name(b->in.kind), view_kind_name(t->kind[TRIAL_Q]),
             view_kind_name(t->kind[TRIAL_K]), view_kind_name(t->kind[TRIAL_V]),
             view_kind_name(t->kind[TRIAL_O]), t->bytes[TRIAL_LSE] ? ", lse " : "",
             t->bytes[TRIAL_LSE] ? view_kind_name(t->kind[TRIAL_LSE]) : "");
}

/* The last batch and key/value head as a problem of its own, through the same
 * variant: rows alone give the same bits as in company. */
static bool check_alone(const bench *b, const entry *e, const trial *whole, char *what,
                        size_t cap)
{
    const attn_softmax_desc *d = &b->in.desc;
    const int64_t group = d->heads_kv ? d->heads_q / d->heads_kv : 0;
    const size_t rows = (size_t)(group * d->len_q), dv = (size_t)visible_dim_v(d);
    const size_t first = (size_t)(d->batch * d->heads_q * d->len_q) - rows;
    inputs cut;
    trial t = { .ctx = whole->ctx, .in = &cut, .repeat = 1 };
    attn_plan *alone = NULL;
    bool ok = false;

    if (d->batch * d->heads_kv < 2 || !rows)
        return true;
    if (!inputs_cut(&cut, &b->in, d->batch - 1, d->heads_kv - 1)) {
        snprintf(what, cap, "the last head alone: no memory");
        return false;
    }
    if (plan(b, e, &cut.desc, &alone) != ATTN_OK) {
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
static void compare_devices(bench *b, const entry *e, trial *t)
{
    const attn_type type = b->in.desc.type;
    report *r = b->v->report;

    for (int other = 0; other < r->n_devices; other++) {
        const bool before = other < e->device;
        difference *x = &r->between[before ? other * r->n_devices + e->device
                                           : e->device * r->n_devices + other];
        double norm;

        if (!b->o[other] || other == e->device)
            continue;
        norm = compare_results(&b->in, &b->ref, t->o, b->o[other]);
        x->problems[type - 1]++;
        if (norm > x->norm[type - 1]) {
            x->norm[type - 1] = norm;
            x->text[type - 1] = b->item->text;
        }
    }
    b->o[e->device] = t->o;
    t->o = NULL;
}

/* The checks of one variant in this round. */
static void run(bench *b, entry *e, trial *t)
{
    comparison c = { 0 };
    char where[256], what[600] = "";
    bool ok = trial_open(t) && trial_run(t);

    describe(b, t, where, sizeof where);
    if (!ok) {
        fail(e, where, t->what);
        return;
    }
    compare(&b->in, &b->ref, t->o, t->lse, &c);
    e->record.norm = fmax(e->record.norm, c.norm);
    e->record.share = fmax(e->record.share, c.share);
    if (c.share > 1)
        fail(e, where, c.what);
    else if (b->round == 0 && !check_alone(b, e, t, what, sizeof what))
        fail(e, where, what);
    else if (b->round == 1 && !check_left_out(t))
        fail(e, where, t->what);
    if (b->round == 0 && e->chosen)
        compare_devices(b, e, t);
}

static void run_entry(bench *b, entry *e)
{
    trial t = { .ctx = ctx_of(b, e), .plan = e->plan, .in = &b->in,
                .repeat = b->v->report->repeat };
    attn_softmax_desc longer = b->item->desc;
    attn_plan *longer_plan = NULL;

    choose_views(b, t.kind);
    if (b->round % 4 == 3) {
        longer.len_q += LONGER_Q;
        longer.len_kv += LONGER_K;
        if (plan(b, e, &longer, &longer_plan) != ATTN_OK) {
            fail(e, "a plan for longer sequences", attn_last_error());
            return;
        }
        t.plan = longer_plan;
    }
    run(b, e, &t);
    trial_free(&t);
    attn_plan_destroy(&longer_plan);
}

static void run_round(bench *b)
{
    const attn_softmax_desc *d = &b->item->desc;
    const uint64_t seed = b->seed + (uint64_t)b->round;
    const input_kind kind = (input_kind)((b->seed + (uint64_t)b->round) % INPUT_KINDS);
    const char *trouble = NULL;

    if (!inputs_make(&b->in, d, kind, b->round % 4 == 2, seed))
        trouble = "no memory for the inputs";
    else if (oracle_run(b->v->oracle, &b->in, &b->ref) != ATTN_OK)
        trouble = attn_last_error();
    for (size_t i = 0; i < b->n; i++) {
        entry *e = &b->entry[i];
        const double start = timing_now();

        if (!e->plan)
            continue;
        if (trouble)
            fail(e, "the oracle", trouble);
        else
            run_entry(b, e);
        e->record.seconds += timing_now() - start;
    }
    inputs_free(&b->in);
    oracle_free(&b->ref);
}

static bool any_left(const bench *b)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->entry[i].plan)
            return true;
    return false;
}

void validate_case(const validation *v, const case_item *item)
{
    const int n = v->report->n_devices;
    bench b = { .v = v, .item = item, .seed = random_seed_of(item->text, v->report->seed) };

    b.entry = calloc((size_t)n * MAX_VARIANTS, sizeof *b.entry);
    b.o = calloc((size_t)n, sizeof *b.o);
    if (!b.entry || !b.o) {
        v->report->lost = true;
        goto done;
    }
    for (int d = 0; d < n; d++)
        ask(&b, d);
    for (size_t i = 0; i < b.n; i++) {
        const double start = timing_now();
        prepare(&b, &b.entry[i]);
        b.entry[i].record.seconds = timing_now() - start;
    }
    for (b.round = 0; b.round < v->report->rounds && any_left(&b); b.round++)
        run_round(&b);
    for (size_t i = 0; i < b.n; i++) {
        entry *e = &b.entry[i];
        e->record.what = e->what[0] ? e->what : NULL;
        report_add(v->report, &e->record);
        attn_plan_destroy(&e->plan);
    }

done:
    for (int d = 0; b.o && d < n; d++)
        free(b.o[d]);
    free(b.o);
    free(b.entry);
}
