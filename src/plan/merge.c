/* SPDX-License-Identifier: MIT */
/* plan/merge.c: the kernel that takes one part into a merge, for a device. */
#include <string.h>

#include <attn/device.h>

#include "core/size.h"
#include "plan/plan.h"

enum { WARP = 32, WARPS = 4 }; /* of a group of CUDA's, a row each */

/* CUDA's are compiled ahead of time, with both types: O's, then the part's. */
#define PARTS(o)                      \
    {                                 \
        o "_f32", o "_f16", o "_bf16" \
    }
static const char *const cuda_kernels[3][3] = { PARTS("softmax_merge_f32"),
                                                PARTS("softmax_merge_f16"),
                                                PARTS("softmax_merge_bf16") };

static void cuda_step(attn_type part, attn_type o, attn_step *step)
{
    *step = (attn_step){
        .kernel = cuda_kernels[o - ATTN_F32][part - ATTN_F32],
        .tile_q = WARPS,
        .block = WARPS * WARP,
        .type = o,
    };
}

static void compiled_step(const attn_caps *c, attn_type part, attn_type o, attn_step *step)
{
    const bool cpu = c->kind == ATTN_DEVICE_CPU;
    const int64_t wide = c->vector_width >= 16 ? 16 : c->vector_width >= 8 ? 8 : 4;

    *step = (attn_step){
        .kernel = "softmax_merge",
        .tile_q = 16,
        .block = cpu ? 1 : attn_max(attn_min(64, c->max_group), 1),
        .threads = c->compute_units,
        .type = o,
    };
    attn_step_define(step, "TYPE", o - ATTN_F32); /* TYPE_ in types.clh */
    attn_step_define(step, "PART_TYPE", part - ATTN_F32);
    attn_step_define(step, "VW", cpu ? wide : 4);
    attn_step_define(step, "ITEMS", step->block);
    attn_step_define(step, "BR", step->tile_q);
}

void attn_merge_step(const char *backend, const attn_caps *c, attn_type part, attn_type o,
                     attn_step *step)
{
    if (!strcmp(backend, "cuda"))
        cuda_step(part, o, step);
    else
        compiled_step(c, part, o, step);
}
