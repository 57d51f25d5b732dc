/* SPDX-License-Identifier: MIT */
/* tools/attn-validate.c: every device x every variant that says yes x every problem,
 * against the double-precision oracle, and device against device. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "cli.h"
#include "misuse.h"
#include "oracle.h"
#include "report.h"
#include "stress.h"
#include "timing.h"
#include "validate.h"

enum { MAX_DEVICES = 64, MAX_ONLY = 16 };

enum {
    OPT_VARIANT,
    OPT_CASES,
    OPT_SEED,
    OPT_ROUNDS,
    OPT_REPEAT,
    OPT_STRESS,
    OPT_MAX_WORK,
    OPT_MARKDOWN,
    OPT_JUNIT
};

static const cli_option options[] = {
    { .name = "variant",
      .key = OPT_VARIANT,
      .value = "NAME",
      .many = true,
      .about = "check this variant only; may be given again" },
    { .name = "cases",
      .key = OPT_CASES,
      .value = "NAME",
      .many = true,
      .about = "problems of a file, or of a built-in list: small, tiny, medium, "
               "gradients, dropout, linear; "
               "default: all but tiny" },
    { .name = "seed",
      .key = OPT_SEED,
      .value = "N",
      .about = "of the random inputs; default 1" },
    { .name = "rounds",
      .key = OPT_ROUNDS,
      .value = "N",
      .about = "inputs and layouts that each problem is run with; default 4" },
    { .name = "repeat",
      .key = OPT_REPEAT,
      .value = "N",
      .about = "runs that must agree in every bit; default 3" },
    { .name = "stress",
      .key = OPT_STRESS,
      .value = "N",
      .about = "runs in the checks of threads, queues and contexts; 0: without these "
               "checks; default 100" },
    { .name = "max-work",
      .key = OPT_MAX_WORK,
      .value = "GFLOP",
      .about = "skip problems of more work than this; default: none" },
    { .name = "markdown", .key = OPT_MARKDOWN, .about = "print the report as Markdown" },
    { .name = "junit",
      .key = OPT_JUNIT,
      .value = "FILE",
      .about = "write the results for machines that read JUnit's XML" },
    { .name = NULL },
};

typedef struct settings {
    case_list cases;
    const char *only[MAX_ONLY];
    int n_only;
    int64_t seed, rounds, repeat, stress;
    double max_work;
    bool markdown, files, texts; /* --cases, and problems as arguments, were given */
    const char *junit;
    FILE *junit_file;
} settings;

static int take(void *to, int key, const char *value)
{
    settings *s = to;
    int status;

    switch (key) {
    case CLI_ARGUMENT: s->texts = true; return cases_add_text(&s->cases, value);
    case OPT_VARIANT:
        if (s->n_only == MAX_ONLY)
            return cli_fail(CLI_BAD, "--variant is given more than %d times", MAX_ONLY);
        s->only[s->n_only++] = value;
        return CLI_GO;
    case OPT_CASES: s->files = true; return cases_add_named(&s->cases, value);
    case OPT_SEED: return cli_integer("--seed", value, 0, INT64_MAX, &s->seed);
    case OPT_ROUNDS: return cli_integer("--rounds", value, 1, 1000, &s->rounds);
    case OPT_REPEAT: return cli_integer("--repeat", value, 1, 1000000, &s->repeat);
    case OPT_STRESS: return cli_integer("--stress", value, 0, 1000000, &s->stress);
    case OPT_MAX_WORK:
        status = cli_number("--max-work", value, &s->max_work);
        return status == CLI_GO && s->max_work <= 0
                   ? cli_fail(CLI_BAD, "--max-work is %s, want more than 0", value)
                   : status;
    case OPT_MARKDOWN: s->markdown = true; return CLI_GO;
    case OPT_JUNIT: s->junit = value; return CLI_GO;
    }
    return CLI_BAD;
}

static int read_settings(int argc, char **argv, cli_common *common, settings *s)
{
    static const cli_tool tool = {
        .name = "attn-validate",
        .usage = "[options] [PROBLEM...]",
        .about =
            "Runs every variant that takes a problem, on every device found, against a\n"
            "double-precision oracle: random and adversarial inputs, many layouts, "
            "poisoned\n"
            "memory, repeated runs, wrong calls, threads; and compares the devices with "
            "each\nother.\n"
            "A problem is a text such as "
            "softmax_fwd:f32,b2,hq4,hkv2,lq33,lk65,d64,causal.\n"
            "--device takes one selector, or several with commas between; default: all.",
        .options = options,
        .take = take,
    };
    int status;

    *s =
        (settings){ .seed = 1, .rounds = 4, .repeat = 3, .stress = 100, .max_work = 1e300 };
    status = cli_parse(&tool, argc, argv, common, s);
    if (status == CLI_GO && common->json && s->markdown)
        status = cli_fail(CLI_BAD, "--json and --markdown exclude each other; give one");
    if (status == CLI_GO && s->files && !s->cases.n)
        status = cli_fail(CLI_BAD, "--cases: there is no problem in it");
    if (status == CLI_GO && !s->cases.n)
        status = cases_add_named(&s->cases, "small");
    if (status == CLI_GO && !s->files && !s->texts)
        status = cases_add_named(&s->cases, "medium");
    if (status == CLI_GO && !s->files && !s->texts)
        status = cases_add_named(&s->cases, "gradients");
    if (status == CLI_GO && !s->files && !s->texts)
        status = cases_add_named(&s->cases, "linear");
    return status;
}

static int open_one(report *r, const char *name)
{
    report_device *d = &r->device[r->n_devices];
    attn_status st;

    if (r->n_devices == MAX_DEVICES)
        return cli_fail(CLI_BAD, "--device names more than %d devices", MAX_DEVICES);
    st = attn_ctx_create(name, &d->ctx);
    if (st == ATTN_OK)
        st = attn_ctx_info(d->ctx, &d->info);
    if (st != ATTN_OK)
        return cli_fail_attn(st, "--device");
    r->n_devices++;
    return CLI_GO;
}

/* Opens the devices of a list "host,opencl:1". */
static int open_named(report *r, const char *list)
{
    int status = CLI_GO;

    while (status == CLI_GO) {
        const size_t n = strcspn(list, ",");
        char name[64];

        if (!n)
            return cli_fail(CLI_BAD,
                            "--device has an empty name in its list; want selectors with "
                            "one comma between, such as host,opencl:0");
        snprintf(name, sizeof name, "%.*s", (int)n, list);
        status = open_one(r, name);
        if (!list[n])
            break;
        list += n + 1;
    }
    return status;
}

/* Opens all devices; one that is listed but cannot be opened is a failure. */
static int open_all(report *r)
{
    attn_device_info info[MAX_DEVICES];
    size_t n = 0;
    attn_status st = attn_device_list(info, MAX_DEVICES, &n);

    if (st != ATTN_OK)
        return cli_fail_attn(st, NULL);
    for (size_t i = 0; i < n && i < MAX_DEVICES; i++) {
        report_device *d = &r->device[r->n_devices];

        cli_progress("opening %s", info[i].selector);
        d->info = info[i];
        if (attn_ctx_create(info[i].selector, &d->ctx) != ATTN_OK) {
            record one = { .device = r->n_devices,
                           .variant = REPORT_CALLS,
                           .text = (char *)"open the device",
                           .type = ATTN_F32,
                           .outcome = OUTCOME_FAILED,
                           .what = (char *)attn_last_error() };
            report_add(r, &one);
        }
        r->n_devices++;
    }
    return r->n_devices ? CLI_GO : cli_fail(CLI_NOTHING, "there is no device");
}

static int open_devices(report *r, const char *named)
{
    int status;

    r->device = calloc(MAX_DEVICES, sizeof *r->device);
    if (!r->device)
        return cli_fail(CLI_NOTHING, "no memory for the devices");
    status = named && strcmp(named, "all") ? open_named(r, named) : open_all(r);
    if (status != CLI_GO)
        return status;
    r->between = calloc((size_t)(r->n_devices * r->n_devices), sizeof *r->between);
    return r->between ? CLI_GO : cli_fail(CLI_NOTHING, "no memory for the devices");
}

/* Whether a device has a variant for the pass of a problem. */
static bool has_variant(attn_ctx *ctx, const case_item *item, const char *name)
{
    attn_variant_info list[32];
    size_t n = 0;

    if (!ctx || problem_variants(ctx, &item->problem, list, 32, &n) != ATTN_OK)
        return false;
    for (size_t k = 0; k < n && k < 32; k++)
        if (!strcmp(list[k].name, name))
            return true;
    return false;
}

/* Whether some device has each variant that was asked for. */
static int check_only(const report *r, const settings *s)
{
    for (int i = 0; i < s->n_only; i++) {
        bool known = false;

        for (int d = 0; d < r->n_devices && !known; d++)
            for (size_t c = 0; c < s->cases.n && !known; c++)
                known = has_variant(r->device[d].ctx, &s->cases.item[c], s->only[i]);
        if (!known)
            return cli_fail(CLI_BAD,
                            "--variant is '%s', which no device here has; "
                            "attn-info --explain lists them",
                            s->only[i]);
    }
    return CLI_GO;
}

/* Where reports of wrong calls go. */
typedef struct misuse_to {
    report *report;
    int device;
    double start;
} misuse_to;

static void take_misuse(void *to, const char *name, const char *wrong)
{
    misuse_to *m = to;
    const record one = { .device = m->device,
                         .variant = REPORT_CALLS,
                         .text = (char *)name,
                         .type = ATTN_F32,
                         .outcome = wrong ? OUTCOME_FAILED : OUTCOME_PASSED,
                         .seconds = timing_now() - m->start,
                         .what = (char *)wrong };

    report_add(m->report, &one);
    m->start = timing_now();
}

static void run_all(report *r, const settings *s, attn_ctx *truth)
{
    const validation v = {
        .report = r, .oracle = truth, .only = s->only, .n_only = s->n_only
    };

    for (int d = 0; d < r->n_devices; d++) {
        misuse_to to = { r, d, timing_now() };
        cli_progress("wrong calls on %s", r->device[d].info.selector);
        if (!r->device[d].ctx)
            continue;
        misuse_run(r->device[d].ctx, truth, r->seed, take_misuse, &to);
        if (s->stress)
            stress_run(&(stress){ .report = r,
                                  .device = d,
                                  .runs = (int)s->stress,
                                  .only = s->only,
                                  .n_only = s->n_only });
    }
    for (size_t i = 0; i < s->cases.n; i++) {
        cli_progress("problem %zu of %zu, %zu failed: %s", i + 1, s->cases.n,
                     report_count(r, OUTCOME_FAILED), s->cases.item[i].text);
        validate_case(&v, &s->cases.item[i]);
    }
    cli_progress_end();
}

static int tell(const report *r, settings *s, const cli_common *common)
{
    const size_t passed = report_count(r, OUTCOME_PASSED);
    const size_t failed = report_count(r, OUTCOME_FAILED);
    const size_t skipped = report_count(r, OUTCOME_SKIPPED);
    int status = CLI_GO;

    if (common->json)
        status = report_json(r);
    else
        report_print(r, s->markdown ? TABLE_MARKDOWN : TABLE_PLAIN);
    if (status == CLI_GO && s->junit_file) {
        status = report_junit(r, s->junit_file, s->junit);
        s->junit_file = NULL;
    }
    fflush(stdout);
    fprintf(common->json ? stderr : stdout, "\n%zu passed, %zu failed, %zu skipped\n",
            passed, failed, skipped);
    if (status != CLI_GO)
        return status;
    if (r->lost)
        return cli_fail(CLI_NOTHING, "memory is out: results are missing");
    if (failed)
        return CLI_FAILED;
    if (report_any(r))
        return CLI_OK;
    return cli_fail(CLI_NOTHING,
                    "nothing could run: every variant said no, memory was out, or "
                    "--max-work is too small");
}

int main(int argc, char **argv)
{
    cli_common common;
    settings s;
    report r = { 0 };
    attn_ctx *truth = NULL;
    attn_status st;
    int status = read_settings(argc, argv, &common, &s);

    if (status != CLI_GO)
        goto done;
    r.n_cases = s.cases.n;
    r.seed = (uint64_t)s.seed;
    r.rounds = (int)s.rounds;
    r.repeat = (int)s.repeat;
    r.max_work = s.max_work;
    if ((st = attn_ctx_create("host", &truth)) != ATTN_OK) {
        status = cli_fail_attn(st, "the oracle");
        goto done;
    }
    status = open_devices(&r, common.device);
    if (status == CLI_GO)
        status = check_only(&r, &s);
    if (status == CLI_GO && s.junit && !(s.junit_file = fopen(s.junit, "w")))
        status = cli_fail(CLI_BAD, "--junit %s: %s", s.junit, strerror(errno));
    if (status == CLI_GO) {
        run_all(&r, &s, truth);
        status = tell(&r, &s, &common);
    }

done:
    if (s.junit_file)
        fclose(s.junit_file);
    for (int d = 0; d < r.n_devices; d++)
        attn_ctx_destroy(&r.device[d].ctx);
    attn_ctx_destroy(&truth);
    report_free(&r);
    free(r.device);
    cases_free(&s.cases);
    return cli_end(status);
}
