/* SPDX-License-Identifier: MIT */
/* tools/cli.c: the command line, messages and exit statuses of the tools. */
#define _GNU_SOURCE /* getopt_long */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_OPTIONS = 96, MESSAGE_BYTES = 16384, HELP_COLUMNS = 92 };

static const char *tool_name = "attn", *command = "attn";

enum { KEY_HELP, KEY_VERSION, KEY_DEVICE, KEY_JSON };

static const cli_option common_options[] = {
    { .name = "device",
      .key = KEY_DEVICE,
      .value = "SELECTOR",
      .about = "auto, host, opencl:N or cuda:N; default: ATTN_DEVICE, or auto" },
    { .name = "json", .key = KEY_JSON, .about = "print one JSON document" },
    { .name = "help", .key = KEY_HELP, .about = "print this and exit" },
    { .name = "version", .key = KEY_VERSION, .about = "print the version and exit" },
};

enum { N_COMMON = sizeof common_options / sizeof common_options[0] };

/* Every library status and the exit status that stands for it. */
static const int exit_status[] = {
    [ATTN_OK] = CLI_OK,
    [ATTN_ERR_INVALID] = CLI_BAD,
    [ATTN_ERR_UNSUPPORTED] = CLI_NOTHING,
    [ATTN_ERR_NO_MEMORY] = CLI_NOTHING,
    [ATTN_ERR_WORKSPACE] = CLI_NOTHING,
    [ATTN_ERR_BUILD] = CLI_NOTHING,
    [ATTN_ERR_DEVICE] = CLI_NOTHING,
    [ATTN_ERR_NO_DEVICE] = CLI_NOTHING,
};

/* One line: breaks become "; ", what a terminal would act on becomes "?". */
static void print_line(const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '\n' || *c == '\r') {
            c += strspn(c, " \t\r\n");
            if (!*c)
                break;
            fputs("; ", stderr);
        }
        fputc((unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c, stderr);
    }
    fputc('\n', stderr);
}

int cli_fail(int status, const char *format, ...)
{
    static char text[MESSAGE_BYTES];
    va_list args;

    cli_progress_end();
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "%s: ", tool_name);
    print_line(text);
    return status;
}

int cli_fail_attn(attn_status st, const char *what)
{
    const size_t n = sizeof exit_status / sizeof exit_status[0];
    const int status = (size_t)st < n ? exit_status[st] : CLI_NOTHING;
    const char *text = attn_last_error();

    return cli_fail(status, "%s%s%s", what ? what : "", what ? ": " : "",
                    *text ? text : attn_status_text(st));
}

int cli_end(int status)
{
    cli_progress_end();
    if (fflush(stdout) != 0 || ferror(stdout))
        return cli_fail(status > CLI_OK ? status : CLI_BAD, "cannot write to stdout: %s",
                        strerror(errno));
    return status;
}

static int print_version(void)
{
    printf("%s %s\n", tool_name, attn_version());
    return CLI_OK;
}

static int option_width(const cli_option *o)
{
    return (int)(strlen(o->name) + (o->value ? 1 + strlen(o->value) : 0));
}

static void print_option(const cli_option *o, int width, const char *about)
{
    int column = width + 6;

    printf("  --%s%s%s%*s ", o->name, o->value ? " " : "", o->value ? o->value : "",
           width - option_width(o), "");
    while (*about) {
        const int n = (int)strcspn(about, " ");
        if (column + n > HELP_COLUMNS) {
            printf("\n%*s", width + 5, "");
            column = width + 6;
        }
        printf(" %.*s", n, about);
        column += n + 1;
        about += n;
        about += strspn(about, " ");
    }
    putchar('\n');
}

static int print_help(const cli_tool *tool, const cli_option *const *all, int n)
{
    int width = 0, absent = 0;

    for (const char *line = tool->usage; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        printf("%s %s %.*s\n", line == tool->usage ? "usage:" : "      ", tool->name,
               (int)strcspn(line, "\n"), line);
    }
    printf("\n%s\n\noptions:\n", tool->about);
    for (int i = 0; i < n; i++) {
        width = option_width(all[i]) > width ? option_width(all[i]) : width;
        absent += all[i]->absent != NULL;
    }
    for (int i = N_COMMON; i < n; i++)
        if (!all[i]->absent)
            print_option(all[i], width, all[i]->about);
    for (int i = 0; i < N_COMMON; i++)
        print_option(all[i], width,
                     all[i]->key == KEY_DEVICE && tool->device_about ? tool->device_about
                                                                     : all[i]->about);
    if (absent)
        printf("\nknown, but not in this version (exit status %d):\n", CLI_NOTHING);
    for (int i = 0; i < n; i++)
        if (all[i]->absent)
            print_option(all[i], width, all[i]->absent);
    printf("\nexit status: 0 good, 1 a check failed, 2 bad arguments or input, "
           "3 nothing could run\n");
    return CLI_OK;
}

/* getopt_long() takes shortened names too, and so a script would break with the
 * next option that begins alike. `word` is what it will read next. */
static int check_spelling(const char *word, const cli_option *const *all, int n)
{
    const size_t len = strcspn(word, "=");

    if (word[0] != '-' || !word[1] || !strcmp(word, "--"))
        return CLI_GO;
    for (int i = 0; i < n && word[1] == '-'; i++)
        if (strlen(all[i]->name) == len - 2 && !strncmp(all[i]->name, word + 2, len - 2))
            return CLI_GO;
    return cli_fail(CLI_BAD, "unknown option %.*s; see %s --help", (int)len, word, command);
}

struct parser {
    const cli_tool *tool;
    cli_common *common;
    void *to;
    const cli_option *all[MAX_OPTIONS];
    bool seen[MAX_OPTIONS];
    int n;
    const cli_option *absent; /* the first one that was given */
};

static int take_option(struct parser *p, int index, const char *value, bool attached)
{
    const cli_option *o = p->all[index];

    if (value && !attached && !strncmp(value, "--", 2))
        return cli_fail(CLI_BAD, "--%s wants %s, not the option %s", o->name, o->value,
                        value);
    if (p->seen[index] && !o->many)
        return cli_fail(CLI_BAD, "--%s is given twice; give it once", o->name);
    p->seen[index] = true;
    if (o->absent) {
        p->absent = p->absent ? p->absent : o;
        return CLI_GO;
    }
    if (index >= N_COMMON)
        return p->tool->take(p->to, o->key, value);
    switch (o->key) {
    case KEY_HELP: return print_help(p->tool, p->all, p->n);
    case KEY_VERSION: return print_version();
    case KEY_DEVICE: p->common->device = value; break;
    case KEY_JSON: p->common->json = true; break;
    }
    return CLI_GO;
}

static int parse_all(struct parser *p, int argc, char **argv, const struct option *longs)
{
    int status = CLI_GO, index = 0;

    opterr = 0;
    while (status == CLI_GO && optind < argc) {
        const char *word = argv[optind];
        if ((status = check_spelling(word, p->all, p->n)) != CLI_GO)
            return status;
        switch (getopt_long(argc, argv, "-:", longs, &index)) {
        case 0: status = take_option(p, index, optarg, strchr(word, '=') != NULL); break;
        case 1: status = p->tool->take(p->to, CLI_ARGUMENT, optarg); break;
        case ':':
            return cli_fail(CLI_BAD, "%s wants a value; see %s --help", word, command);
        case -1: /* after "--" */
            while (status == CLI_GO && optind < argc)
                status = p->tool->take(p->to, CLI_ARGUMENT, argv[optind++]);
            break;
        default:
            return cli_fail(CLI_BAD, "%.*s takes no value", (int)strcspn(word, "="), word);
        }
    }
    return status;
}

int cli_parse(const cli_tool *tool, int argc, char **argv, cli_common *common, void *to)
{
    struct parser p = { .tool = tool, .common = common, .to = to };
    struct option longs[MAX_OPTIONS + 1] = { { 0 } };
    int status;

    tool_name = tool->name;
    command = tool->command ? tool->command : tool->name;
    *common = (cli_common){ 0 };
    for (int i = 0; i < N_COMMON; i++)
        p.all[p.n++] = &common_options[i];
    for (const cli_option *o = tool->options; o && o->name && p.n < MAX_OPTIONS; o++)
        p.all[p.n++] = o;
    for (int i = 0; i < p.n; i++)
        longs[i] =
            (struct option){ .name = p.all[i]->name,
                             .has_arg = p.all[i]->value ? required_argument : no_argument };
    status = parse_all(&p, argc, argv, longs);
    if (status == CLI_GO && p.absent)
        status = cli_fail(CLI_NOTHING, "--%s: %s: not in this version", p.absent->name,
                          p.absent->absent);
    return status;
}

int cli_integer(const char *option, const char *text, int64_t least, int64_t most,
                int64_t *out)
{
    char *end = NULL;
    long long n;

    errno = 0;
    n = strtoll(text, &end, 10);
    if (end == text || *end || strspn(text, "+-0123456789") != strlen(text))
        return cli_fail(CLI_BAD, "%s is '%s', want a whole number", option, text);
    if (errno == ERANGE || n < least || n > most)
        return cli_fail(CLI_BAD, "%s is %s, want %lld .. %lld", option, text,
                        (long long)least, (long long)most);
    *out = n;
    return CLI_GO;
}

int cli_number(const char *option, const char *text, double *out)
{
    char *end = NULL;
    double x = strtod(text, &end);

    if (end == text || *end || strchr(" \t\r\n\v\f", *text) || !isfinite(x))
        return cli_fail(CLI_BAD, "%s is '%s', want a finite number", option, text);
    *out = x;
    return CLI_GO;
}

int cli_word(const char *option, const char *text, const char *const words[], int *out)
{
    char list[256] = "";

    for (int i = 0; words[i]; i++) {
        const size_t used = strlen(list);
        if (!strcmp(text, words[i])) {
            *out = i;
            return CLI_GO;
        }
        snprintf(list + used, sizeof list - used, "%s%s",
                 !i             ? ""
                 : words[i + 1] ? ", "
                                : " or ",
                 words[i]);
    }
    return cli_fail(CLI_BAD, "%s is '%s', want %s", option, text, list);
}

int cli_open(const cli_common *common, attn_ctx **out)
{
    const char *variable = getenv("ATTN_DEVICE");
    attn_status st;

    cli_progress("opening the device");
    st = attn_ctx_create(common->device, out);
    if (st == ATTN_OK)
        return CLI_GO;
    return cli_fail_attn(st, common->device          ? "--device"
                             : variable && *variable ? "ATTN_DEVICE"
                                                     : NULL);
}
