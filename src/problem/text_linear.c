/* SPDX-License-Identifier: MIT */
/* problem/text_linear.c: the fields of a text of linear attention. */
#include "problem/text.h"

enum { STATE = ATTN_FEAT_STATE_IN | ATTN_FEAT_STATE_OUT };

static const attn_text_flag flags[] = {
    { "lens", ATTN_FEAT_LENS_KV, ATTN_FEAT_LENS_KV },
    { "state", STATE, STATE },
    { "state=in", STATE, ATTN_FEAT_STATE_IN },
    { "state=out", STATE, ATTN_FEAT_STATE_OUT },
};

static const attn_text_word phis[] = {
    { "identity", ATTN_PHI_IDENTITY },
    { "elu1", ATTN_PHI_ELU1 },
    { "relu", ATTN_PHI_RELU },
    { NULL, 0 },
};

static const attn_text_word rules[] = {
    { "linear", ATTN_RULE_LINEAR },
    { "gated", ATTN_RULE_GATED },
    { "delta", ATTN_RULE_DELTA },
    { "gated_delta", ATTN_RULE_GATED_DELTA },
    { NULL, 0 },
};

static const attn_text_word grads[] = {
    { "q", ATTN_GRAD_Q },         { "k", ATTN_GRAD_K }, { "v", ATTN_GRAD_V },
    { "state", ATTN_GRAD_STATE }, { NULL, 0 },
};

static const char *word_of(const attn_text_word *words, int value)
{
    while (words->word && words->value != value)
        words++;
    return words->word ? words->word : "?";
}

void attn_text_linear_fields(const attn_problem *p, attn_text *text)
{
    if (p->features & ATTN_FEAT_CAUSAL)
        attn_text_add(text, ",causal");
    if (p->scale_given)
        attn_text_float(text, "scale", p->scale);
    if (p->phi != ATTN_PHI_IDENTITY)
        attn_text_add(text, ",phi=%s", word_of(phis, (int)p->phi));
    if (p->features & ATTN_FEAT_NORMALIZE)
        attn_text_add(text, ",normalize");
    if (p->eps_given)
        attn_text_float(text, "eps", p->eps);
    if (p->rule != ATTN_RULE_LINEAR)
        attn_text_add(text, ",rule=%s", word_of(rules, (int)p->rule));
    if (p->features & ATTN_FEAT_DECAY)
        attn_text_add(text, ",decay=%s", attn_type_name(p->type_decay));
    if (p->features & ATTN_FEAT_BETA)
        attn_text_add(text, ",beta=%s", attn_type_name(p->type_beta));
    attn_text_flags(p, flags, sizeof flags / sizeof flags[0], text);
    if (p->features & ATTN_FEAT_DEN && p->pass == ATTN_PASS_FWD)
        attn_text_add(text, ",den");
}

#define AT(field) offsetof(attn_linear_desc, field)
/* decay= and beta= belong to a rule and have no bit of their own. */
static const attn_text_field fields[] = {
    TEXT_DIM("b", AT(batch), true, "b and an integer"),
    TEXT_DIM("hq", AT(heads_q), true, "hq and an integer"),
    TEXT_DIM("hkv", AT(heads_kv), true, "hkv and an integer"),
    TEXT_DIM("lq", AT(len_q), true, "lq and an integer"),
    TEXT_DIM("lk", AT(len_kv), true, "lk and an integer"),
    TEXT_DIM("d", AT(dim_qk), true, "d and an integer"),
    TEXT_DIM("dv", AT(dim_v), false, "dv and an integer, not 0"),
    TEXT_FLAG("causal", ATTN_LINEAR_CAUSAL),
    TEXT_VALUE("scale=", NUMBER, AT(scale), ATTN_LINEAR_SCALE, "scale=NUMBER", NULL),
    TEXT_VALUE("phi=", WORD, AT(phi), ATTN_LINEAR_PHI, "phi=identity, phi=elu1 or phi=relu",
               phis),
    TEXT_FLAG("normalize", ATTN_LINEAR_NORMALIZE),
    TEXT_VALUE("eps=", NUMBER, AT(eps), ATTN_LINEAR_EPS, "eps=NUMBER", NULL),
    TEXT_VALUE("rule=", WORD, AT(rule), ATTN_LINEAR_RULE,
               "rule=linear, rule=gated, rule=delta or rule=gated_delta", rules),
    TEXT_VALUE("decay=", WORD, AT(type_decay), 0, "decay=f32, decay=f16 or decay=bf16",
               attn_text_types),
    TEXT_VALUE("beta=", WORD, AT(type_beta), 0, "beta=f32, beta=f16 or beta=bf16",
               attn_text_types),
    TEXT_FLAG("lens", ATTN_LINEAR_LENS_KV),
    TEXT_FLAG("state", ATTN_LINEAR_STATE_IN | ATTN_LINEAR_STATE_OUT),
    TEXT_FLAG("state=in", ATTN_LINEAR_STATE_IN),
    TEXT_FLAG("state=out", ATTN_LINEAR_STATE_OUT),
    TEXT_FLAG("den", ATTN_LINEAR_DEN),
    TEXT_VALUE("grad=", GRAD, 0, ATTN_LINEAR_GRAD,
               "grad= and q, k, v, state with + between, each once", NULL),
    TEXT_VALUE(
        "layout=", LAYOUT, 0, ATTN_LINEAR_LAYOUT,
        "layout=CLASS or a CLASS for each of q, k, v and o (of linear_bwd eight: also "
        "the gradients of o, q, k and v) with : between, of 16, 8, 4, 2 and any",
        NULL),
    TEXT_FLAG("allow=tf32", ATTN_LINEAR_ALLOW_TF32),
    TEXT_FLAG("allow=nondet", ATTN_LINEAR_ALLOW_NONDET),
    TEXT_FLAG("allow=tf32+nondet", ATTN_LINEAR_ALLOW_TF32 | ATTN_LINEAR_ALLOW_NONDET),
};

const attn_text_op attn_text_linear = {
    .name = "linear",
    .fields = fields,
    .n_fields = sizeof fields / sizeof fields[0],
    .use = AT(use),
    .type = AT(type),
    .layout = { AT(layout_q), AT(layout_k), AT(layout_v), AT(layout_o), AT(layout_grad_o),
                AT(layout_grad_q), AT(layout_grad_k), AT(layout_grad_v) },
    .grad = AT(grad),
    .grads = grads,
};
