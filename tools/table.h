/* SPDX-License-Identifier: MIT */
/* tools/table.h: tables for people, for Markdown and as CSV. */
#ifndef ATTN_TOOLS_TABLE_H
#define ATTN_TOOLS_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum table_style { TABLE_PLAIN, TABLE_MARKDOWN, TABLE_CSV } table_style;

/* Cells are added row by row; what does not fit in memory is left out and noted. */
typedef struct table {
    int columns;
    const char *const *heads;  /* [columns], borrowed                        */
    const char *align;         /* a letter a column: l or r                  */
    char **cell;
    size_t n, room;
    bool lost;
} table;

/* Adds the next cell. */
__attribute__((format(printf, 2, 3)))
void table_cell(table *t, const char *format, ...);

void table_print(const table *t, table_style style, FILE *to);
void table_free(table *t);

#endif
