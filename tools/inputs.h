/* SPDX-License-Identifier: MIT */
/* tools/inputs.h: random and adversarial Q, K, V and lengths of a problem. */
#ifndef ATTN_TOOLS_INPUTS_H
#define ATTN_TOOLS_INPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/softmax.h>

typedef enum input_kind {
    INPUT_NORMAL,      /* all N(0, 1)                                             */
    INPUT_CLEAR,       /* query rows times 3 .. 8: each has a clear maximum       */
    INPUT_HUGE,        /* scores in the thousands, values in the thousands        */
    INPUT_CONSTANT,    /* every key of a head has the same value row: O is that   */
    INPUT_KINDS
} input_kind;

const char *input_kind_name(input_kind kind);

/* The tensors as numbers, without memory layout: contiguous [B, H, L, D] arrays of
 * floats, already rounded to the problem's type. */
typedef struct inputs {
    attn_softmax_desc desc;   /* sizes are those of the run                        */
    input_kind kind;
    float *q, *k, *v;
    int32_t *lens;            /* [B], may lie outside 0 .. Lk; NULL: none          */
    unsigned char *seen;      /* [B, Lk]: some query of the batch sees that key    */
} inputs;

/* Makes them from `seed`: the same seed, problem and kind give the same numbers
 * everywhere. `same_heads`: all heads of K hold the same rows, and so do those of
 * V. false if memory is out; `in` is then empty. */
bool inputs_make(inputs *in, const attn_softmax_desc *desc, input_kind kind,
                 bool same_heads, uint64_t seed);

/* Cuts out batch `b` and key/value head `kvh` with its query heads: a problem with
 * B = Hkv = 1. false if memory is out; `out` is then empty. */
bool inputs_cut(inputs *out, const inputs *in, int64_t b, int64_t kvh);

/* Frees the arrays. Accepts an empty one. */
void inputs_free(inputs *in);

/* Number `index` of stream `stream`: a counter-based generator, no state. */
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);
double random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* A seed that belongs to a text. */
uint64_t random_seed_of(const char *text, uint64_t seed);

/* The nearest number that the type holds, ties to even. */
float round_to_type(attn_type type, float x);

#endif
