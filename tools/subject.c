/* SPDX-License-Identifier: MIT */
/* tools/subject.c: plans a variant and brings its inputs onto the device, once or in many
 * copies. */
#include "subject.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "timing.h"
#include "visible.h"

enum { PLANS = 5, ALIGNMENT = 256 };

/* All copies of K and V together: four times the largest caches. They are brought up in
 * parcels. */
static const size_t COLD_BYTES = (size_t)512 << 20, PARCEL_BYTES = (size_t)16 << 20;

attn_status subject_failed(const subject *s, attn_status st, const char *why)
{
    s->m->status = st;
    snprintf(s->m->why, sizeof s->m->why, "%s", why);
    return st;
}

static bool good(const subject *s, attn_status st)
{
    return st == ATTN_OK || subject_failed(s, st, attn_last_error()) == ATTN_OK;
}

static attn_status time_plan(subject *s, double *ms)
{
    const attn_options options = { .size = sizeof options, .variant = s->m->variant };
    const double start = timing_now();
    const problem p = inputs_problem(s->in);
    attn_status st = problem_plan(s->ctx, &p, &options, &s->plan);

    *ms = (timing_now() - start) * 1e3;
    return st;
}

static bool make_plan(subject *s)
{
    double ms[PLANS];
    attn_status st = time_plan(s, &s->m->first_plan_ms);

    for (int i = 0; i < PLANS && st == ATTN_OK; i++) {
        attn_plan_destroy(&s->plan);
        st = time_plan(s, &ms[i]);
    }
    if (st == ATTN_OK)
        st = attn_plan_text(s->plan, s->m->plan, sizeof s->m->plan, NULL);
    if (!good(s, st))
        return false;
    s->m->plan_ms = timing_median(ms, PLANS);
    s->m->plan[strcspn(s->m->plan, " ")] = '\0';
    return true;
}

static size_t aligned(size_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* n copies of a block's image, one behind the other. */
static bool copy_block(subject *s, trial_block block, int64_t n, void **out)
{
    const size_t bytes = aligned(s->t.bytes[block]);
    const size_t most = PARCEL_BYTES / bytes + 1,
                 parcel = (size_t)n < most ? (size_t)n : most;
    char *image = calloc(parcel, bytes);
    attn_status st = ATTN_OK;

    if (!image)
        return !subject_failed(s, ATTN_ERR_NO_MEMORY, "no memory for copies of K and V");
    for (size_t i = 0; i < parcel; i++)
        memcpy(image + i * bytes, s->t.image[block], s->t.bytes[block]);
    st = attn_memory_alloc(s->ctx, (size_t)n * bytes, out);
    for (size_t i = 0; i < (size_t)n && st == ATTN_OK; i += parcel) {
        const size_t left = (size_t)n - i;
        st = attn_memory_upload(s->ctx, *out, i * bytes, image,
                                (left < parcel ? left : parcel) * bytes);
    }
    free(image);
    return good(s, st);
}

/* What is read once and larger than that comes from memory without copies. */
static bool make_copies(subject *s)
{
    const size_t k = aligned(s->t.bytes[TRIAL_K]), v = aligned(s->t.bytes[TRIAL_V]);
    const size_t element = attn_type_bytes(s->in->desc.type);

    if (!k || !v || k + v >= COLD_BYTES)
        return true;
    s->n_copies = (int64_t)(COLD_BYTES / (k + v) + 1);
    s->stride[0] = (int64_t)(k / element);
    s->stride[1] = (int64_t)(v / element);
    return copy_block(s, TRIAL_K, s->n_copies, &s->copies[0]) &&
           copy_block(s, TRIAL_V, s->n_copies, &s->copies[1]);
}

static void begin(measurement *m, const problem *p, const char *selector,
                  const char *variant)
{
    *m = (measurement){ .ms = NAN,
                        .ms_least = NAN,
                        .ms_most = NAN,
                        .gflop_s = NAN,
                        .gb_s = NAN,
                        .kv_gb_s = NAN,
                        .of_first = NAN,
                        .of_peer = NAN,
                        .first_plan_ms = NAN,
                        .plan_ms = NAN,
                        .enqueue_us = NAN,
                        .product_gflop_s = NAN,
                        .product_ratio = NAN,
                        .memory_gb_s = NAN,
                        .memory_ratio = NAN };
    problem_text(p, m->problem, sizeof m->problem, NULL);
    snprintf(m->device, sizeof m->device, "%s", selector);
    snprintf(m->variant, sizeof m->variant, "%s", variant);
}

bool subject_open(subject *s, const char *selector, const char *variant, bool cold)
{
    const problem p = inputs_problem(s->in);

    begin(s->m, &p, selector, variant);
    s->t = (trial){ .ctx = s->ctx, .in = s->in };
    if (!make_plan(s))
        return false;
    s->t.plan = s->plan;
    if (!trial_open(&s->t))
        return !subject_failed(s, ATTN_ERR_NO_MEMORY, s->t.what);
    return !cold || make_copies(s);
}

attn_args subject_args(subject *s)
{
    attn_args args = s->t.args;

    if (s->copies[1]) {
        const int64_t i = s->turn++ % s->n_copies;
        args.k.data = s->copies[0];
        args.k.data_bytes = 0; /* not that of one copy */
        args.k.offset += i * s->stride[0];
        args.v.data = s->copies[1];
        args.v.data_bytes = 0;
        args.v.offset += i * s->stride[1];
    }
    return args;
}

/* Bytes of all tensors once: backward dO, dQ, dK and dV besides, and of linear attention
 * not O; its states are small. */
static double bytes_of(const inputs *in)
{
    const attn_softmax_desc *d = &in->desc;
    const double dims = (double)(d->dim_qk + visible_dim_v(d));
    const double rows = (double)d->batch * (double)d->heads_q * (double)d->len_q;
    const double keys = (double)d->batch * (double)d->heads_kv * (double)d->len_kv;
    const double element = (double)attn_type_bytes(d->type);
    const bool backward = d->use & ATTN_USE_GRAD;
    const double lse = d->use & (ATTN_USE_LSE | ATTN_USE_GRAD) ? 4 * rows : 0;
    const double q = (double)d->dim_qk, v = (double)visible_dim_v(d);

    if (in->is_linear && backward)
        return element * (rows * (2 * q + v) + 2 * keys * dims);
    if (in->is_linear)
        return element * dims * (rows + keys);
    return (backward ? 2 : 1) * element * dims * (rows + keys) + lse;
}

void subject_rates(const subject *s)
{
    const attn_softmax_desc *d = &s->in->desc;
    const problem p = inputs_problem(s->in);
    const double dims = (double)(d->dim_qk + visible_dim_v(d));
    const double keys = (double)d->batch * (double)d->heads_kv * (double)d->len_kv;
    measurement *m = s->m;

    m->gflop_s = problem_flop(&p) / m->ms / 1e6;
    m->gb_s = bytes_of(s->in) / m->ms / 1e6;
    if (d->len_q <= FEW_QUERIES && !s->in->is_linear)
        m->kv_gb_s = (double)attn_type_bytes(d->type) * dims * keys / m->ms / 1e6;
    m->product_ratio = m->gflop_s / m->product_gflop_s; /* NAN without one */
    m->memory_ratio = m->gb_s / m->memory_gb_s;
}

void subject_close(subject *s)
{
    for (int i = 0; i < 2; i++)
        attn_memory_free(s->ctx, &s->copies[i]);
    trial_free(&s->t);
    attn_plan_destroy(&s->plan);
}
