/* SPDX-License-Identifier: MIT */
/* tools/inputs.h: random and adversarial tensors of a problem, as numbers without a
 * memory layout. */
#ifndef ATTN_TOOLS_INPUTS_H
#define ATTN_TOOLS_INPUTS_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/linear.h>
#include <attn/softmax.h>

#include "linear_plain.h"
#include "problem.h"

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
    uint64_t dropout_seed, dropout_offset;
    float *o, *lse;           /* backward: [B, Hq, Lq, Dv] and [B, Hq, Lq], as the  */
    float *grad_o, *grad_lse; /*   forward left them; their gradients. No o without
                               *   grad_o                                          */

    bool is_linear;           /* linear attention: then desc has its sizes, type, layouts
                               * and lengths, and these are there:               */
    attn_linear_desc linear;
    float *state, *z;         /* [B, Hkv, D, Dv], [B, Hkv, D]                       */
    float *decay, *beta;      /* of decay_size, beta_size                           */
    int64_t decay_size[4], beta_size[4];
    float *den;               /* backward: [B, Hq, Lq]                              */
    float *grad_state, *grad_z;

    unsigned char *seen;      /* [B, Hkv, Lk]: SEEN_..., by any of the head's queries */
    unsigned char *bias_used; /* as bias: some pair that is in sight reads it      */
} inputs;

/* Makes them from `seed`: the same seed, problem and kind give the same numbers
 * everywhere. false if memory is out; `in` is then empty. */
bool inputs_make(inputs *in, const attn_softmax_desc *desc, input_how how, uint64_t seed);

/* The same of linear attention (linear_inputs.c): q and k are such that denominators are at
 * least 1 but for phi, keys of a delta rule have norm 1, and one of the gradients that may be
 * given, or all, are there. */
bool inputs_make_linear(inputs *in, const attn_linear_desc *desc, input_how how,
                        uint64_t seed);

/* Either, by the problem. */
bool inputs_make_problem(inputs *in, const problem *p, input_how how, uint64_t seed);

/* The problem that they are of. */
problem inputs_problem(const inputs *in);

/* The right answer to linear attention, or false: memory is out. Free it with
 * linear_plain_free(). */
bool inputs_answer_linear(const inputs *in, linear_plain *out);

/* Cuts out batch `b` and key/value head `kvh` with its query heads: a problem with
 * B = Hkv = 1. false if memory is out; `out` is then empty. */
bool inputs_cut(inputs *out, const inputs *in, int64_t b, int64_t kvh);

/* Frees the arrays. Accepts an empty one. */
void inputs_free(inputs *in);

/* Streams of the generator for q, k and v; other purposes have streams from 10 on. */
enum { STREAM_Q, STREAM_K, STREAM_V, STREAM_ROW };

/* Parts of inputs_make(): rows, what is listed by batch (input_lists.c), what is added to or
 * hides scores, and what is in sight then (input_terms.c). */
void inputs_fill(const inputs *in, float *to, int stream, int64_t heads, int64_t len,
                 int64_t dim, bool same_heads, uint64_t seed);
bool inputs_allocate(inputs *in);
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
