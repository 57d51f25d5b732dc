/* SPDX-License-Identifier: MIT */
/* plan/host/linear_fwd_reference.c: the oracle; also what nothing else takes. */
#include "core/size.h"
#include "plan/host/variants.h"

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if ((double)p->b * (double)p->hkv * (double)p->d > 0x1p56)
        return "8 bytes of workspace for each number of z are more than can be addressed";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    step->kernel = "linear_fwd_reference";
    step->tile_q = step->tile_k = step->block = 1;
    step->columns = ATTN_LINEAR_BLOCK;
    step->threads = attn_max(c->compute_units, 1);
    step->scratch_bytes = attn_round_up(8 * (p->d * (ATTN_LINEAR_BLOCK + 2)), 64);
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    out->splits = 0;
    out->workspace_bytes = step->threads * step->scratch_bytes;
    if (p->features & ATTN_FEAT_NORMALIZE)
        out->workspace_bytes += 8 * p->b * p->hkv * p->d;
    attn_choice_instance(out, "d%lld,dv%lld,%s", (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    attn_choice_budget(out, "a block of the state and rows, in double",
                       step->scratch_bytes);
}

const attn_variant attn_host_linear_fwd_reference_variant = {
    .name = "linear_fwd_reference",
    .about = "plain loops in double, token by token: the oracle; every rule",
    .op = ATTN_OP_LINEAR,
    .pass = ATTN_PASS_FWD,
    .features = ATTN_FEATURES_LINEAR | ATTN_FEAT_DECAY | ATTN_FEAT_BETA,
    .applicable = applicable,
    .lower = lower,
};
