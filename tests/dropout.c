/* SPDX-License-Identifier: MIT */
/* tests/dropout.c: the generator against its published answers; which weights are kept, how
 * many, and that the backward keeps the same; on every variant of the host that takes it. */
#include "tests/check.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <attn/attn.h>

#include "core/philox.h"

enum { B = 2, HQ = 4, HKV = 2, LQ = 45, LK = 130, D = 4, ROWS = B * HQ * LQ };

static const uint64_t SEED = UINT64_C(0xdeadbeef00c0ffee);
static const uint64_t OFFSET = UINT64_C(0x0000000500000007);

/* Random123 1.14, tests/kat_vectors: philox4x32, 10 rounds. */
static void known_answers(void **state)
{
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } cases[] = {
        { { 0 }, { 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff },
          { 0xffffffff, 0xffffffff },
          { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 },
          { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t out[4];

        attn_philox(out, cases[i].counter, cases[i].key);
        for (int w = 0; w < 4; w++)
            assert_int_equal(out[w], cases[i].want[w]);
    }
}

/* The rule of softmax.h, written out. */
static bool kept(double p, uint64_t seed, uint64_t offset, int64_t b, int64_t h, int64_t i,
                 int64_t j)
{
    const uint32_t counter[4] = { (uint32_t)(j / 4), (uint32_t)i, (uint32_t)(b * HQ + h),
                                  (uint32_t)offset };
    const uint32_t key[2] = { (uint32_t)seed,
                              (uint32_t)(seed >> 32) ^ (uint32_t)(offset >> 32) };
    uint32_t word[4];

    attn_philox(word, counter, key);
    return (double)word[j % 4] >= floor(p * 4294967296.0);
}

/* Scores are all 0 and V is the unit matrix, so that O holds the weights themselves. */
typedef struct weights {
    attn_ctx *ctx;
    attn_softmax_desc desc;
    attn_args args;
    float q[ROWS * D], k[B * HKV * LK * D], v[B * HKV * LK * LK];
    float o[ROWS * LK], lse[ROWS];
    float grad_o[ROWS * LK], grad_v[B * HKV * LK * LK];
} weights;

static weights *make(float p)
{
    weights *w = calloc(1, sizeof *w);

    assert_non_null(w);
    check_ok(attn_ctx_create("host", &w->ctx));
    w->desc = (attn_softmax_desc){ .size = sizeof w->desc,
                                   .use = ATTN_USE_DROPOUT,
                                   .type = ATTN_F32,
                                   .batch = B,
                                   .heads_q = HQ,
                                   .heads_kv = HKV,
                                   .len_q = LQ,
                                   .len_kv = LK,
                                   .dim_qk = D,
                                   .dim_v = LK,
                                   .dropout = p };
    for (int64_t n = 0; n < B * HKV * LK; n++)
        w->v[n * LK + n % LK] = 1;
    w->args = (attn_args){ .size = sizeof w->args,
                           .q = attn_tensor_bhld(w->q, ATTN_F32, B, HQ, LQ, D),
                           .k = attn_tensor_bhld(w->k, ATTN_F32, B, HKV, LK, D),
                           .v = attn_tensor_bhld(w->v, ATTN_F32, B, HKV, LK, LK),
                           .o = attn_tensor_bhld(w->o, ATTN_F32, B, HQ, LQ, LK),
                           .lse = attn_tensor_bhld(w->lse, ATTN_F32, B, HQ, LQ, 1),
                           .dropout_seed = SEED,
                           .dropout_offset = OFFSET };
    return w;
}

static void discard(weights *w)
{
    attn_ctx_destroy(&w->ctx);
    free(w);
}

static void forward(weights *w, const char *variant)
{
    const attn_options options = { .size = sizeof options, .variant = variant };

    check_ok(attn_softmax_forward_host_args(w->ctx, &w->desc, &options, &w->args));
}

static const char *const forwards[] = { "softmax_fwd_reference", "softmax_fwd_tile" };
static const char *const backwards[] = { "softmax_bwd_reference", "softmax_bwd_tile" };

enum { VARIANTS = 2 };

static void weights_are_kept_by_the_rule(void **state)
{
    static const float parts[] = { 0.1f, 0.5f, 0.9f };

    (void)state;
    for (size_t x = 0; x < sizeof parts / sizeof parts[0] * VARIANTS; x++) {
        const double p = (double)parts[x / VARIANTS];
        const double want = 1 / (LK * (1 - p));
        weights *w = make((float)p);
        int64_t n = 0;

        forward(w, forwards[x % VARIANTS]);
        for (int64_t at = 0; at < (int64_t)ROWS * LK; at++) {
            const int64_t j = at % LK, i = at / LK % LQ, bh = at / LK / LQ;
            const bool keeps = kept(p, SEED, OFFSET, bh / HQ, bh % HQ, i, j);

            n += keeps;
            if (!(fabs((double)w->o[at] - (keeps ? want : 0)) <= 1e-6))
                fail_msg("%s, p %g: weight [%lld,%lld,%lld] is %g, want %g",
                         forwards[x % VARIANTS], p, (long long)bh, (long long)i,
                         (long long)j, (double)w->o[at], keeps ? want : 0);
        }
        /* as many as p says, within five standard deviations */
        assert_true(fabs((double)n - (1 - p) * ROWS * LK) <
                    5 * sqrt(p * (1 - p) * ROWS * LK));
        for (int64_t r = 0; r < ROWS; r++)
            assert_true(fabs((double)w->lse[r] - log(LK)) < 1e-5);
        discard(w);
    }
}

/* No two heads, queries, seeds or offsets share what they keep: about half of all weights
 * agree at p = 0.5. */
static void everything_counts(void **state)
{
    static const struct {
        const char *name;
        uint64_t seed, offset;
        int64_t b, h, i;
    } others[] = {
        { "seed, lower half", SEED ^ 1, OFFSET, 0, 0, 0 },
        { "seed, upper half", SEED ^ UINT64_C(1) << 40, OFFSET, 0, 0, 0 },
        { "offset, lower half", SEED, OFFSET + 1, 0, 0, 0 },
        { "offset, upper half", SEED, OFFSET + (UINT64_C(1) << 32), 0, 0, 0 },
        { "batch", SEED, OFFSET, 1, 0, 0 },
        { "head", SEED, OFFSET, 0, 1, 0 },
        { "query", SEED, OFFSET, 0, 0, 1 },
    };

    (void)state;
    for (size_t x = 0; x < sizeof others / sizeof others[0] * VARIANTS; x++) {
        weights *w = make(0.5f), *other = make(0.5f);
        int64_t same = 0, n = 0;

        other->args.dropout_seed = others[x / VARIANTS].seed;
        other->args.dropout_offset = others[x / VARIANTS].offset;
        forward(w, forwards[x % VARIANTS]);
        forward(other, forwards[x % VARIANTS]);
        for (int64_t i = 0; i < LQ - 1; i++)
            for (int64_t j = 0; j < LK; j++, n++) {
                const int64_t bh = others[x / VARIANTS].b * HQ + others[x / VARIANTS].h;
                const float a = w->o[i * LK + j];
                const float b = other->o[(bh * LQ + i + others[x / VARIANTS].i) * LK + j];
                same += (a > 0) == (b > 0);
            }
        if (fabs((double)same - (double)n / 2) > 2.5 * sqrt((double)n))
            fail_msg("%s: %lld of %lld weights agree", others[x / VARIANTS].name,
                     (long long)same, (long long)n);
        discard(w);
        discard(other);
    }
}

static void ends_of_the_range(void **state)
{
    (void)state;
    for (int x = 0; x < VARIANTS; x++) {
        weights *all = make(1), *none = make(0), *plain = make(0);

        plain->desc.use = 0;
        for (int64_t n = 0; n < B * HKV * LK * LK; n++)
            all->v[n] = none->v[n] = plain->v[n] = (float)(n % 7) - 3;
        forward(all, forwards[x]);
        forward(none, forwards[x]);
        forward(plain, forwards[x]);
        for (int64_t n = 0; n < (int64_t)ROWS * LK; n++)
            assert_true(all->o[n] == 0);
        assert_memory_equal(none->o, plain->o, sizeof plain->o);
        assert_memory_equal(none->lse, plain->lse, sizeof plain->lse);
        assert_memory_equal(all->lse, plain->lse, sizeof plain->lse);
        discard(all);
        discard(none);
        discard(plain);
    }
}

/* With dO the unit matrix of query 0's row, dV is the weights after dropout. */
static void backward_keeps_the_same(void **state)
{
    (void)state;
    for (int x = 0; x < VARIANTS; x++) {
        const attn_options options = { .size = sizeof options, .variant = backwards[x] };
        weights *w = make(0.3f);
        attn_args a = w->args;

        forward(w, forwards[x]);
        for (int64_t n = 0; n < ROWS; n++) /* column i of query i */
            if (n / LQ % (HQ / HKV) == 1)
                w->grad_o[n * LK + n % LQ] = 1;
        a.grad_o = attn_tensor_bhld(w->grad_o, ATTN_F32, B, HQ, LQ, LK);
        a.grad_v = attn_tensor_bhld(w->grad_v, ATTN_F32, B, HKV, LK, LK);
        check_ok(attn_softmax_backward_host_args(w->ctx, &w->desc, &options, &a));
        for (int64_t n = 0; n < B * HKV; n++)
            for (int64_t i = 0; i < LQ; i++)
                for (int64_t j = 0; j < LK; j++) {
                    const float have = w->grad_v[(n * LK + j) * LK + i];
                    const float want = w->o[((n * (HQ / HKV) + 1) * LQ + i) * LK + j];

                    if (!(fabsf(have - want) <= 1e-6f))
                        fail_msg("%s: dV of key %lld by query %lld is %g, want %g",
                                 backwards[x], (long long)j, (long long)i, (double)have,
                                 (double)want);
                }
        discard(w);
    }
}

/* Seed and offset come with attn_args: the short forms have none. */
static void short_forms_refuse(void **state)
{
    weights *w = make(0.3f);

    (void)state;
    check_error(attn_softmax_forward_host(w->ctx, &w->desc, w->q, w->k, w->v, w->o, w->lse),
                ATTN_ERR_INVALID, "ATTN_USE_DROPOUT, which needs");
    check_error(attn_softmax_backward_host(w->ctx, &w->desc, w->q, w->k, w->v, w->o, w->lse,
                                           w->grad_o, NULL, NULL, NULL, w->grad_v),
                ATTN_ERR_INVALID, "ATTN_USE_DROPOUT, which needs");
    w->desc.dropout = 0; /* nothing is drawn */
    check_ok(attn_softmax_forward_host(w->ctx, &w->desc, w->q, w->k, w->v, w->o, w->lse));
    discard(w);
}

static void variants_without_it_say_so(void **state)
{
    const attn_options split = { .size = sizeof split, .variant = "softmax_fwd_split" };
    weights *w = make(0.3f);
    attn_plan *plan = NULL;

    (void)state;
    check_error(attn_plan_softmax_with(w->ctx, &w->desc, &split, &plan),
                ATTN_ERR_UNSUPPORTED, "does not take \"dropout\"");
    w->desc.dropout = 0;
    check_ok(attn_plan_softmax_with(w->ctx, &w->desc, &split, &plan));
    attn_plan_destroy(&plan);
    discard(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_answers),
        cmocka_unit_test(weights_are_kept_by_the_rule),
        cmocka_unit_test(everything_counts),
        cmocka_unit_test(ends_of_the_range),
        cmocka_unit_test(backward_keeps_the_same),
        cmocka_unit_test(short_forms_refuse),
        cmocka_unit_test(variants_without_it_say_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
