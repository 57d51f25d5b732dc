/* SPDX-License-Identifier: MIT */
/* plan/variants.c: the list of variants of each back end. */
#include <string.h>

#include "plan/cuda/variants.h"
#include "plan/host/variants.h"
#include "plan/opencl/variants.h"

const attn_variant *const *attn_variants_for(const char *backend, const attn_caps *caps)
{
    static const struct {
        const char *backend;
        const attn_variant *const *(*list)(const attn_caps *caps);
    } lists[] = {
        { "cuda", attn_cuda_variants },
        { "host", attn_host_variants },
        { "opencl", attn_opencl_variants },
    };

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
        if (!strcmp(lists[i].backend, backend))
            return lists[i].list(caps);
    return NULL;
}
