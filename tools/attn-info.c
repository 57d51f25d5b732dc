/* SPDX-License-Identifier: MIT */
/* tools/attn-info.c: which devices there are, and what the planner does on one. */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

enum { KEY_EXPLAIN, KEY_VARIANT };

typedef struct request {
    cli_common common;
    const char *explain;
    const char *variant;
} request;

/* What is known of one machine. */
typedef struct inventory {
    attn_backend_info *backends;
    attn_device_info *devices;
    size_t n_backends, n_devices;
} inventory;

static const cli_option options[] = {
    { .name = "explain",
      .key = KEY_EXPLAIN,
      .value = "PROBLEM",
      .about = "print the plan for a problem text, and why not the other variants" },
    { .name = "variant",
      .key = KEY_VARIANT,
      .value = "NAME",
      .about = "with --explain: plan with this variant" },
    { .name = NULL },
};

static int take(void *to, int key, const char *value)
{
    request *r = to;

    switch (key) {
    case KEY_EXPLAIN: r->explain = value; return CLI_GO;
    case KEY_VARIANT: r->variant = value; return CLI_GO;
    }
    return cli_fail(CLI_BAD, "unexpected argument '%s'; see attn-info --help", value);
}

static const cli_tool tool = {
    .name = "attn-info",
    .usage = "[--device SELECTOR] [--json]\n"
             "--explain PROBLEM [--variant NAME] [--device SELECTOR] [--json]",
    .about = "Lists back ends and devices, or with --explain says how a problem, such as\n"
             "softmax_fwd:f32,b1,hq32,hkv8,lq512,lk512,d128,causal, would be computed.",
    .options = options,
    .take = take,
};

static const char *kind_name(attn_device_kind kind)
{
    static const char *const names[] = {
        [ATTN_DEVICE_HOST] = "host",
        [ATTN_DEVICE_CPU] = "CPU",
        [ATTN_DEVICE_GPU] = "GPU",
        [ATTN_DEVICE_OTHER] = "other",
    };
    return (size_t)kind < sizeof names / sizeof names[0] ? names[kind] : "?";
}

/* Every text and every number of attn_device_info, in the order of printing. */
static const struct text_field {
    const char *name, *label;
    size_t at;
} texts[] = {
#define TEXT(field, label)                               \
    {                                                    \
#field, label, offsetof(attn_device_info, field) \
    }
    TEXT(name, "name"),     TEXT(vendor, "vendor"),    TEXT(platform, "platform"),
    TEXT(driver, "driver"), TEXT(isa, "instructions"), TEXT(blas, "BLAS"),
#undef TEXT
};

static const struct number_field {
    const char *name, *label, *unit;
    size_t at;
} numbers[] = {
#define NUMBER(field, label, unit)                             \
    {                                                          \
#field, label, unit, offsetof(attn_device_info, field) \
    }
    NUMBER(compute_units, "compute units", ""),
    NUMBER(fast_bytes, "fast memory", "bytes a group"),
    NUMBER(max_group, "largest group", ""),
    NUMBER(subgroup, "subgroup", ""),
    NUMBER(vector_width, "vector", "f32 lanes"),
    NUMBER(memory_bytes, "memory", "bytes"),
    NUMBER(max_alloc_bytes, "largest block", "bytes"),
    NUMBER(clock_mhz, "clock", "MHz"),
#undef NUMBER
};

enum {
    N_TEXTS = sizeof texts / sizeof texts[0],
    N_NUMBERS = sizeof numbers / sizeof numbers[0],
};

static const char *text_of(const attn_device_info *d, int i)
{
    return (const char *)d + texts[i].at;
}

static int64_t number_of(const attn_device_info *d, int i)
{
    return *(const int64_t *)(const void *)((const char *)d + numbers[i].at);
}

static void print_bytes(int64_t bytes)
{
    static const char *const units[] = { "KiB", "MiB", "GiB", "TiB" };
    double x = (double)bytes / 1024;
    int u = 0;

    for (; x >= 1024 && u < 3; u++)
        x /= 1024;
    if (bytes >= 1024)
        printf(" (%.4g %s)", x, units[u]);
}

static void print_device(const attn_device_info *d)
{
    printf("\n%s\n  %-14s %s\n", d->selector, "kind", kind_name(d->kind));
    for (int i = 0; i < N_TEXTS; i++)
        if (*text_of(d, i))
            printf("  %-14s %s\n", texts[i].label, text_of(d, i));
    if (d->cudnn_version)
        printf("  %-14s %lld.%lld.%lld\n", "cuDNN", (long long)d->cudnn_version / 10000,
               (long long)d->cudnn_version / 100 % 100, (long long)d->cudnn_version % 100);
    for (int i = 0; i < N_NUMBERS; i++) {
        const int64_t n = number_of(d, i);
        if (n <= 0) {
            printf("  %-14s not told\n", numbers[i].label);
            continue;
        }
        printf("  %-14s %lld%s%s", numbers[i].label, (long long)n,
               *numbers[i].unit ? " " : "", numbers[i].unit);
        if (*numbers[i].unit == 'b')
            print_bytes(n);
        putchar('\n');
    }
}

static void print_backend(const attn_backend_info *b)
{
    printf("%-8s %d device%s%s%s\n", b->name, (int)b->devices, b->devices == 1 ? "" : "s",
           b->reason[0] ? ": " : "", b->reason);
}

static cJSON *device_json(const attn_device_info *d)
{
    cJSON *object = cJSON_CreateObject();

    cli_json_text(object, "selector", d->selector);
    cli_json_text(object, "kind", kind_name(d->kind));
    for (int i = 0; i < N_TEXTS; i++)
        cli_json_text(object, texts[i].name, text_of(d, i));
    for (int i = 0; i < N_NUMBERS; i++)
        cJSON_AddNumberToObject(object, numbers[i].name, (double)number_of(d, i));
    cJSON_AddNumberToObject(object, "cudnn_version", (double)d->cudnn_version);
    return object;
}

static cJSON *inventory_json(const inventory *all)
{
    cJSON *document = cJSON_CreateObject();
    cJSON *backends, *devices;

    cli_json_text(document, "version", attn_version());
    backends = cJSON_AddArrayToObject(document, "backends");
    for (size_t i = 0; i < all->n_backends; i++) {
        const attn_backend_info *b = &all->backends[i];
        cJSON *object = cJSON_CreateObject();
        cli_json_text(object, "name", b->name);
        cJSON_AddNumberToObject(object, "devices", b->devices);
        cli_json_text(object, "reason", b->reason[0] ? b->reason : NULL);
        cJSON_AddItemToArray(backends, object);
    }
    devices = cJSON_AddArrayToObject(document, "devices");
    for (size_t i = 0; i < all->n_devices; i++)
        cJSON_AddItemToArray(devices, device_json(&all->devices[i]));
    return document;
}

/* The lists may grow between the two calls: a third entry is then left out. */
static attn_status read_inventory(inventory *all)
{
    size_t n = 0;
    attn_status st = attn_backend_list(NULL, 0, &n);

    if (st == ATTN_OK && !(all->backends = calloc(n ? n : 1, sizeof *all->backends)))
        return ATTN_ERR_NO_MEMORY;
    if (st == ATTN_OK)
        st = attn_backend_list(all->backends, n, &all->n_backends);
    if (st != ATTN_OK)
        return st;
    all->n_backends = all->n_backends < n ? all->n_backends : n;

    st = attn_device_list(NULL, 0, &n);
    if (st == ATTN_OK && !(all->devices = calloc(n ? n : 1, sizeof *all->devices)))
        return ATTN_ERR_NO_MEMORY;
    if (st == ATTN_OK)
        st = attn_device_list(all->devices, n, &all->n_devices);
    all->n_devices = all->n_devices < n ? all->n_devices : n;
    return st;
}

static int list_all(const request *r)
{
    inventory all = { 0 };
    attn_status st;
    int status = CLI_OK;

    cli_progress("looking for devices");
    st = read_inventory(&all);
    cli_progress_end();
    if (st != ATTN_OK) {
        status = cli_fail_attn(st, NULL);
    } else if (r->common.json) {
        status = cli_json_print(inventory_json(&all));
    } else {
        printf("attn %s\n\n", attn_version());
        for (size_t i = 0; i < all.n_backends; i++)
            print_backend(&all.backends[i]);
        for (size_t i = 0; i < all.n_devices; i++)
            print_device(&all.devices[i]);
    }
    if (status <= CLI_OK && all.n_devices == 0)
        status = cli_fail(CLI_NOTHING, "no device at all");
    free(all.backends);
    free(all.devices);
    return status;
}

static int show_one(const request *r, attn_ctx *ctx)
{
    attn_device_info info;
    attn_status st = attn_ctx_info(ctx, &info);
    cJSON *document;

    cli_progress_end();
    if (st != ATTN_OK)
        return cli_fail_attn(st, NULL);
    if (!r->common.json) {
        printf("attn %s\n", attn_version());
        print_device(&info);
        return CLI_OK;
    }
    document = inventory_json(&(inventory){ .devices = &info, .n_devices = 1 });
    cJSON_DeleteItemFromObject(document, "backends");
    return cli_json_print(document);
}

static int explain(const request *r, attn_ctx *ctx, const problem *p)
{
    cJSON *document = NULL;
    attn_device_info info;
    attn_status st;
    int status;

    if ((st = attn_ctx_info(ctx, &info)) != ATTN_OK)
        return cli_fail_attn(st, NULL);
    if (r->common.json) {
        document = cJSON_CreateObject();
        cli_json_text(document, "version", attn_version());
        cli_json_text(document, "device", info.selector);
    }
    status = cli_explain(
        ctx, p, &(attn_options){ .size = sizeof(attn_options), .variant = r->variant },
        document);
    if (document) {
        const int printed = cli_json_print(document);
        status = printed == CLI_GO ? status : printed;
    }
    return status;
}

int main(int argc, char **argv)
{
    request r = { .explain = NULL };
    problem p;
    attn_ctx *ctx = NULL;
    attn_status st;
    int status = cli_parse(&tool, argc, argv, &r.common, &r);

    if (status != CLI_GO)
        return cli_end(status);
    if (r.variant && !r.explain)
        return cli_end(cli_fail(CLI_BAD, "--variant belongs to --explain PROBLEM"));
    if (r.explain && (st = problem_parse(r.explain, &p)) != ATTN_OK)
        return cli_end(cli_fail_attn(st, "--explain"));
    if (!r.explain && !r.common.device)
        status = list_all(&r);
    else if ((status = cli_open(&r.common, &ctx)) == CLI_GO)
        status = r.explain ? explain(&r, ctx, &p) : show_one(&r, ctx);
    attn_ctx_destroy(&ctx);
    return cli_end(status == CLI_GO ? CLI_OK : status);
}
