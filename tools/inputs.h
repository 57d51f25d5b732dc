/* SPDX-License-Identifier: MIT */
/* tools/inputs.h: random and adversarial tensors of a problem, as numbers without a
 * memory layout. */
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

/* How to make them. */
typedef struct input_how {
    input_kind kind;
    bool same_heads;   /* all heads of K hold the same rows, and so do those of V   */
    bool wild_lists;   /* some lengths, boundaries and pages must be clamped        */
    bool full;         /* for timing: full lengths, nothing hidden by bias or mask  */
} input_how;

/* What a row of K and V is to the queries of its heads. */
enum { SEEN_BY_NONE, SEEN_BUT_HIDDEN, SEEN };

/* Contiguous arrays in the order [B, H, L, D], packed or paged or not; numbers are
 * already rounded to their types. What a problem does not have is NULL. Sizes of bias,
 * mask and slopes are 1 where they are the same for all. */
typedef struct inputs {
    attn_softmax_desc desc;   /* sizes are those of the run                        */
    input_kind kind;
    float *q, *k, *v;
    int32_t *lens;            /* [B] keys, may lie outside 0 .. Lk                 */
    int32_t *lens_q, *offsets;                             /* [B]                  */
    int32_t *cu_q, *cu_k;                                  /* [B + 1]              */
    int32_t *table;                                        /* [B, blocks]          */
    int64_t tokens_q, tokens_k, pages, blocks;
    float *bias;
    unsigned char *mask;
    float *alibi, *sinks;                                  /* [B or 1, Hq], [Hq]   */
    int64_t bias_size[4], mask_size[4], alibi_size[4];
    float *o, *lse;           /* backward: [B, Hq, Lq, Dv] and [B, Hq, Lq], as the  */
    float *grad_o, *grad_lse; /*   forward left them; their gradients. No o without
                               *   grad_o                                          */

    unsigned char *seen;      /* [B, Hkv, Lk]: SEEN_..., by any of the head's queries */
    unsigned char *bias_used; /* as bias: some pair that is in sight reads it      */
} inputs;

/* Makes them from `seed`: the same seed, problem and kind give the same numbers
 * everywhere. false if memory is out; `in` is then empty. */
bool inputs_make(inputs *in, const attn_softmax_desc *desc, input_how how, uint64_t seed);

/* Cuts out batch `b` and key/value head `kvh` with its query heads: a problem with
 * B = Hkv = 1. false if memory is out; `out` is then empty. */
bool inputs_cut(inputs *out, const inputs *in, int64_t b, int64_t kvh);

/* Frees the arrays. Accepts an empty one. */
void inputs_free(inputs *in);

/* Parts of inputs_make(): what is listed by batch (input_lists.c), what is added to or
 * hides scores, and what is in sight then (input_terms.c). */
bool inputs_make_lists(inputs *in, const input_how *how, uint64_t seed);
bool inputs_make_terms(inputs *in, const input_how *how, uint64_t seed);
void inputs_mark(inputs *in, const input_how *how);

/* ... and what a backward problem is given besides (input_gradients.c). */
bool inputs_make_gradients(inputs *in, const input_how *how, uint64_t seed);

/* Number `index` of stream `stream`: a counter-based generator, no state. */
uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index);
double random_normal(uint64_t seed, uint64_t stream, uint64_t index);

/* A seed that belongs to a text. */
uint64_t random_seed_of(const char *text, uint64_t seed);

/* The nearest number that the type holds, ties to even. */
float round_to_type(attn_type type, float x);

#endif
