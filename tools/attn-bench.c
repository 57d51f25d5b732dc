/* SPDX-License-Identifier: MIT */
/* tools/attn-bench.c: times variants with the device's own clock. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"
#include "cli.h"
#include "gemm.h"
#include "measure.h"
#include "oracle.h"
#include "table.h"

enum { MAX_VARIANTS = 32, MAX_ONLY = 16 };

enum {
    OPT_VARIANT,
    OPT_SWEEP,
    OPT_MIN_TIME,
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
               "but the oracle" },
    { .name = "sweep",
      .key = OPT_SWEEP,
      .value = "WHAT=N,N,...",
      .about = "run each problem with these numbers; WHAT is l (lq and lk), lq, lk, b, h "
               "(hq and hkv) or d" },
    { .name = "min-time",
      .key = OPT_MIN_TIME,
      .value = "SECONDS",
      .about = "of a measurement, not counting plans and warm-up; default 0.5" },
    { .name = "cases",
      .key = OPT_CASES,
      .value = "NAME",
      .many = true,
      .about = "problems of a file, or of a built-in list: small, tiny, medium" },
    { .name = "csv", .key = OPT_CSV, .about = "print comma-separated values" },
    { .name = "peer",
      .key = OPT_PEER,
      .value = "NAME",
      .absent = "another library side by side" },
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
    double min_time;
    bool csv;
} settings;

typedef struct results {
    measurement *item;
    size_t n, room;
} results;

static int take(void *to, int key, const char *value)
{
    settings *s = to;
    int status;

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
    case OPT_MIN_TIME:
        status = cli_number("--min-time", value, &s->min_time);
        return status == CLI_GO && (s->min_time <= 0 || s->min_time > 3600)
                   ? cli_fail(CLI_BAD, "--min-time is %s, want more than 0, at most 3600",
                              value)
                   : status;
    }
    return CLI_BAD;
}

/* Sweeps: every problem with every number in turn. */

static bool set_swept(attn_softmax_desc *d, const char *what, size_t n, int64_t value)
{
    const struct {
        const char *what;
        int64_t *to[2];
    } swept[] = {
        { "l", { &d->len_q, &d->len_kv } },     { "lq", { &d->len_q, NULL } },
        { "lk", { &d->len_kv, NULL } },         { "b", { &d->batch, NULL } },
        { "h", { &d->heads_q, &d->heads_kv } }, { "d", { &d->dim_qk, NULL } },
    };

    for (size_t i = 0; i < sizeof swept / sizeof swept[0]; i++) {
        if (strlen(swept[i].what) != n || strncmp(swept[i].what, what, n))
            continue;
        if (swept[i].to[0] == &d->dim_qk && d->dim_v == d->dim_qk)
            d->dim_v = value;
        for (int k = 0; k < 2 && swept[i].to[k]; k++)
            *swept[i].to[k] = value;
        return true;
    }
    return false;
}

static int sweep_problems(settings *s)
{
    const size_t name = strcspn(s->sweep, "=");
    case_list swept = { 0 };
    int status = CLI_GO;

    if (!s->sweep[name] || !s->sweep[name + 1])
        return cli_fail(CLI_BAD, "--sweep is '%s', want a form such as l=512,1024,2048",
                        s->sweep);
    for (size_t i = 0; i < s->cases.n && status == CLI_GO; i++) {
        const char *at = s->sweep + name;

        while (*at && status == CLI_GO) {
            attn_softmax_desc d = s->cases.item[i].desc;
            const size_t n = strcspn(++at, ",");
            char text[32];
            int64_t value = 0;

            snprintf(text, sizeof text, "%.*s", (int)n, at);
            at += n;
            status = cli_integer("--sweep", text, 0, INT32_MAX, &value);
            if (status == CLI_GO && !set_swept(&d, s->sweep, name, value))
                status =
                    cli_fail(CLI_BAD, "--sweep is over '%.*s', want l, lq, lk, b, h or d",
                             (int)name, s->sweep);
            if (status == CLI_GO)
                status = cases_add_desc(&swept, &d);
        }
    }
    cases_free(&s->cases);
    s->cases = swept;
    return status;
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
                 "every visible pair of a head; GB/s counts every tensor once. On "
                 "processors the\n"
                 "last columns are the rate as a share of OpenBLAS's sgemm of size 1024, "
                 "and GB/s\n"
                 "as one of a plain read of 256 MB, both timed in turn with it. Problems "
                 "are texts such as\n"
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

    *s = (settings){ .min_time = 0.5 };
    status = cli_parse(&tool, argc, argv, common, s);
    if (status == CLI_GO && common->json && s->csv)
        status = cli_fail(CLI_BAD, "--json and --csv exclude each other; give one");
    const bool none = !s->cases.n;
    for (size_t i = 0; none && status == CLI_GO && i < sizeof usual / sizeof usual[0]; i++)
        status = cases_add_text(&s->cases, usual[i]);
    if (status == CLI_GO && s->sweep)
        status = sweep_problems(s);
    return status;
}

/* Whether a variant is to be timed: those asked for; else all but the oracle. */
static bool wanted(const settings *s, const char *variant)
{
    for (int i = 0; i < s->n_only; i++)
        if (!strcmp(s->only[i], variant))
            return true;
    return !s->n_only && strcmp(variant, ORACLE_VARIANT) != 0;
}

static int check_only(const settings *s, const attn_variant_info *list, size_t n)
{
    for (int i = 0; i < s->n_only; i++) {
        char names[512] = "";
        bool known = false;

        for (size_t k = 0; k < n; k++) {
            const size_t used = strlen(names);
            known = known || !strcmp(list[k].name, s->only[i]);
            snprintf(names + used, sizeof names - used, "%s%s", k ? ", " : "",
                     list[k].name);
        }
        if (!known)
            return cli_fail(CLI_BAD, "--variant is '%s', want one of %s", s->only[i],
                            names);
    }
    return CLI_GO;
}

static measurement *next(results *to)
{
    if (to->n == to->room) {
        const size_t room = to->room ? 2 * to->room : 64;
        measurement *grown = realloc(to->item, room * sizeof *grown);
        if (!grown)
            return NULL;
        to->item = grown;
        to->room = room;
    }
    return &to->item[to->n++];
}

static int bench_problem(attn_ctx *ctx, const settings *s, const case_item *item,
                         const yardsticks *against, results *to)
{
    attn_variant_info list[MAX_VARIANTS];
    size_t n = 0;
    attn_status st = attn_softmax_variants(ctx, &item->desc, list, MAX_VARIANTS, &n);
    int status;

    if (st != ATTN_OK)
        return cli_fail_attn(st, item->text);
    n = n < MAX_VARIANTS ? n : MAX_VARIANTS;
    if ((status = check_only(s, list, n)) != CLI_GO)
        return status;
    for (size_t i = 0; i < n; i++) {
        measurement *m;

        if (!wanted(s, list[i].name) || (!list[i].applicable && !s->n_only))
            continue;
        cli_progress("%s: %s", list[i].name, item->text);
        if (!(m = next(to)))
            return cli_fail(CLI_NOTHING, "no memory for the results");
        measure(ctx, &item->desc, list[i].name, s->min_time, against, m);
    }
    return CLI_GO;
}

/* The forms of the results. */

static void number_cell(table *t, const char *format, double x)
{
    char text[32];

    snprintf(text, sizeof text, format, x);
    table_cell(t, "%s", isnan(x) ? "" : text);
}

static void print_table(const results *r, bool csv)
{
    static const char *const heads[] = { "problem",       "variant", "ms",
                                         "GFLOP/s",       "GB/s",    "runs",
                                         "first plan ms", "plan ms", "enqueue us",
                                         "of sgemm",      "of read" };
    static const char *const csv_heads[] = { "problem",       "variant", "ms",
                                             "gflop_s",       "gb_s",    "runs",
                                             "first_plan_ms", "plan_ms", "enqueue_us",
                                             "of_sgemm",      "of_read" };
    table t = { .columns = 11, .heads = csv ? csv_heads : heads, .align = "llrrrrrrrrr" };

    for (size_t i = 0; i < r->n; i++) {
        const measurement *m = &r->item[i];

        if (m->status != ATTN_OK)
            continue;
        table_cell(&t, "%s", m->problem);
        table_cell(&t, "%s", strchr(m->plan, ':') ? strchr(m->plan, ':') + 1 : m->plan);
        number_cell(&t, csv ? "%.6f" : "%.3f", m->ms);
        number_cell(&t, csv ? "%.3f" : "%.1f", m->gflop_s);
        number_cell(&t, csv ? "%.3f" : "%.2f", m->gb_s);
        table_cell(&t, "%zu", m->runs);
        number_cell(&t, "%.2f", m->first_plan_ms);
        number_cell(&t, "%.3f", m->plan_ms);
        number_cell(&t, "%.1f", m->enqueue_us);
        number_cell(&t, "%.3f", m->gemm_ratio);
        number_cell(&t, "%.3f", m->read_ratio);
    }
    table_print(&t, csv ? TABLE_CSV : TABLE_PLAIN, stdout);
    table_free(&t);
}

/* Problems that a variant asked for by name does not take, and failures. */
static void print_refused(const results *r, FILE *to)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].status != ATTN_OK)
            fprintf(to, "%s %s: %s: %s\n", r->item[i].variant,
                    r->item[i].status == ATTN_ERR_UNSUPPORTED ? "says no" : "failed",
                    r->item[i].problem, r->item[i].why);
}

static void add_number(cJSON *o, const char *name, double x)
{
    if (isfinite(x))
        cJSON_AddNumberToObject(o, name, x);
    else
        cJSON_AddNullToObject(o, name);
}

static cJSON *measurement_json(const measurement *m)
{
    cJSON *o = cJSON_CreateObject();

    cli_json_text(o, "problem", m->problem);
    cli_json_text(o, "variant", m->variant);
    cli_json_text(o, "status", attn_status_name(m->status));
    if (m->status != ATTN_OK) {
        cli_json_text(o, "why", m->why);
        return o;
    }
    cli_json_text(o, "plan", m->plan);
    cJSON_AddNumberToObject(o, "runs", (double)m->runs);
    add_number(o, "ms", m->ms);
    add_number(o, "ms_least", m->ms_least);
    add_number(o, "ms_most", m->ms_most);
    add_number(o, "gflop_s", m->gflop_s);
    add_number(o, "gb_s", m->gb_s);
    add_number(o, "first_plan_ms", m->first_plan_ms);
    add_number(o, "plan_ms", m->plan_ms);
    add_number(o, "enqueue_us", m->enqueue_us);
    add_number(o, "sgemm_gflop_s", m->gemm_gflop_s);
    add_number(o, "of_sgemm", m->gemm_ratio);
    add_number(o, "read_gb_s", m->read_gb_s);
    add_number(o, "of_read", m->read_ratio);
    return o;
}

static int print_json(const results *r, const attn_device_info *info, const gemm *yardstick)
{
    cJSON *o = cJSON_CreateObject(), *list;

    cli_json_text(o, "version", attn_version());
    cli_json_text(o, "device", info->selector);
    cli_json_text(o, "name", info->name);
    cli_json_text(o, "platform", info->platform);
    cli_json_text(o, "sgemm", yardstick->name[0] ? yardstick->name : NULL);
    if (yardstick->absent[0])
        cli_json_text(o, "sgemm_absent", yardstick->absent);
    list = cJSON_AddArrayToObject(o, "results");
    for (size_t i = 0; i < r->n; i++)
        cJSON_AddItemToArray(list, measurement_json(&r->item[i]));
    return cli_json_print(o);
}

static void print_header(const attn_device_info *info, const gemm *yardstick,
                         const results *r)
{
    double best = 0, read = 0;

    for (size_t i = 0; i < r->n; i++) {
        best = fmax(best, r->item[i].gemm_gflop_s);
        read = fmax(read, r->item[i].read_gb_s);
    }
    printf("%s: %s, %.60s\n", info->selector, info->name,
           info->isa[0] ? info->isa : info->platform);
    if (yardstick->name[0] && best > 0)
        printf("sgemm of size %d: %.1f GFLOP/s at best (%s)\n", GEMM_SIZE, best,
               yardstick->name);
    else if (yardstick->absent[0])
        printf("no ratio to sgemm: %s\n", yardstick->absent);
    if (read > 0)
        printf("plain read of memory: %.1f GB/s at best\n", read);
    printf("\n");
}

static int tell(const settings *s, const cli_common *common, const attn_device_info *info,
                const gemm *yardstick, const results *r)
{
    size_t good = 0, refused = 0;
    int status = CLI_GO;

    cli_progress_end();
    for (size_t i = 0; i < r->n; i++) {
        good += r->item[i].status == ATTN_OK;
        refused += r->item[i].status == ATTN_ERR_UNSUPPORTED;
    }
    if (common->json) {
        status = print_json(r, info, yardstick);
    } else {
        if (!s->csv)
            print_header(info, yardstick, r);
        print_table(r, s->csv);
        print_refused(r, s->csv ? stderr : stdout);
    }
    if (status != CLI_GO)
        return status;
    if (good + refused < r->n)
        return cli_fail(CLI_FAILED, "%zu of %zu measurements failed", r->n - good - refused,
                        r->n);
    return good ? CLI_OK : cli_fail(CLI_NOTHING, "no variant takes any of the problems");
}

int main(int argc, char **argv)
{
    cli_common common;
    settings s;
    results r = { 0 };
    gemm yardstick = { 0 };
    sweep memory = { 0 };
    attn_device_info info;
    attn_ctx *ctx = NULL;
    int status = read_settings(argc, argv, &common, &s);

    if (status == CLI_GO)
        status = cli_open(&common, &ctx);
    if (status != CLI_GO)
        goto done;
    attn_ctx_info(ctx, &info);
    const bool compare = info.kind == ATTN_DEVICE_HOST || info.kind == ATTN_DEVICE_CPU;
    const yardsticks against = { .gemm =
                                     compare && gemm_open(&yardstick) ? &yardstick : NULL,
                                 .sweep = compare && sweep_open(&memory) ? &memory : NULL };

    for (size_t i = 0; i < s.cases.n && status == CLI_GO; i++)
        status = bench_problem(ctx, &s, &s.cases.item[i], &against, &r);
    if (status == CLI_GO)
        status = tell(&s, &common, &info, &yardstick, &r);

done:
    gemm_close(&yardstick);
    sweep_close(&memory);
    attn_ctx_destroy(&ctx);
    free(r.item);
    cases_free(&s.cases);
    return cli_end(status);
}
