/* SPDX-License-Identifier: MIT */
/* tests/linear.c: linear attention, every variant of every device against the formula over
 * all pairs, the formula's own gradients against finite differences, and what must be equal
 * whichever way it is computed. */
#include "tests/linear_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void compare(const subject *who, const char *problem)
{
    linear_case c;

    linear_case_make(&c, who, problem);
    linear_case_compare(&c);
    linear_case_free(&c);
}

static void compare_in_hand(const subject *who)
{
    compare(who, linear_in_hand);
}

#define COUNT(x)          (sizeof(x) / sizeof *(x))
#define COMPARE(problems) on_all(problems, COUNT(problems), compare_in_hand)

static void forward(void **state)
{
    static const char *const problems[] = {
        "linear_fwd:f32,b2,hq4,hkv2,lq5,lk7,d8,dv3",
        "linear_fwd:f32,b2,hq4,hkv2,lq5,lk7,d8,dv3,causal",
        "linear_fwd:f32,b2,hq4,hkv2,lq7,lk5,d8,dv3,causal,state",
        "linear_fwd:f32,b1,hq3,hkv1,lq70,lk70,d16,causal,phi=elu1,normalize,state,den",
        "linear_fwd:f32,b1,hq3,hkv1,lq70,lk90,d16,phi=elu1,normalize,state,den",
        "linear_fwd:f32,b1,hq1,hkv1,lq130,lk130,d16,causal,phi=relu,normalize,den",
        "linear_fwd:f32,b1,hq1,hkv1,lq130,lk130,d16,dv40,causal,normalize,eps=0.5,den",
        "linear_fwd:f32,b1,hq1,hkv1,lq65,lk65,d16,causal,scale=-0.25,phi=elu1,state",
        "linear_fwd:f16,b1,hq2,hkv1,lq65,lk65,d16,causal,phi=elu1,normalize,state,den",
        "linear_fwd:bf16,b1,hq2,hkv1,lq65,lk65,d16,dv24,causal,phi=relu,state",
        "linear_fwd:bf16,b2,hq2,hkv1,lq65,lk80,d16,dv24,phi=elu1,normalize",
    };

    (void)state;
    COMPARE(problems);
}

/* One token to several chunks, and sizes that fill no vector. */
static void sizes(void **state)
{
    static const int lens[] = { 1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 500 };
    static const int dims[][2] = { { 1, 1 },   { 25, 25 }, { 33, 60 }, { 60, 33 },
                                   { 300, 7 }, { 7, 300 }, { 64, 64 }, { 96, 48 },
                                   { 8, 129 }, { 129, 8 } };
    char problem[200];

    (void)state;
    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++)
        for (int causal = 0; causal < 2; causal++) {
            snprintf(problem, sizeof problem,
                     "linear_fwd:f32,b1,hq2,hkv1,lq%d,lk%d,d20,dv36%s,phi=elu1,normalize,"
                     "state,den",
                     lens[i], lens[i], causal ? ",causal" : "");
            on_all(&(const char *){ problem }, 1, compare_in_hand);
        }
    for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++)
        for (int backward = 0; backward < 2; backward++) {
            snprintf(problem, sizeof problem,
                     "linear_%s:f32,b1,hq1,hkv1,lq70,lk70,d%d,dv%d,causal,phi=elu1,"
                     "normalize,state%s",
                     backward ? "bwd" : "fwd", dims[i][0], dims[i][1],
                     backward ? ",grad=q+k+v+state" : ",den");
            on_all(&(const char *){ problem }, 1, compare_in_hand);
        }
}

static void backward(void **state)
{
    static const char *const problems[] = {
        "linear_bwd:f32,b2,hq4,hkv2,lq5,lk7,d8,dv3,grad=q+k+v",
        "linear_bwd:f32,b2,hq4,hkv2,lq5,lk7,d8,dv3,causal,grad=q+k+v",
        "linear_bwd:f32,b2,hq4,hkv2,lq7,lk5,d8,dv3,causal,state,grad=q+k+v+state",
        "linear_bwd:f32,b1,hq3,hkv1,lq70,lk70,d16,causal,phi=elu1,normalize,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b1,hq3,hkv1,lq70,lk90,d16,phi=elu1,normalize,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b1,hq1,hkv1,lq130,lk130,d16,causal,phi=relu,normalize,grad=q+k+v",
        "linear_bwd:f32,b1,hq1,hkv1,lq130,lk130,d16,dv40,causal,normalize,eps=0.5,grad=q",
        "linear_bwd:f32,b1,hq1,hkv1,lq65,lk65,d16,causal,scale=-0.25,phi=elu1,state=in,"
        "grad=state",
        "linear_bwd:f32,b1,hq1,hkv1,lq65,lk65,d16,phi=elu1,normalize,grad=k",
        "linear_bwd:f32,b1,hq2,hkv1,lq65,lk65,d16,causal,scale=-2,phi=elu1,grad=q+k+v",
        "linear_bwd:f32,b1,hq2,hkv1,lq65,lk65,d16,causal,phi=elu1,normalize,grad=v",
        "linear_bwd:f32,b1,hq2,hkv2,lq200,lk65,d16,causal,phi=elu1,normalize,grad=q+k+v",
        "linear_bwd:f32,b1,hq2,hkv2,lq65,lk200,d16,causal,state,grad=q+k+v",
        "linear_bwd:f16,b1,hq2,hkv1,lq65,lk65,d16,causal,phi=elu1,normalize,state,"
        "grad=q+k+v+state",
        "linear_bwd:bf16,b1,hq2,hkv1,lq65,lk80,d16,dv24,phi=relu,grad=q+k+v",
        /* T 64, H 2, D 8: a younger library cut the path through the denominator */
        "linear_bwd:f32,b2,hq2,hkv2,lq64,lk64,d8,causal,phi=elu1,normalize,grad=q+k+v",
    };

    (void)state;
    COMPARE(problems);
}

static void rules(void **state)
{
    static const char *const problems[] = {
        "linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d8,dv3,causal,rule=gated,decay=f32,state",
        "linear_fwd:f32,b1,hq2,hkv1,lq70,lk70,d16,causal,phi=elu1,normalize,rule=gated,"
        "decay=f32,state,den",
        "linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d8,dv3,causal,scale=0.5,rule=delta,beta=f32,"
        "state",
        "linear_fwd:f32,b1,hq2,hkv2,lq40,lk40,d8,dv20,causal,rule=gated_delta,decay=f32,"
        "beta=f32,state",
        "linear_fwd:f16,b1,hq2,hkv2,lq1,lk1,d8,dv20,causal,rule=gated_delta,decay=f32,"
        "beta=f32,state",
        "linear_fwd:bf16,b1,hq2,hkv2,lq9,lk5,d8,causal,rule=gated_delta,decay=f32,"
        "beta=f32,state=out",
        "linear_fwd:f32,b1,hq1,hkv1,lq5,lk9,d8,causal,rule=gated,decay=f32,lens,state",
    };

    (void)state;
    COMPARE(problems);
}

static void short_lengths(const subject *who)
{
    static const int32_t lens[][3] = { { 0, 7, 3 }, { 70, 1, 69 }, { -5, 64, 1000 } };

    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        linear_case c;

        linear_case_make(&c, who, linear_in_hand);
        if (lens[i][0] >= 0)
            memcpy(c.lens, lens[i], sizeof lens[i]);
        else
            memcpy(c.lens, (int32_t[3]){ 0, 64, 70 }, sizeof lens[i]);
        linear_case_compare(&c);
        linear_case_free(&c);
    }
}

static void lengths(void **state)
{
    static const char *const problems[] = {
        "linear_fwd:f32,b3,hq2,hkv1,lq70,lk70,d8,causal,phi=elu1,normalize,lens,state,den",
        "linear_fwd:f32,b3,hq2,hkv1,lq30,lk70,d8,phi=elu1,normalize,lens,state,den",
        "linear_bwd:f32,b3,hq2,hkv1,lq70,lk70,d8,causal,phi=elu1,normalize,lens,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b3,hq2,hkv1,lq30,lk70,d8,causal,lens,grad=q+k+v",
        "linear_bwd:f32,b3,hq2,hkv1,lq30,lk70,d8,phi=elu1,normalize,lens,grad=q+k+v",
    };

    (void)state;
    on_all(problems, COUNT(problems), short_lengths);
}

/* A view of rows first .. first + n - 1. */
static void cut(attn_tensor *t, int64_t first, int64_t n)
{
    t->offset += first * t->stride[2];
    t->size[2] = n;
}

/* The sequence in pieces, the state carried on in place, must give what it gives whole. */
static void in_pieces(const subject *who)
{
    static const int pieces[][4] = { { 37, 63 }, { 1, 99 }, { 64, 36 }, { 99, 1 } };
    const double most = strstr(linear_in_hand, "f16") ? 4e-3 : 1e-5;

    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++) {
        linear_case c;
        float *whole[LINEAR_OUTPUTS] = { NULL };
        attn_args kept;
        int64_t at = 0;

        linear_case_make(&c, who, linear_in_hand);
        linear_case_run(&c);
        for (int o = 0; o < LINEAR_OUTPUTS; o++) {
            whole[o] = c.out[o];
            if (c.out[o])
                c.out[o] =
                    calloc((size_t)linear_output_count(&c.desc, (linear_output)o) + 1,
                           sizeof(float));
        }
        kept = c.args;
        for (int i = 0; i < 2; i++) {
            const attn_options options = { .size = sizeof options,
                                           .variant = who->variant };
            attn_linear_desc piece = c.desc;

            c.args = kept;
            piece.len_q = piece.len_kv = pieces[p][i];
            c.args.o.data = c.out[LINEAR_O];
            cut(&c.args.q, at, pieces[p][i]);
            cut(&c.args.k, at, pieces[p][i]);
            cut(&c.args.v, at, pieces[p][i]);
            cut(&c.args.o, at, pieces[p][i]);
            if (c.in[IN_DECAY])
                cut(&c.args.decay, at, pieces[p][i]);
            if (c.in[IN_BETA])
                cut(&c.args.beta, at, pieces[p][i]);
            if (c.args.den.type)
                cut(&c.args.den, at, pieces[p][i]);
            c.args.state_out = c.args.state_in;
            c.args.z_out = c.args.z_in;
            check_ok(attn_linear_forward_host_args(who->ctx, &piece, &options, &c.args));
            at += pieces[p][i];
        }
        for (int64_t n = 0; n < linear_output_count(&c.desc, LINEAR_O); n++)
            if (!(fabs((double)c.out[LINEAR_O][n] - (double)whole[LINEAR_O][n]) <=
                  most * (1 + fabs((double)whole[LINEAR_O][n]))))
                fail_msg("%s: %d + %d tokens: o[%lld] is %g, whole it is %g", c.name,
                         pieces[p][0], pieces[p][1], (long long)n,
                         (double)c.out[LINEAR_O][n], (double)whole[LINEAR_O][n]);
        for (int64_t n = 0; n < c.n_in[IN_STATE]; n++)
            if (!(fabs((double)c.in[IN_STATE][n] - (double)whole[LINEAR_STATE_OUT][n]) <=
                  1e-4))
                fail_msg("%s: %d + %d tokens: state[%lld] is %g, whole it is %g", c.name,
                         pieces[p][0], pieces[p][1], (long long)n,
                         (double)c.in[IN_STATE][n], (double)whole[LINEAR_STATE_OUT][n]);
        for (int64_t n = 0; n < c.n_in[IN_Z]; n++)
            if (!(fabs((double)c.in[IN_Z][n] - (double)whole[LINEAR_Z_OUT][n]) <= 1e-4))
                fail_msg("%s: z[%lld] is %g, whole it is %g", c.name, (long long)n,
                         (double)c.in[IN_Z][n], (double)whole[LINEAR_Z_OUT][n]);
        for (int o = 0; o < LINEAR_OUTPUTS; o++)
            free(whole[o]);
        linear_case_free(&c);
    }
}

static void split_is_whole(void **state)
{
    static const char *const problems[] = {
        "linear_fwd:f32,b2,hq2,hkv1,lq100,lk100,d10,dv20,causal,phi=elu1,normalize,state",
        "linear_fwd:f32,b1,hq4,hkv2,lq100,lk100,d10,dv20,causal,state",
        "linear_fwd:f32,b1,hq1,hkv1,lq100,lk100,d8,causal,rule=gated,decay=f32,state",
        "linear_fwd:f32,b1,hq1,hkv1,lq100,lk100,d4,causal,scale=0.5,rule=delta,beta=f32,"
        "state",
    };

    (void)state;
    on_all(problems, COUNT(problems), in_pieces);
}

/* Gradients in pieces, last one first: what one has for its initial state the one before takes
 * for its final one. */
static void gradients_in_pieces(const subject *who)
{
    static const int first[] = { 37, 1, 64, 99 };
    const attn_options any = { .size = sizeof any };
    const attn_options options = { .size = sizeof options, .variant = who->variant };

    for (size_t p = 0; p < sizeof first / sizeof first[0]; p++) {
        linear_comparison found = { .norm = 0 };
        attn_tensor *rows[9], states[4];
        attn_linear_desc piece;
        attn_args kept, *const a = &kept;
        linear_case c;

        linear_case_make(&c, who, linear_in_hand);
        linear_case_want(&c);
        for (int i = 0; i < 4; i++) { /* in between: S and z, their gradients */
            states[i] = i % 2 ? c.args.z_in : c.args.state_in;
            if (states[i].type != ATTN_TYPE_NONE)
                states[i].data = calloc((size_t)c.n_in[IN_STATE] + 1, sizeof(float));
        }
        memcpy(rows,
               (attn_tensor *[]){ &a->q, &a->k, &a->v, &a->o, &a->den, &a->grad_o,
                                  &a->grad_q, &a->grad_k, &a->grad_v },
               sizeof rows);
        for (int i = 2; i >= 0; i--) { /* the first piece's forward before all */
            const bool forward = i == 2, last = i == 1;

            piece = c.desc;
            piece.len_q = piece.len_kv = last ? c.desc.len_q - first[p] : first[p];
            kept = c.args;
            for (int t = 0; t < 9; t++)
                if (rows[t]->type != ATTN_TYPE_NONE)
                    cut(rows[t], last ? first[p] : 0, piece.len_q);
            if (forward) {
                const attn_args f = { .size = sizeof f,
                                      .q = a->q,
                                      .k = a->k,
                                      .v = a->v,
                                      .state_in = a->state_in,
                                      .z_in = a->z_in,
                                      .state_out = states[0],
                                      .z_out = states[1] };

                piece.use &= ~(uint32_t)ATTN_LINEAR_GRAD;
                check_ok(attn_linear_forward_host_args(who->ctx, &piece, &any, &f));
                continue;
            }
            if (last) {
                kept.state_in = states[0];
                kept.z_in = states[1];
                kept.grad_state_in = states[2];
                kept.grad_z_in = states[3];
            } else {
                kept.grad_state_out = states[2];
                kept.grad_z_out = states[3];
            }
            check_ok(attn_linear_backward_host_args(who->ctx, &piece, &options, a));
        }
        for (int o = 0; o < LINEAR_OUTPUTS; o++)
            if (c.out[o])
                linear_compare(&c.want, (linear_output)o, c.out[o], &found);
        if (found.share > 1)
            fail_msg("%s: from token %d on: %s", c.name, first[p], found.what);
        for (int i = 0; i < 4; i++)
            free(states[i].type != ATTN_TYPE_NONE ? states[i].data : NULL);
        linear_case_free(&c);
    }
}

static void gradients_split_are_whole(void **state)
{
    static const char *const problems[] = {
        "linear_bwd:f32,b2,hq2,hkv2,lq100,lk100,d10,dv20,causal,phi=elu1,normalize,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b1,hq4,hkv2,lq100,lk100,d20,dv12,causal,state,grad=q+k+v+state",
    };

    (void)state;
    on_all(problems, COUNT(problems), gradients_in_pieces);
}

/* The formula's loss: what its outputs are weighted with sums up to. */
static double loss(const linear_plain *p)
{
    linear_plain forward = *p;
    double sum = 0;

    forward.desc.use &= ~(uint32_t)ATTN_LINEAR_GRAD;
    memset(forward.out, 0, sizeof forward.out);
    assert_true(linear_plain_run(&forward));
    for (int64_t n = 0; n < linear_output_count(&p->desc, LINEAR_O); n++)
        sum += p->grad_o[n] * forward.out[LINEAR_O].value[n];
    for (int64_t n = 0;
         p->grad_state_out && n < linear_output_count(&p->desc, LINEAR_STATE_OUT); n++)
        sum += p->grad_state_out[n] * forward.out[LINEAR_STATE_OUT].value[n];
    for (int64_t n = 0; p->grad_z_out && n < linear_output_count(&p->desc, LINEAR_Z_OUT);
         n++)
        sum += p->grad_z_out[n] * forward.out[LINEAR_Z_OUT].value[n];
    linear_plain_free(&forward);
    return sum;
}

/* Gradients of the formula, which everything else is held against. */
static void finite_differences(const subject *who)
{
    static const struct {
        linear_output grad;
        input of;
    } pairs[] = { { LINEAR_GRAD_Q, IN_Q },
                  { LINEAR_GRAD_K, IN_K },
                  { LINEAR_GRAD_V, IN_V },
                  { LINEAR_GRAD_STATE_IN, IN_STATE },
                  { LINEAR_GRAD_Z_IN, IN_Z } };
    const double step = 1e-6;
    linear_case c;

    linear_case_make(&c, who, linear_in_hand);
    if (c.lens)
        c.lens[0] = 3;
    linear_case_want(&c);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const double *have = c.want.out[pairs[i].grad].value;

        for (int64_t n = 0; have && n < c.n_in[pairs[i].of]; n++) {
            double *x = &c.wide[pairs[i].of][n], kept = *x, up, down;

            *x = kept + step;
            up = loss(&c.want);
            *x = kept - step;
            down = loss(&c.want);
            *x = kept;
            if (fabs((up - down) / (2 * step) - have[n]) > 1e-6 * (1 + fabs(have[n])))
                fail_msg("%s: %s[%lld] is %.9g, by differences %.9g", c.name,
                         linear_output_name(pairs[i].grad), (long long)n, have[n],
                         (up - down) / (2 * step));
        }
    }
    linear_case_free(&c);
}

static void gradients_of_the_formula(void **state)
{
    static const char *const problems[] = {
        "linear_bwd:f32,b1,hq2,hkv1,lq4,lk6,d3,dv2,causal,phi=elu1,normalize,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b2,hq2,hkv1,lq6,lk4,d3,dv2,phi=elu1,normalize,lens,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b1,hq2,hkv2,lq6,lk4,d2,dv3,causal,scale=0.7,phi=relu,normalize,"
        "eps=0.1,lens,state,grad=q+k+v+state",
        "linear_bwd:f32,b1,hq4,hkv2,lq5,lk5,d3,dv2,causal,scale=-2,state,"
        "grad=q+k+v+state",
        "linear_bwd:f32,b1,hq1,hkv1,lq5,lk5,d3,dv2,causal,normalize,grad=q+k+v",
    };
    const subject who = { NULL, "the formula", "" };

    (void)state;
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        linear_in_hand = problems[i];
        finite_differences(&who);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_of_the_formula),
        cmocka_unit_test(forward),
        cmocka_unit_test(sizes),
        cmocka_unit_test(backward),
        cmocka_unit_test(rules),
        cmocka_unit_test(lengths),
        cmocka_unit_test(split_is_whole),
        cmocka_unit_test(gradients_split_are_whole),
    };
    return LINEAR_RUN(tests);
}
