/* SPDX-License-Identifier: MIT */
/* backend/host/kernel.c: the host's kernels by name; compiled with the library. */
#include <string.h>

#include "backend/host/host.h"
#include "core/status.h"

void attn_host_kernels(attn_device *dev, const attn_host_level *level)
{
    const struct attn_kernel all[ATTN_HOST_KERNELS] = {
        { "softmax_fwd_tile", level->softmax_fwd_tile, NULL },
        { "softmax_fwd_split", level->softmax_fwd_split, NULL },
        { "softmax_fwd_reference", attn_host_softmax_fwd_reference, NULL },
        { "softmax_bwd_tile", level->softmax_bwd_tile, NULL },
        { "softmax_bwd_reference", attn_host_softmax_bwd_reference, NULL },
        { "linear_fwd_chunk", NULL, level->linear_fwd_chunk },
        { "linear_fwd_recurrent", NULL, level->linear_fwd_recurrent },
        { "linear_fwd_reference", NULL, attn_host_linear_fwd_reference },
        { "linear_bwd_chunk", NULL, level->linear_bwd_chunk },
        { "linear_bwd_reference", NULL, attn_host_linear_bwd_reference },
    };

    memcpy(dev->kernel, all, sizeof all);
}

attn_status attn_host_kernel(attn_device *dev, const attn_step *step,
                             const attn_kernel **out, int64_t *max_group)
{
    for (int i = 0; i < ATTN_HOST_KERNELS; i++)
        if (!strcmp(dev->kernel[i].name, step->kernel)) {
            *out = &dev->kernel[i];
            *max_group = 1;
            return ATTN_OK;
        }
    return attn_fail(ATTN_ERR_BUILD, "host has no kernel \"%s\"", step->kernel);
}
