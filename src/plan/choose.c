/* SPDX-License-Identifier: MIT */
/* plan/choose.c: which variant computes a problem on a device, and why. */
#include <string.h>

#include "core/size.h"
#include "core/status.h"
#include "plan/plan.h"

static const char *lacks(uint32_t features)
{
#define X(name, word)                \
    if (features & ATTN_FEAT_##name) \
        return "does not take \"" word "\"";
    ATTN_FEATURE_LIST(X)
#undef X
    return NULL;
}

/* The device with the limits learned for one variant. */
static attn_caps caps_for(const attn_target *target, int index)
{
    attn_caps caps = target->caps;
    const attn_verdict *v = &target->verdict[index];

    if (v->max_group)
        caps.max_group = attn_min(caps.max_group, v->max_group);
    if (v->fast_bytes)
        caps.fast_bytes = attn_min(caps.fast_bytes, v->fast_bytes);
    return caps;
}

bool attn_variant_computes(const attn_problem *p, const attn_target *target, int index)
{
    return target->variants[index]->op == p->op && target->variants[index]->pass == p->pass;
}

const char *attn_refusal(const attn_problem *p, const attn_target *target, int index)
{
    const attn_variant *v = target->variants[index];
    const attn_caps caps = caps_for(target, index);
    const char *const denial = target->verdict[index].denial;
    const char *reason;

    if (v->op != p->op)
        return p->op == ATTN_OP_LINEAR ? "computes softmax attention"
                                       : "computes linear attention";
    if (v->pass != p->pass)
        return p->pass == ATTN_PASS_BWD ? "computes no gradients"
                                        : "computes gradients and nothing else";
    if (p->features & ~v->features)
        return lacks(p->features & ~v->features);
    reason = v->applicable(p, &caps);
    return reason || !denial[0] ? reason : denial;
}

const char *attn_drawback(const attn_problem *p, const attn_target *target, int index)
{
    const attn_variant *v = target->variants[index];
    const attn_caps caps = caps_for(target, index);

    if (v->traits & ATTN_TRAIT_BY_NAME)
        return "takes it, but only by name";
    if (v->traits & ATTN_TRAIT_NONDET && !p->allow_nondet)
        return "takes it, but its bits may differ from run to run: only by name, or with "
               "allow=nondet";
    return v->worse ? v->worse(p, &caps) : NULL;
}

/* Why a variant does not do what the options ask beside the problem; NULL: it does. */
static const char *unwilling(const attn_variant *v, const attn_options *options)
{
    return options && options->splits > 1 && !v->splits ? "does not split the keys" : NULL;
}

/* Whether a back end has variants for the problem's operation and pass at all. */
static bool has_any(const attn_problem *p, const attn_target *target)
{
    for (int i = 0; target->variants[i]; i++)
        if (attn_variant_computes(p, target, i))
            return true;
    return false;
}

static attn_status unsupported(const attn_problem *p, const attn_target *target,
                               const attn_options *options)
{
    const char *const only = options ? options->variant : NULL;
    char problem[256], reasons[2048];
    attn_text name = attn_text_in(problem, sizeof problem);
    attn_text text = attn_text_in(reasons, sizeof reasons);

    attn_problem_text(p, &name);
    if (!has_any(p, target))
        attn_text_add(&text, "; none of them computes %s yet, \"host\" does",
                      p->op == ATTN_OP_SOFTMAX   ? "gradients"
                      : p->pass == ATTN_PASS_BWD ? "gradients of linear attention"
                                                 : "linear attention");
    for (int i = 0; target->variants[i]; i++)
        if (attn_variant_computes(p, target, i) &&
            (!only || !strcmp(only, target->variants[i]->name))) {
            const char *reason = attn_refusal(p, target, i);

            reason = reason ? reason : unwilling(target->variants[i], options);
            attn_text_add(&text, "; %s: %s", target->variants[i]->name,
                          reason ? reason : attn_drawback(p, target, i));
        }
    return attn_fail(ATTN_ERR_UNSUPPORTED, "no variant of %s takes %s%s", target->backend,
                     problem, reasons);
}

static attn_status unknown_variant(const attn_problem *p, const attn_target *target,
                                   const char *only)
{
    char names[1024];
    attn_text text = attn_text_in(names, sizeof names);

    for (int i = 0; target->variants[i]; i++)
        if (attn_variant_computes(p, target, i))
            attn_text_add(&text, "%s%s", names[0] ? ", " : "", target->variants[i]->name);
    return attn_fail(ATTN_ERR_INVALID, "variant = \"%s\", want one of %s's: %s", only,
                     target->backend, names);
}

attn_status attn_options_read(attn_options *options, const attn_options *from)
{
    *options = (attn_options){ .size = sizeof *options };
    if (!from)
        return ATTN_OK;
    if (!attn_struct_copy(options, sizeof *options, from, from->size,
                          offsetof(attn_options, splits)))
        return attn_fail(ATTN_ERR_INVALID,
                         "options.size = %zu, want sizeof(attn_options) = %zu", from->size,
                         sizeof *options);
    if (options->splits < 0 || options->splits > 4096)
        return attn_fail(ATTN_ERR_INVALID, "options.splits = %lld, want 0 .. 4096",
                         (long long)options->splits);
    return ATTN_OK;
}

/* Whether a variant's drawback is one that nothing outweighs. */
static bool must_be_named(const attn_problem *p, const attn_variant *v)
{
    return v->traits & ATTN_TRAIT_BY_NAME ||
           (v->traits & ATTN_TRAIT_NONDET && !p->allow_nondet);
}

/* The place of what attn_choose() picks; -1: nothing. */
static int pick(const attn_problem *p, const attn_target *target,
                const attn_options *options, bool *known)
{
    const char *const only = options ? options->variant : NULL;
    int second = -1;

    for (int i = 0; target->variants[i]; i++) {
        const attn_variant *v = target->variants[i];

        if (!attn_variant_computes(p, target, i) || (only && strcmp(only, v->name)))
            continue;
        *known = true;
        if (attn_refusal(p, target, i) || unwilling(v, options))
            continue;
        if (only || !attn_drawback(p, target, i))
            return i;
        if (second < 0 && !must_be_named(p, v))
            second = i;
    }
    return second;
}

attn_status attn_choose(const attn_problem *p, const attn_target *target,
                        const attn_options *options, attn_choice *out)
{
    const char *const only = options ? options->variant : NULL;
    bool known = false;
    const int i = pick(p, target, options, &known);
    attn_caps caps;

    if (i < 0)
        return only && !known && has_any(p, target) ? unknown_variant(p, target, only)
                                                    : unsupported(p, target, options);
    caps = caps_for(target, i);
    memset(out, 0, sizeof *out);
    out->variant = target->variants[i];
    out->index = i;
    out->splits = options ? options->splits : 0;
    out->variant->lower(p, &caps, out);
    return ATTN_OK;
}

void attn_choice_text(const attn_choice *choice, const attn_target *target, attn_text *text)
{
    attn_text_add(text, "%s:%s[%s]", target->backend, choice->variant->name,
                  choice->instance);
}
