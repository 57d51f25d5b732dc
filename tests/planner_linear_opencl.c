/* SPDX-License-Identifier: MIT */
/* tests/planner_linear_opencl.c: plans of linear attention by the variants of OpenCL that are
 * taken by name. */
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

static attn_target opencl_of(int32_t kind, int64_t fast_bytes, int64_t max_group)
{
    attn_target t = { .backend = "opencl",
                      .caps = { .kind = kind,
                                .compute_units = 132,
                                .fast_bytes = fast_bytes,
                                .max_group = max_group,
                                .vector_width = 1,
                                .memory_bytes = (int64_t)16 << 30,
                                .max_alloc_bytes = (int64_t)16 << 30 } };

    t.variants = attn_variants_for("opencl", &t.caps);
    return t;
}

static attn_status choose_named(const char *text, const attn_target *t, const char *variant,
                                attn_choice *c)
{
    const attn_options options = { .size = sizeof options, .variant = variant };
    attn_problem p;

    check_ok(attn_problem_parse(&p, text));
    return attn_choose(&p, t, variant ? &options : NULL, c);
}

static int64_t defined(const attn_step *step, const char *name)
{
    for (int i = 0; i < step->n_defines; i++)
        if (!strcmp(step->define[i].name, name))
            return step->define[i].value;
    fail_msg("%s has no %s", step->kernel, name);
    return -1;
}

/* What adds atomically is taken by name, or where the problem allows it and nothing else takes
 * it. */
static void adds_atomically(void **state)
{
    static const char huge[] =
        "linear_fwd:f32,b1,hq2,hkv1,lq99,lk99,d4000,dv7,causal,normalize";
    const attn_target t = opencl_of(ATTN_DEVICE_GPU, 48 * 1024, 1024);
    const attn_target small = opencl_of(ATTN_DEVICE_GPU, 16 * 1024, 16);
    char text[200];
    attn_choice c;

    (void)state;
    check_ok(choose_named("linear_fwd:bf16,b2,hq4,hkv2,lq9,lk9,d64,dv33,causal,normalize",
                          &t, "linear_fwd_atomic", &c));
    assert_int_equal(c.n_steps, 3);
    assert_string_equal(c.step[0].kernel, "linear_fwd_atomic_begin");
    assert_int_equal(c.step[0].tile_q, 8);
    assert_string_equal(c.step[1].kernel, "linear_fwd_atomic");
    assert_int_equal(c.step[1].columns, 8);
    assert_true(c.step[1].by_d);
    assert_string_equal(c.step[2].kernel, "linear_fwd_atomic_finish");
    assert_int_equal(c.workspace_bytes, 4 * 2 * 4 * 9 * (33 + 2));
    check_ok(choose_named("linear_bwd:f32,b1,hq2,hkv1,lq9,lk30,d7,dv12,normalize,state,"
                          "grad=q+k+v+state",
                          &t, "linear_bwd_atomic", &c));
    assert_int_equal(c.n_steps, 1 + 3 * 3);
    assert_string_equal(c.step[0].kernel, "linear_bwd_begin");
    assert_int_equal(c.step[1].over, ATTN_OVER_QUERIES);
    assert_int_equal(defined(&c.step[5], "SCAN"), 2);
    assert_true(c.step[5].by_d);
    assert_int_equal(c.step[7].over, ATTN_OVER_KEYS);
    assert_int_equal(c.step[8].grad, ATTN_GRAD_K | ATTN_GRAD_STATE);
    assert_int_equal(c.workspace_bytes, 4 * (18 + 30 * 12));
    check_ok(choose_named("linear_bwd:f32,b1,hq2,hkv1,lq9,lk30,d7,grad=q", &small,
                          "linear_bwd_atomic", &c));
    assert_int_equal(c.step[0].tile_q, 2); /* groups of 16 */
    assert_int_equal(c.step[0].block, 16);
    assert_int_equal(c.step[1].block, 16);
    check_error(
        choose_named(huge, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
        "linear_fwd_atomic: takes it, but its bits may differ from run to run: only by "
        "name, or with allow=nondet");
    snprintf(text, sizeof text, "%s,allow=nondet", huge);
    check_ok(choose_named(text, &t, NULL, &c));
    assert_string_equal(c.variant->name, "linear_fwd_atomic");
    check_ok(choose_named("linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d8,causal,allow=nondet", &t,
                          NULL, &c));
    assert_string_equal(c.variant->name, "linear_fwd_recurrent");
    check_error(
        choose_named("linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d8,causal,rule=gated,decay=f32",
                     &t, "linear_fwd_atomic", &c),
        ATTN_ERR_UNSUPPORTED, "does not take \"decay\"");
    check_error(choose_named("linear_fwd:f32,b999,hq64,hkv64,lq9999,lk9,d8,dv64,causal", &t,
                             "linear_fwd_atomic", &c),
                ATTN_ERR_UNSUPPORTED,
                "a workspace with the sums exceeds the device's memory");
}

/* One walk of a head: its shape, where the state lies, z that is copied. */
static void walks_a_head(void **state)
{
    const attn_target gpu = opencl_of(ATTN_DEVICE_GPU, 48 * 1024, 1024);
    const attn_target cpu = opencl_of(ATTN_DEVICE_CPU, 512 * 1024, 4096);
    const attn_target small = opencl_of(ATTN_DEVICE_GPU, 16 * 1024, 64);
    attn_choice c;

    (void)state;
    check_ok(choose_named("linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d64,causal,normalize,state",
                          &gpu, "linear_fwd_lmha", &c));
    assert_int_equal(c.n_steps, 1);
    assert_string_equal(c.step[0].kernel, "linear_fwd_lmha");
    assert_string_equal(c.instance, "columns64,slices8,run4,private,states1,d64,dv64,f32");
    assert_int_equal(c.workspace_bytes, 0);
    assert_int_equal(c.step[0].block, 128);
    assert_int_equal(c.step[0].fast_bytes,
                     4 * (2 * 4 * (2 * 64 + 64 + 8 * 64 + 8 + 1) + 4 * 4 + 1));
    check_ok(
        choose_named("linear_fwd:bf16,b2,hq4,hkv2,lq9,lk9,d200,dv65,causal,normalize,state",
                     &gpu, "linear_fwd_lmha", &c)); /* two groups of a head */
    assert_int_equal(c.n_steps, 2);
    assert_string_equal(c.step[0].kernel, "linear_fwd_begin");
    assert_string_equal(c.instance,
                        "columns64,slices16,run4,private,states1,d200,dv65,bf16");
    assert_int_equal(c.workspace_bytes, 4 * 4 * 200);
    check_ok(choose_named("linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d64,causal", &cpu,
                          "linear_fwd_lmha", &c));
    assert_string_equal(c.instance, "columns64,slices1,run1,local,states1,d64,dv64,f32");
    check_ok(choose_named("linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d200,dv20,causal", &small,
                          "linear_fwd_lmha", &c)); /* no two columns of an item fit */
    assert_string_equal(c.instance, "columns16,slices4,run4,private,states1,d200,dv20,f32");
}

/* dK and dV in one walk where D and Dv are up to 128 and what they sum fits. */
static void walks_for_gradients(void **state)
{
    static const char gradients[] =
        "linear_bwd:f16,b2,hq4,hkv2,lq900,lk900,d64,dv100,causal,"
        "normalize,state,grad=q+k+v+state";
    const attn_target gpu = opencl_of(ATTN_DEVICE_GPU, 48 * 1024, 1024);
    const attn_target small = opencl_of(ATTN_DEVICE_GPU, 16 * 1024, 64);
    attn_choice c;

    (void)state;
    check_ok(choose_named(gradients, &gpu, "linear_bwd_lmha", &c));
    assert_int_equal(c.n_steps, 3);
    assert_string_equal(c.step[0].kernel, "linear_bwd_begin");
    assert_int_equal(defined(&c.step[1], "SCAN"), 0);
    assert_true(c.step[1].by_d);
    assert_int_equal(defined(&c.step[2], "SCAN"), 3);
    assert_int_equal(c.step[2].columns, 112); /* seven of each of 16 items */
    assert_int_equal(defined(&c.step[2], "RUN"), 1);
    assert_int_equal(c.step[2].fast_bytes,
                     4 * (2 * (2 * 64 + 2 * 112 + 16 * 112 + 16 * 65 + 1) + 4 + 1));
    assert_int_equal(c.step[2].grad, ATTN_GRAD_K | ATTN_GRAD_V | ATTN_GRAD_STATE);
    assert_int_equal(c.workspace_bytes, 4 * 8 * 900);
    check_ok(choose_named(gradients, &small, "linear_bwd_lmha", &c));
    assert_int_equal(c.n_steps, 4);
    assert_int_equal(defined(&c.step[2], "SCAN"), 2);
    assert_int_equal(c.step[2].grad, ATTN_GRAD_V);
    assert_int_equal(defined(&c.step[3], "SCAN"), 1);
    assert_int_equal(c.step[3].grad, ATTN_GRAD_K | ATTN_GRAD_STATE);
    check_ok(choose_named("linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d200,dv7,causal,grad=k+v",
                          &gpu, "linear_bwd_lmha", &c));
    assert_int_equal(c.n_steps, 2);
    assert_int_equal(defined(&c.step[0], "SCAN"), 2);
    assert_int_equal(defined(&c.step[1], "SCAN"), 1);
}

/* Segments, the sums before them, and the sums of those where they are many. */
static void splits_a_head(void **state)
{
    const attn_target gpu = opencl_of(ATTN_DEVICE_GPU, 48 * 1024, 1024);
    attn_choice c;

    (void)state;
    check_ok(choose_named("linear_fwd:f32,b1,hq8,hkv8,lq16384,lk16384,d64,causal", &gpu,
                          "linear_fwd_lmha_split", &c)); /* 33 of each of 8 heads */
    assert_int_equal(c.n_steps, 3);
    assert_int_equal(defined(&c.step[0], "SUMS"), 1);
    assert_string_equal(c.step[1].kernel, "linear_fwd_chunk_scan");
    assert_int_equal(c.step[2].piece, 500);
    assert_int_equal(defined(&c.step[2], "SCANNED"), 1);
    assert_int_equal(c.workspace_bytes, 4 * 8 * 33 * 64 * 65);
    check_ok(choose_named("linear_fwd:f32,b1,hq2,hkv1,lq20,lk70,d8", &gpu,
                          "linear_fwd_lmha_split", &c));
    assert_int_equal(c.step[0].over, ATTN_OVER_KEY_STATES);
    assert_int_equal(c.step[0].piece, 36);
    assert_int_equal(c.step[2].over, ATTN_OVER_STATES);
    assert_int_equal(c.step[2].piece, 128); /* what a self-test has fits */
    check_ok(choose_named("linear_bwd:f16,b2,hq4,hkv2,lq900,lk900,d64,dv100,causal,"
                          "normalize,state,grad=q+k+v+state",
                          &gpu, "linear_bwd_lmha_split", &c));
    assert_int_equal(c.n_steps, 7);
    assert_int_equal(defined(&c.step[1], "SCAN"), 0);
    assert_string_equal(c.step[2].kernel, "linear_bwd_chunk_scan");
    assert_int_equal(defined(&c.step[4], "SCAN"), 3);
    assert_int_equal(defined(&c.step[4], "SUMS"), 1);
    assert_int_equal(defined(&c.step[5], "SCAN"), 1); /* the layout of slots */
    assert_int_equal(c.step[6].grad, ATTN_GRAD_K | ATTN_GRAD_V | ATTN_GRAD_STATE);
    check_ok(choose_named("linear_bwd:f32,b1,hq1,hkv1,lq99,lk99,d200,dv7,causal,grad=k+v",
                          &gpu, "linear_bwd_lmha_split", &c));
    assert_int_equal(c.n_steps, 3); /* dV and dK begin with the same sums */
}

static void refusals(void **state)
{
    static const struct {
        const char *text, *variant, *reason;
    } cases[] = {
        { "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d257,dv8,causal", "linear_fwd_lmha",
          "D or Dv is over 256" },
        { "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d8,dv300,causal,grad=v",
          "linear_bwd_lmha_split", "D or Dv is over 256" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d8,causal,rule=gated,decay=f32",
          "linear_fwd_lmha_split", "does not take \"decay\"" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d8,causal,rule=delta,beta=f32",
          "linear_fwd_lmha", "does not take \"beta\"" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d256", "linear_fwd_lmha",
          "rows of four tokens do not fit the local memory" },
        { "linear_fwd:f32,b4096,hq64,hkv64,lq99,lk99,d256", "linear_fwd_lmha_split",
          "a workspace with the states exceeds the device's memory" },
    };
    const attn_target large = opencl_of(ATTN_DEVICE_GPU, 48 * 1024, 1024);
    const attn_target tiny = opencl_of(ATTN_DEVICE_GPU, 4096, 1024);
    attn_target looping = large;
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_error(choose_named(cases[i].text,
                                 strstr(cases[i].reason, "local") ? &tiny : &large,
                                 cases[i].variant, &c),
                    ATTN_ERR_UNSUPPORTED, cases[i].reason);
    looping.caps.max_loops = 65535;
    check_error(choose_named("linear_fwd:f32,b1,hq1,hkv1,lq9999,lk9999,d64,causal",
                             &looping, "linear_fwd_lmha", &c),
                ATTN_ERR_UNSUPPORTED, "the driver cuts loops off before so many tokens");
    check_error(choose_named("linear_bwd:f32,b1,hq1,hkv1,lq9999,lk9999,d64,causal,grad=q",
                             &looping, "linear_bwd_atomic", &c),
                ATTN_ERR_UNSUPPORTED, "the driver cuts loops off before so many tokens");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds_atomically),
        cmocka_unit_test(walks_a_head),
        cmocka_unit_test(walks_for_gradients),
        cmocka_unit_test(splits_a_head),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
