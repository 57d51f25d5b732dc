/* SPDX-License-Identifier: MIT */
/* tools/measure.c: warms up, runs again and again, takes medians. */
#include "measure.h"

#include <math.h>

#include "timing.h"

enum { MAX_RUNS = 20000, MIN_RUNS = 3, MAX_ENQUEUES = 200, SINGLES = 15, WARM_UPS = 3 };
enum { BLOCK_RUNS = 5 }; /* at least */

static const double WARM_UP = 0.1, ENQUEUE_TIME = 0.2, IDLE_S = 5e-3, THREADS_S = 0.1;

/* The part of a block that is timed: by then the clock is what the load leaves. */
static const double COUNTED = 0.6;

/* Readings of the device's clock, in ms. */
typedef struct readings {
    double ms[MAX_RUNS];
    size_t n;
} readings;

static attn_status run_timed(subject *s, void *stream, readings *to)
{
    const attn_args args = subject_args(s);
    uint64_t ns = 0;
    attn_status st = attn_execute_timed(s->plan, &args, stream, &ns);

    to->ms[to->n++] = (double)ns * 1e-6;
    return st;
}

/* Runs for `seconds`, at least `least` times. */
static attn_status run_for(subject *s, double seconds, size_t least, readings *to)
{
    const double start = timing_now();
    const size_t first = to->n;
    attn_status st = ATTN_OK;

    while (to->n < MAX_RUNS && st == ATTN_OK &&
           (to->n - first < least || timing_now() - start < seconds))
        st = run_timed(s, NULL, to);
    return st;
}

/* Keeps the best rates of all the times it is called. Threads of OpenBLAS and OpenMP spin
 * for a while after their work: they are let to stop. */
static void run_yardsticks(const yardsticks *y, double seconds, measurement *m)
{
    double start;

    if (!y->gemm && !y->sweep)
        return;
    timing_idle(THREADS_S);
    start = timing_now();
    while (y->gemm && timing_now() - start < seconds)
        m->product_gflop_s = fmax(m->product_gflop_s, gemm_rate(y->gemm));
    timing_idle(THREADS_S);
    start = timing_now();
    while (y->sweep && timing_now() - start < seconds / 2)
        m->memory_gb_s = fmax(m->memory_gb_s, sweep_rate(y->sweep));
    timing_idle(THREADS_S);
}

static void take_ceiling(const yardsticks *y, const subject *s)
{
    if (!y->ceiling)
        return;
    s->m->product_gflop_s = y->ceiling->product_gflop_s[s->in->desc.type];
    s->m->memory_gb_s = y->ceiling->copy_gb_s;
}

static attn_status run_repeated(subject *s, double seconds, const yardsticks *against,
                                readings *r)
{
    attn_status st = run_for(s, WARM_UP, 1, r);

    r->n = 0;
    if (st != ATTN_OK)
        return subject_failed(s, st, attn_last_error());
    run_yardsticks(against, seconds / 2, s->m);
    for (int half = 0; half < 2 && st == ATTN_OK; half++)
        st = run_for(s, seconds / 2, (MIN_RUNS + 1) / 2, r);
    run_yardsticks(against, seconds / 2, s->m);
    return st == ATTN_OK ? st : subject_failed(s, st, attn_last_error());
}

static attn_status run_singles(subject *s, const lane_cuda *lane, readings *r)
{
    attn_status st = ATTN_OK;

    for (int i = 0; i < WARM_UPS + SINGLES && st == ATTN_OK; i++) {
        r->n = i <= WARM_UPS ? 0 : r->n;
        timing_idle(IDLE_S);
        if (lane && !lane_cuda_hold(lane))
            return subject_failed(s, ATTN_ERR_DEVICE, "cuLaunchHostFunc failed");
        st = run_timed(s, lane ? lane->stream : NULL, r);
    }
    return st == ATTN_OK ? st : subject_failed(s, st, attn_last_error());
}

static attn_status time_enqueue(subject *s)
{
    const double start = timing_now();
    double us[MAX_ENQUEUES];
    size_t n = 0;

    while (n < MAX_ENQUEUES && (n < MIN_RUNS || timing_now() - start < ENQUEUE_TIME)) {
        const attn_args args = subject_args(s);
        const double before = timing_now();
        attn_status st = attn_execute(s->plan, &args, NULL);

        us[n++] = (timing_now() - before) * 1e6;
        if (st == ATTN_OK)
            st = attn_ctx_wait(s->ctx);
        if (st != ATTN_OK)
            return st;
    }
    s->m->enqueue_us = timing_median(us, n);
    return ATTN_OK;
}

/* What a measurement ends with, whichever way it was made. */
static attn_status finish(subject *s, double *ms, size_t n, size_t runs,
                          const yardsticks *against)
{
    attn_device_info info = { .kind = ATTN_DEVICE_HOST };
    attn_status st = attn_ctx_info(s->ctx, &info);

    s->m->ms = timing_median(ms, n);
    s->m->ms_least = ms[0];
    s->m->ms_most = ms[n - 1];
    s->m->readings = n;
    s->m->runs = runs;
    if (isnan(s->m->memory_gb_s))
        run_yardsticks(against, WARM_UP, s->m);
    if (st == ATTN_OK && info.kind != ATTN_DEVICE_HOST && isnan(s->m->enqueue_us))
        st = time_enqueue(s);
    take_ceiling(against, s);
    subject_rates(s);
    return st;
}

void measure(subject *s, timing_way how, double seconds, const yardsticks *against)
{
    static readings r;
    attn_status st;

    r.n = 0;
    st = how == TIMING_SINGLE ? run_singles(s, against->lane, &r)
                              : run_repeated(s, seconds, against, &r);
    if (st == ATTN_OK && (st = finish(s, r.ms, r.n, r.n, against)) != ATTN_OK)
        subject_failed(s, st, attn_last_error());
}

/* Back to back; the host's clock will do, since the time is long and the device busy. */
static attn_status run_many(subject *s, int64_t n)
{
    attn_status st = ATTN_OK;

    for (int64_t i = 0; i < n && st == ATTN_OK; i++) {
        const attn_args args = subject_args(s);
        st = attn_execute(s->plan, &args, NULL);
    }
    return st == ATTN_OK ? attn_ctx_wait(s->ctx) : st;
}

/* One block of runs that take about `ms` each; its reading goes to *to. */
static attn_status run_block(subject *s, double seconds, double ms, block_readings *to)
{
    const int64_t n = (int64_t)fmax(BLOCK_RUNS, ceil(seconds * 1e3 / fmax(ms, 1e-3)));
    const int64_t counted = (int64_t)ceil(COUNTED * (double)n);
    attn_status st = run_many(s, n - counted);
    const double start = timing_now();

    if (st == ATTN_OK)
        st = run_many(s, counted);
    to->ms[to->n++] = (timing_now() - start) * 1e3 / (double)counted;
    to->runs += (size_t)counted;
    return st;
}

/* Warms up, and finds out how long a run takes. */
static attn_status find_pace(subject *s, double *ms)
{
    static readings r;
    attn_status st;

    r.n = 0;
    st = run_for(s, WARM_UP, MIN_RUNS, &r);
    *ms = timing_median(r.ms, r.n);
    return st;
}

static double mean_of_last_two(const block_readings *r)
{
    return (r->ms[r->n - 1] + r->ms[r->n - 2]) / 2;
}

/* The subject whose call failed keeps the status. */
static bool good(subject *s, attn_status st)
{
    return st == ATTN_OK || subject_failed(s, st, attn_last_error()) == ATTN_OK;
}

void measure_blocks(subject *a, subject *b, double seconds, block_readings *of_a,
                    const yardsticks *against_a, const yardsticks *against_b)
{
    block_readings of_b = { .n = 0 }, kept;
    double pace_a, pace_b = 0;

    if (!good(a, find_pace(a, &pace_a)) || (b && !good(b, find_pace(b, &pace_b))) ||
        !good(a, run_block(a, seconds, pace_a, of_a)) ||
        (b && !good(b, run_block(b, seconds, pace_b, &of_b))) ||
        (b && !good(b, run_block(b, seconds, pace_b, &of_b))) ||
        !good(a, run_block(a, seconds, pace_a, of_a)))
        return;
    if (b) {
        b->m->of_first = mean_of_last_two(of_a) / mean_of_last_two(&of_b);
        if (!good(b, finish(b, of_b.ms, of_b.n, of_b.runs, against_b)))
            return;
    }
    kept = *of_a; /* which the median sorts */
    good(a, finish(a, kept.ms, kept.n, kept.runs, against_a));
}
