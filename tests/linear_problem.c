/* SPDX-License-Identifier: MIT */
/* tests/linear_problem.c: linear attention as a problem: every rule of the descriptor,
 * texts, and back ends that have no variant for it. */
#include "tests/check.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include <attn/attn.h>

static attn_linear_desc good(void)
{
    return (attn_linear_desc){ .size = sizeof(attn_linear_desc),
                               .type = ATTN_F32,
                               .batch = 2,
                               .heads_q = 4,
                               .heads_kv = 2,
                               .len_q = 5,
                               .len_kv = 7,
                               .dim_qk = 8 };
}

/* A descriptor that is right but for one thing, and what the library says. */
#define BREAK(says, ...)                                            \
    do {                                                            \
        attn_linear_desc d = good();                                \
        __VA_ARGS__;                                                \
        check_error(attn_linear_check(&d), ATTN_ERR_INVALID, says); \
    } while (0)

#define KEEP(...)                        \
    do {                                 \
        attn_linear_desc d = good();     \
        __VA_ARGS__;                     \
        check_ok(attn_linear_check(&d)); \
    } while (0)

static void rules(void **state)
{
    const int64_t most = INT32_MAX;

    (void)state;
    check_error(attn_linear_check(NULL), ATTN_ERR_INVALID, "desc is NULL");
    BREAK("size = 0", d.size = 0);
    BREAK("size = 8", d.size = 8);
    BREAK("use = 0x80000000", d.use = 1u << 31);
    BREAK("type = 4", d.type = ATTN_I32);
    BREAK("heads_kv = 0 with heads_q = 4", d.heads_kv = 0);
    BREAK("heads_q = 3, want a multiple of heads_kv = 2", d.heads_q = 3);
    BREAK("dim_qk = 0", d.dim_qk = 0);
    BREAK("dim_v = -1", d.dim_v = -1);
    BREAK("batch * heads_kv * dim_qk * dim_v", d.dim_qk = d.dim_v = most; d.batch = 4;
          d.len_q = d.len_kv = 0);
    BREAK("scale = nan", d.use = ATTN_LINEAR_SCALE; d.scale = NAN);
    BREAK("phi = 3", d.use = ATTN_LINEAR_PHI; d.phi = (attn_phi)3);
    BREAK("phi = -1", d.use = ATTN_LINEAR_PHI; d.phi = (attn_phi)-1);
    BREAK("eps = 0 without ATTN_LINEAR_NORMALIZE", d.use = ATTN_LINEAR_EPS);
    BREAK("eps = inf", d.use = ATTN_LINEAR_EPS | ATTN_LINEAR_NORMALIZE; d.eps = INFINITY);
    BREAK("ATTN_LINEAR_DEN without ATTN_LINEAR_NORMALIZE", d.use = ATTN_LINEAR_DEN);
    BREAK("rule = 4", d.use = ATTN_LINEAR_RULE; d.rule = (attn_rule)4);
    BREAK("type_decay = 0", d.use = ATTN_LINEAR_RULE | ATTN_LINEAR_CAUSAL;
          d.rule = ATTN_RULE_GATED);
    BREAK("type_beta = 5", d.use = ATTN_LINEAR_RULE | ATTN_LINEAR_CAUSAL;
          d.rule = ATTN_RULE_DELTA; d.type_beta = ATTN_BOOL);
    BREAK("rule = 1 without ATTN_LINEAR_CAUSAL", d.use = ATTN_LINEAR_RULE;
          d.rule = ATTN_RULE_GATED; d.type_decay = ATTN_F32);
    BREAK("rule = 2 beside ATTN_LINEAR_NORMALIZE",
          d.use = ATTN_LINEAR_RULE | ATTN_LINEAR_CAUSAL | ATTN_LINEAR_NORMALIZE;
          d.rule = ATTN_RULE_DELTA; d.type_beta = ATTN_F16);
    BREAK("grad = 0 beside ATTN_LINEAR_GRAD", d.use = ATTN_LINEAR_GRAD);
    BREAK("grad = 0x8 has bits", d.use = ATTN_LINEAR_GRAD; d.grad = ATTN_GRAD_BIAS);
    BREAK("there is no state", d.use = ATTN_LINEAR_GRAD; d.grad = ATTN_GRAD_STATE);
    BREAK("layout_o = 5", d.use = ATTN_LINEAR_LAYOUT; d.layout_o = (attn_layout)5);
    BREAK("layout_grad_v = 9", d.use = ATTN_LINEAR_LAYOUT | ATTN_LINEAR_GRAD;
          d.grad = ATTN_GRAD_Q; d.layout_grad_v = (attn_layout)9);
    KEEP((void)d);
    KEEP(d.batch = 0);
    KEEP(d.heads_q = d.heads_kv = 0);
    KEEP(d.len_q = d.len_kv = 0);
    KEEP(d.dim_qk = 100000);                 /* a question of capability */
    KEEP(d.eps = NAN; d.phi = (attn_phi)77); /* not named by use: not read */
    KEEP(d.use = ATTN_LINEAR_NORMALIZE | ATTN_LINEAR_EPS; d.eps = 0);
    KEEP(d.use = ATTN_LINEAR_RULE | ATTN_LINEAR_CAUSAL | ATTN_LINEAR_NORMALIZE;
         d.rule = ATTN_RULE_GATED; d.type_decay = ATTN_BF16);
    KEEP(d.use = ATTN_LINEAR_GRAD | ATTN_LINEAR_STATE_IN; d.grad = ATTN_GRAD_STATE);
}

static void canonical_texts_come_back_as_they_are(void **state)
{
    static const char *const cases[] = {
        "linear_fwd:f32,b1,hq8,hkv8,lq4096,lk4096,d64",
        "linear_fwd:bf16,b4,hq16,hkv2,lq1,lk1,d64,dv33,causal,state",
        "linear_fwd:f16,b1,hq1,hkv1,lq5,lk9,d8,causal,scale=0.5,phi=elu1,normalize,eps=0,"
        "lens,state=in,den,layout=8",
        "linear_fwd:f32,b1,hq1,hkv1,lq5,lk9,d8,phi=relu,normalize,state=out",
        "linear_fwd:f32,b1,hq8,hkv1,lq5,lk5,d8,causal,rule=gated,decay=f16",
        "linear_fwd:f32,b1,hq8,hkv1,lq5,lk5,d8,causal,rule=delta,beta=bf16",
        "linear_fwd:f32,b1,hq8,hkv1,lq5,lk5,d8,causal,rule=gated_delta,decay=f32,beta=f32,"
        "state",
        "linear_bwd:f32,b1,hq2,hkv1,lq5,lk9,d8,causal,phi=elu1,normalize,state,"
        "grad=q+k+v+state,layout=16:8:4:any:16:16:16:16",
        "linear_bwd:f32,b1,hq2,hkv1,lq5,lk9,d8,grad=v,allow=tf32",
        "linear_bwd:f16,b1,hq2,hkv1,lq5,lk9,d8,grad=v,allow=nondet",
        "linear_fwd:f32,b1,hq2,hkv1,lq5,lk9,d8,normalize,den,allow=tf32+nondet",
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_linear_desc desc;
        char text[256];

        check_ok(attn_linear_parse(cases[i], &desc));
        check_ok(attn_linear_text(&desc, text, sizeof text, NULL));
        assert_string_equal(text, cases[i]);
    }
}

static void fields_become_canonical(void **state)
{
    static const struct {
        const char *about, *text, *want;
    } cases[] = {
        { "any order", "linear_fwd:normalize,d8,lk4,lq4,causal,hkv1,hq1,b1,phi=elu1,f32",
          "linear_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,causal,phi=elu1,normalize" },
        { "what is default is left out",
          "linear_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,dv8,phi=identity,rule=linear,layout=16",
          "linear_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8" },
        { "16-bit types have nothing of TF32",
          "linear_fwd:f16,b1,hq1,hkv1,lq4,lk4,d8,allow=tf32",
          "linear_fwd:f16,b1,hq1,hkv1,lq4,lk4,d8" },
        { "but differ from run to run as others",
          "linear_fwd:f16,b1,hq1,hkv1,lq4,lk4,d8,allow=tf32+nondet",
          "linear_fwd:f16,b1,hq1,hkv1,lq4,lk4,d8,allow=nondet" },
        { "the backward has denominators anyway",
          "linear_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8,normalize,den,grad=q",
          "linear_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8,normalize,grad=q" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_linear_desc desc;
        char text[256];

        check_ok(attn_linear_parse(cases[i].text, &desc));
        check_ok(attn_linear_text(&desc, text, sizeof text, NULL));
        assert_string_equal(text, cases[i].want);
    }
}

static void what_is_no_problem_is_named(void **state)
{
#define GOOD "linear_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8"
#define BACK "linear_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8"
    static const struct {
        const char *text, *says;
    } cases[] = {
        { "linear", "position 0" },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8", "want one of linear attention" },
        { "linear_fwd:b1,hq1,hkv1,lq4,lk4,d8", "lacks a type" },
        { GOOD ",softcap=1",
          "position 38: \"softcap=1\", want a field of a linear problem" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8,allow=foo",
          "want allow=tf32 or allow=nondet or allow=tf32+nondet" },
        { GOOD ",window=1:1", "a field of a linear problem" },
        { GOOD ",phi=exp", "phi=identity, phi=elu1" },
        { GOOD ",phi=elu1,phi=elu1", "each field once" },
        { GOOD ",rule=both", "rule=linear, rule=gated" },
        { GOOD ",causal,rule=gated", "type_decay = 0" },
        { GOOD ",causal,decay=f32", "has decay=, which its rule has not" },
        { GOOD ",causal,rule=gated,decay=f32,beta=f32", "has beta=" },
        { GOOD ",causal,rule=gated,decay=f64", "decay=f32, decay=f16" },
        { GOOD ",rule=gated,decay=f32", "rule = 1 without" },
        { GOOD ",eps=1", "eps = 1 without" },
        { GOOD ",eps=one,normalize", "eps=NUMBER" },
        { GOOD ",den", "ATTN_LINEAR_DEN without" },
        { GOOD ",state,state=in", "each field once" },
        { GOOD ",state=both", "position 38" },
        { GOOD ",grad=q", "position 38: \"grad=q\"" },
        { BACK, "lacks grad=" },
        { BACK ",grad=q+bias", "each once" },
        { BACK ",grad=state", "there is no state" },
        { BACK ",grad=q,layout=16:16:16:16", "eight" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_linear_desc desc = { .size = 77 };

        check_error(attn_linear_parse(cases[i].text, &desc), ATTN_ERR_INVALID,
                    cases[i].says);
        assert_int_equal(desc.size, 77); /* not written on failure */
    }
    check_error(attn_linear_parse(NULL, NULL), ATTN_ERR_INVALID, "text is NULL");
    check_error(attn_linear_parse("x", NULL), ATTN_ERR_INVALID, "desc is NULL");
#undef GOOD
#undef BACK
}

/* Plans come back from their text; problems of one operation get no plan of the other. */
static void plans_on_the_host(void **state)
{
    static const char *const cases[] = {
        "linear_fwd:f32,b1,hq2,hkv1,lq100,lk100,d16,causal,phi=elu1,normalize,den",
        "linear_fwd:f16,b1,hq2,hkv1,lq1,lk1,d16,causal,rule=gated_delta,decay=f32,beta=f32",
        "linear_bwd:f32,b1,hq2,hkv1,lq100,lk100,d16,causal,grad=q+k+v",
    };
    attn_ctx *ctx = NULL;

    (void)state;
    check_ok(attn_ctx_create("host", &ctx));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_options softmax = { .size = sizeof softmax,
                                       .variant = "softmax_fwd_tile" };
        attn_plan *plan = NULL, *again = NULL;
        attn_variant_info list[32];
        attn_linear_desc desc;
        char text[512], same[512], about[8192];
        size_t n = 0;

        check_ok(attn_plan_parse(ctx, cases[i], &plan));
        check_ok(attn_plan_text(plan, text, sizeof text, NULL));
        check_ok(attn_plan_parse(ctx, text, &again));
        check_ok(attn_plan_text(again, same, sizeof same, NULL));
        assert_string_equal(text, same);
        attn_plan_destroy(&plan);
        attn_plan_destroy(&again);

        check_ok(attn_linear_parse(cases[i], &desc));
        check_ok(attn_linear_variants(ctx, &desc, list, 32, &n));
        assert_true(n > 0);
        for (size_t k = 0; k < n; k++)
            assert_memory_equal(list[k].name, "linear_", 7);
        check_ok(attn_linear_explain(ctx, &desc, NULL, about, sizeof about, NULL));
        assert_non_null(strstr(about, "plan       host:linear_"));
        assert_null(strstr(about, "softmax"));
        check_error(attn_plan_linear_with(ctx, &desc, &softmax, &plan), ATTN_ERR_INVALID,
                    "variant = \"softmax_fwd_tile\", want one of host's: linear_");
        assert_null(plan);
    }
    attn_ctx_destroy(&ctx);
}

static void gradients_of_other_rules_are_unsupported(void **state)
{
    attn_ctx *ctx = NULL;
    attn_plan *plan = NULL;

    (void)state;
    check_ok(attn_ctx_create("host", &ctx));
    check_error(attn_plan_parse(ctx,
                                "linear_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8,causal,rule=gated,"
                                "decay=f32,grad=q",
                                &plan),
                ATTN_ERR_UNSUPPORTED, "does not take \"decay\"");
    attn_ctx_destroy(&ctx);
}

/* A back end without variants of linear attention says so, and lists none. */
static void other_devices_say_that_they_have_none(void **state)
{
    attn_device_info list[16];
    size_t n = 0, variants = 77;
    attn_linear_desc desc = good(), back = good();
    bool any = false;

    back.use |= ATTN_LINEAR_GRAD;
    back.grad = ATTN_GRAD_Q;

    (void)state;
    check_ok(attn_device_list(list, 16, &n));
    for (size_t i = 0; i < n && i < 16; i++) {
        attn_ctx *ctx = NULL;
        attn_plan *plan = NULL;

        if (!strcmp(list[i].selector, "host"))
            continue;
        any = true;
        check_ok(attn_ctx_create(list[i].selector, &ctx));
        check_ok(attn_linear_variants(ctx, &desc, NULL, 0, &variants));
        if (variants == 0)
            check_error(attn_plan_linear(ctx, &desc, &plan), ATTN_ERR_UNSUPPORTED,
                        "none of them computes linear attention yet, \"host\" does");
        check_ok(attn_linear_variants(ctx, &back, NULL, 0, &variants));
        if (variants == 0)
            check_error(attn_plan_linear(ctx, &back, &plan), ATTN_ERR_UNSUPPORTED,
                        "computes gradients of linear attention yet, \"host\" does");
        attn_plan_destroy(&plan);
        attn_ctx_destroy(&ctx);
    }
    if (!any)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rules),
        cmocka_unit_test(canonical_texts_come_back_as_they_are),
        cmocka_unit_test(fields_become_canonical),
        cmocka_unit_test(what_is_no_problem_is_named),
        cmocka_unit_test(plans_on_the_host),
        cmocka_unit_test(gradients_of_other_rules_are_unsupported),
        cmocka_unit_test(other_devices_say_that_they_have_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
