/* SPDX-License-Identifier: MIT */
/* problem/problem.h: the problem as a value: what is computed, without memory
 * and without a device. */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H

#include <stdbool.h>
#include <stdint.h>

#include <attn/linear.h>
#include <attn/softmax.h>

#include "core/text.h"

typedef enum attn_op { ATTN_OP_SOFTMAX = 0, ATTN_OP_LINEAR = 1 } attn_op;
typedef enum attn_pass { ATTN_PASS_FWD = 0, ATTN_PASS_BWD = 1 } attn_pass;

/* What a variant must be able to do. A problem has the bit only if the feature
 * changes the result: window (-1, -1) or softcap 0 set none. The words are those
 * of problem texts. */
#define ATTN_FEATURE_LIST(X)     \
    X(CAUSAL, "causal")          \
    X(ALIGN_BR, "align=br")      \
    X(OFFSET, "offset")          \
    X(OFFSETS, "offsets")        \
    X(WINDOW, "window")          \
    X(SOFTCAP, "softcap")        \
    X(BIAS, "bias")              \
    X(MASK, "mask")              \
    X(ALIBI, "alibi")            \
    X(SINKS, "sinks")            \
    X(LENS_Q, "qlens")           \
    X(LENS_KV, "lens")           \
    X(PACKED_Q, "packed=q")      \
    X(PACKED_K, "packed=k")      \
    X(PAGES, "pages")            \
    X(DROPOUT, "dropout")        \
    X(LSE, "lse")                \
    X(NORMALIZE, "normalize")    \
    X(DECAY, "decay")            \
    X(BETA, "beta")              \
    X(STATE_IN, "state=in")      \
    X(STATE_OUT, "state=out")    \
    X(DEN, "den")

enum {
#define X(name, word) ATTN_FEAT_BIT_##name,
    ATTN_FEATURE_LIST(X)
#undef X
    ATTN_FEAT_COUNT
};

enum {
#define X(name, word) ATTN_FEAT_##name = 1 << ATTN_FEAT_BIT_##name,
    ATTN_FEATURE_LIST(X)
#undef X
};

/* The features that every kernel of softmax attention's forward pass takes, since its seams
 * do: a new one joins them when it is in the seams of all. And those that a loop over keys
 * sees as more than a range of keys: values and masks of single scores. */
enum {
    ATTN_FEATURES_ALL = ATTN_FEAT_CAUSAL | ATTN_FEAT_ALIGN_BR | ATTN_FEAT_OFFSET |
                        ATTN_FEAT_OFFSETS | ATTN_FEAT_WINDOW | ATTN_FEAT_SOFTCAP |
                        ATTN_FEAT_BIAS | ATTN_FEAT_MASK | ATTN_FEAT_ALIBI |
                        ATTN_FEAT_SINKS | ATTN_FEAT_LENS_Q | ATTN_FEAT_LENS_KV |
                        ATTN_FEAT_PACKED_Q | ATTN_FEAT_PACKED_K | ATTN_FEAT_PAGES |
                        ATTN_FEAT_LSE,
    /* of the backward pass likewise; its problems have ATTN_FEAT_LSE always. ATTN_FEAT_DROPOUT
     * is in neither: few variants know it yet */
    ATTN_FEATURES_BWD = ATTN_FEATURES_ALL & ~ATTN_FEAT_PAGES,
    ATTN_FEATURES_TERMS = ATTN_FEAT_BIAS | ATTN_FEAT_MASK | ATTN_FEAT_ALIBI,
    /* of linear attention but for its rules; backward problems that are normalised have
     * ATTN_FEAT_DEN always */
    ATTN_FEATURES_LINEAR = ATTN_FEAT_CAUSAL | ATTN_FEAT_LENS_KV | ATTN_FEAT_NORMALIZE |
                           ATTN_FEAT_STATE_IN | ATTN_FEAT_STATE_OUT | ATTN_FEAT_DEN
};

/* The tensors that have a layout, in the order of `layout`; those of a backward problem
 * come last. */
enum {
    ATTN_TENSOR_Q,
    ATTN_TENSOR_K,
    ATTN_TENSOR_V,
    ATTN_TENSOR_O,
    ATTN_TENSOR_COUNT,
    ATTN_TENSOR_GRAD_O = ATTN_TENSOR_COUNT,
    ATTN_TENSOR_GRAD_Q,
    ATTN_TENSOR_GRAD_K,
    ATTN_TENSOR_GRAD_V,
    ATTN_TENSOR_ALL
};

/* Canonical: equal problems are equal byte for byte (it is zeroed first). */
typedef struct attn_problem {
    attn_op op;
    attn_pass pass;
    attn_type type;
    uint32_t features;                     /* ATTN_FEAT_ bits                 */
    int64_t b, hq, hkv, lq, lk, d, dv;     /* lengths: the most a call passes */
    int64_t offset;                        /* position of query 0, TOP_LEFT   */
    int64_t window_left, window_right;     /* -1: unbounded                   */
    float scale;                           /* always the value in force       */
    float softcap;                         /* 0: off                          */
    attn_type type_bias;                   /* NONE: there is no bias          */
    int64_t page_size;                     /* 0: no pages                     */
    float dropout;                         /* 0: off                          */
    int32_t scale_given;                   /* text prints it                  */
    int32_t allow_tf32;                    /* f32 only                        */
    int32_t allow_nondet;                  /* linear attention                */
    uint32_t grad;                         /* ATTN_GRAD_ bits; 0: forward     */
    attn_phi phi;                          /* linear attention, as all below  */
    attn_rule rule;
    float eps;                             /* the value in force; 0: no normaliser */
    int32_t eps_given;                     /* text prints it                  */
    attn_type type_decay, type_beta;       /* NONE: there is none             */
    attn_layout layout[ATTN_TENSOR_ALL];   /* never ELEMENT: 4 or 2 bytes     */
} attn_problem;

/* ATTN_LAYOUT_ELEMENT of 16-bit types, inside the library. */
#define ATTN_LAYOUT_2 ATTN_LAYOUT_ELEMENT

/* The word of a feature bit, as texts and reasons write it. */
const char *attn_feature_word(uint32_t bit);

/* The name of the bit of `use` that gives a problem of such an operation a feature:
 * "ATTN_USE_BIAS", "ATTN_LINEAR_DEN". Of several features: of one of them. */
const char *attn_use_name(attn_op op, uint32_t features);

/* The name of an ATTN_GRAD_ bit. */
const char *attn_grad_name(uint32_t grad);

/* What a layout promises: bytes that addresses and strides are multiples of;
 * 0 for ATTN_LAYOUT_ANY. */
int64_t attn_layout_bytes(attn_layout layout, attn_type type);

/* Fills *desc from a caller's descriptor of any known size and checks its rules. */
attn_status attn_softmax_desc_read(attn_softmax_desc *desc, const attn_softmax_desc *from);
attn_status attn_linear_desc_read(attn_linear_desc *desc, const attn_linear_desc *from);

/* From a descriptor that passed attn_softmax_check(), or attn_linear_check(). */
void attn_problem_from_softmax(attn_problem *p, const attn_softmax_desc *desc);
void attn_problem_from_linear(attn_problem *p, const attn_linear_desc *desc);

/* Back to a descriptor of the same problem. */
void attn_problem_to_softmax(const attn_problem *p, attn_softmax_desc *desc);
void attn_problem_to_linear(const attn_problem *p, attn_linear_desc *desc);

/* How scale and eps enter the forward of linear attention. It sums phi(Q) S and phi(Q) z and
 * multiplies the sums, not q, so that scale phi(Q) may leave f32 where O does not.
 * O = unit phi(Q) S; with a normaliser O = scale phi(Q) S / den, where
 * den = scale phi(Q) z + eps, and unit den is the caller's den. */
typedef struct attn_sums {
    float scale, eps, unit;
} attn_sums;

attn_sums attn_problem_sums(const attn_problem *p);

/* What both operations check alike: of their descriptors the fields that have one name. */
typedef struct attn_sizes {
    attn_type type;
    int64_t batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v;
} attn_sizes;

attn_status attn_sizes_check(const attn_sizes *d);
attn_status attn_layouts_check(const attn_layout layout[ATTN_TENSOR_ALL], bool backward);

/* ATTN_LAYOUT_ELEMENT of f32 is ATTN_LAYOUT_4. */
attn_layout attn_layout_canonical(attn_layout layout, attn_type type);

/* Appends the text of the problem (grammar: attn/text.h). */
void attn_problem_text(const attn_problem *p, attn_text *text);

/* Reads a problem text up to its end. INVALID with position and word. */
attn_status attn_problem_parse(attn_problem *p, const char *text);

/* How many tensors of a problem have a layout: of a forward one ATTN_TENSOR_COUNT. */
static inline int attn_problem_layouts(const attn_problem *p)
{
    return p->pass == ATTN_PASS_BWD ? ATTN_TENSOR_ALL : ATTN_TENSOR_COUNT;
}

/* How many pairs (query, key) of one batch and head are visible at the planned
 * lengths, of softmax attention. */
double attn_problem_visible(const attn_problem *p);

#endif
