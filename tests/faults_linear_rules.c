/* SPDX-License-Identifier: MIT */
/* tests/faults_linear_rules.c: faults of linear attention's rules that users met in other
 * libraries, on every variant of every device: decays, the delta rule, means, scales, rows
 * that grow. */
#include "tests/linear_case.h"

#include <math.h>

/* Decays that leave nothing, and such that leave all. */
static void strong_decay(const subject *who)
{
    static const float decays[] = { -50, -1e-7f, 0, -1000 };

    for (size_t i = 0; i < sizeof decays / sizeof decays[0]; i++) {
        linear_case c;

        linear_case_make(&c, who,
                         "linear_fwd:f32,b1,hq1,hkv1,lq130,lk130,d8,causal,"
                         "rule=gated,decay=f32,state");
        linear_fill(c.in[IN_DECAY], c.n_in[IN_DECAY], decays[i]);
        linear_case_compare(&c);
        linear_case_free(&c);
    }
}
EACH(strong_decay,
     "linear_fwd:f32,b1,hq1,hkv1,lq130,lk130,d8,causal,rule=gated,decay=f32,state")

/* Gated delta without a decay is the delta rule; beta = 0 changes no state. */
static void rules_that_agree(const subject *who)
{
    linear_case gated, delta;

    linear_case_make(&gated, who,
                     "linear_fwd:f32,b1,hq2,hkv1,lq40,lk40,d8,causal,"
                     "scale=0.3,rule=gated_delta,decay=f32,beta=f32,state");
    linear_case_make(&delta, who,
                     "linear_fwd:f32,b1,hq2,hkv1,lq40,lk40,d8,causal,"
                     "scale=0.3,rule=delta,beta=f32,state");
    for (int64_t n = 0; n < gated.n_in[IN_K]; n++)
        gated.in[IN_K][n] *= 0.4f, delta.in[IN_K][n] *= 0.4f;
    linear_fill(gated.in[IN_DECAY], gated.n_in[IN_DECAY], 0);
    linear_case_compare(&gated);
    linear_case_compare(&delta);
    for (int64_t n = 0; n < 2 * 40 * 8; n++)
        linear_near(&gated, "o", n, (double)gated.out[LINEAR_O][n],
                    (double)delta.out[LINEAR_O][n], 1e-5);
    linear_fill(delta.in[IN_BETA], delta.n_in[IN_BETA], 0);
    linear_case_run(&delta);
    assert_memory_equal(delta.out[LINEAR_STATE_OUT], delta.in[IN_STATE],
                        8 * 8 * sizeof(float));
    linear_case_free(&gated);
    linear_case_free(&delta);
}
EACH(rules_that_agree, "linear_fwd:f32,b1,hq2,hkv1,lq40,lk40,d8,causal,scale=0.3,"
                       "rule=gated_delta,decay=f32,beta=f32,state")

/* Keys of norm 1 keep the state small; others let it grow as the recurrence does. */
static void delta_rule_growth(const subject *who)
{
    for (int unit = 0; unit < 2; unit++) {
        linear_case c;

        linear_case_make(&c, who,
                         "linear_fwd:f16,b1,hq1,hkv1,lq64,lk64,d64,causal,scale=0.125,"
                         "rule=delta,beta=f32,state=out");
        for (int64_t n = 0; n < c.n_in[IN_BETA]; n++)
            c.in[IN_BETA][n] = 1 / (1 + expf(-2 * sinf((float)n)));
        for (int64_t j = 0; j < 64; j++) {
            double norm = 0;

            for (int64_t e = 0; e < 64; e++)
                norm += (double)c.in[IN_K][j * 64 + e] * (double)c.in[IN_K][j * 64 + e];
            for (int64_t e = 0; e < 64; e++) /* waves of norm 5.7 grow without bounds */
                c.in[IN_K][j * 64 + e] *= unit ? (float)(1 / sqrt(norm)) : 0.3f;
        }
        linear_case_compare(&c);
        for (int64_t n = 0; n < 64 * 64 && unit; n++)
            assert_true(fabsf(c.out[LINEAR_O][n]) < 100);
        linear_case_free(&c);
    }
}
EACH(delta_rule_growth, "linear_fwd:f16,b1,hq1,hkv1,lq64,lk64,d64,causal,scale=0.125,"
                        "rule=delta,beta=f32,state=out")

static void running_mean(const subject *who)
{
    linear_case c;

    linear_case_make(&c, who,
                     "linear_fwd:f32,b1,hq2,hkv1,lq130,lk130,d8,dv1,causal,phi=elu1,"
                     "normalize,eps=0");
    linear_fill(c.in[IN_Q], c.n_in[IN_Q], 0);
    linear_fill(c.in[IN_K], c.n_in[IN_K], 0);
    for (int64_t n = 0; n < 130; n++)
        c.in[IN_V][n] = (float)n;
    linear_case_run(&c);
    for (int64_t n = 0; n < 260; n++)
        linear_near(&c, "o", n, (double)c.out[LINEAR_O][n], (double)(n % 130) / 2, 1e-4);
    linear_case_free(&c);
}
EACH(running_mean,
     "linear_fwd:f32,b1,hq2,hkv1,lq130,lk130,d8,dv1,causal,phi=elu1,normalize,"
     "eps=0")

static void scales(const subject *who)
{
    static const float factors[] = { -1, 0.25f, 0 };
    float before[90 * 8];
    linear_case c;

    linear_case_make(&c, who, "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d8,causal,phi=elu1");
    linear_case_run(&c);
    memcpy(before, c.out[LINEAR_O], sizeof before);
    for (size_t f = 0; f < sizeof factors / sizeof factors[0]; f++) {
        c.desc.use |= ATTN_LINEAR_SCALE;
        c.desc.scale = factors[f];
        linear_case_run(&c);
        for (int64_t n = 0; n < 90 * 8; n++)
            linear_near(&c, "o", n, (double)c.out[LINEAR_O][n],
                        (double)factors[f] * (double)before[n],
                        1e-5 * fabs((double)before[n]));
    }
    linear_case_free(&c);
}
EACH(scales, "linear_fwd:f32,b1,hq1,hkv1,lq90,lk90,d8,causal,phi=elu1")

/* One beta and one decay for all: sizes of 1, and strides of 0. */
static void broadcast(const subject *who)
{
    for (int way = 0; way < 3; way++) {
        const float beta = 0.3f, decay = -0.2f;
        float lens_beta[9];
        linear_case c;

        linear_case_make(&c, who,
                         "linear_fwd:f32,b2,hq8,hkv2,lq9,lk9,d4,causal,scale=0.5,"
                         "rule=gated_delta,decay=f32,beta=f32,state");
        linear_fill(c.in[IN_BETA], c.n_in[IN_BETA], beta);
        linear_fill(c.in[IN_DECAY], c.n_in[IN_DECAY], decay);
        linear_fill(lens_beta, 9, beta);
        linear_case_want(&c);
        if (way == 0) {
            for (int i = 0; i < 4; i++)
                c.args.beta.size[i] = c.args.decay.size[i] = 1;
        } else if (way == 1) {
            memset(c.args.beta.stride, 0, sizeof c.args.beta.stride);
            memset(c.args.decay.stride, 0, sizeof c.args.decay.stride);
        } else { /* one a token, one for all features */
            c.args.beta = attn_tensor_bhld(lens_beta, ATTN_F32, 1, 1, 9, 1);
            c.args.decay.size[3] = 1;
        }
        linear_case_run(&c);
        for (int64_t n = 0; n < 2 * 8 * 9 * 4; n++)
            linear_near(&c, "o", n, (double)c.out[LINEAR_O][n],
                        c.want.out[LINEAR_O].value[n], 1e-5);
        linear_case_free(&c);
    }
}
EACH(broadcast, "linear_fwd:f32,b2,hq8,hkv2,lq9,lk9,d4,causal,scale=0.5,rule=gated_delta,"
                "decay=f32,beta=f32,state")

/* Keys and values grow from token to token, 2^90 in all, and q the other way: no row of O may
 * lose what it has to rows that it does not see, or that are huge beside it. */
static const char *const growing_rows_problems[] = {
    "linear_fwd:f32,b1,hq1,hkv1,lq129,lk129,d64,dv36,causal,state",
    "linear_fwd:f32,b1,hq4,hkv2,lq63,lk63,d64,causal",
    "linear_fwd:f32,b1,hq1,hkv1,lq600,lk600,d128,dv64,causal",
};

static void growing_rows(const subject *who)
{
    linear_case c;
    int64_t rows, wide;

    linear_case_make(&c, who, linear_in_hand);
    rows = c.desc.len_q;
    for (int i = IN_Q; i <= IN_V; i++)
        for (int64_t n = 0; n < c.n_in[i]; n++) {
            const int64_t width = i == IN_V && c.desc.dim_v ? c.desc.dim_v : c.desc.dim_qk;
            const int up = (int)(n / width % rows * 45 / rows);

            c.in[i][n] *= ldexpf(1, i == IN_Q ? 40 - up : up - 40);
        }
    linear_case_want(&c);
    linear_case_run(&c);
    wide = c.desc.dim_v ? c.desc.dim_v : c.desc.dim_qk;
    for (int64_t n = 0; n < linear_output_count(&c.desc, LINEAR_O); n++) {
        const double *const row = c.want.out[LINEAR_O].value + n / wide * wide;
        double top = 0;

        for (int64_t i = 0; i < wide; i++)
            top = fmax(top, fabs(row[i]));
        linear_near(&c, "o", n, (double)c.out[LINEAR_O][n], row[n % wide], 4e-6 * top);
    }
    linear_case_free(&c);
}
EACH_OF(growing_rows, growing_rows_problems)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strong_decay),
        cmocka_unit_test(test_rules_that_agree),
        cmocka_unit_test(test_delta_rule_growth),
        cmocka_unit_test(test_running_mean),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_broadcast),
        cmocka_unit_test(test_growing_rows),
    };
    return LINEAR_RUN(tests);
}
