/* SPDX-License-Identifier: MIT */
/* plan/merge.c: the kernel that takes one part into a merge, for a device. */
#include <attn/device.h>

#include "core/size.h"
#include "plan/plan.h"

void attn_merge_step(const attn_caps *c, attn_type part, attn_type o, attn_step *step)
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
