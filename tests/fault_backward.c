/* SPDX-License-Identifier: MIT */
/* tests/fault_backward.c: a backward problem with all of its tensors. */
#include "tests/fault_backward.h"

#include "src/core/float16.h"

static const char *const names[GRADS] = { "grad_q", "grad_k", "grad_v", "grad_bias",
                                          "grad_sinks" };

static attn_tensor *grad_arg(attn_args *a, int of)
{
    attn_tensor *const all[GRADS] = { &a->grad_q, &a->grad_k, &a->grad_v, &a->grad_bias,
                                      &a->grad_sinks };
    return all[of];
}

static float *array(int64_t n)
{
    float *x = calloc((size_t)n + 1, sizeof *x);

    assert_non_null(x);
    return x;
}

void backward_make(backward *x, const subject *who, const char *fields)
{
    char problem[NAME_BYTES];
    trial *t = &x->t;

    memset(x, 0, sizeof *x);
    x->who = who;
    snprintf(problem, sizeof problem, "softmax_fwd:%s,lse", fields);
    trial_make(t, &fault_oracle, problem);
    snprintf(t->name, sizeof t->name, "%s %s softmax_bwd:%s", who->device->selector,
             who->variant, fields);
    trial_run(t);
    x->desc = t->desc;
    x->n[Q] = t->nq;
    x->n[K] = t->nk;
    x->n[V] = t->nv;
    x->n[BIAS] = t->desc.use & ATTN_USE_BIAS ? t->nbias : 0;
    x->n[SINKS] = t->desc.use & ATTN_USE_SINKS ? t->desc.heads_q : 0;
    x->grad_o = floats(t->no + 1);
    x->grad_lse = floats(t->nlse + 2);
    x->args = t->args;
    x->args.grad_o = t->args.o;
    x->args.grad_o.data = x->grad_o;
    x->args.grad_lse = t->args.lse;
    x->args.grad_lse.data = x->grad_lse;
    for (int of = 0; of < GRADS; of++) {
        const attn_tensor *like[GRADS] = { &t->args.q, &t->args.k, &t->args.v,
                                           &t->args.bias, &t->args.sinks };
        if (of >= BIAS && !x->n[of])
            continue;
        x->grad[of] = array(x->n[of]);
        *grad_arg(&x->args, of) = *like[of];
        grad_arg(&x->args, of)->data = x->grad[of];
        if (of == BIAS)
            x->args.grad_bias.type = ATTN_F32;
    }
}

void backward_free(backward *x)
{
    free(x->grad_o);
    free(x->grad_lse);
    for (int of = 0; of < GRADS; of++)
        free(x->grad[of]);
    trial_free(&x->t);
}

void backward_forward(backward *x)
{
    trial_run(&x->t);
}

static float widen(attn_type type, uint16_t bits)
{
    return type == ATTN_F16 ? attn_f32_from_f16(bits) : attn_f32_from_bf16(bits);
}

/* The arrays of a 16-bit problem, and back. */
static void run_16(backward *x, const attn_options *options, attn_args a)
{
    const attn_type type = x->desc.type;
    attn_tensor *const to[] = { &a.q, &a.k, &a.v, &a.o, &a.grad_o, &a.bias };
    const int64_t n[] = { x->t.nq, x->t.nk, x->t.nv, x->t.no, x->t.no, x->n[BIAS] };
    uint16_t *copy[6 + 3] = { NULL };

    for (int i = 0; i < 6; i++) {
        if (to[i]->type == ATTN_TYPE_NONE || to[i]->type == ATTN_F32)
            continue;
        copy[i] = calloc((size_t)n[i] + 1, sizeof *copy[i]);
        assert_non_null(copy[i]);
        for (int64_t e = 0; e < n[i]; e++) {
            const float value = ((float *)to[i]->data)[e];
            copy[i][e] = to[i]->type == ATTN_F16 ? attn_f16_from_f32(value)
                                                 : attn_bf16_from_f32(value);
        }
        to[i]->data = copy[i];
    }
    for (int of = Q; of <= V; of++) {
        attn_tensor *t = grad_arg(&a, of);

        if (t->type == ATTN_TYPE_NONE)
            continue;
        t->data = copy[6 + of] = calloc((size_t)x->n[of] + 1, sizeof(uint16_t));
        assert_non_null(t->data);
        for (int64_t e = 0; e < x->n[of]; e++)
            copy[6 + of][e] = 0xffff; /* NaN */
    }
    check_ok(attn_softmax_backward_host_args(x->who->ctx, &x->desc, options, &a));
    for (int of = Q; of <= V; of++)
        for (int64_t e = 0; copy[6 + of] && e < x->n[of]; e++)
            ((float *)grad_arg(&x->args, of)->data)[e] = widen(type, copy[6 + of][e]);
    for (int i = 0; i < 9; i++)
        free(copy[i]);
}

void backward_run(backward *x)
{
    const attn_options options = { .size = sizeof options, .variant = x->who->variant };

    for (int of = 0; of < GRADS && !x->keep; of++)
        if (x->grad[of])
            fill(x->grad[of], x->n[of], NAN);
    if (x->desc.type != ATTN_F32 || x->args.bias.type > ATTN_F32)
        run_16(x, &options, x->args);
    else if (attn_softmax_backward_host_args(x->who->ctx, &x->desc, &options, &x->args) !=
             ATTN_OK)
        fail_msg("%s: %s", x->t.name, attn_last_error());
}

static void compare_one(const backward *x, int of, const float *want)
{
    const double norm = x->desc.type == ATTN_F32   ? 1e-5
                        : x->desc.type == ATTN_F16 ? 3e-3
                                                   : 2e-2;
    double largest = 0;

    for (int64_t i = 0; i < x->n[of]; i++)
        largest = isnan(want[i]) ? largest : fmax(largest, fabs((double)want[i]));
    for (int64_t i = 0; i < x->n[of]; i++)
        if (isnan(want[i])) {
            if (!isnan(x->grad[of][i]))
                fail_msg("%s: %s[%lld] was written", x->t.name, names[of], (long long)i);
        } else {
            near(&x->t, names[of], i, x->grad[of][i], want[i],
                 want[i] == 0 ? 1e-6 * fmax(largest, 1) : 4 * norm * largest);
        }
}

void backward_compare(backward *x)
{
    const subject reference = { fault_oracle.ctx, fault_oracle.device,
                                "softmax_bwd_reference", 0 };
    const subject *const who = x->who;
    float *want[GRADS] = { NULL };

    x->who = &reference;
    backward_run(x);
    for (int of = 0; of < GRADS; of++)
        if (x->grad[of]) {
            want[of] = array(x->n[of]);
            memcpy(want[of], x->grad[of], (size_t)x->n[of] * sizeof(float));
        }
    x->who = who;
    backward_run(x);
    for (int of = 0; of < GRADS; of++) {
        if (want[of])
            compare_one(x, of, want[of]);
        free(want[of]);
    }
}

void backward_is_zero(const backward *x, int of, int64_t first, int64_t n)
{
    for (int64_t i = first; i < first + n; i++)
        near(&x->t, names[of], i, x->grad[of][i], 0, 0);
}

void backward_is_finite(const backward *x)
{
    for (int of = 0; of < GRADS; of++)
        for (int64_t i = 0; x->grad[of] && i < x->n[of]; i++)
            if (!isfinite(x->grad[of][i]))
                fail_msg("%s: %s[%lld] = %g", x->t.name, names[of], (long long)i,
                         (double)x->grad[of][i]);
}

void on_each_backward(const char *fields, fault_fn *fn)
{
    char problem[NAME_BYTES];

    snprintf(problem, sizeof problem, "softmax_bwd:%s,grad=q+k+v", fields);
    on_each(problem, fn);
}
