/* SPDX-License-Identifier: MIT */
/* problem/text.h: what the texts of both operations share: a table of fields a side. */
#ifndef ATTN_PROBLEM_TEXT_H
#define ATTN_PROBLEM_TEXT_H

#include <stddef.h>

#include "problem/problem.h"

/* How the value of a field is written, and what it becomes in the descriptor. */
typedef enum attn_text_kind {
    ATTN_TEXT_FLAG,    /* no value: a bit of `use`                          */
    ATTN_TEXT_DIM,     /* letters, then digits: int64_t                     */
    ATTN_TEXT_INTEGER, /* int64_t                                           */
    ATTN_TEXT_NUMBER,  /* float                                             */
    ATTN_TEXT_WORD,    /* one of `words`: an enum                           */
    ATTN_TEXT_PAIR,    /* two integers with ":" between, the fields in turn */
    ATTN_TEXT_LAYOUT,  /* classes: the op's layouts                         */
    ATTN_TEXT_GRAD     /* gradients with "+" between: the op's grad         */
} attn_text_kind;

/* A word of a value; a table of them ends with NULL. */
typedef struct attn_text_word {
    const char *word;
    int value;
} attn_text_word;

typedef struct attn_text_field {
    const char *word;
    attn_text_kind kind;
    size_t field;                /* where the value goes                         */
    uint32_t use;                /* the bits that the field sets                 */
    bool wanted;                 /* a problem without it is no problem           */
    const char *want;            /* for the message                              */
    const attn_text_word *words;
    bool not_zero;               /* 0 means something else in a descriptor       */
} attn_text_field;

/* Rows of a table: a size, which without `wanted` has another meaning as 0; a word alone;
 * a word with a value. */
#define TEXT_DIM(word, at, wanted, want) \
    { word, ATTN_TEXT_DIM, at, 0, wanted, want, NULL, !(wanted) }
#define TEXT_FLAG(word, use) { word, ATTN_TEXT_FLAG, 0, use, false, word, NULL, false }
#define TEXT_VALUE(word, kind, at, use, want, words) \
    { word, ATTN_TEXT_##kind, at, use, false, want, words, false }

typedef struct attn_text_op {
    const char *name;            /* "softmax"                                    */
    const attn_text_field *fields;
    int n_fields;
    size_t use, type;            /* where these are in the descriptor            */
    size_t layout[ATTN_TENSOR_ALL];
    size_t grad;
    const attn_text_word *grads; /* bits, in the order of printing               */
} attn_text_op;

extern const attn_text_op attn_text_softmax, attn_text_linear;

/* "f32", "f16", "bf16" */
extern const attn_text_word attn_text_types[];

/* Append what an operation prints between the sizes and the gradients. */
void attn_text_softmax_fields(const attn_problem *p, attn_text *text);
void attn_text_linear_fields(const attn_problem *p, attn_text *text);

/* A word without a value, printed if of the features `of` just `are` set. */
typedef struct attn_text_flag {
    const char *word;
    uint32_t of, are;
} attn_text_flag;

void attn_text_flags(const attn_problem *p, const attn_text_flag *flags, size_t n,
                     attn_text *text);

/* Appends ",NAME=" and a float that reads back as it is. */
void attn_text_float(attn_text *text, const char *name, float x);

#endif
