/* SPDX-License-Identifier: MIT */
/* tools/cases.h: lists of problem texts, from files, the command line, or built in. */
#ifndef ATTN_TOOLS_CASES_H
#define ATTN_TOOLS_CASES_H

#include <stddef.h>

#include "problem.h"

/* One problem. */
typedef struct case_item {
    char text[256];            /* canonical                                          */
    problem problem;
} case_item;

typedef struct case_list {
    case_item *item;
    size_t n, room;
} case_list;

/* A file of tests/cases, as it was when the tools were built. `case_sets` ends with a
 * NULL name. */
typedef struct case_set {
    const char *name;          /* "small": the file's name without ".txt"            */
    const char *text;
} case_set;
extern const case_set case_sets[];

/* Each adds problems to a list, without those that it already has. CLI_GO, or an exit
 * status after saying what is wrong with which line.
 *
 * A file has one problem a line; empty lines and what follows a # are left out. For
 * cases_add_named(), `name` is a built-in set, or else a file. */
int cases_add_text(case_list *list, const char *text);
int cases_add_problem(case_list *list, const problem *p);
int cases_add_named(case_list *list, const char *name);

/* In place of every problem the same with every number of a sweep, "l=512,1024": l, lq, lk,
 * b, h or d. A CLI_ status; cases_sweep.c. */
int cases_sweep(case_list *list, const char *sweep);

/* Empties a list. */
void cases_free(case_list *list);

#endif
