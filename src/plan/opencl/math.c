/* SPDX-License-Identifier: MIT */
/* plan/opencl/math.c: shapes and rounds of the unfused variants. */
#include "plan/opencl/math.h"

#include <attn/device.h>

#include "core/size.h"
#include "plan/opencl/gradients.h"

enum {
    ITEMS = 64,   /* work-items of a group on GPUs                      */
    PADDED = 256, /* CLBlast pads matrices to tiles of this size at most */
    DELTA = 16,   /* floats that delta is rounded up to, WORK_DELTA     */
    /* of a round; on processors so much a core: the scores stay in the caches */
    ROUND_BYTES = 256 << 20,
    CORE_BYTES = 8 << 20
};

const char attn_no_clblast[] =
    "CLBlast was not found (ATTN_CLBLAST_LIB: the library or its "
    "folder), or is not built in";

/* The widest vector that no more than half of it goes without a query. */
static int64_t lanes(int64_t widest, int64_t queries)
{
    int64_t vw = widest;

    while (vw > 4 && vw > queries)
        vw /= 2;
    return queries >= vw ? vw : 1;
}

/* Vectors of a tile of rows' elements: as many as leave fewest of them empty. */
static int64_t vectors_of(const attn_problem *p, int64_t vw)
{
    int64_t best = 1, least = INT64_MAX;

    for (int64_t nv = 3; nv >= 1; nv--) {
        const int64_t all = attn_round_up(p->d, nv * vw) + attn_round_up(p->dv, nv * vw);

        if (all < least) {
            least = all;
            best = nv;
        }
    }
    return best;
}

attn_math_shape attn_math_shape_of(const attn_problem *p, const attn_caps *c, bool library)
{
    const bool cpu = c->kind == ATTN_DEVICE_CPU;
    const int64_t widest = c->vector_width >= 16 ? 16 : c->vector_width >= 8 ? 8 : 4;
    attn_math_shape s = { .library = library,
                          .pitch = 1,
                          .nv = 1,
                          .vw = 4,
                          .nvb = 1,
                          .vwb = 4,
                          .mr = 8,
                          .panels = cpu };
    int64_t columns;

    s.block = cpu ? 1 : attn_min(ITEMS, c->max_group);
    if (cpu)
        s.pitch = lanes(widest, p->lq);
    columns = attn_math_group(p) * attn_round_up(attn_max(p->lq, 1), s.pitch);
    if (cpu) {
        s.vw = attn_max(lanes(widest, columns), 4);
        s.mr = s.vw == 16 ? 8 : 4;
        s.nv = attn_min(3, attn_max(columns / s.vw, 1));
        s.vwb = attn_max(lanes(widest, attn_min(p->d, p->dv)), 4);
        s.nvb = vectors_of(p, s.vwb);
    }
    s.nr = s.nv * s.vw;
    s.nb = s.nvb * s.vwb;
    if (library) {
        s.nr = s.nb = s.mr = 1;
        s.panels = false;
    }
    return s;
}

int64_t attn_math_before(const attn_problem *p)
{
    return p->pass == ATTN_PASS_BWD ? attn_round_up(p->b * p->hq * p->lq, DELTA) : 0;
}

bool attn_math_cl_round(const attn_problem *p, const attn_caps *c, const attn_math_shape *s,
                        attn_math_round *out)
{
    const int64_t cores = attn_min(attn_max(c->compute_units, 2), ROUND_BYTES / CORE_BYTES);
    const int64_t most = s->panels ? cores * CORE_BYTES : ROUND_BYTES;
    const attn_math_units units = {
        .queries = s->pitch, .columns = s->nr, .rows = s->mr, .elements = s->nb
    };
    attn_math_limits limits = { .wanted_bytes = attn_min(most, c->max_alloc_bytes / 2),
                                .most_bytes = c->max_alloc_bytes,
                                .library = s->library ? PADDED : 0 };

    if (p->pass == ATTN_PASS_BWD && attn_gradients_refusal(p, c))
        return false; /* nor is it a number of bytes */
    limits.before = attn_math_before(p);
    return attn_math_find_round(p, &units, &limits, out);
}

void attn_math_describe(const attn_problem *p, const attn_math_shape *s, attn_choice *out)
{
    attn_choice_instance(out, "mr%lld,nr%lld,vw%lld,wg%lld,d%lld,dv%lld,%s",
                         (long long)s->mr, (long long)s->nr, (long long)s->vw,
                         (long long)s->block, (long long)p->d, (long long)p->dv,
                         attn_type_name(p->type));
    out->tile_reason =
        s->library
            ? "no tile of ours; rounds keep the matrices within 256 MiB, and CLBlast's "
              "indices within 31 bits"
        : s->panels
            ? "register tiles of mr x nr; rounds keep the matrices within 8 MiB a core"
            : "register tiles of mr x nr; rounds keep the matrices within 256 MiB";
}
