/* SPDX-License-Identifier: MIT */
/* tests/planner_cuda_tensor.c: what is planned for tensor cores: ours, and cuDNN's. */
#include "tests/planner_cuda.h"

/* Which class of head sizes, and which instance, the tensor cores take. */
static void which_instance_of_the_tensor_cores(void **state)
{
    static const struct {
        int device;
        const char *problem, *kernel;
        int tile_q, tile_k;
    } cases[] = {
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d64", "f16_d64_plain", 128, 128 },
        { 3, "softmax_fwd:bf16,b1,hq1,hkv1,lq999,lk999,d40,dv64,lse", "bf16_d64_plain", 128,
          128 },
        { 3, "softmax_fwd:bf16,b1,hq1,hkv1,lq999,lk999,d72,causal", "bf16_d96_ranges", 128,
          64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d64,dv128,window=9:0",
          "f16_d128_ranges", 128, 64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,lens", "f16_d128_ranges", 128,
          64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,sinks", "f16_d128_ranges", 128,
          64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,packed", "f16_d128_ranges", 128,
          64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,mask", "f16_d128_all", 128, 64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,pages=16", "f16_d128_all", 128,
          64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,softcap=9", "f16_d128_all", 128,
          64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,dropout=0.5", "f16_d128_all",
          128, 64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d100", "f16_d128_plain", 128, 64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,layout=8", "f16_d128_plain", 128,
          64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d192,dv128", "f16_d192_dv128_plain",
          128, 64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,dv192", "f16_d192_plain", 128,
          64 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d200,causal", "f16_d256_ranges", 128,
          128 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d256,bias=f16", "f16_d256_all", 128,
          64 },
        { 1, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d256,bias=f16", "f16_d256_all", 64,
          32 },
        { 1, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d256", "f16_d256_plain", 128, 64 },
        { 2, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128", "f16_d128_plain", 128, 64 },
        { 2, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,mask", "f16_d128_all", 128, 64 },
        { 2, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d256", "f16_d256_all", 64, 32 },
        { 4, "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d192,causal", "f16_d192_all", 64,
          32 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c =
            plan_with(cases[i].device, cases[i].problem, "softmax_fwd_mma", 0);

        assert_string_equal(c.step[0].kernel + strlen("softmax_fwd_mma_"), cases[i].kernel);
        assert_int_equal(c.n_steps, 1);
        assert_int_equal(c.step[0].tile_q, cases[i].tile_q);
        assert_int_equal(c.step[0].tile_k, cases[i].tile_k);
        assert_true(c.step[0].fast_bytes <= made_up[cases[i].device].fast_bytes);
        assert_true(c.step[0].block <= made_up[cases[i].device].max_group);
        assert_int_equal(c.workspace_bytes, 0);
    }
}

/* Hopper's own: whatever it takes, it gets. Where tiles differ there is a counter. */
static void which_instance_of_warpgroups(void **state)
{
    static const struct {
        const char *problem, *kernel;
        int tile, tile_k;
    } cases[] = {
        { "softmax_fwd:f16,b1,hq1,hkv1,lq960,lk999,d64", "f16_d64_plain", 192, 128 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq1024,lk999,d64", "f16_d64_plain", 192, 128 },
        { "softmax_fwd:f16,b1,hq64,hkv8,lq8192,lk8192,d64", "f16_d64_plain", 192, 128 },
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq64,lk999,d40,dv64,lse", "bf16_d64_plain", 192,
          128 },
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq999,lk999,d72,causal", "bf16_d128_ranges", 192,
          64 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d64,dv128,window=9:0", "f16_d128_ranges",
          192, 64 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d128,lens,sinks", "f16_d128_ranges", 192,
          64 },
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq999,lk999,d192,dv128,packed", "bf16_d256_ranges",
          128, 64 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d256,layout=16:16:16:any",
          "f16_d256_plain", 128, 64 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq999,lk999,d64,softcap=9", "f16_d64_capped", 192,
          128 },
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq999,lk999,d128,softcap=9,causal,lens",
          "bf16_d128_capped", 192, 64 },
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq999,lk999,d128,lse", "bf16_d128_plain", 128,
          128 },
        { "softmax_fwd:bf16,b16,hq16,hkv16,lq1024,lk1024,d128", "bf16_d128_plain", 128,
          128 },
        { "softmax_fwd:bf16,b4,hq16,hkv16,lq4096,lk9999,d128,lse", "bf16_d128_plain", 128,
          128 },
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq8192,lk8192,d128,lse", "bf16_d128_tall", 192,
          64 },
        { "softmax_fwd:f16,b1,hq64,hkv8,lq8192,lk8192,d128", "f16_d128_tall", 192, 64 },
        { "softmax_fwd:f16,b1,hq64,hkv8,lq8192,lk8191,d128", "f16_d128_plain", 128, 128 },
        { "softmax_fwd:f16,b1,hq64,hkv8,lq8192,lk8192,d256", "f16_d256_plain", 128, 64 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan_with(3, cases[i].problem, NULL, 0);
        const bool ranged =
            !strstr(cases[i].kernel, "plain") && !strstr(cases[i].kernel, "tall");

        assert_string_equal(c.variant->name, "softmax_fwd_wgmma");
        assert_string_equal(c.step[0].kernel + strlen("softmax_fwd_wgmma_"),
                            cases[i].kernel);
        assert_int_equal(c.n_steps, 1);
        assert_int_equal(c.step[0].tile_q, ranged ? cases[i].tile : 64);
        assert_int_equal(c.step[0].tile_k, cases[i].tile_k);
        assert_int_equal(c.step[0].box_q, 64);
        assert_int_equal(c.step[0].resident, made_up[3].compute_units);
        assert_int_equal(c.step[0].block, 128 + 2 * cases[i].tile);
        assert_int_equal(c.step[0].counted, ranged);
        assert_int_equal(c.workspace_bytes, ranged ? 4 : 0);
        assert_true(c.step[0].fast_bytes <= made_up[3].fast_bytes);
    }
}

static void what_warpgroups_refuse(void **state)
{
    static const struct {
        int device;
        const char *problem, *reason;
    } cases[] = {
        { 2, "softmax_fwd:f16,b1,hq1,hkv1,lq9,lk9,d64", "wants compute capability 9.0" },
        { 4, "softmax_fwd:f16,b1,hq1,hkv1,lq9,lk9,d64",
          "takes no groups of so many threads" },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk9,d64", "takes f16 and bf16" },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq9,lk9,d64,dv264", "D or Dv is over 256" },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq9,lk9,d64,dv60",
          "D or Dv is no multiple of 8" },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq9,lk9,d64,layout=8", "wants q, k and v at" },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq9,lk9,d64,mask", "does not take \"mask\"" },
        { 3, "softmax_fwd:f16,b100000,hq10000,hkv1,lq1000,lk9,d64",
          "more tiles than 2^31 - 1" },
        { 3, "softmax_fwd:f16,b2147483647,hq1,hkv1,lq9,lk9,d64",
          "more tiles than 2^31 - 1 less one for each group" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_options options = { .size = sizeof options,
                                       .variant = "softmax_fwd_wgmma" };
        const attn_target t = target_of(cases[i].device);
        attn_problem p;
        attn_choice c;

        check_ok(attn_problem_parse(&p, cases[i].problem));
        check_error(attn_choose(&p, &t, &options, &c), ATTN_ERR_UNSUPPORTED,
                    cases[i].reason);
    }
}

/* A library whose nvcc_archs have no sm_90a: Hopper's own kernels say no, and the others take
 * the tiles that older code has. */
static void code_of_an_older_architecture_plans_its_tiles(void **state)
{
    static const struct {
        const char *problem, *variant, *planned;
        int64_t tile_q;
    } cases[] = {
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq256,lk256,d256", "softmax_fwd_wgmma",
          "softmax_fwd_mma", 128 },
        { "softmax_fwd:bf16,b1,hq1,hkv1,lq256,lk256,d256,bias=bf16", NULL,
          "softmax_fwd_mma", 64 },
        { "softmax_bwd:bf16,b1,hq1,hkv1,lq256,lk256,d64,grad=q+k+v", "softmax_bwd_wgmma",
          "softmax_bwd_mma", 0 },
        { "linear_fwd:f32,b1,hq1,hkv1,lq256,lk256,d64,causal", "linear_fwd_wgmma",
          "linear_fwd_chunk", 0 },
        { "linear_bwd:f32,b1,hq1,hkv1,lq256,lk256,d64,causal,grad=q+k+v",
          "linear_bwd_wgmma", "linear_bwd_chunk", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_options options = { .size = sizeof options, .variant = cases[i].variant };
        attn_target t = target_of(3);
        attn_problem p;
        attn_choice c;

        t.caps.generic_code = 1;
        check_ok(attn_problem_parse(&p, cases[i].problem));
        if (options.variant)
            check_error(attn_choose(&p, &t, &options, &c), ATTN_ERR_UNSUPPORTED,
                        "built without kernels for sm_90a");
        options.variant = NULL;
        check_ok(attn_choose(&p, &t, &options, &c));
        assert_string_equal(c.variant->name, cases[i].planned);
        if (cases[i].tile_q)
            assert_int_equal(c.step[0].tile_q, cases[i].tile_q);
    }
}

static void what_the_tensor_cores_refuse(void **state)
{
    static const struct {
        int device;
        const char *problem, *reason;
    } cases[] = {
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk2049,d129",
          "D or Dv over 128 leave no registers for the sums of so many keys in f32" },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk9,d64,scale=-1e10", "so large a scale" },
        { 0, "softmax_fwd:f16,b1,hq1,hkv1,lq9,lk9,d64",
          "wants compute capability 8.0 or more" },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq9,lk9,d64,dv257", "D or Dv is over 256" },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq2147483647,lk9,d64",
          "the tiles of so many queries or keys end beyond 2^31 - 1" },
        { 3, "softmax_fwd:f16,b100000,hq10000,hkv1,lq1000,lk9,d64",
          "more groups than a grid can have, 2^31 - 1" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_options options = { .size = sizeof options,
                                       .variant = "softmax_fwd_mma" };
        const attn_target t = target_of(cases[i].device);
        attn_problem p;
        attn_choice c;

        check_ok(attn_problem_parse(&p, cases[i].problem));
        check_error(attn_choose(&p, &t, &options, &c), ATTN_ERR_UNSUPPORTED,
                    cases[i].reason);
    }
}

/* cuDNN: one step, the planned sizes with it, a workspace that no device has to be asked
 * for; and never chosen. */
static void cudnn_step(void **state)
{
    static const struct {
        const char *problem;
        int64_t o_bytes;
    } cases[] = {
        { "softmax_fwd:f16,b2,hq8,hkv2,lq70,lk90,d64,dv128,causal", 0 },
        { "softmax_fwd:bf16,b2,hq8,hkv2,lq70,lk90,d64,dv128,lse", 2 * 8 * 70 * 128 * 2 },
        { "softmax_fwd:bf16,b2,hq8,hkv2,lq70,lk90,d256,causal,align=br,lse",
          2 * 8 * 70 * 256 * 2 },
    };

    (void)state;
    for (int i = 1; i < N_DEVICES; i++)
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            const attn_choice c = plan_with(i, cases[k].problem, "softmax_fwd_cudnn", 0);
            const attn_step *s = &c.step[0];

            assert_int_equal(c.n_steps, 1);
            assert_string_equal(s->kernel, "cudnn_attention");
            assert_int_equal(s->block, 1);
            assert_int_equal(s->b, 2);
            assert_int_equal(s->hq, 8);
            assert_int_equal(s->hkv, 2);
            assert_int_equal(s->lq, 70);
            assert_int_equal(s->lk, 90);
            assert_int_equal(s->scratch_bytes, 32 << 20);
            assert_int_equal(c.workspace_bytes, (32 << 20) + 256 + cases[k].o_bytes);
            assert_string_not_equal(plan_with(i, cases[k].problem, NULL, 0).variant->name,
                                    "softmax_fwd_cudnn");
        }
}

static void what_cudnn_refuses(void **state)
{
    static const struct {
        const char *problem, *says;
        int64_t version;
        int device;
    } cases[] = {
#define GOOD "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk9,d64"
        { GOOD, "cuDNN 9 was not found", 0, 3 },
        { GOOD, "older than 9.11", 91002, 3 },
        { GOOD, "begins at compute capability 8.0", 91900, 0 },
        { "softmax_fwd:f32,b1,hq2,hkv2,lq9,lk9,d64", "takes f16 and bf16", 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk9,d60", "no multiple of 8", 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk9,d64,dv20", "no multiple of 8", 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk9,d264", "over 256", 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk9,d64,dv512", "over 256", 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq0,lk9,d64", "not empty", 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk0,d64", "not empty", 91900, 3 },
        { GOOD ",causal,align=br", NULL, 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk8,d64,causal", NULL, 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk8,d64,causal,align=br", "rows without a key",
          91900, 3 },
        { GOOD ",scale=0", "scale is not positive", 91900, 3 },
        { GOOD ",scale=-1", "scale is not positive", 91900, 3 },
        { GOOD ",layout=8", "multiples of 16 bytes", 91900, 3 },
        { GOOD ",window=3:3", "does not take \"window\"", 91900, 3 },
        { GOOD ",softcap=5", "does not take \"softcap\"", 91900, 3 },
        { GOOD ",lens", "does not take \"lens\"", 91900, 3 },
        { GOOD ",dropout=0.5", "does not take \"dropout\"", 91900, 3 },
        { "softmax_fwd:f16,b1,hq2,hkv2,lq9,lk2147483000,d64", "can be counted", 91900, 3 },
        { "softmax_fwd:f16,b100000,hq1000,hkv1,lq1000,lk1,d64,lse", "no room", 91900, 3 },
#undef GOOD
    };
    const attn_options by_name = { .size = sizeof by_name, .variant = "softmax_fwd_cudnn" };
    attn_problem p;
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_target t = target_of(cases[i].device);

        t.caps.cudnn_version = cases[i].version;
        check_ok(attn_problem_parse(&p, cases[i].problem));
        if (cases[i].says)
            check_error(attn_choose(&p, &t, &by_name, &c), ATTN_ERR_UNSUPPORTED,
                        cases[i].says);
        else
            check_ok(attn_choose(&p, &t, &by_name, &c));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_instance_of_the_tensor_cores),
        cmocka_unit_test(which_instance_of_warpgroups),
        cmocka_unit_test(what_warpgroups_refuse),
        cmocka_unit_test(code_of_an_older_architecture_plans_its_tiles),
        cmocka_unit_test(what_the_tensor_cores_refuse),
        cmocka_unit_test(cudnn_step),
        cmocka_unit_test(what_cudnn_refuses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
