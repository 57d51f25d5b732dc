/* SPDX-License-Identifier: MIT */
/* plan/host/linear_fwd_recurrent.c: linear attention token by token on the processor. */
#include "core/size.h"
#include "plan/host/variants.h"

enum {
    MOST_COLUMNS = 64, /* of a unit: the widest vectors, four at once     */
    UNITS_EACH = 4     /* for each thread, so that none waits long        */
};

static const char *applicable(const attn_problem *p, const attn_caps *c)
{
    (void)c;
    if ((double)p->b * (double)p->hkv * (double)p->d > 0x1p56)
        return "4 bytes of workspace for each number of z are more than can be addressed";
    return NULL;
}

static void lower(const attn_problem *p, const attn_caps *c, attn_choice *out)
{
    attn_step *step = &out->step[out->n_steps++];
    const int64_t lanes = attn_max(c->vector_width, 1), states = p->b * p->hkv;
    const int64_t d = attn_round_up(p->d, 16);
    int64_t columns = attn_min(MOST_COLUMNS, attn_round_up(p->dv, lanes));
    int64_t row;

    step->threads = attn_max(c->compute_units, 1);
    while (columns % (2 * lanes) == 0 &&
           states * attn_ceil_div(p->dv, columns) < UNITS_EACH * step->threads)
        columns /= 2;
    row = attn_round_up(columns, 16);
    step->kernel = "linear_fwd_recurrent";
    step->tile_q = step->tile_k = step->block = 1;
    step->columns = columns;
    step->type = p->type;
    step->d = p->d;
    step->dv = p->dv;
    step->scratch_bytes = attn_round_up(4 * (p->d * row + 4 * d + 2 * row), 64);
    out->splits = 0;
    out->workspace_bytes = step->threads * step->scratch_bytes;
    if (p->features & ATTN_FEAT_NORMALIZE)
        out->workspace_bytes += 4 * p->b * p->hkv * p->d;
    attn_choice_instance(out, "columns%lld,lanes%lld,d%lld,dv%lld,%s", (long long)columns,
                         (long long)c->vector_width, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason = "columns of the state: up to 64, fewer to give each thread 4 units";
    attn_choice_budget(out, "columns of the state", 4 * p->d * row);
    attn_choice_budget(out, "rows of k, q, decay, z, v and o", 4 * (4 * d + 2 * row));
}

const attn_variant attn_host_linear_fwd_recurrent_variant = {
    .name = "linear_fwd_recurrent",
    .about = "token by token, every rule; vectors along Dv, OpenMP",
    .op = ATTN_OP_LINEAR,
    .features = ATTN_FEATURES_LINEAR | ATTN_FEAT_DECAY | ATTN_FEAT_BETA,
    .applicable = applicable,
    .lower = lower,
};
