/* SPDX-License-Identifier: MIT */
/* tools/input_gradients.c: what a backward problem is given besides: O and LSE as the
 * forward leaves them, and the gradients of one of them or of both. */
#include <math.h>
#include <stdlib.h>

#include "inputs.h"
#include "plain.h"
#include "visible.h"

enum { STREAM_GRAD_O = 40, STREAM_GRAD_LSE, STREAM_GRAD_HOW, STREAM_TIMED_O };

/* Where the LSE is larger than this f32 keeps too little of it to compute weights again:
 * such a row, full of low numbers of a bias or of distances, is given gradients of 0. */
static const double TOO_LARGE = 10000;

static bool allocate(inputs *in, bool grad_o, bool grad_lse)
{
    const attn_softmax_desc *d = &in->desc;
    const size_t rows = (size_t)(d->batch * d->heads_q * d->len_q);
    const size_t n = rows * (size_t)visible_dim_v(d) + 1;

    in->lse = calloc(rows + 1, sizeof *in->lse);
    if (grad_o) {
        in->o = calloc(n, sizeof *in->o);
        in->grad_o = calloc(n, sizeof *in->grad_o);
    }
    if (grad_lse)
        in->grad_lse = calloc(rows + 1, sizeof *in->grad_lse);
    return in->lse && (!grad_o || (in->o && in->grad_o)) && (!grad_lse || in->grad_lse);
}

/* The forward's results; true if the row is to have gradients. */
static bool forward(inputs *in, int64_t n, double *weights, plain_row *row)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t dv = visible_dim_v(d), bh = n / d->len_q;

    plain_evaluate(in, bh / d->heads_q, bh % d->heads_q, n % d->len_q, weights, row);
    in->lse[n] = (float)row->lse;
    for (int64_t e = 0; in->o && e < dv; e++)
        in->o[n * dv + e] = round_to_type(d->type, (float)row->o[e]);
    return (!in->bias && !in->alibi) || !isfinite(row->lse) || fabs(row->lse) < TOO_LARGE;
}

/* For timing, anything of their size will do. */
static void pretend(inputs *in, int64_t n, uint64_t seed)
{
    const int64_t dv = visible_dim_v(&in->desc);

    in->lse[n] = (float)log((double)in->desc.len_kv + 1) + 0.5f;
    for (int64_t e = 0; e < dv; e++)
        in->o[n * dv + e] = round_to_type(
            in->desc.type,
            (float)(0.05 * random_normal(seed, STREAM_TIMED_O, (uint64_t)(n * dv + e))));
}

bool inputs_make_gradients(inputs *in, const input_how *how, uint64_t seed)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t dv = visible_dim_v(d), rows = d->batch * d->heads_q * d->len_q;
    const int which = (int)(random_bits(seed, STREAM_GRAD_HOW, 0) % 6);
    const float size = in->kind == INPUT_HUGE ? 0x1p-10f : 1;
    double *room = calloc((size_t)(d->len_kv + 2 * dv) + 1, sizeof *room);
    bool there = room && allocate(in, which != 0 || how->full, which != 1 && !how->full);
    plain_row row = { .o = room + d->len_kv, .terms = room + d->len_kv + dv };

    for (int64_t n = 0; there && n < rows; n++) {
        const visible_batch x = visible_batch_of(in, n / d->len_q / d->heads_q);

        if (n % d->len_q >= x.queries)
            continue;
        if (how->full)
            pretend(in, n, seed);
        else if (!forward(in, n, room, &row))
            continue;
        for (int64_t e = 0; in->grad_o && e < dv; e++)
            in->grad_o[n * dv + e] =
                round_to_type(d->type, size * (float)random_normal(seed, STREAM_GRAD_O,
                                                                   (uint64_t)(n * dv + e)));
        if (in->grad_lse)
            in->grad_lse[n] =
                size * (float)random_normal(seed, STREAM_GRAD_LSE, (uint64_t)n);
    }
    free(room);
    return there;
}
