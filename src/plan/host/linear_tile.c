/* SPDX-License-Identifier: MIT */
/* plan/host/linear_tile.c: the chunk and the columns of the chunked kernels, both passes. */
#include "core/size.h"
#include "plan/host/variants.h"

enum {
    CHUNK = 64,         /* tokens: longer ones cost more over pairs than they save   */
    MOST_COLUMNS = 128, /* of a unit: its state stays in the second cache            */
    UNITS_EACH = 4      /* for each thread, so that none waits long                  */
};

attn_linear_scratch attn_linear_tile(const attn_problem *p, const attn_caps *c,
                                     int64_t wide, int64_t narrow, int64_t all,
                                     attn_step *step)
{
    const int64_t lanes = attn_max(c->vector_width, 1), states = p->b * p->hkv;
    const int64_t w = attn_round_up(wide, 16);
    int64_t columns = attn_min(MOST_COLUMNS, attn_round_up(narrow, lanes));
    int64_t n;
    attn_linear_scratch s;

    step->threads = attn_max(c->compute_units, 1);
    while (columns % (2 * lanes) == 0 && columns > 2 * lanes &&
           states * attn_ceil_div(all, columns) < UNITS_EACH * step->threads)
        columns /= 2;
    n = attn_round_up(columns, 16);
    s = (attn_linear_scratch){
        .rows = 3 * CHUNK * w,
        .columns = 2 * CHUNK * n,
        .state = w * n,
        .pairs = CHUNK * CHUNK,
        .rest = w + 2 * CHUNK + attn_round_up(attn_max(p->d, p->dv), 16),
    };
    step->tile_q = step->tile_k = CHUNK;
    step->block = 1;
    step->columns = columns;
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    step->scratch_bytes =
        attn_round_up(4 * (s.rows + s.columns + s.state + s.pairs + s.rest), 64);
    return s;
}

void attn_linear_explain_tile(const attn_problem *p, const attn_caps *c,
                              attn_linear_scratch s, attn_choice *out)
{
    const attn_step *step = &out->step[0];

    attn_choice_instance(out, "chunk%lld,columns%lld,lanes%lld,d%lld,dv%lld,%s",
                         (long long)step->tile_q, (long long)step->columns,
                         (long long)c->vector_width, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason =
        "chunk: the products over its pairs stay small beside those with the "
        "state; columns of the state: up to 128, fewer to give each thread 4 "
        "units";
    attn_choice_budget(out, "rows of a chunk, and rows transposed", 4 * s.rows);
    attn_choice_budget(out, "columns of a chunk, and results", 4 * s.columns);
    attn_choice_budget(out, "columns of the state", 4 * s.state);
    attn_choice_budget(out, "pairs of a chunk", 4 * s.pairs);
    attn_choice_budget(out, "sums and one row", 4 * s.rest);
}
