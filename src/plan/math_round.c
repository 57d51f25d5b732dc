/* SPDX-License-Identifier: MIT */
/* plan/math_round.c: the rounds of softmax_fwd_math and softmax_bwd_math. */
#include "plan/math_round.h"

#include "core/size.h"

int64_t attn_math_group(const attn_problem *p)
{
    return p->hkv ? p->hq / p->hkv : 1;
}

/* Of WORK_GRADIENTS: what has a row for each column, or key, and scores twice. A product of
 * our own wants Q and dO by columns too; a library turns them. */
static double gradients_of(const attn_problem *p, const attn_math_units *u, double columns,
                           double keys)
{
    const int64_t unit = attn_max(u->elements, 1), dm = attn_round_up(p->d, u->rows);
    const int64_t wide = attn_round_up(p->d, unit) + attn_round_up(p->dv, unit);
    const int64_t of_queries = p->d + p->dv + dm + (u->elements ? wide : p->d);

    return columns * (double)of_queries + keys * (double)(p->d + p->dv + dm + wide) +
           2 * columns * keys;
}

/* Floats of one pair, as the kernels' common/work.h lay them out. In double: whatever the
 * sizes, nothing wraps. */
static double floats_of(const attn_problem *p, const attn_math_units *u, int64_t queries)
{
    const int64_t padded = attn_round_up(attn_max(queries, 1), u->queries);
    const double columns = (double)attn_round_up(attn_math_group(p) * padded, u->columns);
    const double keys = (double)attn_round_up(attn_max(p->lk, 1), u->rows);
    const double d = (double)p->d, dv = (double)attn_round_up(p->dv, u->rows);

    if (p->pass == ATTN_PASS_BWD)
        return gradients_of(p, u, columns, keys);
    return columns * (d + keys + dv + 1) + keys * (d + dv);
}

/* What a library counts that pads to `unit`; of one pair. */
static double padded_of(const attn_problem *p, const attn_math_units *u, int64_t queries,
                        int64_t unit)
{
    const attn_problem padded = { .pass = p->pass,
                                  .hq = p->hq,
                                  .hkv = p->hkv,
                                  .lk = attn_round_up(p->lk, unit),
                                  .d = attn_round_up(p->d, unit),
                                  .dv = attn_round_up(p->dv, unit) };

    return floats_of(
        &padded,
        &(attn_math_units){
            .queries = u->queries, .columns = unit, .rows = unit, .elements = unit },
        queries);
}

/* Whether so many pairs with so many queries fit `bytes`, and a library's ints. */
static bool fits(const attn_problem *p, const attn_math_units *u, const attn_math_limits *l,
                 int64_t pairs, int64_t queries, int64_t bytes)
{
    const double n = (double)pairs, before = (double)l->before;

    return (!l->most_pairs || pairs <= l->most_pairs) &&
           4 * n * floats_of(p, u, queries) <= (double)bytes &&
           (!l->library ||
            before + n * padded_of(p, u, queries, l->library) <= (double)INT32_MAX);
}

bool attn_math_find_round(const attn_problem *p, const attn_math_units *u,
                          const attn_math_limits *l, attn_math_round *out)
{
    int64_t pairs = attn_max(p->b * p->hkv, 1), queries = attn_max(p->lq, 1);

    while (pairs > 1 && !fits(p, u, l, pairs, queries, l->wanted_bytes))
        pairs = attn_ceil_div(pairs, 2);
    while (queries > u->queries && !fits(p, u, l, pairs, queries, l->wanted_bytes))
        queries = attn_round_up(attn_ceil_div(queries, 2), u->queries);
    *out = (attn_math_round){ .heads = pairs * attn_math_group(p),
                              .queries = queries,
                              .floats = (double)pairs * floats_of(p, u, queries) };
    return fits(p, u, l, pairs, queries, l->most_bytes - 4 * l->before);
}
