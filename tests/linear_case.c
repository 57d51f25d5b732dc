/* SPDX-License-Identifier: MIT */
/* tests/linear_case.c: makes, runs and checks problems of linear attention. */
#include "tests/linear_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/core/float16.h"
#include "tests/wanted.h"

enum { MAX_DEVICES = 16, MAX_VARIANTS = 32 };

static attn_ctx *ctxs[MAX_DEVICES];
static attn_device_info devices[MAX_DEVICES];
static size_t n_devices;

int linear_open(void)
{
    if (attn_device_list(devices, MAX_DEVICES, &n_devices) != ATTN_OK)
        return 1;
    for (size_t d = 0; d < n_devices; d++)
        if (attn_ctx_create(devices[d].selector, &ctxs[d]) != ATTN_OK) {
            fprintf(stderr, "%s: %s\n", devices[d].selector, attn_last_error());
            return 1;
        }
    return 0;
}

int linear_close(int result)
{
    for (size_t d = 0; d < n_devices; d++)
        attn_ctx_destroy(&ctxs[d]);
    return result;
}

void on_each(const char *problem, linear_fn *fn)
{
    attn_linear_desc desc;

    check_ok(attn_linear_parse(problem, &desc));
    for (size_t d = 0; d < n_devices; d++) {
        attn_variant_info list[MAX_VARIANTS];
        size_t n = 0;

        check_ok(attn_linear_variants(ctxs[d], &desc, list, MAX_VARIANTS, &n));
        for (size_t i = 0; i < n; i++)
            if (list[i].applicable && wanted(&devices[d], list[i].name))
                fn(&(subject){ ctxs[d], devices[d].selector, list[i].name,
                               list[i].traits });
    }
}

const char *linear_in_hand;

void on_all(const char *const *problems, size_t n, linear_fn *fn)
{
    for (size_t i = 0; i < n; i++) {
        linear_in_hand = problems[i];
        on_each(problems[i], fn);
    }
}

void linear_near(const linear_case *c, const char *what, int64_t i, double have,
                 double want, double tolerance)
{
    if (!(fabs(have - want) <= tolerance))
        fail_msg("%s: %s[%lld] is %.9g, want %.9g", c->name, what, (long long)i, have,
                 want);
}

void linear_fill(float *x, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
}

static bool uses(const linear_case *c, uint32_t bit)
{
    return c->desc.use & bit;
}

/* What stands behind an input: where it goes, whether it has the problem's type. */
typedef struct tensor {
    size_t at;
    bool there, typed;
    int64_t size[4];
} tensor;

#define AT(field) offsetof(attn_args, field)

static tensor tensor_of(const linear_case *c, input which)
{
    const attn_linear_desc *d = &c->desc;
    const int64_t b = d->batch, hq = d->heads_q, hkv = d->heads_kv, lq = d->len_q,
                  lk = d->len_kv, e = d->dim_qk, m = d->dim_v;
    const bool back = uses(c, ATTN_LINEAR_GRAD), z = uses(c, ATTN_LINEAR_NORMALIZE);
    const bool in = uses(c, ATTN_LINEAR_STATE_IN), out = uses(c, ATTN_LINEAR_STATE_OUT);
    const attn_rule rule = uses(c, ATTN_LINEAR_RULE) ? d->rule : ATTN_RULE_LINEAR;
    const tensor all[INPUTS] = {
        [IN_Q] = { AT(q), true, true, { b, hq, lq, e } },
        [IN_K] = { AT(k), true, true, { b, hkv, lk, e } },
        [IN_V] = { AT(v), true, true, { b, hkv, lk, m } },
        [IN_STATE] = { AT(state_in), in, false, { b, hkv, e, m } },
        [IN_Z] = { AT(z_in), in && z, false, { b, hkv, e, 1 } },
        [IN_DECAY] = { AT(decay),
                       rule == ATTN_RULE_GATED || rule == ATTN_RULE_GATED_DELTA,
                       false,
                       { b, hkv, lk, e } },
        [IN_BETA] = { AT(beta),
                      rule == ATTN_RULE_DELTA || rule == ATTN_RULE_GATED_DELTA,
                      false,
                      { b, hkv, lk, 1 } },
        [IN_O] = { AT(o), back && z, true, { b, hq, lq, m } },
        [IN_DEN] = { AT(den), back && z, false, { b, hq, lq, 1 } },
        [IN_GRAD_O] = { AT(grad_o), back, true, { b, hq, lq, m } },
        [IN_GRAD_STATE] = { AT(grad_state_out), back && out, false, { b, hkv, e, m } },
        [IN_GRAD_Z] = { AT(grad_z_out), back && out && z, false, { b, hkv, e, 1 } },
    };

    return all[which];
}

static size_t output_at(linear_output which)
{
    static const size_t at[LINEAR_OUTPUTS] = {
        AT(o),      AT(state_out), AT(z_out),         AT(den),      AT(grad_q),
        AT(grad_k), AT(grad_v),    AT(grad_state_in), AT(grad_z_in)
    };
    return at[which];
}

static attn_tensor *arg(linear_case *c, size_t at)
{
    return (attn_tensor *)(void *)((char *)&c->args + at);
}

static int64_t count(const int64_t size[4])
{
    return size[0] * size[1] * size[2] * size[3];
}

static float start(const linear_case *c, input which, int64_t i)
{
    const float x = sinf((float)i * 1.7f + (float)which * 3 + 0.3f);
    const bool positive = uses(c, ATTN_LINEAR_NORMALIZE) &&
                          (!uses(c, ATTN_LINEAR_PHI) || c->desc.phi == ATTN_PHI_IDENTITY);

    switch (which) {
    case IN_Q:
    case IN_K: return positive ? fabsf(x) + 0.1f : x;
    case IN_Z: return fabsf(x);
    case IN_DECAY: return -fabsf(x);
    case IN_BETA: return fabsf(x);
    default: return x;
    }
}

void linear_case_make(linear_case *c, const subject *who, const char *problem)
{
    *c = (linear_case){ .who = who, .args = { .size = sizeof(attn_args) } };
    check_ok(attn_linear_parse(problem, &c->desc));
    snprintf(c->name, sizeof c->name, "%s %s %s", who->device, who->variant, problem);
    for (int i = 0; i < INPUTS; i++) {
        const tensor t = tensor_of(c, (input)i);

        if (!t.there)
            continue;
        c->n_in[i] = count(t.size);
        c->in[i] = calloc((size_t)c->n_in[i] + 1, sizeof(float));
        c->wide[i] = calloc((size_t)c->n_in[i] + 1, sizeof(double));
        assert_true(c->in[i] && c->wide[i]);
        for (int64_t n = 0; n < c->n_in[i]; n++)
            c->in[i][n] = start(c, (input)i, n);
        *arg(c, t.at) = attn_tensor_bhld(c->in[i], ATTN_F32, t.size[0], t.size[1],
                                         t.size[2], t.size[3]);
    }
    for (int i = 0; i < LINEAR_OUTPUTS; i++) {
        int64_t size[4];

        if (!linear_output_wanted(&c->desc, (linear_output)i))
            continue;
        linear_output_size(&c->desc, (linear_output)i, size);
        c->out[i] = calloc((size_t)count(size) + 1, sizeof(float));
        assert_non_null(c->out[i]);
        *arg(c, output_at((linear_output)i)) =
            attn_tensor_bhld(c->out[i], ATTN_F32, size[0], size[1], size[2], size[3]);
    }
    if (uses(c, ATTN_LINEAR_LENS_KV)) {
        c->lens = calloc((size_t)c->desc.batch + 1, sizeof *c->lens);
        assert_non_null(c->lens);
        for (int64_t b = 0; b < c->desc.batch; b++)
            c->lens[b] = (int32_t)c->desc.len_kv;
        c->args.lens_kv = attn_tensor_vector(c->lens, ATTN_I32, c->desc.batch);
    }
}

void linear_case_free(linear_case *c)
{
    for (int i = 0; i < INPUTS; i++) {
        free(c->in[i]);
        free(c->wide[i]);
    }
    for (int i = 0; i < LINEAR_OUTPUTS; i++)
        free(c->out[i]);
    free(c->lens);
    linear_plain_free(&c->want);
}

static uint16_t narrow(attn_type type, float x)
{
    return type == ATTN_F16 ? attn_f16_from_f32(x) : attn_bf16_from_f32(x);
}

static float widen(attn_type type, uint16_t x)
{
    return type == ATTN_F16 ? attn_f32_from_f16(x) : attn_f32_from_bf16(x);
}

/* Rounds what has the problem's type. */
static void round_inputs(linear_case *c)
{
    for (int i = 0; i < INPUTS && c->desc.type != ATTN_F32; i++)
        for (int64_t n = 0; n < c->n_in[i] && tensor_of(c, (input)i).typed; n++)
            c->in[i][n] = widen(c->desc.type, narrow(c->desc.type, c->in[i][n]));
}

static bool output_typed(int which)
{
    return which == LINEAR_O || which == LINEAR_GRAD_Q || which == LINEAR_GRAD_K ||
           which == LINEAR_GRAD_V;
}

static attn_status call(linear_case *c, const attn_args *args)
{
    const attn_options options = { .size = sizeof options, .variant = c->who->variant };

    return uses(c, ATTN_LINEAR_GRAD)
               ? attn_linear_backward_host_args(c->who->ctx, &c->desc, &options, args)
               : attn_linear_forward_host_args(c->who->ctx, &c->desc, &options, args);
}

/* A 16-bit problem: every typed tensor through a copy (contiguous views only). */
static attn_status call_narrow(linear_case *c)
{
    const attn_type type = c->desc.type;
    const attn_args kept = c->args;
    uint16_t *copy[INPUTS + LINEAR_OUTPUTS] = { NULL };
    attn_status st;

    for (int i = 0; i < INPUTS + LINEAR_OUTPUTS; i++) {
        const bool input_ = i < INPUTS;
        const int o = i - INPUTS;
        const bool typed = input_ ? tensor_of(c, (input)i).typed && c->in[i]
                                  : output_typed(o) && c->out[o];
        attn_tensor *t =
            arg(c, input_ ? tensor_of(c, (input)i).at : output_at((linear_output)o));
        const int64_t n = typed ? count(t->size) : 0;

        if (!typed)
            continue;
        copy[i] = calloc((size_t)n + 1, sizeof *copy[i]);
        assert_non_null(copy[i]);
        for (int64_t k = 0; k < n; k++)
            copy[i][k] = narrow(type, input_ ? c->in[i][k] : NAN);
        t->data = copy[i];
        t->type = type;
    }
    st = call(c, &c->args);
    for (int o = 0; o < LINEAR_OUTPUTS; o++)
        for (int64_t k = 0;
             copy[INPUTS + o] && k < linear_output_count(&c->desc, (linear_output)o); k++)
            c->out[o][k] = widen(type, copy[INPUTS + o][k]);
    for (int i = 0; i < INPUTS + LINEAR_OUTPUTS; i++)
        free(copy[i]);
    c->args = kept;
    return st;
}

void linear_case_run(linear_case *c)
{
    attn_status st;

    round_inputs(c);
    for (int o = 0; o < LINEAR_OUTPUTS; o++)
        for (int64_t k = 0;
             c->out[o] && k < linear_output_count(&c->desc, (linear_output)o); k++)
            c->out[o][k] = NAN;
    st = c->desc.type == ATTN_F32 ? call(c, &c->args) : call_narrow(c);
    if (st != ATTN_OK)
        fail_msg("%s: %s: %s", c->name, attn_status_name(st), attn_last_error());
}

static linear_plain question(linear_case *c)
{
    for (int i = 0; i < INPUTS; i++)
        for (int64_t n = 0; n < c->n_in[i]; n++)
            c->wide[i][n] = (double)c->in[i][n];
    return (linear_plain){ .desc = c->desc,
                           .q = c->wide[IN_Q],
                           .k = c->wide[IN_K],
                           .v = c->wide[IN_V],
                           .lens = c->lens,
                           .state_in = c->wide[IN_STATE],
                           .z_in = c->wide[IN_Z],
                           .decay = c->wide[IN_DECAY],
                           .beta = c->wide[IN_BETA],
                           .grad_o = c->wide[IN_GRAD_O],
                           .grad_state_out = c->wide[IN_GRAD_STATE],
                           .grad_z_out = c->wide[IN_GRAD_Z] };
}

void linear_case_want(linear_case *c)
{
    round_inputs(c);
    if (c->in[IN_O]) {
        linear_plain forward = question(c);

        forward.desc.use &= ~(uint32_t)ATTN_LINEAR_GRAD;
        forward.desc.use |= ATTN_LINEAR_DEN;
        assert_true(linear_plain_run(&forward));
        for (int64_t n = 0; n < c->n_in[IN_O]; n++)
            c->in[IN_O][n] = (float)forward.out[LINEAR_O].value[n];
        for (int64_t n = 0; n < c->n_in[IN_DEN]; n++)
            c->in[IN_DEN][n] = (float)forward.out[LINEAR_DEN].value[n];
        linear_plain_free(&forward);
        round_inputs(c);
    }
    linear_plain_free(&c->want);
    c->want = question(c);
    assert_true(linear_plain_run(&c->want));
}

void linear_case_compare(linear_case *c)
{
    linear_comparison found = { .norm = 0 };

    linear_case_want(c);
    linear_case_run(c);
    for (int o = 0; o < LINEAR_OUTPUTS; o++)
        if (c->out[o])
            linear_compare(&c->want, (linear_output)o, c->out[o], &found);
    if (found.share > 1)
        fail_msg("%s: %s", c->name, found.what);
}
