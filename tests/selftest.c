/* SPDX-License-Identifier: MIT */
/* tests/selftest.c: a device whose kernels lie. A back end of our own stands
 * between the library and the host's kernels, and spoils what it is told to. */
#include "tests/check.h"

#include <stdlib.h>

#include <attn/attn.h>

#include "api/context.h"
#include "backend/list.h"
#include "core/status.h"

/* What the device does wrong, by name of kernel; "*": all. */
static struct {
    const char *spoils, *limits;
    int64_t limit;
    int launches;
} fault;

static attn_status lying_kernel(attn_device *dev, const attn_step *step,
                                const attn_kernel **out, int64_t *max_group)
{
    attn_status st = attn_backend_host.kernel(dev, step, out, max_group);

    if (fault.limits && !strcmp(fault.limits, step->kernel))
        *max_group = fault.limit;
    if (!*max_group)
        attn_fail(ATTN_ERR_DEVICE, "its kernel wants more than there is");
    return st;
}

static attn_status lying_launch(attn_device *dev, int n, const attn_kernel *const kernels[],
                                const attn_step steps[], const attn_call *call,
                                const attn_stream *stream)
{
    const bool backward = call->args->grad_k.type != ATTN_TYPE_NONE;
    attn_status st = attn_backend_host.launch(dev, n, kernels, steps, call, stream);

    fault.launches++;
    if (n && fault.spoils &&
        (*fault.spoils == '*' || !strcmp(fault.spoils, steps[0].kernel)))
        ((float *)(backward ? call->args->grad_k : call->args->o).data)[3] += 0.25f;
    return st;
}

static attn_ctx *lying_context(void)
{
    static attn_backend lying;
    attn_device *dev = NULL;
    attn_device_info info = { .selector = "lying:0" };
    attn_ctx *ctx = NULL;

    lying = attn_backend_host;
    lying.on_host = false; /* so that it is tested like any driver's device */
    lying.kernel = lying_kernel;
    lying.launch = lying_launch;
    check_ok(lying.describe(&(attn_env){ 0 }, 0, &info));
    check_ok(lying.open(&(attn_env){ 0 }, 0, &dev));
    check_ok(attn_ctx_wrap(&lying, dev, &info, false, &ctx));
    return ctx;
}

/* The place of a variant in the context's list. */
static int place(const attn_ctx *ctx, const char *variant)
{
    for (int v = 0; ctx->target.variants[v]; v++)
        if (!strcmp(ctx->target.variants[v]->name, variant))
            return v;
    fail_msg("no %s", variant);
    return 0;
}

static const char problem[] = "softmax_fwd:f32,b1,hq2,hkv1,lq40,lk70,d16,causal,lse";

static void an_honest_device_is_tested_once_a_kernel(void **state)
{
    attn_ctx *ctx = lying_context();
    attn_plan *plan = NULL;

    (void)state;
    memset(&fault, 0, sizeof fault);
    for (int i = 0; i < 3; i++) {
        check_ok(attn_plan_parse(ctx, problem, &plan));
        assert_string_equal(plan->choice.variant->name, "softmax_fwd_tile");
        attn_plan_destroy(&plan);
    }
    assert_int_equal(fault.launches, 1);
    attn_ctx_destroy(&ctx);
}

static void a_kernel_that_answers_wrong_is_never_taken(void **state)
{
    attn_ctx *ctx = lying_context();
    attn_plan *plan = NULL;
    attn_variant_info list[8];
    attn_softmax_desc desc;
    size_t n = 0;
    int at;

    (void)state;
    memset(&fault, 0, sizeof fault);
    fault.spoils = "softmax_fwd_tile";
    check_ok(attn_plan_parse(ctx, problem, &plan));
    assert_string_equal(plan->choice.variant->name, "softmax_fwd_reference");
    attn_plan_destroy(&plan);

    check_ok(attn_softmax_parse(problem, &desc));
    check_ok(attn_softmax_variants(ctx, &desc, list, 8, &n));
    at = place(ctx, "softmax_fwd_tile");
    assert_false(list[at].applicable);
    assert_true(list[at].failed);
    assert_non_null(strstr(list[at].reason, "failed its self-test here: o[3] = "));
    assert_false(list[place(ctx, "softmax_fwd_reference")].failed);
    check_error(attn_plan_softmax_with(ctx, &desc,
                                       &(attn_options){ .size = sizeof(attn_options),
                                                        .variant = "softmax_fwd_tile" },
                                       &plan),
                ATTN_ERR_UNSUPPORTED, "failed its self-test");
    attn_ctx_destroy(&ctx);
}

/* Gradients are held against those of plain loops, from what the forward gives; what an
 * honest device computes passes. */
static void gradients_are_tested_too(void **state)
{
    static const char backward[] =
        "softmax_bwd:f32,b1,hq2,hkv1,lq40,lk70,d16,causal,bias=f32,sinks,lens,"
        "grad=q+k+v+bias+sinks";
    attn_ctx *ctx = lying_context();
    attn_plan *plan = NULL;
    int at;

    (void)state;
    memset(&fault, 0, sizeof fault);
    for (int i = 0; i < 2; i++) {
        check_ok(attn_plan_parse(ctx, backward, &plan));
        assert_string_equal(plan->choice.variant->name, "softmax_bwd_tile");
        attn_plan_destroy(&plan);
    }
    assert_int_equal(fault.launches, 1);
    attn_ctx_destroy(&ctx);

    ctx = lying_context();
    fault.spoils = "softmax_bwd_tile";
    check_ok(attn_plan_parse(ctx, backward, &plan));
    assert_string_equal(plan->choice.variant->name, "softmax_bwd_reference");
    at = place(ctx, "softmax_bwd_tile");
    assert_true(ctx->target.verdict[at].failed);
    assert_non_null(
        strstr(ctx->target.verdict[at].denial, "failed its self-test here: grad_k[3] = "));
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

static void when_all_answer_wrong_there_is_no_plan(void **state)
{
    attn_ctx *ctx = lying_context();
    attn_plan *plan = NULL;

    (void)state;
    memset(&fault, 0, sizeof fault);
    fault.spoils = "*";
    check_error(attn_plan_parse(ctx, problem, &plan), ATTN_ERR_UNSUPPORTED,
                "softmax_fwd_reference: failed its self-test");
    assert_null(plan);
    attn_ctx_destroy(&ctx);
}

static void a_kernel_that_fits_no_group_is_left_out(void **state)
{
    attn_ctx *ctx = lying_context();
    attn_plan *plan = NULL;

    (void)state;
    memset(&fault, 0, sizeof fault);
    fault.limits = "softmax_fwd_tile";
    fault.limit = 0;
    check_ok(attn_plan_parse(ctx, problem, &plan));
    assert_string_equal(plan->choice.variant->name, "softmax_fwd_reference");
    assert_string_equal(ctx->target.verdict[place(ctx, "softmax_fwd_tile")].denial,
                        "its kernel wants more than there is");
    assert_false(ctx->target.verdict[place(ctx, "softmax_fwd_tile")].failed);
    attn_plan_destroy(&plan);
    attn_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_honest_device_is_tested_once_a_kernel),
        cmocka_unit_test(a_kernel_that_answers_wrong_is_never_taken),
        cmocka_unit_test(gradients_are_tested_too),
        cmocka_unit_test(when_all_answer_wrong_there_is_no_plan),
        cmocka_unit_test(a_kernel_that_fits_no_group_is_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
