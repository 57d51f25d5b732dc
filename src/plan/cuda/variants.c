/* SPDX-License-Identifier: MIT */
/* plan/cuda/variants.c: CUDA's variants, best first. */
#include "plan/cuda/variants.h"

#include <stddef.h>

const attn_variant *const *attn_cuda_variants(const attn_caps *caps)
{
    static const attn_variant *const list[] = {
        &attn_cuda_softmax_fwd_tile_variant,
        NULL,
    };

    (void)caps;
    return list;
}
