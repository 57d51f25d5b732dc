/* SPDX-License-Identifier: MIT */
/* plan/host/linear_bwd_reference.c: gradients in double; also what nothing else takes. */
#include "core/size.h"
#include "plan/host/variants.h"

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    (void)p;
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = "linear_bwd_reference";
    step->tile_q = step->tile_k = step->block = 1;
    step->columns = ATTN_LINEAR_BLOCK;
    step->threads = attn_max(c->compute_units, 1);
    step->scratch_bytes = attn_round_up(
        8 * (attn_max(p->d, p->dv) * ATTN_LINEAR_BLOCK + ATTN_LINEAR_BLOCK + p->dv), 64);
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    out->splits = 0;
    out->workspace_bytes = step->threads * step->scratch_bytes;
    attn_choice_instance(out, "d%lld,dv%lld,%s", (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    attn_choice_budget(out, "a block of the state and rows, in double",
                       step->scratch_bytes);
}

const attn_variant attn_host_linear_bwd_reference_variant = {
    .name = "linear_bwd_reference",
    .about = "gradients by plain loops in double, token by token",
    .op = ATTN_OP_LINEAR,
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .lower = lower,
};
