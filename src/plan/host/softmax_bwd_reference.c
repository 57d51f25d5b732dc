/* SPDX-License-Identifier: MIT */
/* plan/host/softmax_bwd_reference.c: gradients in double; also what nothing else takes. */
#include "core/size.h"
#include "plan/host/variants.h"

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if ((double)p->b * (double)p->hq * (double)p->lq > 0x1p56)
        return "8 bytes of workspace for each query are more than can be addressed";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = "softmax_bwd_reference";
    step->tile_q = step->tile_k = step->block = 1;
    step->threads = attn_max(c->compute_units, 1);
    step->scratch_bytes = attn_round_up(8 * (p->d + p->dv), 64);
    out->splits = 0;
    out->workspace_bytes = step->threads * step->scratch_bytes + 8 * p->b * p->hq * p->lq;
    attn_step_softmax(step, p, ATTN_READS_ALL | ATTN_READS_DROPOUT);
    attn_choice_instance(out, "d%lld,dv%lld,%s", (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    attn_choice_budget(out, "a row of dk and of dv, in double", 8 * (p->d + p->dv));
}

const attn_variant attn_host_softmax_bwd_reference_variant = {
    .name = "softmax_bwd_reference",
    .about = "plain loops in double, one row of a gradient at a time",
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_BWD | ATTN_FEAT_DROPOUT,
    .applicable = applicable,
    .lower = lower,
};
