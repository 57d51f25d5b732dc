/* SPDX-License-Identifier: MIT */
/* plan/host/linear_fwd_chunk.c: linear attention in chunks on the processor. */
#include "core/size.h"
#include "plan/host/variants.h"

enum {
    MOST_DIM = 4096, /* beyond that a chunk of rows leaves every cache  */
    LEAST_KEYS = 16  /* fewer fill no product                           */
};

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->d > MOST_DIM || p->dv > MOST_DIM)
        return "D or Dv is over 4096";
    if ((double)p->b * (double)p->hkv * (double)p->d > 0x1p56)
        return "4 bytes of workspace for each number of z are more than can be addressed";
    return NULL;
}

static const char *worse(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if (p->lk < LEAST_KEYS)
        return "takes it, but so few keys are sooner added one by one";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const attn_linear_scratch s = attn_linear_tile(p, c, p->d, p->dv, p->dv, step);

    step->kernel = "linear_fwd_chunk";
    out->splits = 0;
    out->workspace_bytes = step->threads * step->scratch_bytes;
    if (p->features & ATTN_FEAT_NORMALIZE)
        out->workspace_bytes += 4 * p->b * p->hkv * p->d;
    attn_linear_explain_tile(p, c, s, out);
}

const attn_variant attn_host_linear_fwd_chunk_variant = {
    .name = "linear_fwd_chunk",
    .about = "chunks of tokens as products of matrices; vectors, OpenMP",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR,
    .applicable = applicable,
    .worse = worse,
    .lower = lower,
};
