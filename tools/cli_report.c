/* SPDX-License-Identifier: MIT */
/* tools/cli_report.c: JSON documents, and a plan explained. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The length of the UTF-8 character at `s`, 0 if there is none. Overlong forms
 * and surrogates are none. */
static size_t utf8_length(const unsigned char *s)
{
    static const struct {
        unsigned char low, high, second_low, second_high;
        size_t n;
    } forms[] = {
        { 0x01, 0x7f, 0, 0, 1 },       { 0xc2, 0xdf, 0x80, 0xbf, 2 },
        { 0xe0, 0xe0, 0xa0, 0xbf, 3 }, { 0xe1, 0xec, 0x80, 0xbf, 3 },
        { 0xed, 0xed, 0x80, 0x9f, 3 }, { 0xee, 0xef, 0x80, 0xbf, 3 },
        { 0xf0, 0xf0, 0x90, 0xbf, 4 }, { 0xf1, 0xf3, 0x80, 0xbf, 4 },
        { 0xf4, 0xf4, 0x80, 0x8f, 4 },
    };

    for (size_t f = 0; f < sizeof forms / sizeof forms[0]; f++) {
        if (s[0] < forms[f].low || s[0] > forms[f].high)
            continue;
        if (forms[f].n > 1 && (s[1] < forms[f].second_low || s[1] > forms[f].second_high))
            return 0;
        for (size_t i = 2; i < forms[f].n; i++)
            if (s[i] < 0x80 || s[i] > 0xbf)
                return 0;
        return forms[f].n;
    }
    return 0;
}

void cli_json_text(cJSON *object, const char *name, const char *text)
{
    static const char replacement[] = "\xef\xbf\xbd";
    const char *from = text;
    char *clean, *to;

    if (!text) {
        cJSON_AddNullToObject(object, name);
        return;
    }
    clean = to = malloc(3 * strlen(text) + 1);
    if (!clean)
        return;
    while (*from) {
        const size_t n = utf8_length((const unsigned char *)from);
        memcpy(to, n ? from : replacement, n ? n : 3);
        to += n ? n : 3;
        from += n ? n : 1;
    }
    *to = '\0';
    cJSON_AddStringToObject(object, name, clean);
    free(clean);
}

int cli_json_print(cJSON *document)
{
    char *text = document ? cJSON_Print(document) : NULL;

    cJSON_Delete(document);
    if (!text)
        return cli_fail(CLI_NOTHING, "no memory for the JSON document");
    puts(text);
    cJSON_free(text);
    return CLI_GO;
}

/* All variants' answers, to be freed; NULL after an error that was said. */
static attn_variant_info *list_variants(attn_ctx *ctx, const problem *p, size_t *n,
                                        int *status)
{
    attn_variant_info *list = NULL;
    attn_status st = problem_variants(ctx, p, NULL, 0, n);

    if (st == ATTN_OK && !(list = calloc(*n ? *n : 1, sizeof *list))) {
        *status = cli_fail(CLI_NOTHING, "no memory for %zu variants", *n);
        return NULL;
    }
    if (st == ATTN_OK)
        st = problem_variants(ctx, p, list, *n, n);
    if (st != ATTN_OK) {
        *status = cli_fail_attn(st, NULL);
        free(list);
        return NULL;
    }
    return list;
}

/* A back end has variants for an operation and pass, or none at all. */
static int nothing_computes(const problem *p)
{
    return cli_fail(CLI_NOTHING,
                    "no variant of this device computes %s yet; --device host does",
                    problem_kind(p));
}

static int unknown_variant(const problem *p, const attn_variant_info *list, size_t n,
                           const char *name)
{
    char names[1024] = "";

    if (!n)
        return nothing_computes(p);
    for (size_t i = 0; i < n; i++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", list[i].name);
    }
    return cli_fail(CLI_BAD, "--variant is '%s', want one of %s", name, names);
}

/* "NAME: why not" of all variants, or of the one that was asked for. */
static int refused(const problem *p, const attn_variant_info *list, size_t n,
                   const char *name)
{
    char reasons[2048] = "";

    if (!n)
        return nothing_computes(p);
    for (size_t i = 0; i < n; i++) {
        const size_t used = strlen(reasons);
        if (!name || !strcmp(name, list[i].name))
            snprintf(reasons + used, sizeof reasons - used, "%s%s: %s", used ? "; " : "",
                     list[i].name, list[i].reason);
    }
    return cli_fail(CLI_NOTHING, "no variant takes this problem: %s", reasons);
}

/* The one of that name, if it takes the problem; without a name what the planner takes:
 * the first without a reason against it, else the first that may be chosen. */
static const char *find_variant(const attn_variant_info *list, size_t n, const char *name,
                                bool *known)
{
    const char *second = NULL;

    *known = !name;
    for (size_t i = 0; i < n; i++) {
        const attn_variant_info *v = &list[i];
        if (name && strcmp(name, v->name))
            continue;
        *known = true;
        if (v->applicable && (name || !v->reason[0]))
            return v->name;
        if (v->applicable && !second &&
            !(v->traits & (ATTN_TRAIT_BY_NAME | ATTN_TRAIT_NONDET)))
            second = v->name;
    }
    return second;
}

static attn_status explain_text(attn_ctx *ctx, const problem *p,
                                const attn_options *options, char **text)
{
    size_t n = 0;
    attn_status st = problem_explain(ctx, p, options, NULL, 0, &n);

    *text = NULL;
    if (st == ATTN_OK && (*text = malloc(n + 1)))
        st = problem_explain(ctx, p, options, *text, n + 1, &n);
    return st;
}

static void explain_plain(const attn_device_info *device, const char *text)
{
    printf("device     %s: %s\n", device->selector, device->name);
    fputs(text, stdout);
}

static void traits_json(cJSON *variant, uint32_t traits)
{
    static const struct {
        uint32_t bit;
        const char *word;
    } words[] = {
        { ATTN_TRAIT_BY_NAME, "by-name" }, { ATTN_TRAIT_FINITE_V, "finite-v" },
        { ATTN_TRAIT_ROUNDED, "rounded" }, { ATTN_TRAIT_VENDOR, "vendor" },
        { ATTN_TRAIT_BY_SIZE, "by-size" }, { ATTN_TRAIT_FORWARD, "forward" },
        { ATTN_TRAIT_NONDET, "nondet" },
    };
    cJSON *list = cJSON_AddArrayToObject(variant, "traits");

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (traits & words[i].bit)
            cJSON_AddItemToArray(list, cJSON_CreateString(words[i].word));
}

static void explain_json(cJSON *into, const attn_variant_info *list, size_t n,
                         const char *chosen, const char *name, const char *text)
{
    cJSON *variants;

    cli_json_text(into, "problem", name);
    cli_json_text(into, "variant", chosen);
    variants = cJSON_AddArrayToObject(into, "variants");
    for (size_t i = 0; i < n; i++) {
        cJSON *v = cJSON_CreateObject();
        cli_json_text(v, "name", list[i].name);
        cJSON_AddBoolToObject(v, "applicable", list[i].applicable);
        cli_json_text(v, "reason", list[i].reason[0] ? list[i].reason : NULL);
        traits_json(v, list[i].traits);
        cJSON_AddItemToArray(variants, v);
    }
    cli_json_text(into, "explanation", text);
}

int cli_explain(attn_ctx *ctx, const problem *p, const attn_options *options, cJSON *into)
{
    const char *variant = options->variant;
    char name[512], *text = NULL;
    attn_variant_info *list;
    attn_device_info device;
    const char *chosen;
    int status = CLI_GO;
    attn_status st;
    bool known;
    size_t n = 0;

    if (!(list = list_variants(ctx, p, &n, &status)))
        return status;
    chosen = find_variant(list, n, variant, &known);
    if (!known) {
        status = unknown_variant(p, list, n, variant);
        goto done;
    }
    if ((st = attn_ctx_info(ctx, &device)) != ATTN_OK ||
        (st = explain_text(ctx, p, options, &text)) != ATTN_OK ||
        (st = problem_text(p, name, sizeof name, NULL)) != ATTN_OK) {
        status = cli_fail_attn(st, NULL);
        goto done;
    }
    if (!text) {
        status = cli_fail(CLI_NOTHING, "no memory for the explanation");
        goto done;
    }
    cli_progress_end();
    if (into)
        explain_json(into, list, n, chosen, name, text);
    else
        explain_plain(&device, text);
    if (!chosen)
        status = refused(p, list, n, variant);

done:
    free(text);
    free(list);
    return status;
}
