/* SPDX-License-Identifier: MIT */
/* tools/report_files.c: the report for machines: JSON, and JUnit's XML. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "report.h"

static const char *const outcome_names[OUTCOMES] = { "passed", "failed", "skipped",
                                                     "says no" };

static cJSON *device_json(const report_device *d)
{
    static const char *const kinds[] = { "host", "cpu", "gpu", "other" };
    cJSON *o = cJSON_CreateObject();

    cli_json_text(o, "selector", d->info.selector);
    cli_json_text(o, "name", d->info.name);
    cli_json_text(o, "vendor", d->info.vendor);
    cli_json_text(o, "platform", d->info.platform);
    cli_json_text(o, "driver", d->info.driver);
    cli_json_text(o, "kind", kinds[d->info.kind]);
    return o;
}

/* JSON knows no infinity: a share beyond all measure becomes null. */
static void add_number(cJSON *o, const char *name, double x)
{
    if (isfinite(x) && x < 1e300)
        cJSON_AddNumberToObject(o, name, x);
    else
        cJSON_AddNullToObject(o, name);
}

static cJSON *tally_json(const report *r, const tally *t)
{
    cJSON *o = cJSON_CreateObject(), *norms;
    char traits[64];

    cli_json_text(o, "device", r->device[t->device].info.selector);
    cli_json_text(o, "variant", t->variant);
    cli_json_text(o, "traits", report_traits(t->traits, traits));
    for (int k = 0; k < OUTCOMES; k++)
        cJSON_AddNumberToObject(o, outcome_names[k], (double)t->count[k]);
    cJSON_AddNumberToObject(o, "seconds", t->seconds);
    norms = cJSON_AddObjectToObject(o, "worst_relative_error");
    for (int k = 0; k < REPORT_TYPES; k++)
        add_number(norms, attn_type_name((attn_type)(k + 1)), t->ran[k] ? t->norm[k] : NAN);
    add_number(o, "worst_of_allowed", t->worst ? t->worst->share : NAN);
    cli_json_text(o, "worst_problem", t->worst ? t->worst->text : NULL);
    return o;
}

static cJSON *record_json(const report *r, const record *one)
{
    cJSON *o = cJSON_CreateObject();

    cli_json_text(o, "device", r->device[one->device].info.selector);
    cli_json_text(o, "variant", one->variant);
    cli_json_text(o, "case", one->text);
    cli_json_text(o, "outcome", outcome_names[one->outcome]);
    if (one->outcome <= OUTCOME_FAILED && report_is_problem(one)) {
        add_number(o, "relative_error", one->norm);
        add_number(o, "of_allowed", one->share);
    }
    cJSON_AddNumberToObject(o, "seconds", one->seconds);
    if (one->what)
        cli_json_text(o, "what", one->what);
    return o;
}

static cJSON *between_json(const report *r, int a, int b)
{
    const difference *x = &r->between[a * r->n_devices + b];
    cJSON *o = cJSON_CreateObject(), *norms;

    cli_json_text(o, "a", r->device[a].info.selector);
    cli_json_text(o, "b", r->device[b].info.selector);
    cJSON_AddNumberToObject(o, "problems",
                            (double)(x->problems[0] + x->problems[1] + x->problems[2]));
    norms = cJSON_AddObjectToObject(o, "largest_relative_difference");
    for (int k = 0; k < REPORT_TYPES; k++)
        add_number(norms, attn_type_name((attn_type)(k + 1)),
                   x->problems[k] ? x->norm[k] : NAN);
    return o;
}

int report_json(const report *r)
{
    cJSON *o = cJSON_CreateObject(), *list;
    size_t n = 0;
    tally *tallies = report_tally(r, &n);

    cli_json_text(o, "version", attn_version());
    cJSON_AddNumberToObject(o, "seed", (double)r->seed);
    cJSON_AddNumberToObject(o, "rounds", r->rounds);
    cJSON_AddNumberToObject(o, "repeat", r->repeat);
    cJSON_AddNumberToObject(o, "problems", (double)r->n_cases);
    for (int k = 0; k < OUTCOMES; k++)
        cJSON_AddNumberToObject(o, outcome_names[k], (double)report_count(r, (outcome)k));
    list = cJSON_AddArrayToObject(o, "devices");
    for (int d = 0; d < r->n_devices; d++)
        cJSON_AddItemToArray(list, device_json(&r->device[d]));
    list = cJSON_AddArrayToObject(o, "variants");
    for (size_t i = 0; tallies && i < n; i++)
        cJSON_AddItemToArray(list, tally_json(r, &tallies[i]));
    list = cJSON_AddArrayToObject(o, "between");
    for (int a = 0; a < r->n_devices; a++)
        for (int b = a + 1; b < r->n_devices; b++)
            cJSON_AddItemToArray(list, between_json(r, a, b));
    list = cJSON_AddArrayToObject(o, "results");
    for (size_t i = 0; i < r->n; i++)
        cJSON_AddItemToArray(list, record_json(r, &r->record[i]));
    free(tallies);
    return cli_json_print(o);
}

/* Text of an attribute; bytes that XML 1.0 does not know become '?'. */
static void xml(FILE *to, const char *text)
{
    static const struct {
        char c;
        const char *entity;
    } escapes[] = {
        { '&', "&amp;" },  { '<', "&lt;" },   { '>', "&gt;" },
        { '"', "&quot;" }, { '\n', "&#10;" },
    };

    for (; *text; text++) {
        const char *entity = NULL;
        for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++)
            entity = *text == escapes[i].c ? escapes[i].entity : entity;
        if (entity)
            fputs(entity, to);
        else
            fputc((unsigned char)*text < ' ' || (unsigned char)*text > '~' ? '?' : *text,
                  to);
    }
}

static void junit_case(FILE *to, const report *r, const record *one)
{
    static const char *const elements[OUTCOMES] = { NULL, "failure", "skipped", "skipped" };

    fprintf(to, "    <testcase classname=\"%s.", r->device[one->device].info.selector);
    xml(to, one->variant);
    fputs("\" name=\"", to);
    xml(to, one->text);
    fprintf(to, "\" time=\"%.3f\"", one->seconds);
    if (!elements[one->outcome]) {
        fputs("/>\n", to);
        return;
    }
    fprintf(to, ">\n      <%s message=\"%s", elements[one->outcome],
            one->outcome == OUTCOME_NO ? "says no: " : "");
    xml(to, one->what ? one->what : "");
    fputs("\"/>\n    </testcase>\n", to);
}

static void junit_property(FILE *to, const char *name, const char *value)
{
    fprintf(to, "      <property name=\"%s\" value=\"", name);
    xml(to, value);
    fputs("\"/>\n", to);
}

static void junit_suite(FILE *to, const report *r, const tally *t)
{
    char traits[64];
    const size_t skipped = t->count[OUTCOME_SKIPPED] + t->count[OUTCOME_NO];

    fprintf(to, "  <testsuite name=\"%s ", r->device[t->device].info.selector);
    xml(to, t->variant);
    fprintf(to, "\" tests=\"%zu\" failures=\"%zu\" errors=\"0\" skipped=\"%zu\"",
            t->count[OUTCOME_PASSED] + t->count[OUTCOME_FAILED] + skipped,
            t->count[OUTCOME_FAILED], skipped);
    fprintf(to, " time=\"%.3f\">\n    <properties>\n", t->seconds);
    junit_property(to, "implementation", r->device[t->device].info.platform);
    junit_property(to, "driver", r->device[t->device].info.driver);
    junit_property(to, "device", r->device[t->device].info.name);
    junit_property(to, "traits", report_traits(t->traits, traits));
    fputs("    </properties>\n", to);
    for (size_t i = 0; i < r->n; i++)
        if (r->record[i].device == t->device && !strcmp(r->record[i].variant, t->variant))
            junit_case(to, r, &r->record[i]);
    fputs("  </testsuite>\n", to);
}

int report_junit(const report *r, FILE *to, const char *path)
{
    size_t n = 0;
    tally *tallies = report_tally(r, &n);
    bool bad;

    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n", to);
    fputs("<testsuites name=\"attn-validate\">\n", to);
    for (size_t i = 0; tallies && i < n; i++)
        junit_suite(to, r, &tallies[i]);
    fputs("</testsuites>\n", to);
    free(tallies);
    bad = ferror(to) != 0;
    if (fclose(to) != 0 || bad)
        return cli_fail(CLI_BAD, "--junit %s: %s", path, strerror(errno));
    return CLI_GO;
}
