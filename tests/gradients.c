/* SPDX-License-Identifier: MIT */
/* tests/gradients.c: gradients against finite differences of the formula, in double, for
 * every variant of the host. */
#include "tests/check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

#include "core/philox.h"

enum { B = 2, HQ = 4, HKV = 2, LQ = 5, LK = 7, D = 3, DV = 4, PAIRS = B * HQ * LQ * LK };

/* A problem: what is differentiated as f32, which it is exactly, and as double, which is
 * moved a little. */
typedef struct problem {
    uint32_t use;
    double softcap, slope;
    int64_t left, right, offset;
    int64_t bias_size[4];
    unsigned char mask[LQ * LK]; /* broadcast over batches and heads */
    double q[B * HQ * LQ * D], k[B * HKV * LK * D], v[B * HKV * LK * DV];
    double bias[PAIRS], sinks[HQ];
    double o[B * HQ * LQ * DV], lse[B * HQ * LQ];
    double grad_o[B * HQ * LQ * DV], grad_lse[B * HQ * LQ];
    int32_t lens[B];
} problem;

static int64_t bias_at(const problem *p, const int64_t at[4])
{
    int64_t n = 0;

    for (int i = 0; i < 4; i++)
        n = n * p->bias_size[i] + (p->bias_size[i] == 1 ? 0 : at[i]);
    return n;
}

static double score(const problem *p, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const double *q = p->q + ((b * HQ + h) * LQ + i) * D;
    const double *k = p->k + ((b * HKV + h / (HQ / HKV)) * LK + j) * D;
    const int64_t at = i + p->offset, pair[4] = { b, h, i, j };
    double s = 0;

    if ((p->use & ATTN_USE_CAUSAL && j > at) ||
        (p->use & ATTN_USE_WINDOW && (j < at - p->left || j > at + p->right)) ||
        (p->use & ATTN_USE_LENS_KV && j >= p->lens[b]) ||
        (p->use & ATTN_USE_MASK && !p->mask[i * LK + j]))
        return -INFINITY;
    for (int d = 0; d < D; d++)
        s += q[d] * k[d];
    s *= 0.7f;
    if (p->use & ATTN_USE_SOFTCAP)
        s = p->softcap * tanh(s / p->softcap);
    if (p->use & ATTN_USE_BIAS)
        s += p->bias[bias_at(p, pair)];
    if (p->use & ATTN_USE_ALIBI)
        s -= p->slope * fabs((double)(at - j));
    return s;
}

static const uint64_t SEED = 0x1234567887654321, OFFSET = 0xabcdef0012345678;

/* What dropout multiplies a weight by. */
static double kept(const problem *p, int64_t bh, int64_t i, int64_t j)
{
    const uint32_t key[2] = { (uint32_t)SEED, (uint32_t)((SEED ^ OFFSET) >> 32) };
    const uint32_t counter[4] = { (uint32_t)(j / 4), (uint32_t)i, (uint32_t)bh,
                                  (uint32_t)OFFSET };
    uint32_t word[4];

    if (!(p->use & ATTN_USE_DROPOUT))
        return 1;
    attn_philox(word, counter, key);
    return word[j % 4] >= UINT32_C(1) << 30 ? 1 / 0.75 : 0;
}

/* The loss, of which grad_o and grad_lse are the gradients by O and LSE. */
static double loss(problem *p)
{
    double sum = 0;

    for (int64_t n = 0; n < B * HQ * LQ; n++) {
        const int64_t i = n % LQ, h = n / LQ % HQ, b = n / LQ / HQ;
        const double sink = p->use & ATTN_USE_SINKS ? p->sinks[h] : -INFINITY;
        double s[LK], m = sink, l = 0;

        for (int64_t j = 0; j < LK; j++)
            m = fmax(m, s[j] = score(p, b, h, i, j));
        for (int64_t j = 0; j < LK && m > -INFINITY; j++)
            l += s[j] = exp(s[j] - m);
        l += m > -INFINITY ? exp(sink - m) : 0;
        p->lse[n] = m + log(l);
        if (p->lse[n] > -INFINITY)
            sum += p->grad_lse[n] * p->lse[n];
        for (int e = 0; e < DV; e++) {
            double o = 0;

            for (int64_t j = 0; j < LK && l > 0; j++)
                o += kept(p, n / LQ, i, j) * s[j] / l *
                     p->v[((b * HKV + h / (HQ / HKV)) * LK + j) * DV + e];
            p->o[n * DV + e] = o;
            sum += p->grad_o[n * DV + e] * o;
        }
    }
    return sum;
}

static void fill(double *x, int64_t n, double size, int phase)
{
    for (int64_t i = 0; i < n; i++) /* what f32 holds */
        x[i] = (double)(float)(size * sin(0.7 * (double)(i + 1) * (phase + 1) + phase));
}

static float *narrow(const double *x, int64_t n)
{
    float *to = calloc((size_t)n + 1, sizeof *to);

    assert_non_null(to);
    for (int64_t i = 0; i < n; i++)
        to[i] = (float)x[i];
    return to;
}

/* A gradient and the numbers it belongs to. */
static void check_gradient(problem *p, const char *what, double *x, int64_t n,
                           const float *have, double tolerance)
{
    double error = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        const double kept = x[i], step = 1e-5;
        double up, down, want;

        x[i] = kept + step;
        up = loss(p);
        x[i] = kept - step;
        down = loss(p);
        x[i] = kept;
        want = (up - down) / (2 * step);
        error += ((double)have[i] - want) * ((double)have[i] - want);
        size += want * want;
        if (!(fabs((double)have[i] - want) <= 20 * tolerance * (1 + fabs(want))))
            fail_msg("%s[%lld] = %.9g, want %.9g", what, (long long)i, (double)have[i],
                     want);
    }
    if (!(sqrt(error) <= tolerance * (sqrt(size) + 1)))
        fail_msg("%s is off by %g of %g", what, sqrt(error), sqrt(size));
}

static void check_variant(attn_ctx *ctx, problem *p, const attn_softmax_desc *d,
                          const char *variant)
{
    const attn_options options = { .size = sizeof options, .variant = variant };
    const int64_t nbias =
        p->bias_size[0] * p->bias_size[1] * p->bias_size[2] * p->bias_size[3];
    float *q = narrow(p->q, B * HQ * LQ * D), *k = narrow(p->k, B * HKV * LK * D);
    float *v = narrow(p->v, B * HKV * LK * DV), *bias = narrow(p->bias, PAIRS);
    float *sinks = narrow(p->sinks, HQ), *o = narrow(p->o, B * HQ * LQ * DV);
    float *lse = narrow(p->lse, B * HQ * LQ), *slopes = calloc(HQ, sizeof(float));
    float *grad_o = narrow(p->grad_o, B * HQ * LQ * DV);
    float *grad_lse = narrow(p->grad_lse, B * HQ * LQ);
    float *dq = calloc(B * HQ * LQ * D, sizeof *dq),
          *dk = calloc(B * HKV * LK * D, sizeof *dk);
    float *dv = calloc(B * HKV * LK * DV, sizeof *dv), *db = calloc(PAIRS, sizeof *db);
    float ds[HQ] = { 0 };
    attn_args a = {
        .size = sizeof a,
        .q = attn_tensor_bhld(q, ATTN_F32, B, HQ, LQ, D),
        .k = attn_tensor_bhld(k, ATTN_F32, B, HKV, LK, D),
        .v = attn_tensor_bhld(v, ATTN_F32, B, HKV, LK, DV),
        .o = attn_tensor_bhld(o, ATTN_F32, B, HQ, LQ, DV),
        .lse = attn_tensor_bhld(lse, ATTN_F32, B, HQ, LQ, 1),
        .grad_o = attn_tensor_bhld(grad_o, ATTN_F32, B, HQ, LQ, DV),
        .grad_lse = attn_tensor_bhld(grad_lse, ATTN_F32, B, HQ, LQ, 1),
        .grad_q = attn_tensor_bhld(dq, ATTN_F32, B, HQ, LQ, D),
        .grad_k = attn_tensor_bhld(dk, ATTN_F32, B, HKV, LK, D),
        .grad_v = attn_tensor_bhld(dv, ATTN_F32, B, HKV, LK, DV),
        .dropout_seed = SEED,
        .dropout_offset = OFFSET,
    };

    if (p->use & ATTN_USE_BIAS) {
        a.bias = attn_tensor_bhld(bias, ATTN_F32, p->bias_size[0], p->bias_size[1],
                                  p->bias_size[2], p->bias_size[3]);
        a.grad_bias = a.bias;
        a.grad_bias.data = db;
    }
    if (p->use & ATTN_USE_SINKS) {
        a.sinks = attn_tensor_bhld(sinks, ATTN_F32, 1, HQ, 1, 1);
        a.grad_sinks = attn_tensor_bhld(ds, ATTN_F32, 1, HQ, 1, 1);
    }
    if (p->use & ATTN_USE_MASK)
        a.mask = attn_tensor_bhld(p->mask, ATTN_BOOL, 1, 1, LQ, LK);
    for (int h = 0; h < HQ; h++)
        slopes[h] = (float)p->slope;
    if (p->use & ATTN_USE_ALIBI)
        a.alibi = attn_tensor_bhld(slopes, ATTN_F32, 1, HQ, 1, 1);
    if (p->use & ATTN_USE_LENS_KV)
        a.lens_kv = attn_tensor_vector(p->lens, ATTN_I32, B);
    check_ok(attn_softmax_backward_host_args(ctx, d, &options, &a));

    check_gradient(p, "grad_q", p->q, B * HQ * LQ * D, dq, 1e-5);
    check_gradient(p, "grad_k", p->k, B * HKV * LK * D, dk, 1e-5);
    check_gradient(p, "grad_v", p->v, B * HKV * LK * DV, dv, 1e-5);
    if (p->use & ATTN_USE_BIAS)
        check_gradient(p, "grad_bias", p->bias, nbias, db, 1e-5);
    if (p->use & ATTN_USE_SINKS)
        check_gradient(p, "grad_sinks", p->sinks, HQ, ds, 1e-5);

    float *const all[] = { q,      k,      v,        bias, sinks, o,  lse,
                           slopes, grad_o, grad_lse, dq,   dk,    dv, db };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

static void check_problem(uint32_t use, int64_t left, int64_t right, int64_t offset,
                          const int64_t bias_size[4])
{
    static problem p;
    attn_softmax_desc d = { .size = sizeof d,
                            .type = ATTN_F32,
                            .use = use | ATTN_USE_SCALE | ATTN_USE_OFFSET,
                            .batch = B,
                            .heads_q = HQ,
                            .heads_kv = HKV,
                            .len_q = LQ,
                            .len_kv = LK,
                            .dim_qk = D,
                            .dim_v = DV,
                            .scale = 0.7f,
                            .softcap = 1.5f,
                            .window_left = left,
                            .window_right = right,
                            .offset = offset,
                            .type_bias = ATTN_F32,
                            .dropout = 0.25f };
    attn_variant_info info[16];
    attn_ctx *ctx = NULL;
    size_t n = 0, checked = 0;

    p = (problem){ .use = use,
                   .softcap = 1.5,
                   .slope = 0.25,
                   .left = left,
                   .right = right,
                   .offset = offset,
                   .lens = { LK, 4 } };
    memcpy(p.bias_size, bias_size, sizeof p.bias_size);
    fill(p.q, B * HQ * LQ * D, 2, 0);
    fill(p.k, B * HKV * LK * D, 2, 1);
    fill(p.v, B * HKV * LK * DV, 1, 2);
    fill(p.bias, PAIRS, 1, 3);
    fill(p.sinks, HQ, 2, 4);
    fill(p.grad_o, B * HQ * LQ * DV, 1, 5);
    fill(p.grad_lse, B * HQ * LQ, 1, 6);
    for (int n_ = 0; n_ < LQ * LK; n_++)
        p.mask[n_] = n_ / LK != 3 && n_ % 5 != 2; /* row 3 sees nothing */
    loss(&p);                                     /* fills o and lse */

    check_ok(attn_ctx_create("host", &ctx));
    d.use |= ATTN_USE_GRAD;
    d.grad = ATTN_GRAD_Q;
    check_ok(attn_softmax_variants(ctx, &d, info, 16, &n));
    for (size_t i = 0; i < n; i++)
        if (info[i].applicable) {
            check_variant(ctx, &p, &d, info[i].name);
            checked++;
        }
    assert_true(checked >= 2);
    attn_ctx_destroy(&ctx);
}

static const int64_t whole[4] = { B, HQ, LQ, LK };

static void plain(void **state)
{
    (void)state;
    check_problem(0, -1, -1, 0, whole);
}

static void ranges(void **state)
{
    (void)state;
    check_problem(ATTN_USE_CAUSAL, 0, 0, 0, whole);
    check_problem(ATTN_USE_CAUSAL | ATTN_USE_LENS_KV, 0, 0, -2, whole);
    check_problem(ATTN_USE_WINDOW | ATTN_USE_ALIBI, 1, 2, 3, whole);
}

static void terms(void **state)
{
    (void)state;
    check_problem(ATTN_USE_MASK | ATTN_USE_SINKS, 0, 0, 0, whole);
    check_problem(ATTN_USE_SOFTCAP | ATTN_USE_ALIBI | ATTN_USE_SINKS, 0, 0, 1, whole);
    check_problem(ATTN_USE_SOFTCAP | ATTN_USE_BIAS, 0, 0, 0, whole);
}

static void dropout(void **state)
{
    (void)state;
    check_problem(ATTN_USE_DROPOUT, -1, -1, 0, whole);
    check_problem(ATTN_USE_DROPOUT | ATTN_USE_CAUSAL | ATTN_USE_SINKS, 0, 0, 1, whole);
    check_problem(ATTN_USE_DROPOUT | ATTN_USE_SOFTCAP | ATTN_USE_BIAS | ATTN_USE_MASK, 0, 0,
                  0, (int64_t[4]){ 1, HQ, LQ, 1 });
}

static void biases_of_every_shape(void **state)
{
    (void)state;
    for (int ones = 0; ones < 16; ones++) {
        int64_t size[4];

        for (int i = 0; i < 4; i++)
            size[i] = ones >> i & 1 ? 1 : whole[i];
        check_problem(ATTN_USE_BIAS | ATTN_USE_CAUSAL | ATTN_USE_MASK, 0, 0, 1, size);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain),
        cmocka_unit_test(ranges),
        cmocka_unit_test(terms),
        cmocka_unit_test(dropout),
        cmocka_unit_test(biases_of_every_shape),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
