/* SPDX-License-Identifier: MIT */
/* tests/faults_masks.c: masks and biases that hide keys: whole rows, whole heads, the
 * first tiles, what lies behind them (A masked rows; B huge values in a bias). */
#include "tests/fault.h"

static const char *const types[] = { "f32", "f16", "bf16" };

/* Element (i, j) of the mask or bias of head h. */
static int64_t pair(const trial *t, int64_t h, int64_t i, int64_t j)
{
    return (h * t->desc.len_q + i) * t->desc.len_kv + j;
}

/* A1, A6, A8, B3: one row all hidden: 0, and not the mean of V; the others as if there
 * were no mask. */
static void one_hidden_row(const subject *who)
{
    for (size_t y = 0; y < sizeof types / sizeof types[0]; y++) {
        char problem[NAME_BYTES], plain[NAME_BYTES];
        trial t, without;

        snprintf(problem, sizeof problem, "softmax_fwd:%s,b1,hq1,hkv1,lq8,lk8,d8,mask,lse",
                 types[y]);
        snprintf(plain, sizeof plain, "softmax_fwd:%s,b1,hq1,hkv1,lq8,lk8,d8,lse",
                 types[y]);
        if (!takes(who, problem))
            continue;
        trial_make(&t, who, problem);
        trial_make(&without, &fault_oracle, plain);
        for (int64_t e = 0; e < t.nv; e++)
            t.v[e] = without.v[e] = (float)(e / 8 + 1);
        memset(t.mask + 3 * 8, 0, 8);
        trial_run(&t);
        row_is_empty(&t, 3, -INFINITY);
        trial_run(&without);
        fill(without.o + 3 * 8, 8, 0);
        without.lse[3] = -INFINITY;
        trial_compare_to(&t, without.o, without.lse);
        trial_free(&t);
        trial_free(&without);
    }
}

/* A8: the same where there is one query, and where keys are many enough to be split. */
static void one_hidden_query(const subject *who)
{
    static const int64_t keys[] = { 8, 64, 1500 };

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        char problem[NAME_BYTES];
        trial t;

        snprintf(problem, sizeof problem,
                 "softmax_fwd:f32,b2,hq2,hkv1,lq1,lk%lld,d8,mask,lse", (long long)keys[i]);
        trial_make(&t, who, problem);
        memset(t.mask + pair(&t, 2, 0, 0), 0, (size_t)keys[i]); /* batch 1, head 0 */
        trial_compare(&t);
        row_is_empty(&t, 2, -INFINITY);
        trial_free(&t);
    }
}

/* A2: all rows of one head. */
static void one_hidden_head(const subject *who)
{
    trial t, without;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq3,hkv3,lq4,lk4,d8,mask,lse");
    trial_make(&without, &fault_oracle, "softmax_fwd:f32,b1,hq3,hkv3,lq4,lk4,d8,lse");
    memset(t.mask + 16, 0, 16);
    trial_run(&t);
    for (int64_t i = 4; i < 8; i++)
        row_is_empty(&t, i, -INFINITY);
    trial_run(&without);
    fill(without.o + 32, 32, 0);
    fill(without.lse + 4, 4, -INFINITY);
    trial_compare_to(&t, without.o, without.lse);
    trial_free(&t);
    trial_free(&without);
}

/* A3, B3: a band: for late rows whole tiles at the start are hidden, for early ones at
 * the end; through a bias of -inf and through a mask. */
static void a_band(const subject *who)
{
    static const char *const features[] = { "bias=f32", "mask" };

    for (size_t f = 0; f < 2; f++) {
        char problem[NAME_BYTES];
        trial t;

        snprintf(problem, sizeof problem,
                 "softmax_fwd:f32,b1,hq1,hkv1,lq640,lk640,d4,%s,lse", features[f]);
        if (!takes(who, problem))
            continue;
        trial_make(&t, who, problem);
        for (int64_t i = 0; i < 640; i++)
            for (int64_t j = 0; j < 640; j++)
                if (llabs(i - j) > 64 && t.bias)
                    t.bias[pair(&t, 0, i, j)] = -INFINITY;
                else if (llabs(i - j) > 64)
                    t.mask[pair(&t, 0, i, j)] = 0;
        trial_compare(&t);
        trial_free(&t);
    }
}

/* A4: keys that no query sees; what lies there does not matter. */
static void hidden_keys(const subject *who)
{
    static const char *const features[] = { "bias=f32", "mask" };

    for (size_t f = 0; f < 2; f++) {
        char problem[NAME_BYTES];
        trial t, shorter;

        snprintf(problem, sizeof problem, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk16,d16,%s,lse",
                 features[f]);
        if (!takes(who, problem))
            continue;
        trial_make(&t, who, problem);
        trial_make(&shorter, &fault_oracle, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk10,d16,lse");
        memcpy(t.q, shorter.q, (size_t)t.nq * sizeof *t.q);
        memcpy(t.k, shorter.k, (size_t)shorter.nk * sizeof *t.k);
        memcpy(t.v, shorter.v, (size_t)shorter.nv * sizeof *t.v);
        fill(t.k + 160, 96, NAN);
        fill(t.v + 160, 96, poison(who));
        for (int64_t i = 0; i < 8; i++)
            for (int64_t j = 10; j < 16; j++)
                if (t.bias)
                    t.bias[pair(&t, 0, i, j)] = -INFINITY;
                else
                    t.mask[pair(&t, 0, i, j)] = 0;
        trial_run(&t);
        trial_run(&shorter);
        trial_compare_to(&t, shorter.o, shorter.lse);
        trial_free(&t);
        trial_free(&shorter);
    }
}

/* A mask that hides each key from all queries of a tile but one: K holds NaN nowhere
 * seen, and a seen row's value gets through. */
static void one_key_each(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq2,hkv1,lq70,lk130,d8,mask,lse");
    memset(t.mask, 0, (size_t)t.nbias);
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 70; i++)
            t.mask[pair(&t, h, i, (i * 13 + h * 7) % 130)] = (unsigned char)(i + 1);
    trial_run(&t);
    for (int64_t h = 0; h < 2; h++)
        for (int64_t i = 0; i < 70; i++)
            for (int64_t e = 0; e < 8; e++)
                near(&t, "o", (h * 70 + i) * 8 + e, t.o[(h * 70 + i) * 8 + e],
                     t.v[(i * 13 + h * 7) % 130 * 8 + e], 1e-6);
    trial_free(&t);
}

/* A5, B2: rows that see nothing but the sink. */
static void rows_of_the_sink_alone(const subject *who)
{
    static const float sinks[] = { 0.5f, 0, -100000, 100 };
    static const int dims[] = { 64, 512 };

    for (size_t d = 0; d < 2; d++)
        for (size_t s = 0; s < sizeof sinks / sizeof sinks[0]; s++) {
            char problem[NAME_BYTES];
            trial t;

            snprintf(problem, sizeof problem,
                     "softmax_fwd:f32,b1,hq1,hkv1,lq16,lk512,d%d,bias=f32,sinks,lse",
                     dims[d]);
            if (!takes(who, problem))
                continue;
            trial_make(&t, who, problem);
            fill(t.bias, 14 * 512, -INFINITY);
            t.sinks[0] = sinks[s];
            trial_compare(&t);
            for (int64_t i = 0; i < 14; i++)
                row_is_empty(&t, i, sinks[s]);
            trial_free(&t);
        }
}

/* B1: nothing visible is -inf exactly, without NaN from -inf less -inf, when mask, bias,
 * causal and lengths hide together what each leaves. */
static void hidden_by_all_together(const subject *who)
{
    trial t;

    trial_make(&t, who,
               "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk70,d8,causal,bias=f32,mask,lens,lse");
    t.lens_kv[0] = 5;
    for (int64_t i = 0; i < 9; i++)
        for (int64_t j = 0; j < 70; j++) {
            t.mask[pair(&t, 0, i, j)] = j % 2 == 0 && i != 6;
            t.bias[pair(&t, 0, i, j)] = j == 0 || (i == 7 && j < 5) ? -INFINITY : 0.25f;
        }
    fill(t.k + 5 * 8, 65 * 8, NAN);
    fill(t.v + 5 * 8, 65 * 8, NAN); /* by length: nobody's to multiply */
    trial_compare(&t);
    row_is_empty(&t, 0, -INFINITY);
    row_is_empty(&t, 1, -INFINITY);
    row_is_empty(&t, 6, -INFINITY);
    row_is_empty(&t, 7, -INFINITY);
    trial_free(&t);
}

/* B6, B7: a weight of zero is zero: V of a hidden-by-bias key may be as large as it
 * likes. The bias is finite: these keys are visible. */
static void weights_of_zero_by_bias(const subject *who)
{
    static const struct {
        const char *problem;
        float bias, v;
    } cases[] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk300,d8,bias=f32,lse", -1e30f, 1e38f },
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq3,lk300,d8,bias=bf16,lse", -1e30f, 1e38f },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq3,lk4096,d8,bias=f16,lse", -60000, 60000 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk4096,d8,bias=f32,lse", -60000, 60000 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trial t;

        if (!takes(who, cases[i].problem))
            continue;
        trial_make(&t, who, cases[i].problem);
        fill(t.bias, t.nbias, cases[i].bias);
        for (int64_t r = 0; r < t.desc.len_q; r++)
            t.bias[pair(&t, 0, r, 0)] = 0;
        fill(t.v, t.nv, cases[i].v);
        fill(t.v, 8, 0.5f);
        if (!(rounds_scores(&t) && t.desc.type == ATTN_F16)) {
            trial_run(&t);
            for (int64_t e = 0; e < t.no; e++)
                near(&t, "o", e, t.o[e], 0.5, 0);
        }
        trial_free(&t);
    }
}

/* The largest negative bias everywhere is a bias, not a mask: a row of it is uniform as
 * far as f32 resolves s + bias. */
static void huge_finite_biases(const subject *who)
{
    static const float biases[] = { -3.4028235e38f, -1e30f, -1e9f, 1e9f };

    for (size_t i = 0; i < sizeof biases / sizeof biases[0]; i++) {
        double mean = 0;
        trial t;

        trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk100,d8,bias=f32,lse");
        fill(t.bias, t.nbias, biases[i]);
        fill(t.q, t.nq, 0);
        for (int64_t j = 0; j < 100; j++)
            mean += (double)t.v[j * 8] / 100;
        trial_run(&t);
        near(&t, "o", 0, t.o[0], mean, 1e-5);
        near(&t, "o", 8, t.o[8], mean, 1e-5);
        near(&t, "lse", 0, t.lse[0], biases[i], fabs((double)biases[i]) * 1e-6);
        trial_free(&t);
    }
}

/* A bias in each type and broadcast in each dimension. */
static void biases_broadcast(const subject *who)
{
    static const char *const kinds[] = { "bias=f32", "bias=f16", "bias=bf16", "mask" };

    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        char problem[NAME_BYTES];

        snprintf(problem, sizeof problem, "softmax_fwd:f32,b2,hq4,hkv2,lq5,lk37,d8,%s,lse",
                 kinds[k]);
        if (!takes(who, problem))
            continue;
        for (int ones = 0; ones < 16; ones++) {
            trial t;

            trial_make(&t, who, problem);
            for (int64_t e = 0; e < t.nbias; e++)
                if (t.bias)
                    t.bias[e] = 2 * sinf((float)e);
                else
                    t.mask[e] = e % 3 != 1;
            attn_tensor *x = t.bias ? &t.args.bias : &t.args.mask;
            *x = attn_tensor_bhld(x->data, x->type, ones & 1 ? 1 : 2, ones & 2 ? 1 : 4,
                                  ones & 4 ? 1 : 5, ones & 8 ? 1 : 37);
            trial_compare(&t);
            trial_free(&t);
        }
    }
}

/* A7, B1: rows of a bottom-right causal mask that see no key. */
static void empty_rows(const subject *who)
{
    trial t;

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk4,d8,causal,align=br,lse");
    fill(t.v, t.nv, 1);
    trial_run(&t);
    for (int i = 0; i < 8; i++) {
        if (i < 4)
            row_is_empty(&t, i, -INFINITY);
        for (int d = 0; d < 8; d++)
            near(&t, "o", i * 8 + d, t.o[i * 8 + d], i < 4 ? 0 : 1, i < 4 ? 0 : 1e-6);
        assert_true(i < 4 || isfinite(t.lse[i]));
    }
    trial_free(&t);

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk4,d8,causal,lse");
    fill(t.v, t.nv, 1);
    trial_run(&t);
    for (int64_t i = 0; i < t.no; i++)
        near(&t, "o", i, t.o[i], 1, 1e-6);
    trial_free(&t);

    trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk2,d8,causal,align=br,lse");
    trial_run(&t);
    row_is_empty(&t, 0, -INFINITY);
    row_is_empty(&t, 1, -INFINITY);
    trial_free(&t);
}

/* A9: what lies behind the last key and value is never read. */
static void nothing_behind_the_last_key(const subject *who)
{
    static const int64_t lens[] = { 1, 31, 33, 63, 65, 127, 129 };

    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        trial t;

        trial_make(&t, who, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk200,d16,lse");
        fill(t.k + lens[i] * 16, (200 - lens[i]) * 16, NAN);
        fill(t.v, lens[i] * 16, 2);
        fill(t.v + lens[i] * 16, (200 - lens[i]) * 16, NAN);
        t.args.k.size[2] = t.args.v.size[2] = lens[i];
        trial_compare(&t);
        for (int64_t e = 0; e < t.no; e++)
            near(&t, "o", e, t.o[e], 2, 1e-5);
        trial_free(&t);
    }
}

EACH(one_hidden_row, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk8,d8,mask,lse")
EACH(one_hidden_query, "softmax_fwd:f32,b2,hq2,hkv1,lq1,lk1500,d8,mask,lse")
EACH(one_hidden_head, "softmax_fwd:f32,b1,hq3,hkv3,lq4,lk4,d8,mask,lse")
EACH(a_band, "softmax_fwd:f32,b1,hq1,hkv1,lq640,lk640,d4,bias=f32,lse")
EACH(hidden_keys, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk16,d16,mask,lse")
EACH(one_key_each, "softmax_fwd:f32,b1,hq2,hkv1,lq70,lk130,d8,mask,lse")
EACH(rows_of_the_sink_alone,
     "softmax_fwd:f32,b1,hq1,hkv1,lq16,lk512,d64,bias=f32,sinks,lse")
EACH(hidden_by_all_together,
     "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk70,d8,causal,bias=f32,mask,lens,lse")
EACH(weights_of_zero_by_bias, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk300,d8,bias=f32,lse")
EACH(huge_finite_biases, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk100,d8,bias=f32,lse")
EACH(biases_broadcast, "softmax_fwd:f32,b2,hq4,hkv2,lq5,lk37,d8,bias=f32,lse")
EACH(empty_rows, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk4,d8,causal,align=br,lse")
EACH(nothing_behind_the_last_key, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk200,d16,lse")

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_hidden_row),
        cmocka_unit_test(test_one_hidden_query),
        cmocka_unit_test(test_one_hidden_head),
        cmocka_unit_test(test_a_band),
        cmocka_unit_test(test_hidden_keys),
        cmocka_unit_test(test_one_key_each),
        cmocka_unit_test(test_rows_of_the_sink_alone),
        cmocka_unit_test(test_hidden_by_all_together),
        cmocka_unit_test(test_weights_of_zero_by_bias),
        cmocka_unit_test(test_huge_finite_biases),
        cmocka_unit_test(test_biases_broadcast),
        cmocka_unit_test(test_empty_rows),
        cmocka_unit_test(test_nothing_behind_the_last_key),
    };

    return FAULTS_RUN(tests);
}
