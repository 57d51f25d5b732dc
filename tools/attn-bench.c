/* SPDX-License-Identifier: MIT */
/* tools/attn-bench.c: times variants with the device's own clock. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench_report.h"
#include "cases.h"
#include "cli.h"
#include "oracle.h"

enum { MAX_VARIANTS = 32, MAX_ONLY = 16, MAX_DEVICES = 2 };

enum {
    OPT_VARIANT,
    OPT_SWEEP,
    OPT_MIN_TIME,
    OPT_TIMING,
    OPT_COLD,
    OPT_AGAINST,
    OPT_CSV,
    OPT_CASES,
    OPT_PEER,
    OPT_PLOT,
    OPT_TRACE
};

static const cli_option options[] = {
    { .name = "variant",
      .key = OPT_VARIANT,
      .value = "NAME",
      .many = true,
      .about = "time this variant; may be given again; default: all that take the problem "
               "but the oracle and peers" },
    { .name = "sweep",
      .key = OPT_SWEEP,
      .value = "WHAT=N,N,...",
      .about = "run each problem with these numbers; WHAT is l (lq and lk), lq, lk, b, h "
               "(hq and hkv) or d" },
    { .name = "min-time",
      .key = OPT_MIN_TIME,
      .value = "SECONDS",
      .about =
          "of repeated runs, or of two blocks, without plans and warm-up; default 0.5" },
    { .name = "timing",
      .key = OPT_TIMING,
      .value = "WAY",
      .about = "repeated (runs one after the other), single (launches after idle "
               "milliseconds), blocks (back to back, in turn with the first variant); "
               "default: single on GPUs, else repeated" },
    { .name = "cold",
      .key = OPT_COLD,
      .about = "let copies of K and V take turns, so that they come from memory" },
    { .name = "against",
      .key = OPT_AGAINST,
      .value = "SELECTOR",
      .about = "time this device too, with --timing blocks in turn with the first" },
    { .name = "cases",
      .key = OPT_CASES,
      .value = "NAME",
      .many = true,
      .about = "problems of a file, or of a built-in list: small, tiny, medium, gradients, "
               "dropout, linear" },
    { .name = "csv", .key = OPT_CSV, .about = "print comma-separated values" },
    { .name = "peer",
      .key = OPT_PEER,
      .value = "NAME",
      .about = "time another library's attention beside ours: cudnn" },
    { .name = "plot",
      .key = OPT_PLOT,
      .value = "FILE.svg",
      .absent = "a picture of the times" },
    { .name = "trace",
      .key = OPT_TRACE,
      .value = "FILE.json",
      .absent = "a trace of the calls" },
    { .name = NULL },
};

typedef struct settings {
    case_list cases;
    const char *only[MAX_ONLY];
    int n_only;
    const char *sweep;
    const char *against;
    const char *peer; /* its variant; NULL: none */
    double min_time;
    int timing; /* a timing_way; -1: not given */
    bool cold, csv;
} settings;

/* Variants that are another library's attention: timed only if asked for. */
static const char *const peers[] = { "cudnn", NULL };
static const char *const peer_variants[] = { "softmax_fwd_cudnn" };

static bool is_peer(const char *variant)
{
    for (int i = 0; peers[i]; i++)
        if (!strcmp(peer_variants[i], variant))
            return true;
    return false;
}

static int take(void *to, int key, const char *value)
{
    settings *s = to;
    int status, which = 0;

    switch (key) {
    case CLI_ARGUMENT: return cases_add_text(&s->cases, value);
    case OPT_CASES: return cases_add_named(&s->cases, value);
    case OPT_VARIANT:
        if (s->n_only == MAX_ONLY)
            return cli_fail(CLI_BAD, "--variant is given more than %d times", MAX_ONLY);
        s->only[s->n_only++] = value;
        return CLI_GO;
    case OPT_SWEEP: s->sweep = value; return CLI_GO;
    case OPT_CSV: s->csv = true; return CLI_GO;
    case OPT_COLD: s->cold = true; return CLI_GO;
    case OPT_AGAINST: s->against = value; return CLI_GO;
    case OPT_PEER:
        status = cli_word("--peer", value, peers, &which);
        s->peer = peer_variants[which];
        return status;
    case OPT_TIMING: return cli_word("--timing", value, bench_timings, &s->timing);
    case OPT_MIN_TIME:
        status = cli_number("--min-time", value, &s->min_time);
        return status == CLI_GO && (s->min_time <= 0 || s->min_time > 3600)
                   ? cli_fail(CLI_BAD, "--min-time is %s, want more than 0, at most 3600",
                              value)
                   : status;
    }
    return CLI_BAD;
}

static int read_settings(int argc, char **argv, cli_common *common, settings *s)
{
    static const cli_tool tool = {
        .name = "attn-bench",
        .usage = "[options] [PROBLEM...]",
        .about = "Times attention on a device, by the device's own clock: the median of "
                 "repeated\n"
                 "runs after a warm-up, on normal random inputs. GFLOP/s counts 2 * (D + "
                 "Dv) for\n"
                 "every visible pair of a head, backward 2 * (3 * D + 2 * Dv), of linear "
                 "attention\n"
                 "4 * D * Dv + 128 * (D + Dv) a token; GB/s counts every tensor once. The "
                 "rates\n"
                 "stand beside what the device can do in the same run: on\n"
                 "GPUs the matrix product of cuBLAS or CLBlast and a copy of memory, on "
                 "processors\n"
                 "OpenBLAS's sgemm of size 1024 and a plain read of 256 MB, both timed in "
                 "turn with\n"
                 "it. Problems are texts such as\n"
                 "softmax_fwd:f32,b1,hq8,hkv8,lq1024,lk1024,d64,causal.",
        .options = options,
        .take = take,
    };
    static const char *const usual[] = {
        "softmax_fwd:f32,b1,hq8,hkv8,lq1024,lk1024,d64",
        "softmax_fwd:f32,b1,hq8,hkv8,lq1024,lk1024,d64,causal",
        "softmax_fwd:f32,b1,hq8,hkv8,lq1024,lk1024,d128",
        "softmax_fwd:f32,b1,hq8,hkv8,lq1024,lk1024,d128,causal",
    };
    int status;

    *s = (settings){ .min_time = 0.5, .timing = -1 };
    status = cli_parse(&tool, argc, argv, common, s);
    if (status == CLI_GO && common->json && s->csv)
        status = cli_fail(CLI_BAD, "--json and --csv exclude each other; give one");
    const bool none = !s->cases.n;
    for (size_t i = 0; none && status == CLI_GO && i < sizeof usual / sizeof usual[0]; i++)
        status = cases_add_text(&s->cases, usual[i]);
    if (status == CLI_GO && s->sweep)
        status = cases_sweep(&s->cases, s->sweep);
    return status;
}

static bool is_asked_peer(const settings *s, const char *variant)
{
    return s->peer && !strcmp(s->peer, variant);
}

/* Whether a variant is to be timed: those asked for; else all but the oracle and peers. */
static bool wanted(const settings *s, const char *variant)
{
    if (is_asked_peer(s, variant))
        return true;
    for (int i = 0; i < s->n_only; i++)
        if (!strcmp(s->only[i], variant))
            return true;
    return !s->n_only && !strstr(variant, "_reference") && !is_peer(variant);
}

static int check_peer(const settings *s, attn_variant_info (*list)[MAX_VARIANTS],
                      const size_t *n, int n_devices)
{
    for (int d = 0; d < n_devices; d++)
        for (size_t k = 0; k < n[d]; k++)
            if (!s->peer || is_asked_peer(s, list[d][k].name))
                return CLI_GO;
    return cli_fail(CLI_NOTHING, "--peer: no device here has %s, want a CUDA device",
                    s->peer);
}

/* The variants of both devices; those asked for must be among them. */
static int check_only(const settings *s, attn_variant_info (*list)[MAX_VARIANTS],
                      const size_t *n, int n_devices)
{
    for (int i = 0; i < s->n_only; i++) {
        char names[1024] = "";
        bool known = false;

        for (int d = 0; d < n_devices; d++)
            for (size_t k = 0; k < n[d]; k++) {
                const size_t used = strlen(names);
                known = known || !strcmp(list[d][k].name, s->only[i]);
                snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                         list[d][k].name);
            }
        if (!known)
            return cli_fail(CLI_BAD, "--variant is '%s', want one of %s", s->only[i],
                            names);
    }
    return CLI_GO;
}

/* Makes room for the next n measurements: earlier ones may move, these will not. */
static measurement *reserve(bench_report *to, size_t n)
{
    if (to->n + n > to->room) {
        const size_t room = 2 * (to->n + n);
        measurement *grown = realloc(to->item, room * sizeof *grown);
        if (!grown)
            return NULL;
        to->item = grown;
        to->room = room;
    }
    return to->item + to->n;
}

/* What is to be timed of one problem. */
typedef struct contender {
    const bench_device *device;
    const char *variant; /* static */
    uint32_t traits;
} contender;

/* In blocks the first that opens takes turns with each of the others. */
typedef struct session {
    const settings *s;
    const inputs *in;
    timing_way timing;
    subject first;
    const bench_device *first_device; /* NULL: none is open */
    block_readings readings;
} session;

static void time_blocks(session *x, const contender *c, measurement *m, bool last)
{
    subject next = { .ctx = c->device->ctx, .in = x->in, .m = m };
    const double seconds = x->s->min_time / 2;

    if (!subject_open(&next, c->device->info.selector, c->variant, x->s->cold)) {
        subject_close(&next);
    } else if (x->first_device) {
        measure_blocks(&x->first, &next, seconds, &x->readings, &x->first_device->against,
                       &c->device->against);
        if (x->first.m->status == ATTN_OK) {
            subject_close(&next);
        } else { /* who was not measured either */
            subject_close(&x->first);
            x->first = next;
            x->first_device = c->device;
            x->readings = (block_readings){ .n = 0 };
        }
    } else {
        x->first = next;
        x->first_device = c->device;
    }
    /* alone, or no other was measured */
    if (last && x->first_device && isnan(x->first.m->ms))
        measure_blocks(&x->first, NULL, seconds, &x->readings, &x->first_device->against,
                       NULL);
}

static void time_alone(session *x, const contender *c, measurement *m)
{
    subject one = { .ctx = c->device->ctx, .in = x->in, .m = m };

    if (subject_open(&one, c->device->info.selector, c->variant, x->s->cold))
        measure(&one, x->timing, x->s->min_time, &c->device->against);
    subject_close(&one);
}

/* By the blocks that the two ran in turn, else by the medians. */
static void set_of_peer(const settings *s, measurement *m, size_t n, timing_way timing)
{
    size_t peer = 0;

    while (peer < n && !is_asked_peer(s, m[peer].variant))
        peer++;
    for (size_t i = 0; i < n && peer < n; i++)
        if (i != peer && m[i].status == ATTN_OK && m[peer].status == ATTN_OK)
            m[i].of_peer =
                timing == TIMING_BLOCKS && peer == 0 ? m[i].of_first : m[peer].ms / m[i].ms;
}

static int time_all(const settings *s, const case_item *item, const contender *list,
                    size_t n, bench_report *to)
{
    measurement *m = reserve(to, n);
    session x = { .s = s, .timing = to->timing };
    inputs in = { .q = NULL };

    if (!m || !inputs_make_problem(&in, &item->problem, (input_how){ .full = true }, 1))
        return cli_fail(CLI_NOTHING, "no memory for %s", m ? "the inputs" : "the results");
    x.in = &in;
    for (size_t i = 0; i < n; i++) {
        cli_progress("%s %s: %s", list[i].device->info.selector, list[i].variant,
                     item->text);
        if (to->timing == TIMING_BLOCKS)
            time_blocks(&x, &list[i], &m[i], i == n - 1);
        else
            time_alone(&x, &list[i], &m[i]);
        m[i].vendor = list[i].traits & ATTN_TRAIT_VENDOR;
        to->n++;
    }
    set_of_peer(s, m, n, to->timing);
    if (x.first_device)
        subject_close(&x.first);
    inputs_free(&in);
    return CLI_GO;
}

static int bench_problem(const settings *s, const case_item *item, bench_report *to)
{
    attn_variant_info list[MAX_DEVICES][MAX_VARIANTS];
    contender found[MAX_DEVICES * MAX_VARIANTS];
    size_t n[MAX_DEVICES] = { 0 }, n_found = 0, n_all = 0;
    const int first = to->timing == TIMING_BLOCKS; /* the peer, to take turns with all */
    int status;

    for (int d = 0; d < to->n_devices; d++) {
        attn_status st = problem_variants(to->device[d].ctx, &item->problem, list[d],
                                          MAX_VARIANTS, &n[d]);
        if (st != ATTN_OK)
            return cli_fail_attn(st, item->text);
        n[d] = n[d] < MAX_VARIANTS ? n[d] : MAX_VARIANTS;
        n_all += n[d];
    }
    if (!n_all) /* gradients or linear attention, and no device that computes them */
        return CLI_GO;
    if ((status = check_only(s, list, n, to->n_devices)) != CLI_GO ||
        (status = check_peer(s, list, n, to->n_devices)) != CLI_GO)
        return status;
    for (int turn = 0; turn < 2; turn++)
        for (int d = 0; d < to->n_devices; d++)
            for (size_t i = 0; i < n[d]; i++) {
                const attn_variant_info *v = &list[d][i];
                const bool peer = is_asked_peer(s, v->name);

                if (peer == (turn != first) && wanted(s, v->name) &&
                    (v->applicable || s->n_only || peer))
                    found[n_found++] = (contender){ &to->device[d], v->name, v->traits };
            }
    return n_found ? time_all(s, item, found, n_found, to) : CLI_GO;
}

/* Problems that a variant asked for by name does not take, and failures. */
static void print_refused(const bench_report *r, FILE *to)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].status != ATTN_OK)
            fprintf(to, "%s %s %s: %s: %s\n", r->item[i].device, r->item[i].variant,
                    r->item[i].status == ATTN_ERR_UNSUPPORTED ? "says no" : "failed",
                    r->item[i].problem, r->item[i].why);
}

static int tell(const settings *s, const cli_common *common, const bench_report *r)
{
    size_t good = 0, refused = 0;
    int status = CLI_GO;

    cli_progress_end();
    for (size_t i = 0; i < r->n; i++) {
        good += r->item[i].status == ATTN_OK;
        refused += r->item[i].status == ATTN_ERR_UNSUPPORTED;
    }
    if (common->json) {
        status = bench_print_json(r);
    } else {
        if (s->csv)
            bench_print_csv(r);
        else
            bench_print_table(r);
        print_refused(r, s->csv ? stderr : stdout);
    }
    if (status != CLI_GO)
        return status;
    if (good + refused < r->n)
        return cli_fail(CLI_FAILED, "%zu of %zu measurements failed", r->n - good - refused,
                        r->n);
    return good ? CLI_OK : cli_fail(CLI_NOTHING, "no variant takes any of the problems");
}

/* Processors are held against BLAS and a read in turn with each measurement, GPUs against
 * ceilings that are measured once, in the same way as the rest. */
static void open_yardsticks(bench_device *d, const settings *s, timing_way timing)
{
    const bool processor =
        d->info.kind == ATTN_DEVICE_HOST || d->info.kind == ATTN_DEVICE_CPU;
    ceiling_how how = { .ctx = d->ctx,
                        .info = &d->info,
                        .blocks = timing == TIMING_BLOCKS };

    if (processor) {
        d->against.gemm = gemm_open(&d->gemm) ? &d->gemm : NULL;
        d->against.sweep = sweep_open(&d->sweep) ? &d->sweep : NULL;
        return;
    }
    if (!strncmp(d->info.selector, "cuda:", 5) && lane_cuda_open(&d->lane, d->ctx))
        d->against.lane = how.lane = &d->lane;
    for (size_t i = 0; i < s->cases.n; i++)
        how.types |= 1u << problem_type(&s->cases.item[i].problem);
    cli_progress("%s: ceilings", d->info.selector);
    ceiling_measure(&d->ceiling, &how);
    d->against.ceiling = &d->ceiling;
}

static int open_devices(const settings *s, const cli_common *common, bench_device *device,
                        bench_report *r)
{
    const cli_common second = { .device = s->against };
    int status = cli_open(common, &device[0].ctx);

    r->n_devices = 1;
    if (status == CLI_GO && s->against) {
        status = cli_open(&second, &device[1].ctx);
        r->n_devices = 2;
    }
    for (int i = 0; i < r->n_devices && status == CLI_GO; i++)
        attn_ctx_info(device[i].ctx, &device[i].info);
    if (status != CLI_GO)
        return status;
    r->timing = s->timing >= 0                           ? (timing_way)s->timing
                : device[0].info.kind == ATTN_DEVICE_GPU ? TIMING_SINGLE
                                                         : TIMING_REPEATED;
    for (int i = 0; i < r->n_devices; i++)
        open_yardsticks(&device[i], s, r->timing);
    return CLI_GO;
}

static void close_device(bench_device *d)
{
    gemm_close(&d->gemm);
    sweep_close(&d->sweep);
    lane_cuda_close(&d->lane);
    attn_ctx_destroy(&d->ctx);
}

int main(int argc, char **argv)
{
    static bench_device device[MAX_DEVICES];
    bench_report r = { .device = device };
    cli_common common;
    settings s;
    int status = read_settings(argc, argv, &common, &s);

    r.cold = s.cold;
    r.peer = s.peer;
    if (status == CLI_GO)
        status = open_devices(&s, &common, device, &r);
    for (size_t i = 0; i < s.cases.n && status == CLI_GO; i++)
        status = bench_problem(&s, &s.cases.item[i], &r);
    if (status == CLI_GO)
        status = tell(&s, &common, &r);
    for (int i = 0; i < MAX_DEVICES; i++)
        close_device(&device[i]);
    free(r.item);
    cases_free(&s.cases);
    return cli_end(status);
}
