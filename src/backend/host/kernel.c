/* SPDX-License-Identifier: MIT */
/* backend/host/kernel.c: the host's kernels by name; compiled with the library. */
#include <string.h>

#include "backend/host/host.h"
#include "core/status.h"

void attn_host_kernels(attn_device *dev, const attn_host_level *level)
{
    dev->kernel[0] = (struct attn_kernel){ "softmax_fwd_tile", level->softmax_fwd_tile };
    dev->kernel[1] = (struct attn_kernel){ "softmax_fwd_split", level->softmax_fwd_split };
    dev->kernel[2] =
        (struct attn_kernel){ "softmax_fwd_reference", attn_host_softmax_fwd_reference };
    dev->kernel[3] =
        (struct attn_kernel){ "softmax_bwd_reference", attn_host_softmax_bwd_reference };
    dev->kernel[4] = (struct attn_kernel){ "softmax_bwd_tile", level->softmax_bwd_tile };
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
