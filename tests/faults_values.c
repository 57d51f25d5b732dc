/* SPDX-License-Identifier: MIT */
/* tests/faults_values.c: numbers of every size: products, scales, caps, sinks, the LSE
 * (B huge values, F LSE, G sinks, P softcap and scale). */
#include "tests/fault.h"

#include <float.h>

/* B4: large f16 products do not overflow. */
static void large_f16(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk7,d128,lse");
    fill(t.q, t.nq, 300);
    fill(t.k, t.nk, 300);
    for (int64_t e = 0; e < t.nv; e++)
        t.v[e] = (float)(e / 128);
    if (!rounds_scores(&t)) {
        trial_run(&t);
        for (int e = 0; e < 128; e++)
            near(&t, "o", e, t.o[e], 3, 0);
        near(&t, "lse", 0, t.lse[0], 1018235.7, 12);
    }
    trial_free(&t);
}

/* Sums of many large f16 values do not overflow either. */
static void large_f16_sums(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk40000,d8,lse");
    fill(t.q, t.nq, 0);
    fill(t.v, t.nv, 60000);
    trial_run(&t);
    for (int e = 0; e < 8; e++)
        near(&t, "o", e, t.o[e], 60000, rounds_scores(&t) ? 64 : 0);
    near(&t, "lse", 0, t.lse[0], log(40000), 2e-4);
    trial_free(&t);
}

/* B8: equal scores in any number. */
static void equal_scores(const subject *who)
{
    static const int64_t lens[] = { 1, 3, 1000, 65537 };

    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        char problem[NAME_BYTES];
        double mean = 0;
        trial t;

        snprintf(problem, sizeof problem, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk%lld,d4,lse",
                 (long long)lens[i]);
        trial_make(&t, who, problem);
        fill(t.q, t.nq, 0);
        for (int64_t j = 0; j < lens[i]; j++)
            mean += (double)t.v[j * 4] / (double)lens[i];
        trial_run(&t);
        near(&t, "lse", 0, t.lse[0], log((double)lens[i]), 2e-5);
        near(&t, "o", 0, t.o[0], mean, 2e-5);
        trial_free(&t);
    }
}

/* A weight of zero is zero: V of a far smaller score may be as large as it likes. */
static void weights_of_zero(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk300,d4,scale=1,lse");
    fill(t.q, t.nq, 1);
    fill(t.k, t.nk, -1e9f);
    fill(t.k, 4, 0);
    fill(t.v, t.nv, 1e38f);
    fill(t.v, 4, 0.5f);
    trial_run(&t);
    for (int64_t i = 0; i < t.no; i++)
        near(&t, "o", i, t.o[i], 0.5, 0);
    trial_free(&t);
}

/* Any finite scale: the product with a small q must not overflow on the way. */
static void huge_scales(const subject *who)
{
    static const struct {
        float scale, q, k;
    } cases[] = {
        { 3e38f, 1e-19f, 1e-19f },
        { 2.4e38f, 1e-38f, 1 },
        { 1e10f, 1e30f, 1e-38f },
        { -3e38f, 1e-19f, 1e-19f },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trial t, want;

        for (int r = 0; r < 2; r++) {
            trial *x = r ? &want : &t;
            trial_make(x, r ? &fault_oracle : who,
                       "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk20,d16,scale=1,lse");
            x->desc.scale = cases[i].scale;
            for (int64_t e = 0; e < x->nq; e++)
                x->q[e] *= cases[i].q;
            for (int64_t e = 0; e < x->nk; e++)
                x->k[e] *= cases[i].k;
            trial_run(x);
        }
        for (int64_t e = 0; e < t.no; e++)
            near(&t, "o", e, t.o[e], want.o[e], 1e-4);
        for (int64_t e = 0; e < t.nlse; e++)
            near(&t, "lse", e, t.lse[e], want.lse[e], 1e-4 * fmax(1, fabs(want.lse[e])));
        trial_free(&t);
        trial_free(&want);
    }
}

/* A score that f32 cannot hold is an infinity: above, which takes all weight and more, below,
 * where it has none, beside one that f32 holds or by itself, of which cuDNN makes NaN. */
static void beyond_f32(const subject *who, const char *problem)
{
    trial t;

    if (!strcmp(who->variant, "softmax_fwd_cudnn"))
        return;
    trial_make(&t, who, problem);
    fill(t.q, t.nq, 0);
    fill(t.k, t.nk, 0);
    for (int64_t j = 0; j < 70; j++)
        t.k[j * 8] = 5;
    t.k[8] = -1;
    t.k[9] = 8;
    t.q[0] = 1;
    t.q[8] = -1;
    t.q[16] = t.q[17] = -1;
    if (!rounds_scores(&t)) {
        trial_run(&t);
        for (int64_t e = 0; e < 8; e++) {
            near(&t, "o", e, t.o[e], NAN, 0);
            near(&t, "o", 8 + e, t.o[8 + e], t.v[8 + e],
                 t.desc.type == ATTN_F32 ? 0 : 0x1p-8);
        }
        near(&t, "lse", 0, t.lse[0], NAN, 0);
        near(&t, "lse", 1, t.lse[1], 1e38, 1e33);
        row_is_empty(&t, 2, -INFINITY);
    }
    trial_free(&t);
}

#define BEYOND(type) "softmax_fwd:" type ",b1,hq1,hkv1,lq3,lk70,d8,scale=1e+38,lse"

static void scores_beyond_f32(const subject *who)
{
    beyond_f32(who, BEYOND("f32"));
}

static void scores_of_bf16_beyond_f32(const subject *who)
{
    beyond_f32(who, BEYOND("bf16"));
}

/* P3: scales of the caller's, also 0 and negative. */
static void scales(const subject *who)
{
    static const char *const words[] = { "1", "0.01", "10", "0", "-0.5" };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char problem[NAME_BYTES];
        trial t;

        snprintf(problem, sizeof problem,
                 "softmax_fwd:f32,b1,hq2,hkv1,lq9,lk70,d16,scale=%s,lse", words[i]);
        trial_make(&t, who, problem);
        trial_compare(&t);
        trial_free(&t);
    }
}

/* P1, P2: the cap comes before the bias; a masked score is not capped into view. */
static void cap_then_bias(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk2,d8,softcap=1,bias=f32,lse");
    fill(t.q, t.nq, 0);
    t.bias[1] = -INFINITY;
    fill(t.v, 8, 1);
    fill(t.v + 8, 8, 1000);
    trial_run(&t);
    for (int e = 0; e < 8; e++)
        near(&t, "o", e, t.o[e], 1, 0);
    near(&t, "lse", 0, t.lse[0], 0, 0);
    trial_free(&t);

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk2,d8,softcap=2,bias=f32,lse");
    fill(t.q, t.nq, 0);
    t.bias[0] = 5; /* capped with the score it would be 1.97 */
    trial_run(&t);
    near(&t, "lse", 0, t.lse[0], log(exp(5) + 1), 1e-5);
    trial_compare(&t);
    trial_free(&t);
}

/* The cap over tiles, of large scores, and of small ones that it hardly touches. */
static void caps(const subject *who)
{
    static const char *const words[] = { "0.5", "2", "50", "1e6", "1e-3" };

    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        char problem[NAME_BYTES];
        trial t;

        snprintf(
            problem, sizeof problem,
            "softmax_fwd:f32,b1,hq2,hkv1,lq20,lk140,d16,causal,align=br,softcap=%s,lse",
            words[i]);
        trial_make(&t, who, problem);
        trial_compare(&t);
        for (int64_t e = 0; e < t.nq; e++)
            t.q[e] *= 100;
        trial_compare(&t);
        trial_free(&t);
    }
}

/* P4, J1: what breaks a rule is refused before anything is planned. */
static void test_what_is_invalid(void **state)
{
    static const struct {
        float scale, softcap;
        int64_t heads_q, heads_kv;
        const char *says;
    } cases[] = {
        { 1, -1, 2, 2, "softcap" },       { 1, NAN, 2, 2, "softcap" },
        { 1, INFINITY, 2, 2, "softcap" }, { NAN, 0, 2, 2, "scale" },
        { INFINITY, 0, 2, 2, "scale" },   { 1, 0, 3, 2, "heads_q" },
        { 1, 0, 33, 2, "heads_q" },       { 1, 0, 3, 0, "heads_kv" },
    };

    (void)state;
    for (size_t d = 0; d < fault_devices; d++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            attn_plan *plan = NULL;
            const attn_softmax_desc desc = { .size = sizeof desc,
                                             .use = ATTN_USE_SCALE | ATTN_USE_SOFTCAP,
                                             .type = ATTN_F32,
                                             .batch = 1,
                                             .heads_q = cases[i].heads_q,
                                             .heads_kv = cases[i].heads_kv,
                                             .len_q = 4,
                                             .len_kv = 4,
                                             .dim_qk = 8,
                                             .scale = cases[i].scale,
                                             .softcap = cases[i].softcap };
            check_error(attn_plan_softmax(fault_ctx[d], &desc, &plan), ATTN_ERR_INVALID,
                        cases[i].says);
            assert_null(plan);
        }
}

/* G1: the sink takes its share of the weights, and of the LSE. */
static void sinks_take_their_share(const subject *who)
{
    static const struct {
        int keys;
        float sink;
    } cases[] = { { 1, 0 },    { 4, 1 },   { 4, -2 },       { 130, 3 },
                  { 1100, 7 }, { 4, 100 }, { 4, -INFINITY } };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const double n = cases[i].keys, s = (double)cases[i].sink;
        char problem[NAME_BYTES];
        trial t;

        snprintf(problem, sizeof problem,
                 "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk%d,d8,sinks,lse", cases[i].keys);

        trial_make(&t, who, problem);
        fill(t.q, t.nq, 0);
        fill(t.v, t.nv, 1);
        t.sinks[0] = cases[i].sink;
        t.sinks[1] = -1;
        trial_run(&t);
        for (int r = 0; r < 6; r++) {
            const double sink = r < 3 ? s : -1;
            near(&t, "o", r * 8, t.o[r * 8], n / (n + exp(sink)), 2e-6);
            near(&t, "lse", r, t.lse[r], log(n + exp(sink)), 2e-5);
        }
        trial_free(&t);
    }
}

/* F3, H1: a sink far above all scores, and no keys at all. */
static void sinks_alone(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk4,d8,sinks,lse");
    fill(t.q, t.nq, 0);
    t.sinks[0] = 100;
    trial_run(&t);
    for (int e = 0; e < 16; e++)
        near(&t, "o", e, t.o[e], 0, 1e-40);
    near(&t, "lse", 0, t.lse[0], 100, 1e-5);
    t.args.k.size[2] = t.args.v.size[2] = 0;
    t.sinks[0] = 0.5f;
    trial_run(&t);
    row_is_empty(&t, 0, 0.5f);
    row_is_empty(&t, 1, 0.5f);
    trial_free(&t);

    if (!takes(who, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk0,d8,sinks,lse"))
        return;
    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk0,d8,sinks,lse");
    t.sinks[0] = 0.5f;
    trial_run(&t);
    row_is_empty(&t, 0, 0.5f);
    row_is_empty(&t, 1, 0.5f);
    trial_free(&t);
}

/* A row that sees no key has the sink for its LSE, whatever that is, by whatever way its
 * keys are hidden; keys that it does see lose all weight to a sink of +inf. */
static void sinks_at_the_ends(const subject *who)
{
    static const struct {
        const char *problem;
        int from; /* the first row of a head that sees keys */
    } cases[] = {
        { "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk70,d8,mask,sinks,lse", 1 },
        { "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk70,d8,bias=f32,sinks,lse", 1 },
        { "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk2,d8,causal,align=br,sinks,lse", 1 },
        { "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk70,d8,offset=100,window=3:0,sinks,lse", 3 },
        { "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk70,d8,sinks,lens,lse", 3 },
        { "softmax_fwd:f32,b1,hq2,hkv1,lq1,lk1100,d8,mask,sinks,lse", 1 },
        { "softmax_fwd:f16,b1,hq4,hkv1,lq3,lk1100,d64,causal,window=0:-1,offset=-1,sinks,"
          "lse",
          1 },
        { "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk700,d8,sinks,lse", 0 },
        { "softmax_fwd:f16,b1,hq4,hkv1,lq1,lk1100,d64,sinks,lse", 0 },
    };
    static const float sinks[] = { INFINITY, -INFINITY, NAN, FLT_MAX, -FLT_MAX, 0 };
    enum { N_SINKS = sizeof sinks / sizeof sinks[0] };

    for (size_t i = 0; i < N_SINKS * sizeof cases / sizeof cases[0]; i++) {
        const float sink = sinks[i % N_SINKS];
        const int from = cases[i / N_SINKS].from;
        trial t;

        if (!takes(who, cases[i / N_SINKS].problem))
            continue;
        trial_make(&t, who, cases[i / N_SINKS].problem);
        for (int64_t e = 0; e < t.nbias; e++) {
            if (e / t.desc.len_kv % t.desc.len_q >= from)
                continue;
            if (t.mask)
                t.mask[e] = 0;
            if (t.bias)
                t.bias[e] = -INFINITY;
        }
        if (t.lens_kv)
            t.lens_kv[0] = 0;
        fill(t.sinks, t.desc.heads_q, sink);
        if (sink == sink && sink < INFINITY)
            trial_compare(&t);
        else
            trial_run(&t);
        for (int64_t row = 0; row < t.nlse; row++) {
            const double o = t.o[row * t.desc.dim_qk], lse = t.lse[row];

            if (row % t.desc.len_q < from)
                row_is_empty(&t, row, sink);
            else if (sink != sink && (o == o || lse == lse))
                fail_msg("%s: row %lld: O %g, LSE %g, want NaN", t.name, (long long)row, o,
                         lse);
            else if (sink == INFINITY)
                row_is_empty(&t, row, sink);
        }
        trial_free(&t);
    }
}

/* G2, F1: split in any number of pieces, the sink counts once; the LSE is one and the
 * same in all variants. One that makes no pieces says so when more are asked for. */
static void splits(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b1,hq8,hkv2,lq1,lk1025,d32,lse",
        "softmax_fwd:f32,b1,hq8,hkv2,lq1,lk1025,d32,sinks,lse",
        "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk700,d16,causal,align=br,window=333:0,sinks,lse",
        "softmax_fwd:f32,b1,hq2,hkv1,lq1,lk5,d8,sinks,lse",
        "softmax_fwd:f16,b1,hq6,hkv2,lq3,lk1025,d65,causal,align=br,sinks,lse",
        "softmax_fwd:f16,b1,hq4,hkv1,lq1,lk1025,d64,lse",
    };
    static const int pieces[] = { 0, 1, 2, 7, 4096 };

    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++)
        for (size_t p = 0; p < sizeof pieces / sizeof pieces[0] && takes(who, problems[i]);
             p++) {
            trial t;

            trial_make(&t, who, problems[i]);
            if (t.sinks)
                fill(t.sinks, t.desc.heads_q, 2);
            t.options.splits = pieces[p];
            if (pieces[p] > 1 && !strstr(who->variant, "split")) {
                attn_plan *plan = NULL;

                t.options.variant = who->variant;
                check_error(attn_plan_softmax_with(who->ctx, &t.desc, &t.options, &plan),
                            ATTN_ERR_UNSUPPORTED, "does not split the keys");
            } else {
                trial_compare(&t);
            }
            trial_free(&t);
        }
}

/* K2: no jump where a path might change. */
static void lengths_around_1024(const subject *who)
{
    for (int lk = 1023; lk <= 1025; lk++) {
        char problem[NAME_BYTES];
        trial t;

        snprintf(problem, sizeof problem, "softmax_fwd:f32,b1,hq8,hkv2,lq1,lk%d,d32,lse",
                 lk);
        trial_make(&t, who, problem);
        trial_compare(&t);
        trial_free(&t);
    }
}

/* A NaN in a row that a query sees is in its result, wherever the key lies: alone in what
 * one worker, warp, tile or piece has, which then knows of no score. */
static void nan_is_seen(const subject *who, const char *problem, int64_t d, bool query)
{
    static const int64_t keys[] = { 0, 1, 63, 64, 127, 299 };
    attn_softmax_desc desc;

    check_ok(attn_softmax_parse(problem, &desc));
    for (size_t i = 0; i < (query ? 1 : sizeof keys / sizeof keys[0]); i++) {
        trial t;

        if (keys[i] >= desc.len_kv)
            break;
        trial_make(&t, who, problem);
        if (query)
            t.q[d / 2] = NAN;
        else
            t.k[keys[i] * d] = NAN;
        trial_run(&t);
        for (int64_t e = 0; e < t.no; e++)
            if (!isnan(t.o[e]))
                fail_msg("%s: key %lld: o[%lld] = %g, want NaN", t.name,
                         query ? -1LL : (long long)keys[i], (long long)e, (double)t.o[e]);
        assert_true(isnan(t.lse[0]));
        trial_free(&t);
    }
}

static void nan_in_sight(const subject *who)
{
    static const char *const problems[] = {
        "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk2,d8,lse",
        "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk300,d8,lse",
        "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk300,d8,lse",
    };

    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        if (!takes(who, problems[i]))
            continue;
        nan_is_seen(who, problems[i], 8, false);
        nan_is_seen(who, problems[i], 8, true);
    }
}

/* Key 63 is alone in its tile, whatever the tile. */
static void nan_at_the_window(const subject *who)
{
    trial t;

    trial_make(&t, who,
               "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk200,d8,window=7:0,offset=70,lse");
    fill(t.k + 63 * 8, 8, NAN);
    trial_run(&t);
    assert_true(isnan(t.o[0]) && isnan(t.lse[0]));
    trial_free(&t);
}

EACH(large_f16, "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk7,d128,lse")
EACH(large_f16_sums, "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk40000,d8,lse")
EACH(equal_scores, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk65537,d4,lse")
EACH(weights_of_zero, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk300,d4,lse")
EACH(huge_scales, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk20,d16,scale=3e+38,lse")
EACH(scores_beyond_f32, BEYOND("f32"))
EACH(scores_of_bf16_beyond_f32, BEYOND("bf16"))
EACH(scales, "softmax_fwd:f32,b1,hq2,hkv1,lq9,lk70,d16,scale=1,lse")
EACH(cap_then_bias, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk2,d8,softcap=1,bias=f32,lse")
EACH(caps, "softmax_fwd:f32,b1,hq2,hkv1,lq20,lk140,d16,causal,align=br,softcap=2,lse")
EACH(sinks_take_their_share, "softmax_fwd:f32,b1,hq2,hkv1,lq3,lk1100,d8,sinks,lse")
EACH(sinks_alone, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk4,d8,sinks,lse")
EACH(sinks_at_the_ends, "softmax_fwd:f16,b1,hq4,hkv1,lq1,lk1100,d64,sinks,lse")
EACH(nan_in_sight, "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk300,d8,lse")
EACH(nan_at_the_window, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk200,d8,window=7:0,offset=70,lse")
EACH(splits, "softmax_fwd:f16,b1,hq4,hkv1,lq1,lk1025,d64,lse")
EACH(lengths_around_1024, "softmax_fwd:f32,b1,hq8,hkv2,lq1,lk1025,d32,lse")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_large_f16),
        cmocka_unit_test(test_large_f16_sums),
        cmocka_unit_test(test_equal_scores),
        cmocka_unit_test(test_weights_of_zero),
        cmocka_unit_test(test_huge_scales),
        cmocka_unit_test(test_scores_beyond_f32),
        cmocka_unit_test(test_scores_of_bf16_beyond_f32),
        cmocka_unit_test(test_scales),
        cmocka_unit_test(test_cap_then_bias),
        cmocka_unit_test(test_caps),
        cmocka_unit_test(test_what_is_invalid),
        cmocka_unit_test(test_sinks_take_their_share),
        cmocka_unit_test(test_sinks_alone),
        cmocka_unit_test(test_sinks_at_the_ends),
        cmocka_unit_test(test_nan_in_sight),
        cmocka_unit_test(test_nan_at_the_window),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_lengths_around_1024),
    };

    return FAULTS_RUN(tests);
}
