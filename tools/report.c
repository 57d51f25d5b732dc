/* SPDX-License-Identifier: MIT */
/* tools/report.c: records, their sums, and the tables for people. */
#include "report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *copy(const char *text)
{
    char *to = text ? malloc(strlen(text) + 1) : NULL;
    return to ? strcpy(to, text) : NULL;
}

void report_add(report *r, const record *one)
{
    record *to;

    if (r->n == r->room) {
        const size_t room = r->room ? 2 * r->room : 256;
        record *grown = realloc(r->record, room * sizeof *grown);
        if (!grown) {
            r->lost = true;
            return;
        }
        r->record = grown;
        r->room = room;
    }
    to = &r->record[r->n];
    *to = *one;
    to->text = copy(one->text);
    to->what = copy(one->what);
    if (!to->text || (one->what && !to->what)) {
        free(to->text);
        free(to->what);
        r->lost = true;
        return;
    }
    r->n++;
}

void report_free(report *r)
{
    for (size_t i = 0; i < r->n; i++) {
        free(r->record[i].text);
        free(r->record[i].what);
    }
    free(r->record);
    free(r->between);
    r->record = NULL;
    r->between = NULL;
    r->n = r->room = 0;
}

size_t report_count(const report *r, outcome which)
{
    size_t n = 0;

    for (size_t i = 0; i < r->n; i++)
        n += r->record[i].outcome == which;
    return n;
}

bool report_is_problem(const record *one)
{
    return one->variant[0] != '(';
}

const char *report_traits(uint32_t traits, char text[64])
{
    static const struct {
        uint32_t bit;
        const char *word;
    } words[] = {
        { ATTN_TRAIT_BY_NAME, "by name" }, { ATTN_TRAIT_FINITE_V, "finite V" },
        { ATTN_TRAIT_ROUNDED, "rounded" }, { ATTN_TRAIT_VENDOR, "vendor" },
        { ATTN_TRAIT_BY_SIZE, "by size" }, { ATTN_TRAIT_FORWARD, "forward" },
        { ATTN_TRAIT_NONDET, "nondet" },
    };
    size_t n = 0;

    text[0] = '\0';
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (traits & words[i].bit)
            n += (size_t)snprintf(text + n, 64 - n, "%s%s", n ? ", " : "", words[i].word);
    return text;
}

bool report_any(const report *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->record[i].outcome <= OUTCOME_FAILED && report_is_problem(&r->record[i]))
            return true;
    return false;
}

static tally *find(tally *list, size_t *n, const record *one)
{
    for (size_t i = 0; i < *n; i++)
        if (list[i].device == one->device && !strcmp(list[i].variant, one->variant))
            return &list[i];
    list[*n] =
        (tally){ .device = one->device, .variant = one->variant, .traits = one->traits };
    return &list[(*n)++];
}

tally *report_tally(const report *r, size_t *n)
{
    tally *list = malloc((r->n + 1) * sizeof *list);

    *n = 0;
    for (size_t i = 0; list && i < r->n; i++) {
        const record *one = &r->record[i];
        tally *t = find(list, n, one);

        t->count[one->outcome]++;
        t->seconds += one->seconds;
        if (one->outcome > OUTCOME_FAILED || !report_is_problem(one))
            continue;
        t->ran[one->type - 1]++;
        t->norm[one->type - 1] = fmax(t->norm[one->type - 1], one->norm);
        if (!t->worst || one->share > t->worst->share)
            t->worst = one;
    }
    return list;
}

/* Sections of the report. */

static void title(table_style style, const char *text)
{
    printf(style == TABLE_MARKDOWN ? "\n## %s\n\n" : "\n%s\n", text);
}

static const char *selector(const report *r, int device)
{
    return r->device[device].info.selector;
}

static void print_devices(const report *r, const tally *list, size_t n, table_style style)
{
    static const char *const heads[] = { "device", "implementation", "driver",  "name",
                                         "passed", "failed",         "skipped", "seconds" };
    table t = { .columns = 8, .heads = heads, .align = "llllrrrr" };

    for (int d = 0; d < r->n_devices; d++) {
        const attn_device_info *info = &r->device[d].info;
        size_t count[OUTCOMES] = { 0 };
        double seconds = 0;

        for (size_t i = 0; i < n; i++)
            for (int k = 0; k < OUTCOMES && list[i].device == d; k++) {
                count[k] += list[i].count[k];
                seconds += k ? 0 : list[i].seconds;
            }
        table_cell(&t, "%s", info->selector);
        table_cell(&t, "%.64s", info->platform);
        table_cell(&t, "%.48s", info->driver);
        table_cell(&t, "%s", info->name);
        for (int k = OUTCOME_PASSED; k <= OUTCOME_SKIPPED; k++)
            table_cell(&t, "%zu", count[k]);
        table_cell(&t, "%.1f", seconds);
    }
    title(style, "Devices");
    table_print(&t, style, stdout);
    table_free(&t);
}

static void norm_cell(table *t, size_t ran, double norm)
{
    if (!ran)
        table_cell(t, "-");
    else if (norm == 0)
        table_cell(t, "0");
    else
        table_cell(t, "%.1e", norm);
}

static void print_variants(const report *r, const tally *list, size_t n, table_style style)
{
    static const char *const heads[] = { "device", "variant", "traits",    "passed",
                                         "failed", "skipped", "says no",   "f32",
                                         "f16",    "bf16",    "of allowed" };
    table t = { .columns = 11, .heads = heads, .align = "lllrrrrrrrr" };

    for (size_t i = 0; i < n; i++) {
        char traits[64];

        table_cell(&t, "%s", selector(r, list[i].device));
        table_cell(&t, "%s", list[i].variant);
        table_cell(&t, "%s", report_traits(list[i].traits, traits));
        for (int k = 0; k < OUTCOMES; k++)
            table_cell(&t, "%zu", list[i].count[k]);
        for (int k = 0; k < REPORT_TYPES; k++)
            norm_cell(&t, list[i].ran[k], list[i].norm[k]);
        if (list[i].worst)
            table_cell(&t, "%.0f %%", 100 * fmin(list[i].worst->share, 1e6));
        else
            table_cell(&t, "-");
    }
    title(style, "Variants: worst relative error of a head (|s| <= 16), and worst error of "
                 "what is allowed");
    table_print(&t, style, stdout);
    table_free(&t);
}

static void print_worst(const report *r, const tally *list, size_t n, table_style style)
{
    static const char *const heads[] = { "device", "variant", "of allowed", "problem" };
    table t = { .columns = 4, .heads = heads, .align = "llrl" };

    for (size_t i = 0; i < n; i++) {
        if (!list[i].worst)
            continue;
        table_cell(&t, "%s", selector(r, list[i].device));
        table_cell(&t, "%s", list[i].variant);
        table_cell(&t, "%.1f %%", 100 * fmin(list[i].worst->share, 1e6));
        table_cell(&t, "%s", list[i].worst->text);
    }
    title(style, "Worst errors, and what reproduces each");
    table_print(&t, style, stdout);
    table_free(&t);
}

static void print_failures(const report *r, table_style style)
{
    if (!report_count(r, OUTCOME_FAILED))
        return;
    title(style, "Failures");
    for (size_t i = 0; i < r->n; i++) {
        const record *one = &r->record[i];
        if (one->outcome != OUTCOME_FAILED)
            continue;
        printf("%s%s %s %s\n    %s\n", style == TABLE_MARKDOWN ? "- " : "FAIL ",
               selector(r, one->device), one->variant, one->text,
               one->what ? one->what : "");
    }
}

/* Refusals and skips, one line for each reason. */
static void print_reasons(const report *r, outcome which, const char *name,
                          table_style style)
{
    static const char *const heads[] = { "device", "variant", "problems", "why",
                                         "such as" };
    table t = { .columns = 5, .heads = heads, .align = "llrll" };
    bool *told = calloc(r->n + 1, sizeof *told);

    for (size_t i = 0; told && i < r->n; i++) {
        const record *one = &r->record[i];
        size_t same = 0;

        if (one->outcome != which || told[i])
            continue;
        for (size_t k = i; k < r->n; k++) {
            const record *other = &r->record[k];
            if (other->outcome != which || other->device != one->device ||
                strcmp(other->variant, one->variant) ||
                strcmp(other->what ? other->what : "", one->what ? one->what : ""))
                continue;
            told[k] = true;
            same++;
        }
        table_cell(&t, "%s", selector(r, one->device));
        table_cell(&t, "%s", one->variant);
        table_cell(&t, "%zu", same);
        table_cell(&t, "%.120s", one->what ? one->what : "");
        table_cell(&t, "%s", one->text);
    }
    free(told);
    if (t.n) {
        title(style, name);
        table_print(&t, style, stdout);
    }
    table_free(&t);
}

static void print_between(const report *r, table_style style)
{
    static const char *const heads[] = { "device", "against", "problems",
                                         "f32",    "f16",     "bf16" };
    table t = { .columns = 6, .heads = heads, .align = "llrrrr" };

    for (int a = 0; a < r->n_devices; a++)
        for (int b = a + 1; b < r->n_devices; b++) {
            const difference *x = &r->between[a * r->n_devices + b];
            table_cell(&t, "%s", selector(r, a));
            table_cell(&t, "%s", selector(r, b));
            table_cell(&t, "%zu", x->problems[0] + x->problems[1] + x->problems[2]);
            for (int k = 0; k < REPORT_TYPES; k++)
                norm_cell(&t, x->problems[k], x->norm[k]);
        }
    if (t.n) {
        title(style,
              "Device against device: largest relative difference of a head (|s| <= 16)");
        table_print(&t, style, stdout);
    }
    table_free(&t);
}

void report_print(const report *r, table_style style)
{
    size_t n = 0;
    tally *list = report_tally(r, &n);

    if (style == TABLE_MARKDOWN)
        printf("# Validation of attn %s\n\n", attn_version());
    printf("attn %s, problems: %zu, seed: %llu, rounds of inputs and layouts: %d, runs of "
           "each: %d\n",
           attn_version(), r->n_cases, (unsigned long long)r->seed, r->rounds, r->repeat);
    if (list) {
        print_devices(r, list, n, style);
        print_variants(r, list, n, style);
        print_worst(r, list, n, style);
    }
    print_between(r, style);
    print_reasons(r, OUTCOME_NO, "Says no", style);
    print_reasons(r, OUTCOME_SKIPPED, "Skipped", style);
    print_failures(r, style);
    free(list);
}
