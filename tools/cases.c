/* SPDX-License-Identifier: MIT */
/* tools/cases.c: reads lists of problem texts. */
#define _POSIX_C_SOURCE 200809L /* strdup */
#include "cases.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { LINE = 4096 }; /* bytes of one in a file */

int cases_add_problem(case_list *list, const problem *p)
{
    case_item *item;
    attn_status st;

    if (list->n == list->room) {
        const size_t room = list->room ? 2 * list->room : 64;
        case_item *grown = realloc(list->item, room * sizeof *grown);
        if (!grown)
            return cli_fail(CLI_NOTHING, "no memory for %zu problems", room);
        list->item = grown;
        list->room = room;
    }
    item = &list->item[list->n];
    item->problem = *p;
    st = problem_text(p, item->text, sizeof item->text, NULL);
    if (st != ATTN_OK)
        return cli_fail_attn(st, NULL);
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->item[i].text, item->text))
            return CLI_GO;
    list->n++;
    return CLI_GO;
}

static int add(case_list *list, const char *text, const char *where)
{
    problem p;
    attn_status st = problem_parse(text, &p);

    return st == ATTN_OK ? cases_add_problem(list, &p) : cli_fail_attn(st, where);
}

int cases_add_text(case_list *list, const char *text)
{
    return add(list, text, NULL);
}

/* One line of a file, which is changed: comment and blanks around are cut off. */
static int add_line(case_list *list, char *line, const char *name, int number)
{
    static const char blank[] = " \t\r\n\v\f";
    char where[300];
    size_t n;

    line[strcspn(line, "#")] = '\0';
    line += strspn(line, blank);
    for (n = strlen(line); n > 0 && strchr(blank, line[n - 1]); n--)
        ;
    line[n] = '\0';
    if (!n)
        return CLI_GO;
    snprintf(where, sizeof where, "%s, line %d", name, number);
    return add(list, line, where);
}

static int add_set(case_list *list, const case_set *set)
{
    char *copy = strdup(set->text), *rest = copy;
    int status = copy ? CLI_GO : cli_fail(CLI_NOTHING, "no memory for a list of problems");

    for (int number = 1; status == CLI_GO && rest; number++) {
        char *line = rest;
        rest = strchr(line, '\n');
        if (rest)
            *rest++ = '\0';
        status = add_line(list, line, set->name, number);
    }
    free(copy);
    return status;
}

/* The next line, without what ends it; false: there is none, or it is no text: *bad. */
static bool read_line(FILE *file, char (*line)[LINE + 1], bool *bad)
{
    size_t n = 0;
    int c;

    while ((c = getc(file)) != EOF && c != '\n' && c && n < LINE)
        (*line)[n++] = (char)c;
    (*line)[n] = '\0';
    *bad = c != EOF && c != '\n';
    return !*bad && (n || c == '\n');
}

static int add_file(case_list *list, const char *path)
{
    FILE *file = fopen(path, "r");
    char line[LINE + 1];
    int status = CLI_GO, number = 1;
    bool bad;

    if (!file)
        return cli_fail(CLI_BAD,
                        "%s: %s; want a file of problem texts, or small, tiny, medium, "
                        "gradients, dropout, linear",
                        path, strerror(errno));
    for (; status == CLI_GO && read_line(file, &line, &bad); number++)
        status = add_line(list, line, path, number);
    if (status == CLI_GO && bad)
        status = cli_fail(CLI_BAD, "%s, line %d: want at most %d bytes, none of them 0",
                          path, number, LINE);
    if (status == CLI_GO && ferror(file))
        status = cli_fail(CLI_BAD, "%s: %s", path, strerror(errno));
    fclose(file);
    return status;
}

int cases_add_named(case_list *list, const char *name)
{
    for (const case_set *set = case_sets; set->name; set++)
        if (!strcmp(set->name, name))
            return add_set(list, set);
    return add_file(list, name);
}

void cases_free(case_list *list)
{
    free(list->item);
    *list = (case_list){ 0 };
}
