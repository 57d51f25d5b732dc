/* SPDX-License-Identifier: MIT */
/* tests/faults_scores.c: what scores are held against as keys go by: light weights, scores that
 * rise, zeros with a sign. */
#include "tests/fault.h"

/* A key that weighs 10^6 times the others, and has no value: what is left are weights that
 * f16 holds in a few bits, if at all: which cuDNN leaves at that. */
static void light_weights(const subject *who)
{
    static const float lead[] = { 12, 14, 17.5f };
    trial t, want;

    if (!strcmp(who->variant, "softmax_fwd_cudnn"))
        return;
    for (size_t n = 0; n < sizeof lead / sizeof lead[0]; n++) {
        for (int r = 0; r < 2; r++) {
            trial *x = r ? &want : &t;

            trial_make(x, r ? &fault_oracle : who,
                       "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk300,d8,scale=1,lse");
            fill(x->q, x->nq, 0);
            x->q[0] = 1;
            x->k[0] = lead[n];
            for (int64_t e = 0; e < x->nv; e++)
                x->v[e] = e < 8 ? 0 : 1000 + 100 * (float)(e % 7);
            for (int64_t e = 8; e < x->nk; e += 8)
                x->k[e] = (float)(e / 8 % 3) / 4;
            trial_run(x);
        }
        for (int64_t e = 0; e < t.no && !rounds_scores(&t); e++)
            near(&t, "o", e, t.o[e], want.o[e], 2e-3 * fabs((double)want.o[e]));
        trial_free(&t);
        trial_free(&want);
    }
}

/* Scores that rise or fall by more at each step of keys than weights have room for, above 0,
 * below it and across: what rows are held against has to move with them. Of more columns than
 * eight every other 16 keys, in turn, are a step behind: warps that share rows by such keys have
 * to agree on it. */
static void rising(const subject *who, const char *problem, double o, double lse)
{
    static const float from[] = { 0, 8, -90, -300 };

    for (size_t n = 0; n < sizeof from / sizeof from[0]; n++) {
        trial t, want;

        for (int r = 0; r < 2; r++) {
            trial *x = r ? &want : &t;

            trial_make(x, r ? &fault_oracle : who, problem);
            fill(x->q, x->nq, 0);
            fill(x->k, x->nk, 0);

            const int64_t d = x->nq / 66;

            for (int64_t i = 0; i < 66; i++) {
                x->q[d * i] = i % 2 ? -2 : 2;
                x->q[d * i + 1] = from[n];
            }
            for (int64_t j = 0; j < 700; j++) {
                const int64_t behind = d > 8 ? (j / 16 + j / 128) % 2 : 0;

                /* 32 from one step of 128 keys to the next */
                x->k[d * j] = (float)((j / 128 - behind) * 16) + (float)(j % 5) / 4;
                x->k[d * j + 1] = 1;
                for (int64_t e = 0; e < d; e++)
                    x->v[d * j + e] = (float)((j * 7 + e) % 13) - 6;
            }
            trial_run(x);
        }
        for (int64_t e = 0; e < t.no && !rounds_scores(&t); e++)
            near(&t, "o", e, t.o[e], want.o[e], o);
        for (int64_t e = 0; e < 66 && !rounds_scores(&t); e++)
            near(&t, "lse", e, t.lse[e], want.lse[e],
                 lse + 1e-5 * fabs((double)want.lse[e]));
        trial_free(&t);
        trial_free(&want);
    }
}

/* Scores of -0, by a negative scale or one of 0: the largest there are, after keys with lower ones
 * or alone. What is held against integers must not take them for the least. */
static void zeros_below(const subject *who, const char *problem)
{
    for (int n = 0; n < 3; n++) {
        trial t, want;

        for (int r = 0; r < 2; r++) {
            trial *x = r ? &want : &t;

            trial_make(x, r ? &fault_oracle : who, problem);
            x->desc.scale = n == 1 ? 0 : -1;
            fill(x->q, x->nq, n ? 1 : 0);
            for (int64_t j = 0; j < 512; j++)
                for (int64_t e = 0; e < 8; e++) {
                    /* 100 a key in the middle, where both ways of walking meet them second */
                    x->k[8 * j + e] = n == 1                            ? -1
                                      : n == 2 && (j < 128 || j >= 384) ? 12.5f
                                                                        : 0;
                    x->v[8 * j + e] = 1;
                }
            trial_run(x);
        }
        for (int64_t e = 0; e < t.no && !rounds_scores(&t); e++)
            near(&t, "o", e, t.o[e], want.o[e], 1e-2);
        for (int64_t e = 0; e < 64 && !rounds_scores(&t); e++)
            near(&t, "lse", e, t.lse[e], want.lse[e], 2e-3);
        trial_free(&t);
        trial_free(&want);
    }
}

#define ZEROS(type) "softmax_fwd:" type ",b1,hq1,hkv1,lq64,lk512,d8,scale=-1,lse"

static void zeros_below_f16(const subject *who)
{
    zeros_below(who, ZEROS("f16"));
}

static void zeros_below_bf16(const subject *who)
{
    zeros_below(who, ZEROS("bf16"));
}

EACH(zeros_below_f16, ZEROS("f16"))
EACH(zeros_below_bf16, ZEROS("bf16"))

#define RISING(type) "softmax_fwd:" type ",b1,hq1,hkv1,lq66,lk700,d8,scale=1,lse"
#define RISING_WIDE  "softmax_fwd:bf16,b1,hq1,hkv1,lq66,lk700,d200,scale=1,lse"

static void rising_f16(const subject *who)
{
    rising(who, RISING("f16"), 2e-2, 1e-3);
}

static void rising_bf16(const subject *who)
{
    rising(who, RISING("bf16"), 6e-2, 1e-3);
}

static void rising_wide(const subject *who)
{
    rising(who, RISING_WIDE, 6e-2, 1e-3);
}

static void rising_f32(const subject *who)
{
    rising(who, RISING("f32"), 1e-5, 1e-5);
}

EACH(rising_f16, RISING("f16"))
EACH(rising_bf16, RISING("bf16"))
EACH(rising_wide, RISING_WIDE)
EACH(rising_f32, RISING("f32"))
EACH(light_weights, "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk300,d8,scale=1,lse")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_light_weights),    cmocka_unit_test(test_zeros_below_f16),
        cmocka_unit_test(test_zeros_below_bf16), cmocka_unit_test(test_rising_f16),
        cmocka_unit_test(test_rising_bf16),      cmocka_unit_test(test_rising_wide),
        cmocka_unit_test(test_rising_f32),
    };

    return FAULTS_RUN(tests);
}
