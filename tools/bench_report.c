/* SPDX-License-Identifier: MIT */
/* tools/bench_report.c: the measurements as a table, as CSV and as JSON. */
#include "bench_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "table.h"

const char *const bench_timings[] = { "repeated", "single", "blocks", NULL };

static const bench_device *device_of(const bench_report *r, const measurement *m)
{
    for (int i = 0; i < r->n_devices; i++)
        if (!strcmp(r->device[i].info.selector, m->device))
            return &r->device[i];
    return r->device;
}

/* The numbers of a measurement, for CSV and JSON. */
typedef struct number {
    const char *name;
    double x;
} number;

enum { NUMBERS = 18 };

static void list_numbers(const measurement *m, number to[NUMBERS])
{
    const number all[NUMBERS] = {
        { "runs", (double)m->runs },
        { "ms", m->ms },
        { "ms_least", m->ms_least },
        { "ms_most", m->ms_most },
        { "gflop_s", m->gflop_s },
        { "tflop_s", m->gflop_s / 1e3 },
        { "gb_s", m->gb_s },
        { "kv_gb_s", m->kv_gb_s },
        { "of_first", m->of_first },
        { "of_peer", m->of_peer },
        { "product_gflop_s", m->product_gflop_s },
        { "of_product", m->product_ratio },
        { "memory_gb_s", m->memory_gb_s },
        { "of_memory", m->memory_ratio },
        { "readings", (double)m->readings },
        { "first_plan_ms", m->first_plan_ms },
        { "plan_ms", m->plan_ms },
        { "enqueue_us", m->enqueue_us },
    };
    memcpy(to, all, sizeof all);
}

static void number_cell(table *t, const char *format, double x)
{
    char text[32];

    snprintf(text, sizeof text, format, x);
    table_cell(t, "%s", isnan(x) ? "" : text);
}

/* Without the back end, which the device's name tells. */
static const char *instance(const measurement *m)
{
    const char *colon = strchr(m->plan, ':');
    return colon ? colon + 1 : m->plan;
}

void bench_print_csv(const bench_report *r)
{
    enum { WORDS = 9 };
    const char *heads[WORDS + NUMBERS] = { "device",  "name",    "driver", "timing", "cold",
                                           "problem", "variant", "plan",   "vendor" };
    table t = { .columns = WORDS + NUMBERS, .heads = heads, .align = "" };
    number all[NUMBERS];

    list_numbers(&(measurement){ .ms = NAN }, all);
    for (int k = 0; k < NUMBERS; k++)
        heads[WORDS + k] = all[k].name;
    for (size_t i = 0; i < r->n; i++) {
        const measurement *m = &r->item[i];
        const bench_device *d = device_of(r, m);

        if (m->status != ATTN_OK)
            continue;
        table_cell(&t, "%s", m->device);
        table_cell(&t, "%s", d->info.name);
        table_cell(&t, "%s", d->info.driver);
        table_cell(&t, "%s", bench_timings[r->timing]);
        table_cell(&t, "%d", r->cold);
        table_cell(&t, "%s", m->problem);
        table_cell(&t, "%s", m->variant);
        table_cell(&t, "%s", m->plan);
        table_cell(&t, "%d", m->vendor);
        list_numbers(m, all);
        for (int k = 0; k < NUMBERS; k++)
            number_cell(&t, "%.9g", all[k].x);
    }
    table_print(&t, TABLE_CSV, stdout);
    table_free(&t);
}

static void print_ceiling(const bench_device *d)
{
    const ceiling *c = &d->ceiling;

    for (int type = ATTN_F32; type < CEILING_TYPES; type++)
        if (c->product_gflop_s[type] > 0)
            printf("%s product of size %d: %.4g TFLOP/s (%s)\n",
                   attn_type_name((attn_type)type), c->size, c->product_gflop_s[type] / 1e3,
                   c->product_name);
    if (c->product_absent[0])
        printf("no ratio to a matrix product: %s\n", c->product_absent);
    if (c->copy_gb_s > 0)
        printf("copy of memory: %.0f GB/s read and written\n", c->copy_gb_s);
    if (c->copy_absent[0])
        printf("no ratio to a copy: %s\n", c->copy_absent);
    if (d->lane.absent[0])
        printf("the host's part of a single launch is not hidden: %s\n", d->lane.absent);
}

static void print_device(const bench_report *r, const bench_device *d)
{
    double product = 0, read = 0;

    for (size_t i = 0; i < r->n; i++)
        if (device_of(r, &r->item[i]) == d) {
            product = fmax(product, r->item[i].product_gflop_s);
            read = fmax(read, r->item[i].memory_gb_s);
        }
    printf("%s: %s, %.60s\n", d->info.selector, d->info.name,
           d->info.isa[0] ? d->info.isa : d->info.platform);
    if (d->gemm.name[0] && product > 0)
        printf("sgemm of size %d: %.1f GFLOP/s at best (%s)\n", GEMM_SIZE, product,
               d->gemm.name);
    else if (d->gemm.absent[0])
        printf("no ratio to sgemm: %s\n", d->gemm.absent);
    if (d->against.sweep && read > 0)
        printf("plain read of memory: %.1f GB/s at best\n", read);
    if (d->against.ceiling)
        print_ceiling(d);
}

static void print_head(const bench_report *r)
{
    static const char *const how[] = {
        "repeated runs",
        "single launches after idle milliseconds",
        "runs back to back in blocks that take turns",
    };

    for (int i = 0; i < r->n_devices; i++)
        print_device(r, &r->device[i]);
    printf("%s%s\n", how[r->timing], r->cold ? ", K and V from memory" : "");
    for (size_t i = 0; i < r->n; i++)
        if (r->item[i].vendor && r->item[i].status == ATTN_OK) {
            printf("(vendor): computed by a vendor's library, not by this one\n");
            break;
        }
    putchar('\n');
}

void bench_print_table(const bench_report *r)
{
    static const char *const heads[] = { "problem",   "variant",    "ms",
                                         "spread %",  "GFLOP/s",    "GB/s",
                                         "K, V GB/s", "of first",   "of product",
                                         "of memory", "runs",       "first plan ms",
                                         "plan ms",   "enqueue us", "of peer" };
    table t = { .columns = r->peer ? 15 : 14, .heads = heads, .align = "llrrrrrrrrrrrrr" };

    print_head(r);
    for (size_t i = 0; i < r->n; i++) {
        const measurement *m = &r->item[i];

        if (m->status != ATTN_OK)
            continue;
        table_cell(&t, "%s", m->problem);
        table_cell(&t, "%s%s", r->n_devices > 1 ? m->plan : instance(m),
                   m->vendor ? " (vendor)" : "");
        number_cell(&t, m->ms < 1 ? "%.4f" : "%.3f", m->ms);
        number_cell(&t, "%.1f", (m->ms_most - m->ms_least) / m->ms * 100);
        number_cell(&t, "%.1f", m->gflop_s);
        number_cell(&t, "%.2f", m->gb_s);
        number_cell(&t, "%.1f", m->kv_gb_s);
        number_cell(&t, "%.3f", m->of_first);
        number_cell(&t, "%.3f", m->product_ratio);
        number_cell(&t, "%.3f", m->memory_ratio);
        table_cell(&t, "%zu", m->runs);
        number_cell(&t, "%.2f", m->first_plan_ms);
        number_cell(&t, "%.3f", m->plan_ms);
        number_cell(&t, "%.1f", m->enqueue_us);
        if (r->peer)
            number_cell(&t, "%.3f", m->of_peer);
    }
    table_print(&t, TABLE_PLAIN, stdout);
    table_free(&t);
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
    number all[NUMBERS];

    cli_json_text(o, "device", m->device);
    cli_json_text(o, "problem", m->problem);
    cli_json_text(o, "variant", m->variant);
    cJSON_AddBoolToObject(o, "vendor", m->vendor);
    cli_json_text(o, "status", attn_status_name(m->status));
    if (m->status != ATTN_OK) {
        cli_json_text(o, "why", m->why);
        return o;
    }
    cli_json_text(o, "plan", m->plan);
    list_numbers(m, all);
    for (int i = 0; i < NUMBERS; i++)
        add_number(o, all[i].name, all[i].x);
    return o;
}

/* The ceilings of a GPU stand here; a processor's are of each measurement. */
static cJSON *device_json(const bench_device *d)
{
    cJSON *o = cJSON_CreateObject();
    const ceiling *c = d->against.ceiling;
    const char *product = c ? c->product_name : d->gemm.name;
    const char *absent = c ? c->product_absent : d->gemm.absent;

    cli_json_text(o, "device", d->info.selector);
    cli_json_text(o, "name", d->info.name);
    cli_json_text(o, "platform", d->info.platform);
    cli_json_text(o, "driver", d->info.driver);
    cli_json_text(o, "product", *product ? product : NULL);
    if (*absent)
        cli_json_text(o, "product_absent", absent);
    cli_json_text(o, "memory", c ? "copy, read and written" : "plain read");
    if (c && c->copy_absent[0])
        cli_json_text(o, "memory_absent", c->copy_absent);
    if (d->lane.absent[0])
        cli_json_text(o, "host_not_hidden", d->lane.absent);
    cJSON_AddNumberToObject(o, "product_size", c ? c->size : GEMM_SIZE);
    for (int type = ATTN_F32; c && type < CEILING_TYPES; type++) {
        char name[32];
        snprintf(name, sizeof name, "product_%s_gflop_s", attn_type_name((attn_type)type));
        add_number(o, name, c->product_gflop_s[type]);
    }
    if (c)
        add_number(o, "copy_gb_s", c->copy_gb_s);
    return o;
}

int bench_print_json(const bench_report *r)
{
    cJSON *o = cJSON_CreateObject(), *list;

    cli_json_text(o, "version", attn_version());
    cli_json_text(o, "timing", bench_timings[r->timing]);
    cJSON_AddBoolToObject(o, "cold", r->cold);
    cli_json_text(o, "peer", r->peer);
    list = cJSON_AddArrayToObject(o, "devices");
    for (int i = 0; i < r->n_devices; i++)
        cJSON_AddItemToArray(list, device_json(&r->device[i]));
    list = cJSON_AddArrayToObject(o, "results");
    for (size_t i = 0; i < r->n; i++)
        cJSON_AddItemToArray(list, measurement_json(&r->item[i]));
    return cli_json_print(o);
}
