/* SPDX-License-Identifier: MIT */
/* tools/linear_inputs.c: numbers for linear attention, and the right answer to them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "visible.h"

enum {
    STREAM_STATE = 50,
    STREAM_Z,
    STREAM_DECAY,
    STREAM_BETA,
    STREAM_BROADCAST,
    STREAM_GRAD_O,
    STREAM_GRAD_STATE,
    STREAM_GRAD_Z,
    STREAM_GIVEN
};

/* The sizes, the type, the layouts and what both operations have, as the softmax descriptor
 * tells them to whatever handles memory. */
static attn_softmax_desc shape_of(const attn_linear_desc *d)
{
    attn_softmax_desc s = {
        .size = sizeof s,
        .type = d->type,
        .batch = d->batch,
        .heads_q = d->heads_q,
        .heads_kv = d->heads_kv,
        .len_q = d->len_q,
        .len_kv = d->len_kv,
        .dim_qk = d->dim_qk,
        .dim_v = d->dim_v ? d->dim_v : d->dim_qk,
        .layout_q = d->layout_q,
        .layout_k = d->layout_k,
        .layout_v = d->layout_v,
        .layout_o = d->layout_o,
        .layout_grad_o = d->layout_grad_o,
        .layout_grad_q = d->layout_grad_q,
        .layout_grad_k = d->layout_grad_k,
        .layout_grad_v = d->layout_grad_v,
        .grad = d->grad & (ATTN_GRAD_Q | ATTN_GRAD_K | ATTN_GRAD_V),
    };

    if (d->use & ATTN_LINEAR_LENS_KV)
        s.use |= ATTN_USE_LENS_KV;
    if (d->use & ATTN_LINEAR_LAYOUT)
        s.use |= ATTN_USE_LAYOUT;
    if (d->use & ATTN_LINEAR_GRAD)
        s.use |= ATTN_USE_GRAD;
    return s;
}

static attn_rule rule_of(const attn_linear_desc *d)
{
    return d->use & ATTN_LINEAR_RULE ? d->rule : ATTN_RULE_LINEAR;
}

static bool normalizes(const inputs *in)
{
    return in->linear.use & ATTN_LINEAR_NORMALIZE;
}

static attn_phi phi_of(const inputs *in)
{
    return in->linear.use & ATTN_LINEAR_PHI ? in->linear.phi : ATTN_PHI_IDENTITY;
}

/* Rows of q or k: under a normaliser numbers that sum up to at least 1, under a delta rule
 * keys of norm 1. */
static void bend_rows(const inputs *in, float *x, int64_t rows, bool keys)
{
    const attn_rule rule = rule_of(&in->linear);
    const bool unit = keys && (rule == ATTN_RULE_DELTA || rule == ATTN_RULE_GATED_DELTA);
    const bool positive = normalizes(in) && phi_of(in) == ATTN_PHI_IDENTITY;
    const int64_t d = in->desc.dim_qk;

    for (int64_t r = 0; r < rows; r++) {
        float *row = x + r * d;
        double norm = 0;

        for (int64_t e = 0; e < d; e++) {
            if (positive)
                row[e] = fabsf(row[e]);
            norm += (double)row[e] * (double)row[e];
        }
        if (normalizes(in) && phi_of(in) != ATTN_PHI_ELU1)
            row[0] = round_to_type(in->desc.type, 1 + fabsf(row[0]));
        for (int64_t e = 0; e < d && unit && norm > 0; e++)
            row[e] = round_to_type(in->desc.type, (float)((double)row[e] / sqrt(norm)));
    }
}

static float *normals(int64_t n, uint64_t seed, int stream)
{
    float *x = calloc((size_t)n + 1, sizeof *x);

    for (int64_t i = 0; x && i < n; i++)
        x[i] = (float)random_normal(seed, (uint64_t)stream, (uint64_t)i);
    return x;
}

static int64_t count(const int64_t size[4])
{
    return size[0] * size[1] * size[2] * size[3];
}

/* Some sizes are 1: the same for all. */
static void draw_sizes(int64_t size[4], const int64_t full[4], uint64_t seed, bool whole)
{
    const uint64_t bits = random_bits(seed, STREAM_BROADCAST, (uint64_t)full[3]);

    for (int i = 0; i < 4; i++)
        size[i] = !whole && (bits >> 4 * i) % 4 == 0 ? 1 : full[i];
}

static bool make_decay(inputs *in, const input_how *how, uint64_t seed)
{
    const attn_linear_desc *d = &in->linear;
    const int64_t full[4] = { d->batch, d->heads_kv, d->len_kv, d->dim_qk };
    const double factor = in->kind == INPUT_HUGE    ? 20
                          : in->kind == INPUT_CLEAR ? 1e-6
                                                    : 0.3;

    draw_sizes(in->decay_size, full, seed, how->full);
    in->decay = normals(count(in->decay_size), seed, STREAM_DECAY);
    for (int64_t i = 0; in->decay && i < count(in->decay_size); i++)
        in->decay[i] =
            round_to_type(d->type_decay, (float)(-factor * fabs((double)in->decay[i])));
    return in->decay;
}

static bool make_beta(inputs *in, const input_how *how, uint64_t seed)
{
    const attn_linear_desc *d = &in->linear;
    const int64_t full[4] = { d->batch, d->heads_kv, d->len_kv, 1 };

    draw_sizes(in->beta_size, full, seed, how->full);
    in->beta = normals(count(in->beta_size), seed, STREAM_BETA);
    for (int64_t i = 0; in->beta && i < count(in->beta_size); i++)
        in->beta[i] =
            round_to_type(d->type_beta, (float)(1 / (1 + exp(-(double)in->beta[i]))));
    return in->beta;
}

static bool make_states(inputs *in, uint64_t seed)
{
    const int64_t z = in->desc.batch * in->desc.heads_kv * in->desc.dim_qk;

    if (!(in->linear.use & ATTN_LINEAR_STATE_IN))
        return true;
    in->state = normals(z * in->desc.dim_v, seed, STREAM_STATE);
    if (!normalizes(in))
        return in->state;
    in->z = normals(z, seed, STREAM_Z);
    for (int64_t i = 0; in->z && i < z; i++)
        in->z[i] = fabsf(in->z[i]);
    return in->state && in->z;
}

/* O and den as the forward leaves them. */
static bool make_results(inputs *in, const input_how *how)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t rows = d->batch * d->heads_q * d->len_q;
    const linear_result *o, *den;
    inputs forward = *in;
    linear_plain plain;

    in->o = calloc((size_t)(rows * d->dim_v) + 1, sizeof *in->o);
    in->den = calloc((size_t)rows + 1, sizeof *in->den);
    if (!in->o || !in->den)
        return false;
    for (int64_t i = 0; how->full && i < rows; i++) /* for timing, anything will do */
        in->den[i] = 1;
    if (how->full)
        return true;
    forward.linear.use &= ~(uint32_t)ATTN_LINEAR_GRAD;
    forward.linear.use |= ATTN_LINEAR_DEN;
    if (!inputs_answer_linear(&forward, &plain))
        return false;
    o = &plain.out[LINEAR_O];
    den = &plain.out[LINEAR_DEN];
    for (int64_t i = 0; i < rows * d->dim_v; i++)
        in->o[i] = round_to_type(d->type, (float)o->value[i]);
    for (int64_t i = 0; i < rows; i++)
        in->den[i] = (float)den->value[i];
    linear_plain_free(&plain);
    return true;
}

static bool make_gradients(inputs *in, const input_how *how, uint64_t seed)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t rows = d->batch * d->heads_q * d->len_q * d->dim_v;
    const int64_t z = d->batch * d->heads_kv * d->dim_qk;
    const bool out = in->linear.use & ATTN_LINEAR_STATE_OUT;
    const int which = (int)(random_bits(seed, STREAM_GIVEN, 0) % 4);

    if (normalizes(in) && !make_results(in, how))
        return false;
    if (!out || how->full || which != 0) {
        in->grad_o = normals(rows, seed, STREAM_GRAD_O);
        for (int64_t i = 0; in->grad_o && i < rows; i++)
            in->grad_o[i] = round_to_type(d->type, in->grad_o[i]);
        if (!in->grad_o)
            return false;
    } else { /* then O is not wanted either */
        free(in->o);
        in->o = NULL;
    }
    if (out && (how->full || which != 1 || !normalizes(in)))
        in->grad_state = normals(z * d->dim_v, seed, STREAM_GRAD_STATE);
    if (out && normalizes(in) && which != 2)
        in->grad_z = normals(z, seed, STREAM_GRAD_Z);
    return in->grad_o || in->grad_state || in->grad_z;
}

/* Keys that reach a state are seen; nobody reads the others. */
static void mark(inputs *in)
{
    for (int64_t n = 0; n < in->desc.batch * in->desc.heads_kv * in->desc.len_kv; n++) {
        const int64_t j = n % in->desc.len_kv;
        const int64_t b = n / in->desc.len_kv / in->desc.heads_kv;
        const int64_t keys = visible_batch_of(in, b).keys;
        const bool causal = in->linear.use & ATTN_LINEAR_CAUSAL;

        in->seen[n] = j < keys && (!causal || j < in->desc.len_q) ? SEEN : SEEN_BY_NONE;
    }
}

bool inputs_make_linear(inputs *in, const attn_linear_desc *desc, input_how how,
                        uint64_t seed)
{
    const bool backward = desc->use & ATTN_LINEAR_GRAD;
    const attn_softmax_desc d = shape_of(desc);
    const attn_rule rule = rule_of(desc);
    bool good;

    *in = (inputs){ .desc = d, .kind = how.kind, .is_linear = true, .linear = *desc };
    in->linear.dim_v = d.dim_v;
    /* results and gradients that f16 does not hold are no fault of anybody's */
    if (how.kind == INPUT_HUGE && d.type == ATTN_F16)
        in->kind = INPUT_CLEAR;
    good = inputs_allocate(in) && inputs_make_lists(in, &how, seed);
    if (good) {
        inputs_fill(in, in->q, STREAM_Q, d.heads_q, d.len_q, d.dim_qk, false, seed);
        inputs_fill(in, in->k, STREAM_K, d.heads_kv, d.len_kv, d.dim_qk, how.same_heads,
                    seed);
        inputs_fill(in, in->v, STREAM_V, d.heads_kv, d.len_kv, d.dim_v, how.same_heads,
                    seed);
        bend_rows(in, in->q, d.batch * d.heads_q * d.len_q, false);
        bend_rows(in, in->k, d.batch * d.heads_kv * d.len_kv, true);
        mark(in);
    }
    if (rule == ATTN_RULE_GATED || rule == ATTN_RULE_GATED_DELTA)
        good = good && make_decay(in, &how, seed);
    if (rule == ATTN_RULE_DELTA || rule == ATTN_RULE_GATED_DELTA)
        good = good && make_beta(in, &how, seed);
    good = good && make_states(in, seed) && (!backward || make_gradients(in, &how, seed));
    if (!good)
        inputs_free(in);
    return good;
}

bool inputs_make_problem(inputs *in, const problem *p, input_how how, uint64_t seed)
{
    return p->is_linear ? inputs_make_linear(in, &p->linear, how, seed)
                        : inputs_make(in, &p->softmax, how, seed);
}

problem inputs_problem(const inputs *in)
{
    return in->is_linear ? problem_of_linear(&in->linear) : problem_of_softmax(&in->desc);
}

/* A copy in double of an array of those sizes, the sizes of 1 written out. */
static double *widen(const float *from, const int64_t size[4], const int64_t full[4],
                     bool *good)
{
    double *to = from ? calloc((size_t)count(full) + 1, sizeof *to) : NULL;

    *good = *good && (!from || to);
    for (int64_t n = 0; to && n < count(full); n++) {
        int64_t rest = n, at = 0, index[4];

        for (int i = 3; i >= 0; i--) {
            index[i] = rest % full[i];
            rest /= full[i];
        }
        for (int i = 0; i < 4; i++)
            at = at * size[i] + (size[i] == 1 ? 0 : index[i]);
        to[n] = (double)from[at];
    }
    return to;
}

bool inputs_answer_linear(const inputs *in, linear_plain *out)
{
    const attn_softmax_desc *d = &in->desc;
    const int64_t b = d->batch, hq = d->heads_q, hkv = d->heads_kv, lq = d->len_q,
                  lk = d->len_kv, e = d->dim_qk, m = d->dim_v;
    const int64_t q[4] = { b, hq, lq, e }, k[4] = { b, hkv, lk, e },
                  v[4] = { b, hkv, lk, m }, o[4] = { b, hq, lq, m },
                  state[4] = { b, hkv, e, m }, z[4] = { b, hkv, e, 1 },
                  beta[4] = { b, hkv, lk, 1 };
    bool good = true;
    double *const all[] = {
        widen(in->q, q, q, &good),
        widen(in->k, k, k, &good),
        widen(in->v, v, v, &good),
        widen(in->state, state, state, &good),
        widen(in->z, z, z, &good),
        widen(in->decay, in->decay_size, k, &good),
        widen(in->beta, in->beta_size, beta, &good),
        widen(in->grad_o, o, o, &good),
        widen(in->grad_state, state, state, &good),
        widen(in->grad_z, z, z, &good),
    };

    *out = (linear_plain){ .desc = in->linear,
                           .q = all[0],
                           .k = all[1],
                           .v = all[2],
                           .lens = in->lens,
                           .state_in = all[3],
                           .z_in = all[4],
                           .decay = all[5],
                           .beta = all[6],
                           .grad_o = all[7],
                           .grad_state_out = all[8],
                           .grad_z_out = all[9] };
    good = good && linear_plain_run(out);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
    out->q = out->k = out->v = NULL; /* the inputs are gone; what is left are the results */
    return good;
}
