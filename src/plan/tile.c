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

#define HAS(feature) ((p->features & ATTN_FEAT_##feature) != 0)

void attn_step_softmax(attn_step *step, const attn_problem *p, unsigned reads)
{
    const struct {
        const char *name;
        unsigned reader;
        int64_t value;
    } all[] = {
        { "TYPE", ATTN_READS_TYPE, p->type - ATTN_F32 }, /* TYPE_ in types.clh */
        { "D", ATTN_READS_D, p->d },
        { "DV", ATTN_READS_DV, p->dv },
        { "FEAT_RANGE_LEFT", ATTN_READS_RANGE, attn_problem_bounded_left(p) },
        { "FEAT_RANGE_RIGHT", ATTN_READS_RANGE, attn_problem_bounded_right(p) },
        { "FEAT_ALIGN_BR", ATTN_READS_RANGE, HAS(ALIGN_BR) },
        { "FEAT_OFFSETS", ATTN_READS_RANGE, HAS(OFFSETS) },
        { "FEAT_LENS_Q", ATTN_READS_QUERIES, HAS(LENS_Q) },
        { "FEAT_LENS_KV", ATTN_READS_KEYS, HAS(LENS_KV) },
        { "FEAT_PACKED_Q", ATTN_READS_QUERIES, HAS(PACKED_Q) },
        { "FEAT_PACKED_K", ATTN_READS_KEYS, HAS(PACKED_K) },
        { "FEAT_PAGES", ATTN_READS_KEYS, HAS(PAGES) },
        { "FEAT_SOFTCAP", ATTN_READS_SOFTCAP, HAS(SOFTCAP) },
        { "FEAT_BIAS", ATTN_READS_TERMS, HAS(BIAS) },
        { "FEAT_MASK", ATTN_READS_TERMS, HAS(MASK) },
        { "FEAT_ALIBI", ATTN_READS_TERMS, HAS(ALIBI) },
        { "FEAT_SINKS", ATTN_READS_SINKS, HAS(SINKS) },
        { "FEAT_LSE", ATTN_READS_LSE, HAS(LSE) },
        { "FEAT_DROPOUT", ATTN_READS_DROPOUT, HAS(DROPOUT) },
        { "BIAS_TYPE", ATTN_READS_TERMS, p->type_bias ? p->type_bias - ATTN_F32 : 0 },
        { "CONTIG_Q", ATTN_READS_Q, p->layout[ATTN_TENSOR_Q] != ATTN_LAYOUT_ANY },
        { "CONTIG_K", ATTN_READS_K, p->layout[ATTN_TENSOR_K] != ATTN_LAYOUT_ANY },
        { "CONTIG_V", ATTN_READS_V, p->layout[ATTN_TENSOR_V] != ATTN_LAYOUT_ANY },
        { "CONTIG_O", ATTN_READS_O, p->layout[ATTN_TENSOR_O] != ATTN_LAYOUT_ANY },
        { "CONTIG_GRAD_O", ATTN_READS_GRAD_O,
          p->layout[ATTN_TENSOR_GRAD_O] != ATTN_LAYOUT_ANY },
        { "CONTIG_GRAD_Q", ATTN_READS_GRAD_Q,
          p->layout[ATTN_TENSOR_GRAD_Q] != ATTN_LAYOUT_ANY },
        { "CONTIG_GRAD_K", ATTN_READS_GRAD_K,
          p->layout[ATTN_TENSOR_GRAD_K] != ATTN_LAYOUT_ANY },
        { "CONTIG_GRAD_V", ATTN_READS_GRAD_V,
          p->layout[ATTN_TENSOR_GRAD_V] != ATTN_LAYOUT_ANY },
    };

    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    step->align_br = HAS(ALIGN_BR);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (reads & all[i].reader)
            attn_step_define(step, all[i].name, all[i].value);
}
