/* SPDX-License-Identifier: MIT */
/* plan/host/softmax_fwd_reference.c: the oracle; also what nothing else takes. */
#include "core/size.h"
#include "plan/host/variants.h"

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)p;
    (void)c;
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = "softmax_fwd_reference";
    step->tile_q = step->tile_k = step->block = 1;
    step->threads = attn_max(c->compute_units, 1);
    out->splits = 0;
    attn_step_softmax(step, p, ATTN_READS_ALL | ATTN_READS_DROPOUT);
    attn_choice_instance(out, "d%lld,dv%lld,%s", (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
}

const attn_variant attn_host_softmax_fwd_reference_variant = {
    .name = "softmax_fwd_reference",
    .about = "plain loops in double, one query at a time: the oracle",
    .features = ATTN_FEATURES_ALL | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
