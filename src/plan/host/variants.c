/* SPDX-License-Identifier: MIT */
/* plan/host/variants.c: the host's variants, best first. */
#include "plan/host/variants.h"

#include <stddef.h>

const attn_variant *const *attn_host_variants(const attn_caps *caps)
{
    static const attn_variant *const list[] = {
        &attn_host_softmax_fwd_split_variant,
        &attn_host_softmax_fwd_tile_variant,
        &attn_host_softmax_fwd_reference_variant,
        &attn_host_softmax_bwd_tile_variant,
        &attn_host_softmax_bwd_reference_variant,
        &attn_host_linear_fwd_chunk_variant,
        &attn_host_linear_fwd_recurrent_variant,
        &attn_host_linear_fwd_reference_variant,
        &attn_host_linear_bwd_chunk_variant,
        &attn_host_linear_bwd_reference_variant,
        NULL,
    };

    (void)caps;
    return list;
}
