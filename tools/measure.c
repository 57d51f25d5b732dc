/* SPDX-License-Identifier: MIT */
/* tools/measure.c: plans, warms up, runs in blocks, takes medians. */
#define _POSIX_C_SOURCE 200809L /* nanosleep */
#include "measure.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "inputs.h"
#include "timing.h"
#include "trial.h"
#include "visible.h"

enum { MAX_RUNS = 20000, PLANS = 5, MIN_RUNS = 3, MAX_ENQUEUES = 200 };

static const double WARM_UP = 0.1, ENQUEUE_TIME = 0.2;

/* Threads of OpenBLAS and OpenMP spin for a while after their work; let them stop. */
static void pause_for_threads(void)
{
    nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
}

static void failed(measurement *m, attn_status st)
{
    m->status = st;
    snprintf(m->why, sizeof m->why, "%s", attn_last_error());
}

static attn_status time_plan(attn_ctx *ctx, const attn_softmax_desc *d, const char *variant,
                             attn_plan **plan, double *ms)
{
    const attn_options options = { .size = sizeof options, .variant = variant };
    const double start = timing_now();
    attn_status st = attn_plan_softmax_with(ctx, d, &options, plan);

    *ms = (timing_now() - start) * 1e3;
    return st;
}

static attn_status time_plans(attn_ctx *ctx, const attn_softmax_desc *d,
                              const char *variant, attn_plan **plan, measurement *m)
{
    double ms[PLANS];
    attn_status st = time_plan(ctx, d, variant, plan, &m->first_plan_ms);

    for (int i = 0; i < PLANS && st == ATTN_OK; i++) {
        attn_plan_destroy(plan);
        st = time_plan(ctx, d, variant, plan, &ms[i]);
    }
    if (st == ATTN_OK)
        m->plan_ms = timing_median(ms, PLANS);
    return st;
}

/* Readings of the device's clock, in ms. */
typedef struct readings {
    double ms[MAX_RUNS];
    size_t n;
} readings;

/* Runs for `seconds`, at least `least` times. */
static attn_status run_block(const trial *t, double seconds, size_t least, readings *to)
{
    const double start = timing_now();
    const size_t first = to->n;
    attn_status st = ATTN_OK;

    while (to->n < MAX_RUNS && st == ATTN_OK &&
           (to->n - first < least || timing_now() - start < seconds)) {
        uint64_t ns = 0;
        st = attn_execute_timed(t->plan, &t->args, NULL, &ns);
        to->ms[to->n++] = (double)ns * 1e-6;
    }
    return st;
}

/* Keeps the best rates of all the times it is called. */
static void run_yardsticks(const yardsticks *y, double seconds, measurement *m)
{
    double start = timing_now();

    pause_for_threads();
    while (y->gemm && timing_now() - start < seconds)
        m->gemm_gflop_s = fmax(m->gemm_gflop_s, gemm_rate(y->gemm));
    pause_for_threads();
    start = timing_now();
    while (y->sweep && timing_now() - start < seconds / 2)
        m->read_gb_s = fmax(m->read_gb_s, sweep_rate(y->sweep));
    pause_for_threads();
}

static attn_status run_blocks(const trial *t, double min_time, const yardsticks *against,
                              measurement *m)
{
    static readings r;
    attn_status st;

    r.n = 0;
    if ((st = run_block(t, WARM_UP, 1, &r)) != ATTN_OK)
        return st;
    r.n = 0;
    run_yardsticks(against, min_time / 2, m);
    for (int half = 0; half < 2 && st == ATTN_OK; half++)
        st = run_block(t, min_time / 2, (MIN_RUNS + 1) / 2, &r);
    if (st != ATTN_OK)
        return st;
    run_yardsticks(against, min_time / 2, m);
    m->ms = timing_median(r.ms, r.n);
    m->ms_least = r.ms[0];
    m->ms_most = r.ms[r.n - 1];
    m->runs = r.n;
    return ATTN_OK;
}

static attn_status time_enqueue(const trial *t, measurement *m)
{
    const double start = timing_now();
    double us[MAX_ENQUEUES];
    size_t n = 0;

    while (n < MAX_ENQUEUES && (n < MIN_RUNS || timing_now() - start < ENQUEUE_TIME)) {
        const double before = timing_now();
        attn_status st = attn_execute(t->plan, &t->args, NULL);
        us[n++] = (timing_now() - before) * 1e6;
        if (st == ATTN_OK)
            st = attn_ctx_wait(t->ctx);
        if (st != ATTN_OK)
            return st;
    }
    m->enqueue_us = timing_median(us, n);
    return ATTN_OK;
}

static double tensor_bytes(const attn_softmax_desc *d)
{
    const double dv = (double)visible_dim_v(d), dim = (double)d->dim_qk;
    const double rows = (double)d->batch * (double)d->heads_q * (double)d->len_q;
    const double keys = (double)d->batch * (double)d->heads_kv * (double)d->len_kv;

    return (double)attn_type_bytes(d->type) * (dim + dv) * (rows + keys) +
           (d->use & ATTN_USE_LSE ? 4 * rows : 0);
}

static attn_status measure_plan(trial *t, double min_time, const yardsticks *against,
                                measurement *m)
{
    attn_device_info info = { .kind = ATTN_DEVICE_HOST };
    attn_status st = attn_ctx_info(t->ctx, &info);

    if (st == ATTN_OK)
        st = run_blocks(t, min_time, against, m);
    if (st == ATTN_OK && info.kind != ATTN_DEVICE_HOST)
        st = time_enqueue(t, m);
    if (st != ATTN_OK)
        return st;
    m->gflop_s = visible_flop(&t->in->desc) / m->ms / 1e6;
    m->gb_s = tensor_bytes(&t->in->desc) / m->ms / 1e6;
    m->gemm_ratio = m->gflop_s / m->gemm_gflop_s; /* NAN without one */
    m->read_ratio = m->gb_s / m->read_gb_s;
    return ATTN_OK;
}

void measure(attn_ctx *ctx, const attn_softmax_desc *desc, const char *variant,
             double min_time, const yardsticks *against, measurement *m)
{
    inputs in = { .q = NULL };
    trial t = { .ctx = ctx, .in = &in };
    attn_plan *plan = NULL;
    attn_status st;

    *m = (measurement){ .ms = NAN,
                        .ms_least = NAN,
                        .ms_most = NAN,
                        .gflop_s = NAN,
                        .gb_s = NAN,
                        .first_plan_ms = NAN,
                        .plan_ms = NAN,
                        .enqueue_us = NAN,
                        .gemm_gflop_s = NAN,
                        .gemm_ratio = NAN,
                        .read_gb_s = NAN,
                        .read_ratio = NAN };
    attn_softmax_text(desc, m->problem, sizeof m->problem, NULL);
    snprintf(m->variant, sizeof m->variant, "%s", variant);
    if ((st = time_plans(ctx, desc, variant, &plan, m)) != ATTN_OK ||
        (st = attn_plan_text(plan, m->plan, sizeof m->plan, NULL)) != ATTN_OK) {
        failed(m, st);
        goto done;
    }
    m->plan[strcspn(m->plan, " ")] = '\0';
    t.plan = plan;
    if (!inputs_make(&in, desc, (input_how){ .full = true }, 1)) {
        m->status = ATTN_ERR_NO_MEMORY;
        snprintf(m->why, sizeof m->why, "no memory for the inputs");
        goto done;
    }
    if (!trial_open(&t)) {
        m->status = ATTN_ERR_NO_MEMORY;
        snprintf(m->why, sizeof m->why, "%s", t.what);
        goto done;
    }
    if ((st = measure_plan(&t, min_time, against, m)) != ATTN_OK)
        failed(m, st);

done:
    trial_free(&t);
    inputs_free(&in);
    attn_plan_destroy(&plan);
}
