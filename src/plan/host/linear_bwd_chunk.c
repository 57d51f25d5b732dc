/* SPDX-License-Identifier: MIT */
/* plan/host/linear_bwd_chunk.c: gradients of linear attention in chunks on the processor. */
#include "core/size.h"
#include "plan/host/variants.h"

enum { MOST_DIM = 4096 /* as linear_fwd_chunk */ };

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 4096";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const int64_t beside = (p->features & ATTN_FEAT_NORMALIZE) != 0;
    const attn_linear_scratch s =
        attn_linear_tile(p, c, attn_max(p->d, p->dv + beside), attn_max(p->d, p->dv),
                         2 * p->d + p->dv, step);

    step->kernel = "linear_bwd_chunk";
    out->splits = 0;
    out->workspace_bytes = step->threads * step->scratch_bytes;
    attn_linear_explain_tile(p, c, s, out);
}

const attn_variant attn_host_linear_bwd_chunk_variant = {
    .name = "linear_bwd_chunk",
    .about = "gradients in scans over chunks of tokens, as products of matrices; vectors, "
             "OpenMP",
    .op = ATTN_OP_LINEAR,
    .pass = ATTN_PASS_BWD,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .lower = lower,
};
