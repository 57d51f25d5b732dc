/* SPDX-License-Identifier: MIT */
/* problem/features.c: the names of features and gradients. */
#include <stddef.h>

#include "problem/problem.h"

const char *attn_feature_word(uint32_t bit)
{
#define X(name, word)            \
    if (bit == ATTN_FEAT_##name) \
        return word;
    ATTN_FEATURE_LIST(X)
#undef X
    return "?";
}

const char *attn_use_name(attn_op op, uint32_t features)
{
    static const struct {
        attn_op op;
        uint32_t feature;
        const char *name;
    } names[] = {
#define NAME(name) { ATTN_OP_SOFTMAX, ATTN_FEAT_##name, "ATTN_USE_" #name }
        NAME(LSE),
        NAME(BIAS),
        NAME(MASK),
        NAME(ALIBI),
        NAME(SINKS),
        NAME(LENS_Q),
        NAME(LENS_KV),
        NAME(OFFSETS),
        NAME(PACKED_Q),
        NAME(PACKED_K),
        NAME(PAGES),
        NAME(DROPOUT),
#undef NAME
#define NAME(name) { ATTN_OP_LINEAR, ATTN_FEAT_##name, "ATTN_LINEAR_" #name }
        NAME(LENS_KV),
        NAME(STATE_IN),
        NAME(STATE_OUT),
        NAME(DEN),
        NAME(NORMALIZE),
#undef NAME
        { ATTN_OP_LINEAR, ATTN_FEAT_DECAY, "a rule that has a decay" },
        { ATTN_OP_LINEAR, ATTN_FEAT_BETA, "a rule that has a beta" },
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (names[i].op == op && names[i].feature & features)
            return names[i].name;
    return "?";
}

const char *attn_grad_name(uint32_t grad)
{
    switch (grad) {
    case ATTN_GRAD_Q: return "ATTN_GRAD_Q";
    case ATTN_GRAD_K: return "ATTN_GRAD_K";
    case ATTN_GRAD_V: return "ATTN_GRAD_V";
    case ATTN_GRAD_BIAS: return "ATTN_GRAD_BIAS";
    case ATTN_GRAD_SINKS: return "ATTN_GRAD_SINKS";
    case ATTN_GRAD_STATE: return "ATTN_GRAD_STATE";
    default: return "?";
    }
}
