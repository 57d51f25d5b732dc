/* SPDX-License-Identifier: MIT */
/* tests/faults.c: faults that users met in other libraries, as small inputs with
 * the right answer, on every variant of every device. The letters and numbers
 * (A masked rows, B huge values, C sizes, D causal, E window, F log-sum-exp, H
 * nothing, I strides, J grouped heads, K splits, N threads) stand in tests/cases
 * too, where a problem text is enough. */
#define _GNU_SOURCE
#include "tests/check.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <attn/attn.h>

enum { MAX_DEVICES = 16, MAX_VARIANTS = 16 };

static attn_ctx *contexts[MAX_DEVICES];
static attn_device_info devices[MAX_DEVICES];
static size_t n_devices;

/* What a test is given: a device, a variant, and arrays for a problem. */
typedef struct trial {
    attn_ctx *ctx;
    const char *variant;
    attn_softmax_desc desc;
    float *q, *k, *v, *o, *lse;
    int64_t nq, nk, nv, no, nlse;
    int32_t lens[16];
    char name[256];
} trial;

static float *array(int64_t n)
{
    float *x = malloc((size_t)(n ? n : 1) * sizeof *x);

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = sinf((float)i * 1.7f + (float)n);
    return x;
}

static void trial_make(trial *t, attn_ctx *ctx, const char *variant, const char *problem)
{
    attn_softmax_desc *d = &t->desc;
    int64_t dv;

    memset(t, 0, sizeof *t);
    check_ok(attn_softmax_parse(problem, d));
    dv = d->dim_v ? d->dim_v : d->dim_qk;
    t->ctx = ctx;
    t->variant = variant;
    snprintf(t->name, sizeof t->name, "%s %s", variant, problem);
    t->nq = d->batch * d->heads_q * d->len_q * d->dim_qk;
    t->nk = d->batch * d->heads_kv * d->len_kv * d->dim_qk;
    t->nv = d->batch * d->heads_kv * d->len_kv * dv;
    t->no = d->batch * d->heads_q * d->len_q * dv;
    t->nlse = d->batch * d->heads_q * d->len_q;
    t->q = array(t->nq);
    t->k = array(t->nk);
    t->v = array(t->nv);
    t->o = array(t->no);
    t->lse = array(t->nlse);
    for (int64_t i = 0; i < t->no; i++)
        t->o[i] = NAN;
    for (int64_t i = 0; i < t->nlse; i++)
        t->lse[i] = NAN;
}

static void trial_free(trial *t)
{
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->o);
    free(t->lse);
}

static attn_args args_of(trial *t)
{
    const attn_softmax_desc *d = &t->desc;
    const int64_t dv = d->dim_v ? d->dim_v : d->dim_qk;
    attn_args a = {
        .size = sizeof a,
        .q = attn_tensor_bhld(t->q, ATTN_F32, d->batch, d->heads_q, d->len_q, d->dim_qk),
        .k = attn_tensor_bhld(t->k, ATTN_F32, d->batch, d->heads_kv, d->len_kv, d->dim_qk),
        .v = attn_tensor_bhld(t->v, ATTN_F32, d->batch, d->heads_kv, d->len_kv, dv),
        .o = attn_tensor_bhld(t->o, ATTN_F32, d->batch, d->heads_q, d->len_q, dv),
        .lse = attn_tensor_bhld(t->lse, ATTN_F32, d->batch, d->heads_q, d->len_q, 1)
    };

    if (d->use & ATTN_USE_LENS_KV)
        a.lens_kv = attn_tensor_vector(t->lens, ATTN_I32, d->batch);
    return a;
}

static void trial_run_args(trial *t, const attn_args *a)
{
    const attn_options o = { .size = sizeof o, .variant = t->variant };
    const attn_status st = attn_softmax_forward_host_args(t->ctx, &t->desc, &o, a);

    if (st != ATTN_OK)
        fail_msg("%s: %s", t->name, attn_last_error());
}

static void trial_run(trial *t)
{
    const attn_args a = args_of(t);

    trial_run_args(t, &a);
}

static void fill(float *x, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
}

static void near(const trial *t, const char *what, int64_t i, double have, double want,
                 double tolerance)
{
    if (!(fabs(have - want) <= tolerance) && !(isinf(want) && have == want))
        fail_msg("%s: %s[%lld] = %.9g, want %.9g", t->name, what, (long long)i, have, want);
}

typedef void test_fn(attn_ctx *ctx, const char *variant);

/* Runs a test on each device with each variant that takes the problem. */
static void on_each(const char *problem, test_fn *fn)
{
    attn_softmax_desc desc;

    check_ok(attn_softmax_parse(problem, &desc));
    for (size_t d = 0; d < n_devices; d++) {
        attn_variant_info list[MAX_VARIANTS];
        size_t n = 0;

        check_ok(attn_softmax_variants(contexts[d], &desc, list, MAX_VARIANTS, &n));
        for (size_t i = 0; i < n; i++)
            if (list[i].applicable)
                fn(contexts[d], list[i].name);
    }
}

/* A7, B1: rows of a bottom-right causal mask that see no key. */
static void empty_rows(attn_ctx *ctx, const char *variant)
{
    trial t;

    trial_make(&t, ctx, variant, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk4,d8,causal,align=br");
    fill(t.v, t.nv, 1);
    trial_run(&t);
    for (int i = 0; i < 8; i++) {
        assert_true(i < 4 ? t.lse[i] == -INFINITY : isfinite(t.lse[i]));
        for (int d = 0; d < 8; d++)
            near(&t, "o", i * 8 + d, t.o[i * 8 + d], i < 4 ? 0 : 1, i < 4 ? 0 : 1e-6);
    }
    trial_free(&t);

    trial_make(&t, ctx, variant, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk4,d8,causal");
    fill(t.v, t.nv, 1);
    trial_run(&t);
    for (int64_t i = 0; i < t.no; i++)
        near(&t, "o", i, t.o[i], 1, 1e-6);
    trial_free(&t);

    trial_make(&t, ctx, variant, "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk2,d8,causal,align=br");
    trial_run(&t);
    assert_true(t.lse[0] == -INFINITY && t.lse[1] == -INFINITY);
    for (int i = 0; i < 16; i++)
        assert_true(t.o[i] == 0);
    trial_free(&t);
}

/* A9: what lies behind the last key and value is never read. */
static void nothing_behind_the_last_key(attn_ctx *ctx, const char *variant)
{
    static const int64_t lens[] = { 1, 31, 33, 63, 65, 127, 129 };

    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        attn_args a;
        trial t;

        trial_make(&t, ctx, variant, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk200,d16");
        fill(t.k + lens[i] * 16, (200 - lens[i]) * 16, NAN);
        fill(t.v, lens[i] * 16, 2);
        fill(t.v + lens[i] * 16, (200 - lens[i]) * 16, NAN);
        a = args_of(&t);
        a.k.size[2] = a.v.size[2] = lens[i];
        trial_run_args(&t, &a);
        for (int64_t e = 0; e < t.no; e++)
            near(&t, "o", e, t.o[e], 2, 1e-5);
        trial_free(&t);
    }
}

/* B4: large f16 products do not overflow. */
static void large_f16(attn_ctx *ctx, const char *variant)
{
    enum { LK = 7, D = 128 };
    uint16_t q[D], k[LK * D], v[LK * D], o[D];
    static const uint16_t number[] = { 0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600 };
    float lse = 0;
    const attn_softmax_desc desc = { .size = sizeof desc,
                                     .type = ATTN_F16,
                                     .batch = 1,
                                     .heads_q = 1,
                                     .heads_kv = 1,
                                     .len_q = 1,
                                     .len_kv = LK,
                                     .dim_qk = D };
    const attn_options options = { .size = sizeof options, .variant = variant };
    const attn_args a = { .size = sizeof a,
                          .q = attn_tensor_bhld(q, ATTN_F16, 1, 1, 1, D),
                          .k = attn_tensor_bhld(k, ATTN_F16, 1, 1, LK, D),
                          .v = attn_tensor_bhld(v, ATTN_F16, 1, 1, LK, D),
                          .o = attn_tensor_bhld(o, ATTN_F16, 1, 1, 1, D),
                          .lse = attn_tensor_bhld(&lse, ATTN_F32, 1, 1, 1, 1) };

    for (int i = 0; i < LK * D; i++) {
        q[i % D] = k[i] = 0x5cb0; /* 300 */
        v[i] = number[i / D];     /* j   */
        o[i % D] = 0xffff;
    }
    check_ok(attn_softmax_forward_host_args(ctx, &desc, &options, &a));
    for (int i = 0; i < D; i++)
        if (o[i] != 0x4200)
            fail_msg("%s: o[%d] = 0x%04x, want 3", variant, i, o[i]);
    if (!(fabsf(lse - 1018235.7f) < 12))
        fail_msg("%s: lse = %.1f, want 1018235.7", variant, (double)lse);
}

/* B8: equal scores in any number. */
static void equal_scores(attn_ctx *ctx, const char *variant)
{
    static const int64_t lens[] = { 1, 3, 1000, 65537 };

    for (size_t i = 0; i < sizeof lens / sizeof lens[0]; i++) {
        char problem[128];
        double mean = 0;
        trial t;

        snprintf(problem, sizeof problem, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk%lld,d4,lse",
                 (long long)lens[i]);
        trial_make(&t, ctx, variant, problem);
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
static void weights_of_zero(attn_ctx *ctx, const char *variant)
{
    trial t;

    trial_make(&t, ctx, variant, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk300,d4,scale=1");
    fill(t.q, t.nq, 1);
    fill(t.k, t.nk, -1e9f);
    fill(t.k, 4, 0);
    fill(t.v, t.nv, 1e38f);
    fill(t.v, 4, 0.5f);
    trial_run(&t);
    for (int64_t i = 0; i < t.no; i++)
        assert_true(t.o[i] == 0.5f);
    trial_free(&t);
}

/* Any finite scale: the product with a small q must not overflow on the way. */
static void huge_scales(attn_ctx *ctx, const char *variant)
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
            trial_make(x, r ? contexts[n_devices - 1] : ctx,
                       r ? "softmax_fwd_reference" : variant,
                       "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk20,d16,scale=1");
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

/* A broadcast view of more elements than an address space has bytes, and nothing
 * to compute from it. */
static void views_of_2_to_the_62(attn_ctx *ctx, const char *variant)
{
    const attn_softmax_desc d = { .size = sizeof d,
                                  .type = ATTN_F32,
                                  .batch = 1 << 16,
                                  .heads_q = 1 << 14,
                                  .heads_kv = 1 << 14,
                                  .len_q = 0,
                                  .len_kv = 1 << 30,
                                  .dim_qk = 4 };
    const int64_t size[4] = { 1 << 16, 1 << 14, 1 << 30, 4 }, none[4] = { 0 };
    const attn_options o = { .size = sizeof o, .variant = variant };
    float one = 1;
    attn_args a = { .size = sizeof a };

    a.q = a.o = attn_tensor_bhld(NULL, ATTN_F32, 1 << 16, 1 << 14, 0, 4);
    a.k = a.v = attn_tensor_strided(&one, ATTN_F32, size, none);
    a.k.data_bytes = a.v.data_bytes = sizeof one;
    check_ok(attn_softmax_forward_host_args(ctx, &d, &o, &a));
}

/* D1, D2, D3: the matrices of the header, element by element: key j has the
 * value 4^j, so a mean of visible values names them. */
static void alignments(attn_ctx *ctx, const char *variant)
{
    static const struct {
        const char *problem;
        const char *rows[9];
    } cases[] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d4,causal", { "10000", "11000" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d4,causal,align=br", { "11110", "11111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk2,d4,causal",
          { "10", "11", "11", "11", "11" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk2,d4,causal,align=br",
          { "00", "00", "00", "10", "11" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk4,d4,causal", { "1000" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk4,d4,causal,align=br", { "1111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk4,d4,causal",
          { "1000", "1100", "1110", "1111", "1111", "1111", "1111", "1111", "1111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d4,causal,offset=2", { "11100", "11110" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk5,d4,causal,offset=-1",
          { "00000", "10000", "11000" } },
        /* E1 and its kind */
        { "softmax_fwd:f32,b1,hq1,hkv1,lq6,lk6,d4,window=2:0",
          { "100000", "110000", "111000", "011100", "001110", "000111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk5,d4,window=0:1,align=br",
          { "00110", "00011", "00001" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk5,d4,window=-1:1",
          { "11000", "11100", "11110" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk5,d4,window=1:-1",
          { "11111", "11111", "01111" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk3,d4,causal,window=0:2",
          { "100", "010", "001" } },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk3,d4,window=0:0,offset=7", { "000", "000" } },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        trial t;

        trial_make(&t, ctx, variant, cases[i].problem);
        fill(t.q, t.nq, 0);
        for (int64_t e = 0; e < t.nv; e++)
            t.v[e] = powf(4, (float)(e / 4));
        trial_run(&t);
        for (int64_t r = 0; r < t.desc.len_q; r++) {
            double sum = 0, n = 0;
            for (int64_t j = 0; j < t.desc.len_kv; j++)
                if (cases[i].rows[r][j] == '1')
                    sum += pow(4, (double)j), n++;
            near(&t, "o", r, t.o[r * 4], n ? sum / n : 0, n ? 1e-5 * sum : 0);
            near(&t, "lse", r, t.lse[r], n ? log(n) : -INFINITY, 1e-6);
        }
        trial_free(&t);
    }
}

/* D5: bottom-right counts from the keys that are there. */
static void bottom_right_with_lengths(attn_ctx *ctx, const char *variant)
{
    trial t;

    trial_make(&t, ctx, variant,
               "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d4,causal,align=br,lens");
    t.lens[0] = 2;
    fill(t.q, t.nq, 0);
    for (int64_t e = 0; e < t.nv; e++)
        t.v[e] = e < 8 ? powf(4, (float)(e / 4)) : NAN;
    fill(t.k + 8, 8, NAN);
    trial_run(&t);
    near(&t, "o", 0, t.o[0], 0, 0);
    near(&t, "o", 4, t.o[4], 0, 0);
    near(&t, "o", 8, t.o[8], 1, 1e-6);
    near(&t, "o", 12, t.o[12], 2.5, 1e-6);
    near(&t, "lse", 1, t.lse[1], -INFINITY, 0);
    trial_free(&t);
}

/* E2, E3: spellings of one mask give the same bits. */
static void windows_that_are_causal_or_nothing(attn_ctx *ctx, const char *variant)
{
    static const char *const pairs[][2] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,causal",
          "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,window=-1:0" },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8",
          "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,window=-1:-1" },
    };

    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        trial a, b;

        trial_make(&a, ctx, variant, pairs[i][0]);
        trial_make(&b, ctx, variant, pairs[i][1]);
        trial_run(&a);
        trial_run(&b);
        assert_memory_equal(a.o, b.o, (size_t)a.no * sizeof *a.o);
        assert_memory_equal(a.lse, b.lse, (size_t)a.nlse * sizeof *a.lse);
        trial_free(&a);
        trial_free(&b);
    }
}

/* H1: no keys at all. */
static void no_keys(attn_ctx *ctx, const char *variant)
{
    trial t;

    trial_make(&t, ctx, variant, "softmax_fwd:f32,b1,hq2,hkv2,lq4,lk0,d8");
    trial_run(&t);
    for (int64_t i = 0; i < t.no; i++)
        assert_true(t.o[i] == 0);
    for (int64_t i = 0; i < t.nlse; i++)
        assert_true(t.lse[i] == -INFINITY);
    trial_free(&t);
}

/* J2: which head reads which. */
static void grouped_heads(attn_ctx *ctx, const char *variant)
{
    trial t;

    trial_make(&t, ctx, variant, "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk5,d8");
    for (int64_t e = 0; e < t.nv; e++)
        t.v[e] = (float)(e / 40); /* batch * 2 + head */
    trial_run(&t);
    for (int64_t e = 0; e < t.no; e++)
        near(&t, "o", e, t.o[e], (double)(e / 48), 1e-5);
    trial_free(&t);
}

/* I1 to I6: one context, the same values through other strides: the same bits,
 * and nothing is written between the rows. */
static void strides(attn_ctx *ctx, const char *variant)
{
    enum { B = 2, HQ = 4, HK = 2, LQ = 19, LK = 70, D = 24, PAD = 5 };
    trial t, plain;
    attn_args a;
    float *wide;
    const int64_t row = D + PAD, n = (int64_t)B * LQ * HQ * row;

    trial_make(&plain, ctx, variant, "softmax_fwd:f32,b2,hq4,hkv2,lq19,lk70,d24,causal");
    trial_make(&t, ctx, variant, "softmax_fwd:f32,b2,hq4,hkv2,lq19,lk70,d24,causal");
    trial_run(&plain);

    /* O as [B, L, H, D] with a gap behind each row, one element into its buffer */
    wide = array(n + 1);
    fill(wide, n + 1, -7);
    a = args_of(&t);
    a.o = (attn_tensor){ .type = ATTN_F32,
                         .data = wide,
                         .offset = 1,
                         .size = { B, HQ, LQ, D },
                         .stride = { LQ * HQ * row, row, HQ * row, 1 } };
    trial_run_args(&t, &a);
    for (int64_t e = 0; e <= n; e++) {
        const int64_t x = e - 1, d = x % row, h = x / row % HQ, l = x / row / HQ % LQ;
        const int64_t b = x / row / HQ / LQ;
        if (e == 0 || d >= D)
            assert_true(wide[e] == -7);
        else
            near(&t, "o", e, wide[e], plain.o[((b * HQ + h) * LQ + l) * D + d], 0);
    }
    free(wide);

    /* K with a last dimension that is not contiguous, V backwards in its buffer */
    wide = array(plain.nk * 2);
    for (int64_t e = 0; e < plain.nk; e++)
        wide[2 * e] = plain.k[e], wide[2 * e + 1] = NAN;
    a = args_of(&t);
    a.k = (attn_tensor){ .type = ATTN_F32,
                         .data = wide,
                         .size = { B, HK, LK, D },
                         .stride = { HK * LK * D * 2, LK * D * 2, D * 2, 2 } };
    for (int64_t e = 0; e < plain.nv; e++)
        t.v[e] = plain.v[(e / D / LK * LK + LK - 1 - e / D % LK) * D + e % D];
    a.v.offset = (LK - 1) * D;
    a.v.stride[2] = -D;
    trial_run_args(&t, &a);
    for (int64_t e = 0; e < plain.no; e++)
        near(&t, "o", e, t.o[e], plain.o[e], 2e-6);
    free(wide);
    trial_run(&plain); /* I1: contiguous again after the others */

    /* I4: one key/value head for all, by a stride of 0 */
    a = args_of(&t);
    memcpy(t.v, plain.v, (size_t)plain.nv * sizeof *t.v);
    a.k.stride[0] = a.k.stride[1] = a.v.stride[0] = a.v.stride[1] = 0;
    trial_run_args(&t, &a);
    for (int i = 1; i < B * HK; i++) {
        memcpy(plain.k + i * LK * D, plain.k, LK * D * sizeof *plain.k);
        memcpy(plain.v + i * LK * D, plain.v, LK * D * sizeof *plain.v);
    }
    trial_run(&plain);
    for (int64_t e = 0; e < plain.no; e++)
        near(&t, "o", e, t.o[e], plain.o[e], 2e-6);
    trial_free(&t);
    trial_free(&plain);
}

/* K2: no jump where a path might change. F1: one LSE for all variants. */
static void lengths_around_1024(attn_ctx *ctx, const char *variant)
{
    for (int lk = 1023; lk <= 1025; lk++) {
        char problem[128];
        trial t, want;

        snprintf(problem, sizeof problem, "softmax_fwd:f32,b1,hq8,hkv2,lq1,lk%d,d32", lk);
        trial_make(&t, ctx, variant, problem);
        trial_make(&want, contexts[n_devices - 1], "softmax_fwd_reference", problem);
        trial_run(&t);
        trial_run(&want);
        for (int64_t e = 0; e < t.nlse; e++)
            near(&t, "lse", e, t.lse[e], want.lse[e], 1e-5);
        for (int64_t e = 0; e < t.no; e++)
            near(&t, "o", e, t.o[e], want.o[e], 2e-6);
        trial_free(&t);
        trial_free(&want);
    }
}

#define EACH(name, problem)               \
    static void test_##name(void **state) \
    {                                     \
        (void)state;                      \
        on_each(problem, name);           \
    }

EACH(empty_rows, "softmax_fwd:f32,b1,hq1,hkv1,lq8,lk4,d8,causal,align=br,lse")
EACH(nothing_behind_the_last_key, "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk200,d16,lse")
EACH(large_f16, "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk7,d128,lse")
EACH(equal_scores, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk65537,d4,lse")
EACH(weights_of_zero, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk300,d4,lse")
EACH(huge_scales, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk20,d16,scale=1,lse")
EACH(views_of_2_to_the_62, "softmax_fwd:f32,b65536,hq16384,hkv16384,lq0,lk1073741824,d4")
EACH(alignments, "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d4,causal,lse")
EACH(bottom_right_with_lengths,
     "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d4,causal,align=br,lens")
EACH(windows_that_are_causal_or_nothing,
     "softmax_fwd:f32,b1,hq1,hkv1,lq33,lk33,d8,causal,lse")
EACH(no_keys, "softmax_fwd:f32,b1,hq2,hkv2,lq4,lk0,d8,lse")
EACH(grouped_heads, "softmax_fwd:f32,b2,hq4,hkv2,lq3,lk5,d8,lse")
EACH(strides, "softmax_fwd:f32,b2,hq4,hkv2,lq19,lk70,d24,causal,lse,layout=any")
EACH(lengths_around_1024, "softmax_fwd:f32,b1,hq8,hkv2,lq1,lk1025,d32,lse")

/* C3, C4, C7: strides beyond 2^31 elements, over a mapping that is mostly not
 * there, on the host. Each tensor in turn; the answer is that of compact ones. */
static void test_strides_beyond_2_to_the_31(void **state)
{
    enum { L = 16, D = 64 };
    static const int64_t far = ((int64_t)1 << 31) + 64;
    static const char *const variants[] = { "softmax_fwd_tile", "softmax_fwd_reference" };
    attn_ctx *host = contexts[n_devices - 1];
    const size_t bytes = (size_t)(far + L * far / L + 2 * L * D) * sizeof(float);
    float *sparse = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    (void)state;
    if (sparse == MAP_FAILED) {
        print_message("no address space for %zu bytes: skipped\n", bytes);
        skip();
    }
    for (int v = 0; v < 2; v++)
        for (int which = 0; which < 5; which++)
            for (int axis = 0; axis < 2; axis++) {
                attn_tensor *t[5];
                trial plain, x;
                attn_args a;

                trial_make(&plain, host, variants[v],
                           axis ? "softmax_fwd:f32,b1,hq2,hkv2,lq16,lk16,d64"
                                : "softmax_fwd:f32,b2,hq1,hkv1,lq16,lk16,d64");
                trial_make(&x, host, variants[v],
                           axis ? "softmax_fwd:f32,b1,hq2,hkv2,lq16,lk16,d64"
                                : "softmax_fwd:f32,b2,hq1,hkv1,lq16,lk16,d64");
                trial_run(&plain);
                a = args_of(&x);
                t[0] = &a.q, t[1] = &a.k, t[2] = &a.v, t[3] = &a.o, t[4] = &a.lse;
                const int64_t half = which == 4 ? L : L * D;
                for (int i = 0; i < 2; i++)
                    memcpy(sparse + i * far, (float *)t[which]->data + i * half,
                           (size_t)half * sizeof(float));
                t[which]->data = sparse;
                t[which]->stride[axis] = far;
                trial_run_args(&x, &a);
                for (int i = 0; i < 2; i++)
                    if (which >= 3)
                        memcpy(which == 3 ? x.o + i * half : x.lse + i * half,
                               sparse + i * far, (size_t)half * sizeof(float));
                assert_memory_equal(x.o, plain.o, (size_t)x.no * sizeof(float));
                assert_memory_equal(x.lse, plain.lse, (size_t)x.nlse * sizeof(float));
                trial_free(&plain);
                trial_free(&x);
            }
    assert_int_equal(munmap(sparse, bytes), 0);
}

/* C7: 24000 rows that lie 90000 elements apart. */
static void test_row_strides_beyond_2_to_the_31(void **state)
{
    enum { LK = 24000, D = 8 };
    static const int64_t row = 90000;
    const size_t bytes = (size_t)(LK * row) * sizeof(float);
    float *sparse = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    trial plain, x;
    attn_args a;

    (void)state;
    if (sparse == MAP_FAILED)
        skip();
    trial_make(&plain, contexts[n_devices - 1], "softmax_fwd_tile",
               "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk24000,d8");
    trial_make(&x, contexts[n_devices - 1], "softmax_fwd_tile",
               "softmax_fwd:f32,b1,hq1,hkv1,lq3,lk24000,d8");
    trial_run(&plain);
    for (int64_t j = 0; j < LK; j++) {
        memcpy(sparse + j * row, plain.k + j * D, D * sizeof(float));
        memcpy(sparse + j * row + D, plain.v + j * D, D * sizeof(float));
    }
    a = args_of(&x);
    a.k.data = a.v.data = sparse;
    a.v.offset = D;
    a.k.stride[2] = a.v.stride[2] = row;
    trial_run_args(&x, &a);
    assert_memory_equal(x.o, plain.o, (size_t)x.no * sizeof(float));
    assert_int_equal(munmap(sparse, bytes), 0);
    trial_free(&plain);
    trial_free(&x);
}

/* C8: memory grows with L, not with L squared (a score matrix would be 16 GiB). */
static void test_memory_is_linear_in_length(void **state)
{
    struct rusage before, after;
    trial t;

    (void)state;
    trial_make(&t, contexts[n_devices - 1], "softmax_fwd_tile",
               "softmax_fwd:f32,b1,hq1,hkv1,lq65536,lk65536,d8,causal");
    fill(t.o, t.no, 0);
    getrusage(RUSAGE_SELF, &before);
    trial_run(&t);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss < 64 * 1024); /* KiB */
    near(&t, "o", 0, t.o[0], t.v[0], 1e-6);
    trial_free(&t);
}

/* N4: threads that come and go with contexts of their own. */
static void *come_and_go(void *arg)
{
    const attn_device_info *info = arg;
    uintptr_t wrong = 0;

    for (int i = 0; i < 3; i++) {
        const attn_softmax_desc d = { .size = sizeof d,
                                      .type = ATTN_F32,
                                      .batch = 1,
                                      .heads_q = 1,
                                      .heads_kv = 1,
                                      .len_q = 2,
                                      .len_kv = 3,
                                      .dim_qk = 8 };
        float q[16] = { 0 }, k[24] = { 0 }, v[24], o[16] = { 0 };
        attn_ctx *ctx = NULL;

        fill(v, 24, 3);
        wrong |= attn_ctx_create(info->selector, &ctx) != ATTN_OK ||
                 attn_softmax_forward_host(ctx, &d, q, k, v, o, NULL) != ATTN_OK;
        for (int e = 0; e < 16; e++)
            wrong |= !(fabsf(o[e] - 3) < 1e-5f);
        attn_ctx_destroy(&ctx);
    }
    return (void *)wrong;
}

static void test_threads_with_contexts_of_their_own(void **state)
{
    (void)state;
    for (size_t d = 0; d < n_devices; d++) {
        pthread_t thread[8];
        void *wrong;

        for (int i = 0; i < 8; i++)
            assert_int_equal(pthread_create(&thread[i], NULL, come_and_go, &devices[d]), 0);
        for (int i = 0; i < 8; i++) {
            assert_int_equal(pthread_join(thread[i], &wrong), 0);
            assert_null(wrong);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty_rows),
        cmocka_unit_test(test_nothing_behind_the_last_key),
        cmocka_unit_test(test_large_f16),
        cmocka_unit_test(test_equal_scores),
        cmocka_unit_test(test_weights_of_zero),
        cmocka_unit_test(test_huge_scales),
        cmocka_unit_test(test_views_of_2_to_the_62),
        cmocka_unit_test(test_alignments),
        cmocka_unit_test(test_bottom_right_with_lengths),
        cmocka_unit_test(test_windows_that_are_causal_or_nothing),
        cmocka_unit_test(test_no_keys),
        cmocka_unit_test(test_grouped_heads),
        cmocka_unit_test(test_strides),
        cmocka_unit_test(test_lengths_around_1024),
        cmocka_unit_test(test_strides_beyond_2_to_the_31),
        cmocka_unit_test(test_row_strides_beyond_2_to_the_31),
        cmocka_unit_test(test_memory_is_linear_in_length),
        cmocka_unit_test(test_threads_with_contexts_of_their_own),
    };
    int failed;

    if (attn_device_list(devices, MAX_DEVICES, &n_devices) != ATTN_OK)
        return 1;
    for (size_t d = 0; d < n_devices; d++) /* the host comes last */
        if (attn_ctx_create(devices[d].selector, &contexts[d]) != ATTN_OK) {
            fprintf(stderr, "%s: %s\n", devices[d].selector, attn_last_error());
            return 1;
        }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t d = 0; d < n_devices; d++)
        attn_ctx_destroy(&contexts[d]);
    return failed;
}
