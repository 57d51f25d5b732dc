/* SPDX-License-Identifier: MIT */
/* plan/tile.c: the starting tile, and what all softmax variants lower alike. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "core/size.h"
#include "plan/plan.h"

static bool fits(int64_t elements, int64_t row, int64_t br, int64_t bc)
{
    return bc * row + br * row + br * bc <= elements;
}

bool attn_tile_rule(int64_t elements, int64_t d, int64_t dv, int64_t *br, int64_t *bc)
{
    const int64_t row = d + dv;

    *bc = attn_max(1, elements / (2 * row));
    *br = attn_max(1, attn_min(*bc, d));
    while (!fits(elements, row, *br, *bc) && *br > 1) {
        /* as many keys as this many queries leave room for, else fewer queries */
        int64_t room = (elements - *br * row) / (row + *br);
        if (room >= 1) {
            *bc = attn_min(*bc, room);
            break;
        }
        *br /= 2;
    }
    if (!fits(elements, row, *br, *bc))
        *bc = attn_max(1, attn_min(*bc, (elements - *br * row) / (row + *br)));
    return fits(elements, row, *br, *bc);
}

void attn_step_define(attn_step *step, const char *name, int64_t value)
{
    assert(step->n_defines < ATTN_MAX_DEFINES);
    step->define[step->n_defines++] = (attn_define){ name, (int32_t)value };
}

void attn_choice_budget(attn_choice *choice, const char *what, int64_t bytes)
{
    assert(choice->n_budget < ATTN_MAX_BUDGET && choice->n_steps > 0);
    choice->budget[choice->n_budget++] = (attn_budget){ what, bytes };
    choice->step[choice->n_steps - 1].fast_bytes += bytes;
}

void attn_choice_instance(attn_choice *choice, const char *format, ...)
{
    va_list args;

    va_start(args, format);
    vsnprintf(choice->instance, sizeof choice->instance, format, args);
    va_end(args);
}

bool attn_problem_bounded_left(const attn_problem *p)
{
    return (p->features & ATTN_FEAT_WINDOW) && p->window_left >= 0;
}

bool attn_problem_bounded_right(const attn_problem *p)
{
    return (p->features & ATTN_FEAT_CAUSAL) ||
           ((p->features & ATTN_FEAT_WINDOW) && p->window_right >= 0);
}

void attn_step_softmax(attn_step *step, const attn_problem *p)
{
    static const char *const contiguous[] = { "CONTIG_Q", "CONTIG_K", "CONTIG_V",
                                              "CONTIG_O" };

    static const struct {
        const char *name;
        uint32_t feature;
    } same[] = {
        { "FEAT_ALIGN_BR", ATTN_FEAT_ALIGN_BR }, { "FEAT_OFFSETS", ATTN_FEAT_OFFSETS },
        { "FEAT_LENS_Q", ATTN_FEAT_LENS_Q },     { "FEAT_LENS_KV", ATTN_FEAT_LENS_KV },
        { "FEAT_PACKED_Q", ATTN_FEAT_PACKED_Q }, { "FEAT_PACKED_K", ATTN_FEAT_PACKED_K },
        { "FEAT_PAGES", ATTN_FEAT_PAGES },       { "FEAT_SOFTCAP", ATTN_FEAT_SOFTCAP },
        { "FEAT_BIAS", ATTN_FEAT_BIAS },         { "FEAT_MASK", ATTN_FEAT_MASK },
        { "FEAT_ALIBI", ATTN_FEAT_ALIBI },       { "FEAT_SINKS", ATTN_FEAT_SINKS },
        { "FEAT_LSE", ATTN_FEAT_LSE },
    };

    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    step->align_br = (p->features & ATTN_FEAT_ALIGN_BR) != 0;
    attn_step_define(step, "TYPE", p->type - ATTN_F32); /* TYPE_ in types.clh */
    attn_step_define(step, "D", p->d);
    attn_step_define(step, "DV", p->dv);
    attn_step_define(step, "FEAT_RANGE_LEFT", attn_problem_bounded_left(p));
    attn_step_define(step, "FEAT_RANGE_RIGHT", attn_problem_bounded_right(p));
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        attn_step_define(step, same[i].name, (p->features & same[i].feature) != 0);
    attn_step_define(step, "BIAS_TYPE", p->type_bias ? p->type_bias - ATTN_F32 : 0);
    for (int t = 0; t < ATTN_TENSOR_COUNT; t++)
        attn_step_define(step, contiguous[t], p->layout[t] != ATTN_LAYOUT_ANY);
}
