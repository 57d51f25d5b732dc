/* SPDX-License-Identifier: MIT */
/* plan/cuda/softmax_fwd_cudnn.c: all of attention by cuDNN: a peer to hold ours against. By
 * name only, as long as nothing has been measured. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/cuda/variants.h"

enum {
    /* The first version whose fused attention takes every length, and heads of 256 on sm_80
     * (9.10.0 and 9.10.1 are known to be wrong). */
    LEAST_VERSION = 91100,
    LEAST_CAPABILITY = 80,

    /* cuDNN's own room. What its plan wants is known on the device only; one that wants
     * more is passed over. It begins at a multiple of 256 bytes, the workspace at one of
     * 64. */
    LIBRARY_BYTES = 32 << 20,
    ALIGNMENT = 256
};

/* With an LSE the caller may leave O out, cuDNN may not. */
static bool find_workspace(const attn_problem *p, int64_t *bytes)
{
    int64_t o = 0;

    if (p->features & ATTN_FEAT_LSE &&
        (!attn_mul(p->b * p->hq, p->lq, &o) ||
         !attn_mul(o, p->dv * (int64_t)attn_type_bytes(p->type), &o)))
        return false;
    return attn_add(o, LIBRARY_BYTES + ALIGNMENT, bytes);
}

/* The strides of scores that no memory holds are numbers all the same. */
static bool counts(const attn_problem *p)
{
    int64_t n;

    return attn_cuda_counts(p) && attn_mul(p->b, p->hq, &n) && attn_mul(n, p->lq, &n) &&
           attn_mul(n, p->lk, &n);
}

static bool aligned(const attn_problem *p)
{
    for (int t = 0; t < ATTN_TENSOR_COUNT; t++)
        if (p->layout[t] != ATTN_LAYOUT_16)
            return false;
    return true;
}

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    int64_t bytes;

    if (!c->cudnn_version)
        return "cuDNN 9 was not found (ATTN_CUDNN_LIB: the library or its folder)";
    if (c->cudnn_version < LEAST_VERSION)
        return "cuDNN is older than 9.11";
    if (c->capability < LEAST_CAPABILITY)
        return "cuDNN's attention begins at compute capability 8.0";
    if (p->type == ATTN_F32)
        return "cuDNN's attention takes f16 and bf16";
    if (p->d % 8 || p->dv % 8)
        return "D or Dv is no multiple of 8";
    if (attn_max(p->d, p->dv) > 256)
        return "D or Dv is over 256";
    if (!p->b || !p->hq || !p->lq || !p->lk)
        return "cuDNN's tensors are not empty";
    if (p->features & ATTN_FEAT_CAUSAL && p->features & ATTN_FEAT_ALIGN_BR && p->lk < p->lq)
        return "more queries than keys, aligned bottom-right: rows without a key";
    if (!(p->scale > 0))
        return "the scale is not positive: cuDNN may scale maxima instead of scores";
    if (!aligned(p))
        return "cuDNN wants addresses and strides that are multiples of 16 bytes";
    if (!counts(p))
        return "more queries, keys or scores than can be counted";
    if (!find_workspace(p, &bytes) || bytes > c->max_alloc_bytes)
        return "the device's memory has no room for cuDNN's 32 MiB, and O's with an LSE";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];

    (void)c;
    step->kernel = "cudnn_attention";
    step->tile_q = 16; /* sizes of the self-test: there is no tile of ours */
    step->tile_k = 128;
    step->block = 1;
    step->scratch_bytes = LIBRARY_BYTES;
    step->b = p->b;
    step->hq = p->hq;
    step->hkv = p->hkv;
    step->lq = p->lq;
    step->lk = p->lk;
    attn_step_softmax(step, p, ATTN_READS_ALL);
    find_workspace(p, &out->workspace_bytes);
    attn_choice_instance(out, "d%lld,dv%lld,%s", (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason =
        "no tile of ours; cuDNN plans for itself when it first sees sizes and "
        "strides, and is left 32 MiB of the workspace";
}

const attn_variant attn_cuda_softmax_fwd_cudnn_variant = {
    .name = "softmax_fwd_cudnn",
    .about = "cuDNN's own fused attention, f16 and bf16; plain and causal",
    .features = ATTN_FEAT_CAUSAL | ATTN_FEAT_ALIGN_BR | ATTN_FEAT_LSE,
    /* nondet: cuDNN 9.14 has been seen to give other bits of an LSE when run again. */
    .traits = ATTN_TRAIT_BY_NAME | ATTN_TRAIT_VENDOR | ATTN_TRAIT_BY_SIZE |
              ATTN_TRAIT_FORWARD | ATTN_TRAIT_NONDET,
    .applicable = applicable,
    .lower = lower,
};
