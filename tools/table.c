/* SPDX-License-Identifier: MIT */
/* tools/table.c: lays out and prints tables. */
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_cell(table *t, const char *format, ...)
{
    char text[512], *copy;
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    copy = malloc(strlen(text) + 1);
    if (copy && t->n == t->room) {
        const size_t room = t->room ? 2 * t->room : 64;
        char **grown = realloc(t->cell, room * sizeof *grown);
        if (grown) {
            t->cell = grown;
            t->room = room;
        }
    }
    if (!copy || t->n == t->room) {
        free(copy);
        t->lost = true;
        return;
    }
    t->cell[t->n++] = strcpy(copy, text);
}

static int width_of(const table *t, int column)
{
    size_t width = strlen(t->heads[column]);

    for (size_t i = (size_t)column; i < t->n; i += (size_t)t->columns)
        width = strlen(t->cell[i]) > width ? strlen(t->cell[i]) : width;
    return (int)width;
}

static void print_plain(const char *text, int width, bool right, bool last, FILE *to)
{
    if (right)
        fprintf(to, "%*s", width, text);
    else
        fprintf(to, "%-*s", last ? 0 : width, text);
    fputs(last ? "\n" : "  ", to);
}

static void print_markdown(const char *text, bool first, bool last, FILE *to)
{
    fputs(first ? "| " : " | ", to);
    for (; *text; text++)
        fprintf(to, *text == '|' ? "\\|" : "%c", *text);
    fputs(last ? " |\n" : "", to);
}

static void print_csv(const char *text, bool last, FILE *to)
{
    const bool quote = strpbrk(text, ",\"\n") != NULL;

    if (quote)
        fputc('"', to);
    for (; *text; text++)
        fprintf(to, *text == '"' ? "\"\"" : "%c", *text);
    if (quote)
        fputc('"', to);
    fputc(last ? '\n' : ',', to);
}

void table_print(const table *t, table_style style, FILE *to)
{
    const size_t columns = (size_t)t->columns;

    for (size_t i = 0; i < columns + t->n / columns * columns; i++) {
        const int c = (int)(i % columns);
        const char *text = i < columns ? t->heads[i] : t->cell[i - columns];
        const bool last = c == t->columns - 1;

        if (style == TABLE_PLAIN)
            print_plain(text, width_of(t, c), t->align[c] == 'r', last, to);
        else if (style == TABLE_MARKDOWN)
            print_markdown(text, c == 0, last, to);
        else
            print_csv(text, last, to);
        if (style == TABLE_MARKDOWN && i == columns - 1)
            for (int k = 0; k < t->columns; k++)
                fprintf(to, "%s%s", t->align[k] == 'r' ? "|---:" : "|---",
                        k == t->columns - 1 ? "|\n" : "");
    }
    if (t->lost)
        fputs("(not all rows: memory is out)\n", style == TABLE_CSV ? stderr : to);
}

void table_free(table *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->cell[i]);
    free(t->cell);
    t->cell = NULL;
    t->n = t->room = 0;
}
