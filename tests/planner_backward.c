/* SPDX-License-Identifier: MIT */
/* tests/planner_backward.c: which variant computes gradients, and what is said where none
 * does. */
#include "tests/check.h"

#include <stdio.h>

#include <attn/attn.h>

#include "plan/plan.h"

#define PROBLEM "softmax_bwd:f32,b2,hq4,hkv2,lq100,lk120,d64,causal,grad=q+k+v"

static attn_target target_of(const char *backend)
{
    attn_target t = { .backend = backend,
                      .caps = { .kind = ATTN_DEVICE_GPU,
                                .compute_units = 4,
                                .fast_bytes = 1 << 18,
                                .max_group = 1024,
                                .subgroup = 32,
                                .vector_width = 8,
                                .memory_bytes = (int64_t)8 << 30,
                                .max_alloc_bytes = (int64_t)8 << 30,
                                .capability = 90 } };

    t.variants = attn_variants_for(backend, &t.caps);
    return t;
}

/* Variants are asked about problems of their operation and pass alone. */
static void passes_are_apart(void **state)
{
    static const char *const backends[] = { "cuda", "host", "opencl" };
    static const struct {
        const char *begin, *problem;
    } kinds[] = {
        { "softmax_bwd_", PROBLEM },
        { "softmax_fwd_", "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8" },
        { "linear_fwd_", "linear_fwd:f32,b1,hq1,hkv1,lq4,lk4,d8" },
        { "linear_bwd_", "linear_bwd:f32,b1,hq1,hkv1,lq4,lk4,d8,grad=q" },
    };

    (void)state;
    for (size_t k = 0; k < sizeof backends / sizeof backends[0]; k++)
        for (size_t y = 0; y < sizeof kinds / sizeof kinds[0]; y++) {
            const attn_target t = target_of(backends[k]);
            const size_t n = strlen(kinds[y].begin);
            attn_problem p;

            check_ok(attn_problem_parse(&p, kinds[y].problem));
            for (int i = 0; t.variants[i]; i++) {
                const bool is = !strncmp(t.variants[i]->name, kinds[y].begin, n);

                assert_int_equal(attn_variant_computes(&p, &t, i), is);
                assert_true(is || attn_refusal(&p, &t, i) != NULL);
            }
        }
}

static void devices_without_gradients_say_so(void **state)
{
    const attn_options named = { .size = sizeof named, .variant = "softmax_fwd_tile" };
    const char *const says =
        "grad=q+k+v; none of them computes gradients yet, \"host\" does";
    attn_target t = target_of("cuda");
    const attn_variant *const forward[] = { t.variants[0], NULL };
    attn_problem p;
    attn_choice c;

    (void)state;
    t.variants = forward;
    check_ok(attn_problem_parse(&p, PROBLEM));
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED, says);
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED, says);
}

static attn_choice choice_of(const attn_target *t, const char *problem)
{
    attn_problem p;
    attn_choice c;

    check_ok(attn_problem_parse(&p, problem));
    check_ok(attn_choose(&p, t, NULL, &c));
    return c;
}

static int64_t value_of(const attn_step *step, const char *name)
{
    for (int i = 0; i < step->n_defines; i++)
        if (!strcmp(step->define[i].name, name))
            return step->define[i].value;
    return -1;
}

/* The place of a variant in the target's list. */
static int place_of(const attn_target *t, const char *name)
{
    int i = 0;

    while (t->variants[i] && strcmp(t->variants[i]->name, name))
        i++;
    assert_non_null(t->variants[i]);
    return i;
}

/* On OpenCL: a step for each thing that is asked for, delta before all that need it; tiles
 * that do not follow from what is asked for, batch or heads; 4 bytes for each query. */
static void opencl_takes_steps(void **state)
{
    attn_target t = target_of("opencl");
    const attn_choice all =
        choice_of(&t, "softmax_bwd:f32,b2,hq4,hkv2,lq100,lk120,d64,causal,bias=f32,sinks,"
                      "grad=q+k+v+bias+sinks");
    const attn_choice one = choice_of(
        &t, "softmax_bwd:f32,b9,hq8,hkv8,lq100,lk120,d64,causal,bias=f32,sinks,grad=v");
    attn_problem p;
    attn_choice c;

    (void)state;
    assert_string_equal(all.variant->name, "softmax_bwd_tile_gpu");
    assert_int_equal(all.n_steps, 5);
    assert_string_equal(all.step[0].kernel, "softmax_bwd_delta");
    assert_int_equal(all.step[0].grad & ATTN_GRAD_V, 0);
    assert_int_equal(all.step[1].over, ATTN_OVER_QUERIES);
    assert_int_equal(all.step[2].over, ATTN_OVER_KEYS);
    assert_int_equal(all.step[2].tile_k, all.step[1].tile_q);
    assert_int_equal(all.step[3].over, ATTN_OVER_BIAS);
    assert_int_equal(all.step[4].over, ATTN_OVER_HEADS);
    assert_int_equal(all.workspace_bytes, 4 * 2 * 4 * 100);

    assert_int_equal(one.n_steps, 1);
    assert_int_equal(value_of(&one.step[0], "KEYS"), 1);
    assert_int_equal(value_of(&one.step[0], "BM"), value_of(&all.step[1], "BM"));
    assert_int_equal(value_of(&one.step[0], "BN"), value_of(&all.step[1], "BN"));

    t.caps.max_group = 1; /* no group at all is too small */
    c = choice_of(&t, PROBLEM);
    for (int i = 0; i < c.n_steps; i++)
        assert_int_equal(c.step[i].block, 1);
    t.caps.max_loops = 1000;
    check_ok(attn_problem_parse(&p, PROBLEM));
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "the driver cuts loops off before so many rows are read");
    t = target_of("opencl");
    t.caps.max_alloc_bytes = 4 * 2 * 4 * 100 - 1;
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "4 bytes of workspace for each query exceed the device's largest block");
    p.d = 257;
    assert_string_equal(attn_refusal(&p, &t, place_of(&t, "softmax_bwd_tile_gpu")),
                        "D or Dv is over 256");
}

/* What is too wide for tiles goes through products of matrices, in rounds whose matrices a
 * device holds; the gradients of keys are written after the last of their queries. */
static void opencl_takes_products_of_wide_heads(void **state)
{
    static const char *const problem =
        "softmax_bwd:f16,b2,hq4,hkv2,lq3000,lk5000,d576,dv512,mask,sinks,grad=q+k+v+sinks";
    static const char *const kernels[] = {
        "softmax_bwd_delta",        "softmax_bwd_math_pack",    "softmax_bwd_math_product",
        "softmax_bwd_math_weights", "softmax_bwd_math_product", "softmax_bwd_math_unpack",
        "softmax_bwd_math_product", "softmax_bwd_math_unpack",  "softmax_bwd_sinks"
    };
    attn_options named = { .size = sizeof named, .variant = "softmax_bwd_math_clblast" };
    attn_target t = target_of("opencl");
    attn_choice c = choice_of(&t, problem);
    attn_problem p;

    (void)state;
    assert_string_equal(c.variant->name, "softmax_bwd_math");
    assert_int_equal(c.n_steps, 9);
    for (int i = 0; i < c.n_steps; i++) {
        assert_string_equal(c.step[i].kernel, kernels[i]);
        assert_int_equal(c.step[i].round_heads, 2); /* those that share keys */
        assert_true(c.step[i].round_queries < 3000);
    }
    assert_int_equal(c.step[7].over, ATTN_OVER_KEYS);
    assert_true(c.workspace_bytes < (int64_t)300 << 20);
    check_ok(attn_problem_parse(&p, problem));
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "CLBlast was not found");
    t.caps.blas = 1;
    check_ok(attn_choose(&p, &t, &named, &c));
    assert_string_equal(c.step[2].kernel, "clblast_bwd_scores");
    assert_string_equal(c.step[4].kernel, "clblast_bwd_q");
    assert_string_equal(c.step[6].kernel, "clblast_bwd_kv");
    t.caps.max_alloc_bytes = 1 << 20;
    check_error(
        attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
        "keys, values and the scores of one query exceed the device's largest block");
    t = target_of("opencl");
    c = choice_of(&t, "softmax_bwd:f32,b1,hq1,hkv1,lq9,lk9,d300,bias=f32,grad=q+bias");
    assert_int_equal(c.n_steps, 7); /* the gradients of scores serve both */
    assert_string_equal(c.step[4].kernel, "softmax_bwd_math_bias");
    c = choice_of(
        &t, "softmax_bwd:f32,b1,hq1,hkv1,lq9,lk9,d300,softcap=9,bias=f32,grad=q+bias");
    assert_int_equal(c.n_steps, 9); /* ... but for the cap */
    assert_int_equal(value_of(&c.step[3], "CAPPED"), 0);
    assert_int_equal(value_of(&c.step[6], "CAPPED"), 1);
    check_ok(attn_problem_parse(&p, problem));
    p.d = p.dv = 64;
    p.grad = ATTN_GRAD_V;
    p.features |= ATTN_FEAT_DROPOUT;
    named.variant = "softmax_bwd_math";
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "does not take \"dropout\"");
}

/* On a processor by vectors: panels of what is owned, at most as many as have rows, and a
 * step of rows that follows from nothing but head sizes and memory. */
static void opencl_takes_vectors_on_processors(void **state)
{
    static const char *const problem =
        "softmax_bwd:f32,b2,hq4,hkv2,lq100,lk20,d64,bias=f32,"
        "sinks,grad=q+k+v+bias+sinks";
    attn_target t = target_of("opencl");
    attn_problem p;
    attn_choice c, one;

    (void)state;
    t.caps.kind = ATTN_DEVICE_CPU;
    t.caps.vector_width = 16;
    t.variants = attn_variants_for("opencl", &t.caps);
    c = choice_of(&t, problem);
    assert_string_equal(c.variant->name, "softmax_bwd_tile_cpu");
    assert_int_equal(c.n_steps, 5);
    assert_string_equal(c.step[0].kernel, "softmax_bwd_delta");
    assert_string_equal(c.step[1].kernel, "softmax_bwd_tile_cpu");
    assert_int_equal(c.step[1].over, ATTN_OVER_QUERIES);
    assert_int_equal(c.step[1].tile_q, 144); /* three panels */
    assert_int_equal(value_of(&c.step[1], "NV"), 3);
    assert_string_equal(c.step[2].kernel, "softmax_bwd_tile_cpu_bias");
    assert_int_equal(c.step[2].over, ATTN_OVER_BIAS);
    assert_int_equal(c.step[2].tile_q, 48);
    assert_int_equal(c.step[3].over, ATTN_OVER_KEYS);
    assert_int_equal(c.step[3].tile_k, 32); /* two vectors: 20 keys fill no third */
    assert_int_equal(c.step[4].over, ATTN_OVER_HEADS);
    assert_int_equal(c.workspace_bytes, 4 * 2 * 4 * 100);
    one = choice_of(&t, "softmax_bwd:f32,b1,hq1,hkv1,lq7,lk999,d64,grad=v");
    assert_int_equal(one.n_steps, 1);
    assert_int_equal(value_of(&one.step[0], "BC"), value_of(&c.step[1], "BC"));

    t.caps.fast_bytes = 32 * 1024;
    c = choice_of(&t, problem);
    assert_string_equal(c.variant->name, "softmax_bwd_tile_cpu");
    for (int i = 0; i < c.n_steps; i++)
        assert_true(c.step[i].fast_bytes <= t.caps.fast_bytes);
    assert_true(value_of(&c.step[1], "BC") < value_of(&one.step[0], "BC"));
    t.caps.fast_bytes = 4 * 1024;
    check_ok(attn_problem_parse(&p, problem));
    assert_string_equal(attn_refusal(&p, &t, place_of(&t, "softmax_bwd_tile_cpu")),
                        "not even a tile of 4 queries and 2 keys fits the local memory");
    t.caps.fast_bytes = 1 << 18;
    t.caps.max_loops = 1000;
    assert_string_equal(attn_refusal(&p, &t, place_of(&t, "softmax_bwd_tile_cpu")),
                        "the driver cuts loops off before so many rows are read");
    p.d = 257;
    assert_string_equal(attn_refusal(&p, &t, place_of(&t, "softmax_bwd_tile_cpu")),
                        "D or Dv is over 256");
}

/* Compute capability 7.5. */
static attn_target turing(void)
{
    attn_target t = target_of("cuda");

    t.caps.capability = 75;
    return t;
}

/* On CUDA likewise: a step for each thing that is asked for; large tiles where they fit and
 * no single score is looked at, for each pass alone. */
static void cuda_takes_steps(void **state)
{
    attn_target t = turing();
    const attn_choice all =
        choice_of(&t, "softmax_bwd:f32,b2,hq4,hkv2,lq100,lk120,d64,causal,bias=f32,sinks,"
                      "grad=q+k+v+bias+sinks");
    const attn_choice large = choice_of(&t, PROBLEM);
    const attn_choice few =
        choice_of(&t, "softmax_bwd:f32,b9,hq8,hkv8,lq20,lk120,d64,causal,grad=q+v");
    attn_problem p;
    attn_choice c;

    (void)state;
    assert_string_equal(all.variant->name, "softmax_bwd_tile");
    assert_int_equal(all.n_steps, 5);
    assert_string_equal(all.step[0].kernel, "softmax_bwd_delta_f32");
    assert_int_equal(all.step[0].grad & ATTN_GRAD_V, 0);
    assert_string_equal(all.step[1].kernel, "softmax_bwd_tile_f32_d64_queries_all");
    assert_int_equal(all.step[1].over, ATTN_OVER_QUERIES);
    assert_string_equal(all.step[2].kernel, "softmax_bwd_tile_f32_d64_keys_all");
    assert_int_equal(all.step[2].over, ATTN_OVER_KEYS);
    assert_string_equal(all.step[3].kernel, "softmax_bwd_tile_bias_f32_d64");
    assert_int_equal(all.step[3].over, ATTN_OVER_BIAS);
    assert_int_equal(all.step[4].over, ATTN_OVER_HEADS);
    assert_int_equal(all.workspace_bytes, 4 * 2 * 4 * 100);

    assert_int_equal(large.n_steps, 3);
    assert_string_equal(large.step[1].kernel, "softmax_bwd_tile_f32_d64_queries_ranges");
    assert_string_equal(large.step[2].kernel, "softmax_bwd_tile_f32_d64_keys_ranges");
    assert_int_equal(large.step[2].tile_k, 128);
    assert_string_equal(few.step[1].kernel, "softmax_bwd_tile_f32_d64_queries_all");
    assert_string_equal(few.step[2].kernel, "softmax_bwd_tile_f32_d64_keys_ranges");

    c = choice_of(&t, PROBLEM ",dropout=0.5"); /* looks at single pairs */
    assert_string_equal(c.step[1].kernel, "softmax_bwd_tile_f32_d64_queries_all");
    assert_string_equal(c.step[2].kernel, "softmax_bwd_tile_f32_d64_keys_all");

    t.caps.fast_bytes = 64 * 1024; /* compute capability 7.5 */
    c = choice_of(&t, PROBLEM);
    for (int i = 0; i < c.n_steps; i++)
        assert_true(c.step[i].fast_bytes <= t.caps.fast_bytes);
    t.caps.fast_bytes = 16 * 1024;
    check_ok(attn_problem_parse(&p, PROBLEM));
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "no tile fits the shared memory and the limit of threads");
    t = target_of("cuda");
    t.caps.max_alloc_bytes = 4 * 2 * 4 * 100 - 1;
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "4 bytes of workspace for each query exceed the device's memory");
    t = target_of("cuda");
    p.b = (int64_t)1 << 30;
    p.hq = p.hkv = 16;
    t.caps.max_alloc_bytes = INT64_MAX;
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "more groups than a grid can have, 2^31 - 1");
    p.d = 257;
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED, "D or Dv is over 256");
}

/* In f32 one pass over tiles of keys, with a workspace of sums, where the device has what it
 * needs and no single score is looked at; else two. */
static void cuda_takes_f32_in_one_pass(void **state)
{
    static const struct {
        const char *fields, *why;
    } refused[] = {
        { "f16,b1,hq1,hkv1,lq9,lk9,d64,grad=k", "takes f32 alone" },
        { "f32,b1,hq1,hkv1,lq9,lk9,d64,dv136,grad=k", "D or Dv is over 128" },
        { "f32,b1,hq1,hkv1,lq9,lk9,d64,softcap=9,grad=k", "does not take \"softcap\"" },
    };
    const attn_options named = { .size = sizeof named, .variant = "softmax_bwd_once" };
    const int64_t rows = 2 * 4 * 100, flags = 2 * 4 * 4;
    attn_target t = target_of("cuda");
    attn_choice c = choice_of(&t, PROBLEM);
    char text[128];
    attn_problem p;

    (void)state;
    assert_string_equal(c.variant->name, "softmax_bwd_once");
    check_ok(attn_problem_parse(&p, PROBLEM));
    check_ok(attn_choose(&p, &t, &named, &c));
    assert_int_equal(c.n_steps, 3);
    assert_string_equal(c.step[0].kernel, "softmax_bwd_mma_begin_f32");
    assert_string_equal(c.step[1].kernel, "softmax_bwd_tile_once_f32_d64_ranges");
    assert_int_equal(c.step[1].over, ATTN_OVER_KEYS);
    assert_int_equal(c.step[1].tile_k, 128);
    assert_string_equal(c.step[2].kernel, "softmax_bwd_mma_finish_f32");
    assert_int_equal(c.workspace_bytes, 4 * (rows * (3 + 64) + flags + 1 + 3));
    t.caps.fast_bytes = 163 * 1024; /* compute capability 8.0 */
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED, "does not fit");
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_bwd_tile");
    t = turing();
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "wants compute capability 8.0 or more");
    t = target_of("cuda");
    check_ok(attn_problem_parse(&p, "softmax_bwd:f32,b1,hq1,hkv1,lq9,lk65,d8,dv72,grad=v"));
    check_ok(attn_choose(&p, &t, &named, &c));
    assert_int_equal(c.n_steps, 2);
    assert_string_equal(c.step[1].kernel, "softmax_bwd_tile_once_f32_d128_ranges");
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        snprintf(text, sizeof text, "softmax_bwd:%s", refused[i].fields);
        check_ok(attn_problem_parse(&p, text));
        check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED, refused[i].why);
    }
}

/* On tensor cores: one pass over tiles of keys, or two where the head size is over
 * 128; what the first step writes is there for every call. */
static void cuda_tensor_cores_take_one_pass(void **state)
{
    static const char *const more = ",b2,hq4,hkv2,lq100,lk120,causal,sinks,grad=";
    const attn_options named = { .size = sizeof named, .variant = "softmax_bwd_mma" };
    static const struct {
        const char *fields, *grads, *kernel[5];
        int64_t pitch;
    } cases[] = {
        { "f16,d64",
          "q+k+v+sinks",
          { "begin_f16", "f16_d64_both_small", "finish_f16", "softmax_bwd_sinks" },
          64 },
        { "bf16,d100", "k", { "begin_bf16", "bf16_d128_both_small" }, 104 },
        { "bf16,d64,dv200",
          "q+v",
          { "begin_bf16", "bf16_d256_values", "bf16_d256_keys", "finish_bf16" },
          64 },
        { "f16,d256", "v", { "begin_f16", "f16_d256_values" }, 256 },
        { "f16,d64", "sinks", { "begin_f16", "softmax_bwd_sinks" }, 64 },
    };
    attn_target t = target_of("cuda");
    char text[128];
    attn_problem p;
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int64_t rows = 2 * 4 * 100;
        int n = 0;

        snprintf(text, sizeof text, "softmax_bwd:%s%s%s", cases[i].fields, more,
                 cases[i].grads);
        check_ok(attn_problem_parse(&p, text));
        check_ok(attn_choose(&p, &t, &named, &c));
        for (; n < 5 && cases[i].kernel[n]; n++) {
            const char *const prefix = "softmax_bwd_mma_", *name = c.step[n].kernel;

            if (!strncmp(name, prefix, strlen(prefix)))
                name += strlen(prefix);
            assert_string_equal(name, cases[i].kernel[n]);
            assert_true(c.step[n].fast_bytes <= t.caps.fast_bytes);
        }
        assert_int_equal(c.n_steps, n);
        assert_int_equal(c.step[0].grad, 0);
        assert_int_equal(c.workspace_bytes,
                         4 * (3 * rows + 4 + rows * cases[i].pitch + 2 * 4 * 4));
        t.caps.capability = 80;
        check_ok(attn_choose(&p, &t, NULL, &c));
        assert_string_equal(c.variant->name, "softmax_bwd_mma");
        t.caps.capability = 90;
    }
    check_ok(attn_problem_parse(&p, PROBLEM));
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "softmax_bwd_mma: takes f16 and bf16, not f32");
    check_ok(attn_problem_parse(&p, "softmax_bwd:f16,b1,hq1,hkv1,lq9,lk9,d256,grad=k"));
    t.caps.fast_bytes = 163 * 1024; /* compute capability 8.0 */
    check_ok(attn_choose(&p, &t, &named, &c));
    assert_string_equal(c.step[1].kernel, "softmax_bwd_mma_f16_d256_keys_small");
    p.d = p.dv = 128;
    check_ok(attn_choose(&p, &t, &named, &c));
    assert_string_equal(c.step[1].kernel, "softmax_bwd_mma_f16_d128_both");
    t.caps.fast_bytes = 99 * 1024; /* 8.6 */
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "no tile fits the shared memory and the limit of threads");
    p.d = p.dv = 64;
    check_ok(attn_choose(&p, &t, &named, &c));
    assert_string_equal(c.step[1].kernel, "softmax_bwd_mma_f16_d64_both");
    check_ok(attn_problem_parse(&p, "softmax_bwd:f16,b1,hq1,hkv1,lq9,lk9,d64,dropout=0.5,"
                                    "grad=k"));
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_bwd_mma");
    assert_string_equal(c.step[1].kernel, "softmax_bwd_mma_f16_d64_both_all");
    check_ok(attn_problem_parse(&p, "softmax_bwd:bf16,b1,hq1,hkv1,lq9,lk9,d64,softcap=9,"
                                    "bias=f32,sinks,grad=k+bias+sinks"));
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_bwd_mma");
    assert_int_equal(c.n_steps, 4);
    assert_string_equal(c.step[1].kernel, "softmax_bwd_mma_bf16_d64_both_all");
    assert_string_equal(c.step[2].kernel, "softmax_bwd_tile_bias_bf16_d64");
    check_ok(attn_problem_parse(&p, "softmax_bwd:f16,b1,hq1,hkv1,lq9,lk9,d64,grad=k"));
    t.caps.max_alloc_bytes = 4 * 9 * 64;
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "a workspace of f32 sums for dQ exceeds the device's memory");
    t.caps.capability = 75;
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "wants compute capability 8.0 or more");
}

/* Hopper has a kernel of its own, for what the copy engine or chunks of 16 bytes can bring; the
 * rest goes where it went before. */
static void hopper_takes_warpgroups(void **state)
{
    static const char *const pass = "softmax_bwd_wgmma_";
    static const struct {
        const char *fields, *kernel;
        int n_steps;
    } taken[] = {
        { "f16,b2,hq4,hkv2,lq100,lk120,d64,grad=q+k+v", "f16_d64_all", 3 },
        { "bf16,b2,hq4,hkv2,lq100,lk120,d64,dv72,causal,grad=q", "bf16_d128_queries", 3 },
        { "f16,b1,hq1,hkv1,lq9,lk9,d64,sinks,grad=q+sinks", "f16_d64_queries", 4 },
        { "f16,b1,hq1,hkv1,lq9,lk9,d64,grad=q+v", "f16_d64_all", 3 },
        { "bf16,b1,hq1,hkv1,lq9,lk9,d128,window=3:0,grad=k", "bf16_d128_keys", 2 },
        { "f16,b1,hq1,hkv1,lq9,lk9,d8,sinks,grad=v+sinks", "f16_d64_keys", 3 },
    };
    static const struct {
        const char *fields, *why;
    } refused[] = {
        { "f32,b1,hq1,hkv1,lq9,lk9,d64,grad=k", "takes f16 and bf16, not f32" },
        { "f16,b1,hq1,hkv1,lq9,lk9,d60,grad=k", "D or Dv is no multiple of 8" },
        { "f16,b1,hq1,hkv1,lq9,lk9,d64,grad=k,layout=8",
          "wants q, k, v and the gradient of o at addresses and strides that are "
          "multiples" },
        { "f16,b1,hq1,hkv1,lq9,lk9,d64,mask,grad=k", "does not take \"mask\"" },
        { "bf16,b1,hq1,hkv1,lq9,lk9,d64,scale=-2.4e38,grad=k",
          "takes logarithms to base 2, where a scale beyond 2^127 overflows" },
    };
    const attn_options named = { .size = sizeof named, .variant = "softmax_bwd_wgmma" };
    attn_target t = target_of("cuda");
    char text[128];
    attn_problem p;
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        snprintf(text, sizeof text, "softmax_bwd:%s", taken[i].fields);
        check_ok(attn_problem_parse(&p, text));
        check_ok(attn_choose(&p, &t, NULL, &c));
        assert_string_equal(c.variant->name, "softmax_bwd_wgmma");
        assert_int_equal(c.n_steps, taken[i].n_steps);
        assert_memory_equal(c.step[1].kernel, pass, strlen(pass));
        assert_string_equal(c.step[1].kernel + strlen(pass), taken[i].kernel);
        assert_int_equal(c.step[1].box_q, c.step[1].tile_q);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        snprintf(text, sizeof text, "softmax_bwd:%s", refused[i].fields);
        check_ok(attn_problem_parse(&p, text));
        check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED, refused[i].why);
        check_ok(attn_choose(&p, &t, NULL, &c));
    }
    check_ok(
        attn_problem_parse(&p, "softmax_bwd:f16,b1,hq1,hkv1,lq9,lk9,d64,dv136,grad=q"));
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_bwd_wgmma");
    assert_string_equal(c.step[1].kernel, "softmax_bwd_wgmma_f16_d256_queries");
    check_ok(attn_problem_parse(&p, "softmax_bwd:f16,b1,hq1,hkv1,lq9,lk9,d264,grad=k"));
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "D or Dv is over 256");
    check_ok(attn_problem_parse(&p, "softmax_bwd:f16,b1,hq1,hkv1,lq9,lk9,d64,grad=k"));
    t.caps.fast_bytes = 99 * 1024;
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED, "does not fit");
    t.caps.capability = 100;
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "wants compute capability 9.0");
}

/* On the host: by tiles, of which the rows follow from the head sizes alone, in memory that
 * grows with the length; and what is too wide for tiles by plain loops. */
static void the_host_takes_tiles(void **state)
{
    const attn_target t = target_of("host");
    attn_problem p, other;
    attn_choice c, alone, longer;

    (void)state;
    check_ok(attn_problem_parse(&p, PROBLEM));
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_bwd_tile");
    other = p;
    other.b = 64;
    other.hq = other.hkv = 16;
    check_ok(attn_choose(&other, &t, NULL, &alone));
    assert_int_equal(alone.step[0].tile_k, c.step[0].tile_k);
    other = p;
    other.lq = other.lk = 1 << 20;
    check_ok(attn_choose(&other, &t, NULL, &longer));
    assert_true(longer.workspace_bytes < c.workspace_bytes +
                                             16 * longer.step[0].scratch_bytes +
                                             4 * p.b * p.hq * other.lq);

    other = p;
    other.d = 5000;
    check_ok(attn_choose(&other, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_bwd_reference");
    other = p;
    other.features |= ATTN_FEAT_PAGES;
    other.page_size = 16;
    check_error(attn_choose(&other, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "softmax_bwd_tile: does not take \"pages\"");
    other.features = p.features;
    check_error(attn_choose(&other, &t,
                            &(attn_options){ .size = sizeof(attn_options),
                                             .variant = "softmax_fwd_tile" },
                            &c),
                ATTN_ERR_INVALID,
                "want one of host's: softmax_bwd_tile, softmax_bwd_reference");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(passes_are_apart),
        cmocka_unit_test(devices_without_gradients_say_so),
        cmocka_unit_test(opencl_takes_steps),
        cmocka_unit_test(opencl_takes_vectors_on_processors),
        cmocka_unit_test(opencl_takes_products_of_wide_heads),
        cmocka_unit_test(cuda_takes_steps),
        cmocka_unit_test(cuda_takes_f32_in_one_pass),
        cmocka_unit_test(cuda_tensor_cores_take_one_pass),
        cmocka_unit_test(hopper_takes_warpgroups),
        cmocka_unit_test(the_host_takes_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
