/* SPDX-License-Identifier: MIT */
/* tests/planner_linear_cuda.c: plans of linear attention by the variants of CUDA that are taken
 * by name. */
#include "tests/check.h"

#include <stdio.h>
#include <string.h>

#include "plan/plan.h"

static attn_target cuda_of(int64_t fast_bytes, int64_t units, int64_t capability)
{
    attn_target t = { .backend = "cuda",
                      .caps = { .kind = ATTN_DEVICE_GPU,
                                .compute_units = units,
                                .fast_bytes = fast_bytes,
                                .max_group = 1024,
                                .subgroup = 32,
                                .vector_width = 1,
                                .memory_bytes = (int64_t)16 << 30,
                                .max_alloc_bytes = (int64_t)16 << 30,
                                .capability = capability } };

    t.variants = attn_variants_for("cuda", &t.caps);
    return t;
}

static void choose(const char *text, const attn_target *t, attn_choice *c)
{
    attn_problem p;

    check_ok(attn_problem_parse(&p, text));
    check_ok(attn_choose(&p, t, NULL, c));
}

static attn_status choose_named(const char *text, const attn_target *t, const char *variant,
                                attn_choice *c)
{
    const attn_options options = { .size = sizeof options, .variant = variant };
    attn_problem p;

    check_ok(attn_problem_parse(&p, text));
    return attn_choose(&p, t, &options, c);
}

/* What adds atomically is taken by name, or where the problem allows it and nothing else takes
 * it. */
static void cuda_atomic(void **state)
{
    static const char huge[] =
        "linear_fwd:f32,b1,hq2,hkv1,lq99,lk99,d3000,dv7,causal,normalize";
    const attn_target t = cuda_of(48 * 1024, 132, 90);
    char text[200];
    attn_problem p;
    attn_choice c;

    (void)state;
    check_ok(choose_named("linear_fwd:bf16,b2,hq4,hkv2,lq9,lk9,d64,dv33,causal,normalize",
                          &t, "linear_fwd_atomic", &c));
    assert_int_equal(c.n_steps, 3);
    assert_string_equal(c.step[0].kernel, "linear_fwd_atomic_bf16_begin");
    assert_string_equal(c.step[1].kernel, "linear_fwd_atomic_bf16_walk");
    assert_int_equal(c.step[1].columns, 8);
    assert_true(c.step[1].by_d);
    assert_string_equal(c.step[2].kernel, "linear_fwd_atomic_bf16_finish");
    assert_int_equal(c.workspace_bytes, 4 * 2 * 4 * 9 * (34 + 2));
    check_ok(choose_named("linear_bwd:f32,b1,hq2,hkv1,lq9,lk30,d7,dv12,normalize,state,"
                          "grad=q+k+v+state",
                          &t, "linear_bwd_atomic", &c));
    assert_int_equal(c.n_steps, 1 + 3 * 3);
    assert_string_equal(c.step[0].kernel, "linear_bwd_begin_f32");
    assert_int_equal(c.step[1].over, ATTN_OVER_QUERIES);
    assert_string_equal(c.step[5].kernel, "linear_bwd_atomic_f32_v_walk");
    assert_true(c.step[5].by_d);
    assert_int_equal(c.step[7].over, ATTN_OVER_KEYS);
    assert_int_equal(c.step[8].grad, ATTN_GRAD_K | ATTN_GRAD_STATE);
    assert_int_equal(c.workspace_bytes, 4 * (18 + 2 + 30 * 12));
    check_ok(attn_problem_parse(&p, huge));
    check_error(
        attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
        "linear_fwd_atomic: takes it, but its bits may differ from run to run: only by "
        "name, or with allow=nondet");
    snprintf(text, sizeof text, "%s,allow=nondet", huge);
    choose(text, &t, &c);
    assert_string_equal(c.variant->name, "linear_fwd_atomic");
    choose("linear_fwd:f32,b1,hq2,hkv1,lq9,lk9,d8,causal,allow=nondet", &t, &c);
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

/* A head's state in registers, by name: one walk, or segments and the sums before them; dK and
 * dV in one walk where D and Dv are up to 128. */
static void cuda_lmha(void **state)
{
    static const char gradients[] =
        "linear_bwd:f16,b2,hq4,hkv2,lq900,lk900,d64,dv100,causal,"
        "normalize,state,grad=q+k+v+state";
    const attn_target t = cuda_of(64 * 1024, 132, 75);
    attn_choice c;

    (void)state;
    check_ok(choose_named("linear_fwd:f32,b2,hq4,hkv2,lq9,lk9,d64,causal,normalize,state",
                          &t, "linear_fwd_lmha", &c));
    assert_int_equal(c.n_steps, 1);
    assert_string_equal(c.step[0].kernel, "linear_fwd_lmha_f32_d64");
    assert_int_equal(c.workspace_bytes, 0);
    assert_int_equal(c.step[0].fast_bytes, 26176);
    check_ok(
        choose_named("linear_fwd:bf16,b2,hq4,hkv2,lq9,lk9,d200,dv65,causal,normalize,state",
                     &t, "linear_fwd_lmha", &c)); /* two groups of a head */
    assert_string_equal(c.step[0].kernel, "linear_fwd_begin");
    assert_string_equal(c.step[1].kernel, "linear_fwd_lmha_bf16_d256");
    assert_int_equal(c.workspace_bytes, 4 * 4 * 200);
    check_ok(choose_named("linear_fwd:f32,b1,hq8,hkv8,lq16384,lk16384,d64,causal", &t,
                          "linear_fwd_lmha_split", &c)); /* 33 of each of 8 heads */
    assert_int_equal(c.n_steps, 3);
    assert_string_equal(c.step[0].kernel, "linear_fwd_lmha_f32_sums_d64");
    assert_string_equal(c.step[1].kernel, "linear_fwd_scan");
    assert_int_equal(c.step[2].piece, 500);
    assert_int_equal(c.workspace_bytes, 4 * 8 * 33 * 64 * 65);
    check_ok(choose_named("linear_fwd:f32,b1,hq2,hkv1,lq20,lk70,d8", &t,
                          "linear_fwd_lmha_split", &c));
    assert_int_equal(c.step[0].over, ATTN_OVER_KEY_STATES);
    assert_int_equal(c.step[0].piece, 36);
    assert_int_equal(c.step[2].over, ATTN_OVER_STATES);
    assert_int_equal(c.step[2].piece, 128); /* what a self-test has fits */
    check_ok(choose_named(gradients, &t, "linear_bwd_lmha", &c));
    assert_int_equal(c.n_steps, 3);
    assert_string_equal(c.step[0].kernel, "linear_bwd_begin_f16");
    assert_string_equal(c.step[1].kernel, "linear_bwd_lmha_f16_q_d128");
    assert_true(c.step[1].by_d);
    assert_string_equal(c.step[2].kernel, "linear_bwd_lmha_f16_kv_d128");
    assert_int_equal(c.step[2].columns, 128);
    assert_int_equal(c.workspace_bytes, 4 * 8 * 900);
    check_ok(choose_named(gradients, &t, "linear_bwd_lmha_split", &c));
    assert_int_equal(c.n_steps, 7);
    assert_string_equal(c.step[1].kernel, "linear_fwd_lmha_f16_sums_d64");
    assert_string_equal(c.step[4].kernel, "linear_bwd_lmha_f16_sums_d64");
    assert_int_equal(c.step[6].grad, ATTN_GRAD_K | ATTN_GRAD_V | ATTN_GRAD_STATE);
    check_ok(choose_named("linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d200,dv7,causal,grad=k+v", &t,
                          "linear_bwd_lmha", &c));
    assert_int_equal(c.n_steps, 2);
    assert_string_equal(c.step[0].kernel, "linear_bwd_lmha_f32_v_d256");
    assert_string_equal(c.step[1].kernel, "linear_bwd_lmha_f32_k_d256");
}

static void cuda_lmha_refusals(void **state)
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
        { "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d128,grad=v", "linear_bwd_lmha",
          "rows of four tokens do not fit the shared memory" },
        { "linear_fwd:f32,b4096,hq64,hkv64,lq99,lk99,d256", "linear_fwd_lmha_split",
          "a workspace with the states exceeds the device's memory" },
    };
    const attn_target t = cuda_of(48 * 1024, 132, 90);
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_error(choose_named(cases[i].text, &t, cases[i].variant, &c),
                    ATTN_ERR_UNSUPPORTED, cases[i].reason);
}

/* Hopper's, by name: columns of a group and segments by how many heads there are; the first of
 * some segments is longer. */
static void cuda_wgmma(void **state)
{
    static const struct {
        const char *text, *output;
        int32_t steps, columns;
        int64_t lead, piece, block;
    } cases[] = {
        { "linear_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d64,causal",
          "linear_fwd_wgmma_f32_d64_c64_output", 2, 64, 2432, 1664, 512 },
        { "linear_fwd:bf16,b16,hq16,hkv16,lq4096,lk4096,d64,causal",
          "linear_fwd_wgmma_bf16_d64_c64_output", 1, 64, 0, 0, 512 },
        { "linear_fwd:f32,b1,hq8,hkv8,lq16384,lk16384,d64,causal",
          "linear_fwd_wgmma_f32_d64_c64_output", 2, 64, 1024, 1024, 512 },
        { "linear_fwd:f16,b1,hq1,hkv1,lq32768,lk32768,d64,causal",
          "linear_fwd_wgmma_f16_d64_c64_output", 3, 64, 256, 256, 512 },
        { "linear_fwd:f32,b8,hq16,hkv16,lq2048,lk2048,d128,causal",
          "linear_fwd_wgmma_f32_d128_c64_output", 1, 64, 0, 0, 384 },
        { "linear_fwd:bf16,b1,hq16,hkv16,lq4096,lk4096,d72,dv128,causal,state",
          "linear_fwd_wgmma_bf16_d128_c64_output", 2, 64, 1408, 896, 512 },
        { "linear_fwd:f32,b1,hq16,hkv16,lq4096,lk4096,d128,causal",
          "linear_fwd_wgmma_f32_d128_c64_output", 2, 64, 1408, 896, 384 },
        { "linear_fwd:f32,b400,hq1,hkv1,lq64,lk64,d64,dv20,causal",
          "linear_fwd_wgmma_f32_d64_c32_output", 1, 32, 0, 0, 512 },
        { "linear_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d64,causal,phi=elu1",
          "linear_fwd_wgmma_f32_d64_c64_output", 2, 64, 2496, 1600, 512 },
    };
    static const char *const refused[][2] = {
        { "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d64", "takes the causal form alone" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d132,causal", "D is over 128" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d62,causal",
          "wants rows that are moved 16 bytes at a time" },
        { "linear_fwd:f32,b1,hq1,hkv1,lq9,lk9,d64,causal,rule=gated,decay=f32",
          "does not take \"decay\"" },
    };
    const char *const name = "linear_fwd_wgmma", *const text = cases[0].text;
    attn_target t = cuda_of(227 * 1024, 132, 90);
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_step *last;

        check_ok(choose_named(cases[i].text, &t, name, &c));
        last = &c.step[c.n_steps - 1];
        assert_int_equal(c.n_steps, cases[i].steps);
        assert_string_equal(last->kernel, cases[i].output);
        assert_int_equal(last->columns, cases[i].columns);
        assert_int_equal(last->lead, cases[i].lead);
        assert_int_equal(last->piece, cases[i].piece);
        assert_int_equal(last->block, cases[i].block);
        assert_true(last->fast_bytes <= t.caps.fast_bytes);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        check_error(choose_named(refused[i][0], &t, name, &c), ATTN_ERR_UNSUPPORTED,
                    refused[i][1]);
    choose(text, &t, &c);
    assert_string_equal(c.variant->name, "linear_fwd_wgmma");
    choose("linear_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d64,causal,allow=tf32", &t, &c);
    assert_string_equal(c.variant->name, "linear_fwd_chunk");
    choose(cases[1].text, &t, &c); /* bf16, heads that fill the device */
    assert_string_equal(c.variant->name, "linear_fwd_wgmma");
    choose("linear_fwd:bf16,b4,hq16,hkv16,lq4096,lk4096,d64,causal", &t, &c);
    assert_string_equal(c.variant->name, "linear_fwd_wgmma");
    choose("linear_fwd:bf16,b1,hq8,hkv8,lq16384,lk16384,d64,causal,normalize", &t, &c);
    assert_string_equal(c.variant->name, "linear_fwd_wgmma");
    choose("linear_fwd:bf16,b1,hq8,hkv8,lq31,lk31,d64,causal", &t, &c); /* so few tokens */
    assert_string_equal(c.variant->name, "linear_fwd_recurrent");
    choose("linear_fwd:f16,b16,hq16,hkv16,lq4096,lk4096,d64,causal", &t, &c);
    assert_string_equal(c.variant->name, "linear_fwd_chunk");
    t = cuda_of(160 * 1024, 132, 90);
    check_error(choose_named(text, &t, name, &c), ATTN_ERR_UNSUPPORTED,
                "chunks do not fit the shared memory");
    t = cuda_of(227 * 1024, 132, 100);
    check_error(choose_named(text, &t, name, &c), ATTN_ERR_UNSUPPORTED,
                "wants compute capability 9.0");
}

/* Gradients by them: columns of a group and segments as there; dV and dK in one walk
 * where D and Dv are at most 64. */
static void cuda_wgmma_gradients(void **state)
{
    static const struct {
        const char *text, *kernels[ATTN_MAX_STEPS];
        int64_t piece, block; /* of the last */
    } cases[] = {
        { "linear_bwd:f32,b4,hq16,hkv16,lq4096,lk4096,d64,causal,grad=q+k+v",
          { "linear_bwd_wgmma_f32_d64_c32_q", "linear_bwd_wgmma_f32_d64_c64_k_sums",
            "linear_bwd_wgmma_f32_d64_c64_kv" },
          2048,
          512 },
        { "linear_bwd:bf16,b16,hq16,hkv16,lq4096,lk4096,d64,causal,grad=q+v",
          { "linear_bwd_wgmma_tiles_bf16_d64_walk" },
          INT32_MAX / 64 * 64, /* a self-test has longer calls */
          512 },
        { "linear_bwd:bf16,b1,hq8,hkv8,lq16384,lk16384,d64,causal,grad=q+k+v",
          { "linear_bwd_wgmma_tiles_bf16_d64_sums",
            "linear_bwd_wgmma_tiles_bf16_d64_walk" },
          1856,
          512 },
        { "linear_bwd:bf16,b1,hq1,hkv1,lq32768,lk32768,d64,causal,grad=q+k+v",
          { "linear_bwd_wgmma_tiles_bf16_d64_sums", "linear_bwd_wgmma_tiles_bf16_d64_scan",
            "linear_bwd_wgmma_tiles_bf16_d64_walk" },
          448,
          512 },
        { "linear_bwd:bf16,b1,hq16,hkv16,lq4096,lk4096,d128,causal,grad=q+k+v",
          { "linear_bwd_wgmma_tiles_bf16_d128_sums",
            "linear_bwd_wgmma_tiles_bf16_d128_walk" },
          1024,
          512 },
        { "linear_bwd:bf16,b1,hq16,hkv16,lq4096,lk4096,d128,causal,normalize,grad=q+k+v",
          { "linear_bwd_chunk_begin_bf16", "linear_bwd_phi_bf16",
            "linear_bwd_wgmma_tiles_bf16_d128_sums",
            "linear_bwd_wgmma_tiles_bf16_d128_walk" },
          1024,
          512 },
        { "linear_bwd:f32,b1,hq8,hkv8,lq16384,lk16384,d64,causal,normalize,grad=q+k+v",
          { "linear_bwd_chunk_begin_f32", "linear_bwd_wgmma_f32_d64_c64_n_sums",
            "linear_bwd_wgmma_f32_d64_c64_n_scan", "linear_bwd_wgmma_f32_d64_c64_n_all" },
          1024,
          512 },
        { "linear_bwd:f32,b1,hq8,hkv8,lq16384,lk16384,d64,causal,phi=relu,grad=q+k+v",
          { "linear_bwd_phi_f32", "linear_bwd_wgmma_f32_d64_c64_sums",
            "linear_bwd_wgmma_f32_d64_c64_scan", "linear_bwd_wgmma_f32_d64_c64_all" },
          1024,
          512 },
        { "linear_bwd:f16,b4,hq16,hkv16,lq4096,lk4096,d64,causal,phi=elu1,grad=k",
          { "linear_bwd_wgmma_f16_d64_c32_k" },
          0,
          512 },
        { "linear_bwd:bf16,b1,hq16,hkv8,lq4096,lk4096,d64,causal,grad=q",
          { "linear_bwd_wgmma_bf16_d64_c64_q_sums", "linear_bwd_wgmma_bf16_d64_c64_q" },
          512,
          512 },
        { "linear_bwd:f16,b4,hq16,hkv16,lq4096,lk4096,d64,causal,grad=k",
          { "linear_bwd_wgmma_f16_d64_c32_k" },
          0,
          512 },
        { "linear_bwd:f32,b8,hq32,hkv8,lq4096,lk4096,d64,causal,grad=k",
          { "linear_bwd_wgmma_f32_d64_c64_k_sums", "linear_bwd_wgmma_f32_d64_c64_kv" },
          2048,
          512 },
        { "linear_bwd:f32,b1,hq8,hkv8,lq16384,lk16384,d64,causal,grad=q",
          { "linear_bwd_wgmma_f32_d64_c64_q_sums", "linear_fwd_scan",
            "linear_bwd_wgmma_f32_d64_c64_q" },
          1024,
          512 },
        { "linear_bwd:f32,b1,hq8,hkv8,lq16384,lk16384,d64,causal,grad=q+k+v",
          { "linear_bwd_wgmma_f32_d64_c64_sums", "linear_bwd_wgmma_f32_d64_c64_scan",
            "linear_bwd_wgmma_f32_d64_c64_all" },
          1024,
          512 },
        { "linear_bwd:f32,b1,hq16,hkv16,lq4096,lk4096,d128,causal,grad=q+k+v",
          { "linear_bwd_wgmma_f32_d128_c64_sums", "linear_bwd_wgmma_f32_d128_c64_q",
            "linear_bwd_wgmma_f32_d128_c64_v", "linear_bwd_wgmma_f32_d128_c64_k" },
          1024,
          384 },
        { "linear_bwd:f32,b1,hq16,hkv16,lq4096,lk4096,d128,dv40,causal,grad=k+v",
          { "linear_bwd_wgmma_f32_d128_c64_k_sums", "linear_bwd_wgmma_f32_d128_c64_v",
            "linear_bwd_wgmma_f32_d128_c64_k" },
          1024,
          384 },
    };
    static const char *const refused[][2] = {
        { "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d64,grad=q", "takes the causal form alone" },
        { "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d64,dv132,causal,grad=q",
          "D or Dv is over 128" },
        { "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d62,causal,grad=q",
          "wants rows that are moved 16 bytes at a time" },
        { "linear_bwd:f32,b1,hq2,hkv1,lq9,lk9,d128,causal,grad=k",
          "of heads that share keys takes dK and dV up to D and Dv of 64" },
        { "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d128,causal,normalize,grad=q",
          "takes the normaliser in f32 up to D and Dv of 64" },
        { "linear_bwd:f16,b1,hq1,hkv1,lq9,lk9,d64,causal,normalize,grad=q",
          "takes the normaliser in f32" },
        { "linear_bwd:bf16,b1,hq2,hkv1,lq9,lk9,d64,causal,normalize,grad=q",
          "in bf16 of heads that share no keys" },
        { "linear_bwd:f32,b1,hq1,hkv1,lq9,lk9,d64,causal,state=in,grad=q",
          "does not take \"state" },
    };
    const char *const name = "linear_bwd_wgmma", *const text = cases[0].text;
    attn_target t = cuda_of(227 * 1024, 132, 90);
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int n = 0;

        check_ok(choose_named(cases[i].text, &t, name, &c));
        for (; cases[i].kernels[n]; n++) {
            assert_true(n < c.n_steps);
            assert_string_equal(c.step[n].kernel, cases[i].kernels[n]);
            assert_true(c.step[n].fast_bytes <= t.caps.fast_bytes);
        }
        assert_int_equal(c.n_steps, n);
        assert_int_equal(c.step[n - 1].piece, cases[i].piece);
        assert_int_equal(c.step[n - 1].block, cases[i].block);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        check_error(choose_named(refused[i][0], &t, name, &c), ATTN_ERR_UNSUPPORTED,
                    refused[i][1]);
    choose(text, &t, &c);
    assert_string_equal(c.variant->name, name);
    choose("linear_bwd:f32,b1,hq2,hkv2,lq90,lk90,d64,causal,grad=q,allow=tf32", &t, &c);
    assert_string_equal(c.variant->name, "linear_bwd_chunk");
    t = cuda_of(160 * 1024, 132, 90);
    check_error(choose_named(text, &t, name, &c), ATTN_ERR_UNSUPPORTED,
                "chunks do not fit the shared memory");
    t = cuda_of(227 * 1024, 132, 100);
    check_error(choose_named(text, &t, name, &c), ATTN_ERR_UNSUPPORTED,
                "wants compute capability 9.0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_atomic),          cmocka_unit_test(cuda_lmha),
        cmocka_unit_test(cuda_lmha_refusals),   cmocka_unit_test(cuda_wgmma),
        cmocka_unit_test(cuda_wgmma_gradients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
