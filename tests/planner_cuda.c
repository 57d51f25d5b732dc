/* SPDX-License-Identifier: MIT */
/* tests/planner_cuda.c: what is planned for CUDA devices, those nobody here owns too. */
#include "tests/planner_cuda.h"

/* Any D and Dv to 256, on any device: a plan, within its limits, whose kernel is named
 * after the type and the class of its dimensions. */
static void every_plan_fits(void **state)
{
    static const int64_t dims[] = { 1, 3, 40, 63, 64, 65, 80, 128, 129, 192, 255, 256 };
    static const int64_t lens[] = { 1, 33, 64, 65, 1000, 65536 };
    static const char *const types[] = { "f32", "f16", "bf16" };

    (void)state;
    for (int i = 0; i < N_DEVICES; i++)
        for (size_t k = 0; k < 12 * 12 * 6 * 3; k++) {
            const int64_t d = dims[k % 12], dv = dims[k / 12 % 12], most = attn_max(d, dv);
            const char *const type = types[k / 864 % 3];
            char text[256], name[64];
            attn_choice c;

            snprintf(text, sizeof text,
                     "softmax_fwd:%s,b2,hq4,hkv2,lq%lld,lk777,d%lld,dv%lld", type,
                     (long long)lens[k / 144 % 6], (long long)d, (long long)dv);
            snprintf(name, sizeof name, "softmax_fwd_tile_%s_d%d_", type,
                     most <= 64    ? 64
                     : most <= 128 ? 128
                                   : 256);
            c = plan(i, text);
            assert_int_equal(c.n_steps, 1);
            assert_int_equal(strncmp(c.step[0].kernel, name, strlen(name)), 0);
            assert_true(c.step[0].fast_bytes <= made_up[i].fast_bytes);
            assert_true(c.step[0].block <= made_up[i].max_group);
            assert_int_equal(c.step[0].block % 32, 0);
            assert_int_equal(c.workspace_bytes > 0, c.step[0].slots > 0);
            assert_true(strlen(c.instance) < sizeof c.instance - 1);
        }
}

static void which_instance(void **state)
{
    static const struct {
        int device;
        const char *problem, *kernel;
        int tile_q;
    } cases[] = {
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d64", "f32_d64_ranges", 128 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d128,causal", "f32_d128_ranges",
          128 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq4096,lk4096,d256,sinks,lens", "f16_d256_ranges",
          64 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk8193,d64", "f32_d64_long", 128 },
        { 3, "softmax_fwd:f16,b1,hq1,hkv1,lq4096,lk8193,d64", "f16_d64_ranges", 128 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d64,packed", "f32_d64_ranges",
          128 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d64,mask", "f32_d64_all", 128 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d64,pages=16", "f32_d64_all", 128 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d64,softcap=9", "f32_d64_all",
          128 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d64,dropout=0.5", "f32_d64_all",
          128 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq64,lk4096,d64", "f32_d64_small", 32 },
        { 3, "softmax_fwd:f32,b1,hq1,hkv1,lq65,lk4096,d64", "f32_d64_ranges", 128 },
        { 1, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d64", "f32_d64_ranges", 128 },
        { 1, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d128", "f32_d128_small", 32 },
        { 2, "softmax_fwd:f32,b1,hq1,hkv1,lq4096,lk4096,d64", "f32_d64_small", 32 },
        { 0, "softmax_fwd:bf16,b1,hq1,hkv1,lq4096,lk4096,d256", "bf16_d256_small", 32 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan(cases[i].device, cases[i].problem);

        assert_string_equal(c.step[0].kernel + strlen("softmax_fwd_tile_"),
                            cases[i].kernel);
        assert_int_equal(c.step[0].tile_q, cases[i].tile_q);
    }
}

/* Whole tiles of the same keys, more than run at a time: the last may be cut. */
static void when_tiles_are_cut(void **state)
{
    static const struct {
        int device;
        const char *problem;
        int64_t slots, floats; /* of a tile's sums */
    } cases[] = {
        { 3, "softmax_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d128", 132, 128 * (128 + 3) },
        { 3, "softmax_fwd:f32,b4,hq16,hkv16,lq4096,lk8193,d128", 132, 128 * (192 + 3) },
        { 3, "softmax_fwd:f16,b4,hq16,hkv16,lq4096,lk4096,d64", 264, 128 * (64 + 3) },
        { 3, "softmax_fwd:bf16,b4,hq16,hkv16,lq4096,lk9000,d256,lse", 132, 64 * (256 + 3) },
        { 1, "softmax_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d64", 108, 128 * (64 + 3) },
        { 3, "softmax_fwd:f32,b1,hq4,hkv4,lq4096,lk4096,d128", 0, 0 },
        { 3, "softmax_fwd:f32,b1,hq5,hkv1,lq4096,lk4096,d128", 132, 128 * (128 + 3) },
        { 3, "softmax_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d128,causal", 0, 0 },
        { 3, "softmax_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d128,window=9:-1", 0, 0 },
        { 3, "softmax_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d128,lens", 0, 0 },
        { 3, "softmax_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d128,packed", 0, 0 },
        { 3, "softmax_fwd:f32,b4,hq16,hkv16,lq4096,lk4096,d128,mask", 0, 0 },
        { 3, "softmax_fwd:f32,b64,hq16,hkv16,lq64,lk4096,d128", 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan(cases[i].device, cases[i].problem);
        const int64_t slots = cases[i].slots, counters = slots / 4 * 4 + 4;

        assert_int_equal(c.step[0].slots, slots);
        assert_int_equal(c.workspace_bytes,
                         slots ? 4 * (counters + slots * cases[i].floats) : 0);
    }
}

/* Four elements at once only where the layout and the row allow it. */
static void wide_rows(void **state)
{
    static const struct {
        const char *problem;
        int q, o;
    } cases[] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq99,lk99,d64", 1, 1 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq99,lk99,d64,layout=8", 0, 0 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq99,lk99,d64,layout=8", 1, 1 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq99,lk99,d64,layout=4", 0, 0 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq99,lk99,d62,dv64", 0, 1 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq99,lk99,d64,dv5", 1, 0 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq99,lk99,d64,layout=any", 0, 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan(3, cases[i].problem);

        assert_int_equal(define(&c.step[0], "WIDE_Q"), cases[i].q);
        assert_int_equal(define(&c.step[0], "WIDE_O"), cases[i].o);
    }
}

/* B and H change neither the kernel nor the tile: a row gives the same bits alone and in
 * a batch. Whether tiles are cut does not change them. */
static void plans_do_not_depend_on_batch_or_heads(void **state)
{
    (void)state;
    for (int i = 0; i < N_DEVICES; i++) {
        const attn_choice a = plan(i, "softmax_fwd:f32,b1,hq1,hkv1,lq300,lk300,d64");
        attn_choice b = plan(i, "softmax_fwd:f32,b64,hq32,hkv8,lq300,lk300,d64");
        const attn_choice c = plan_with(i, "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk9000,d64",
                                        "softmax_fwd_split", 0);
        const attn_choice d = plan_with(i, "softmax_fwd:f16,b64,hq4,hkv4,lq1,lk9000,d64",
                                        "softmax_fwd_split", 0);

        b.step[0].slots = a.step[0].slots;
        b.workspace_bytes = a.workspace_bytes;
        assert_memory_equal(&a, &b, sizeof a);
        assert_memory_equal(&c.step[0], &d.step[0], sizeof c.step[0]);
        assert_int_equal(c.splits, d.splits); /* the merge may be wide: the same bits */
    }
}

/* On tensor cores bits do not follow from the pieces, if those are nodes of the tree: then
 * few heads have small ones, for groups on all of the device. */
static void nodes_of_a_tree(void **state)
{
    static const struct {
        const char *problem;
        int64_t piece, share;
    } cases[] = {
        { "softmax_fwd:bf16,b1,hq32,hkv8,lq1,lk8192,d128", 256, 256 },
        { "softmax_fwd:bf16,b3,hq32,hkv8,lq1,lk8192,d128", 256, 768 },
        { "softmax_fwd:bf16,b8,hq32,hkv8,lq1,lk8192,d128", 1024, 2048 },
        { "softmax_fwd:bf16,b8,hq32,hkv8,lq1,lk8192,d256", 1024, 1024 },
        { "softmax_fwd:bf16,b64,hq32,hkv8,lq1,lk8192,d128", 16384, 16384 },
        { "softmax_fwd:bf16,b1,hq32,hkv8,lq1,lk131072,d128", 4096, 4096 },
        { "softmax_fwd:bf16,b64,hq32,hkv8,lq1,lk8192,d256", 16384, 16384 },
        { "softmax_fwd:bf16,b64,hq32,hkv8,lq4,lk8192,d128", 4096, 4096 },
        { "softmax_fwd:bf16,b64,hq32,hkv8,lq1,lk8192,d128,lens", 1024, 1024 },
    };
    static const char asked[] = "softmax_fwd:f16,b1,hq8,hkv2,lq1,lk9000,d64";
    static const int64_t splits[][2] = {
        { 1, 16384 }, { 5, 4096 }, { 9, 1024 }, { 36, 256 }
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan_with(3, cases[i].problem, "softmax_fwd_split_mma", 0);

        assert_int_equal(c.step[0].piece, cases[i].piece);
        assert_int_equal(c.step[0].share, cases[i].share);
        assert_int_equal(c.step[0].ends, cases[i].piece > 8192);
        assert_int_equal(c.n_steps, c.step[0].ends ? 1 : 2);
        assert_int_equal(c.step[1].merges, c.step[0].ends ? 0 : cases[i].piece);
        assert_int_equal(c.workspace_bytes > 0, !c.step[0].ends);
    }
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        const attn_choice c = plan_with(3, asked, "softmax_fwd_split_mma", splits[i][0]);

        assert_int_equal(c.step[0].piece, splits[i][1]);
        assert_true(c.splits <= splits[i][0]);
    }
}

/* Few queries of many keys: pieces; which instance, and how long the pieces are. */
static void what_is_split(void **state)
{
    static const struct {
        int device;
        const char *problem, *kernel; /* "" : no split */
        int tile_q, piece;
    } cases[] = {
        { 3, "softmax_fwd:bf16,b1,hq32,hkv8,lq1,lk8192,d128", "split_mma_bf16_d128_plain",
          8, 256 },
        { 3, "softmax_fwd:bf16,b1,hq32,hkv8,lq1,lk8192,d128,lens",
          "split_mma_bf16_d128_ranges", 8, 256 },
        { 3, "softmax_fwd:f16,b1,hq32,hkv8,lq1,lk1024,d64,softcap=9",
          "split_mma_f16_d64_all", 8, 256 },
        { 3, "softmax_fwd:f16,b1,hq32,hkv8,lq2,lk4096,d64", "split_mma_f16_d64_plain", 8,
          256 },
        { 3, "softmax_fwd:f16,b1,hq32,hkv8,lq1,lk4096,d60", "split_mma_f16_d64_ranges", 8,
          256 },
        { 3, "softmax_fwd:f16,b1,hq32,hkv8,lq3,lk4096,d64,pages=16",
          "split_mma_f16_d64_all_many", 16, 256 },
        { 3, "softmax_fwd:f16,b1,hq32,hkv8,lq8,lk131072,d200", "split_mma_f16_d256_plain",
          8, 16384 },
        { 3, "softmax_fwd:bf16,b1,hq32,hkv8,lq1,lk8192,d128,mask", "split_bf16_d128_all", 4,
          512 },
        { 3, "softmax_fwd:f32,b1,hq32,hkv8,lq8,lk1048576,d128", "split_f32_d128_ranges", 4,
          8192 },
        { 0, "softmax_fwd:f16,b1,hq32,hkv8,lq1,lk8192,d128", "split_f16_d128_ranges", 4,
          512 },
        { 2, "softmax_fwd:f16,b1,hq32,hkv8,lq1,lk8192,d128", "split_mma_f16_d128_plain", 8,
          1024 },
        { 3, "softmax_fwd:f32,b1,hq32,hkv8,lq1,lk255,d128", "tile_f32_d128_small", 32, 0 },
        { 3, "softmax_fwd:f32,b1,hq32,hkv8,lq9,lk8192,d128", "tile_f32_d128_small", 32, 0 },
        { 4, "softmax_fwd:f32,b1,hq32,hkv8,lq1,lk8192,d128", "split_f32_d128_ranges", 4,
          512 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan_with(cases[i].device, cases[i].problem, NULL, 0);

        assert_string_equal(c.step[0].kernel + strlen("softmax_fwd_"), cases[i].kernel);
        assert_int_equal(c.step[0].tile_q, cases[i].tile_q);
        assert_int_equal(c.step[0].piece, cases[i].piece);
        assert_int_equal(c.n_steps, cases[i].piece ? 2 : 1);
        assert_int_equal(c.step[c.n_steps - 1].piece, c.n_steps > 1 ? 0 : cases[i].piece);
        assert_true(c.step[0].fast_bytes <= made_up[cases[i].device].fast_bytes);
        assert_int_equal(c.workspace_bytes > 0, cases[i].piece > 0);
    }
}

static void pieces_as_asked(void **state)
{
    static const int64_t splits[] = { 1, 2, 3, 7, 64, 4096 };
    static const char problem[] = "softmax_fwd:bf16,b3,hq8,hkv2,lq3,lk5000,d64";

    (void)state;
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        const attn_choice c = plan_with(3, problem, "softmax_fwd_split", splits[i]);

        assert_true(c.splits <= splits[i]);
        assert_int_equal(c.splits, attn_ceil_div(5000, c.step[0].piece));
        assert_int_equal(c.step[0].piece % 64, 0);
        assert_true(c.workspace_bytes >= 3 * 8 * 3 * c.splits * (64 + 2) * 4);
    }
}

/* Sixteen bytes at once only where the layout and the row allow it. */
static void whole_rows(void **state)
{
    static const struct {
        const char *problem;
        int k, v;
    } cases[] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk999,d64", 1, 1 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk999,d64,layout=8", 0, 0 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk999,d66,dv60", 0, 1 },
        { "softmax_fwd:f16,b1,hq1,hkv1,lq1,lk999,d60,dv64", 0, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan_with(3, cases[i].problem, NULL, 0);

        assert_int_equal(define(&c.step[0], "WHOLE_K"), cases[i].k);
        assert_int_equal(define(&c.step[0], "WHOLE_V"), cases[i].v);
    }
}

/* Packing, two products, the softmax between them: whatever tiles refuse for its size. */
static void heads_of_any_size(void **state)
{
    static const char *const kernels[] = {
        "softmax_fwd_math_pack_f16_q", "softmax_fwd_math_pack_f16_k",
        "softmax_fwd_math_pack_f16_v", "cublas_scores",
        "softmax_fwd_math_softmax",    "cublas_output",
        "softmax_fwd_math_unpack_f16",
    };
    static const char problem[] = "softmax_fwd:f16,b2,hq8,hkv2,lq70,lk90,d576,dv512";

    (void)state;
    for (int i = 0; i < N_DEVICES; i++) {
        const attn_choice c = plan_with(i, problem, NULL, 0);

        assert_string_equal(c.variant->name, "softmax_fwd_math");
        assert_int_equal(c.n_steps, 7);
        for (int k = 0; k < 7; k++) {
            assert_string_equal(c.step[k].kernel, kernels[k]);
            assert_true(c.step[k].block <= made_up[i].max_group);
            assert_int_equal(c.step[k].round_heads, 16);
            assert_int_equal(c.step[k].round_queries, 70);
        }
        /* the matrices, and room for cuBLAS at a multiple of 256 bytes */
        assert_int_equal(c.workspace_bytes,
                         4 * (16 * 70 * (576 + 90 + 512 + 1) + 4 * 90 * (576 + 512)) +
                             (4 << 20) + 256);
        assert_int_equal(c.step[3].scratch_bytes, 4 << 20);
    }
}

/* Gradients likewise, behind delta; that of a bias before the cap, where there is one. */
static void gradients_of_any_size(void **state)
{
    static const char *const kernels[] = {
        "softmax_bwd_delta_f16",
        "softmax_bwd_math_pack_f16_q",
        "softmax_bwd_math_pack_f16_k",
        "cublas_bwd_scores",
        "softmax_bwd_math_weights_plain",
        "softmax_bwd_math_bias",
        "cublas_bwd_scores",
        "softmax_bwd_math_weights_capped",
        "cublas_bwd_q",
        "softmax_bwd_math_unpack_f16_q",
        "cublas_bwd_kv",
        "softmax_bwd_math_unpack_f16_k",
        "softmax_bwd_sinks",
    };
    enum { N = sizeof kernels / sizeof kernels[0] };
    static const char problem[] =
        "softmax_bwd:f16,b2,hq4,hkv2,lq70,lk90,d300,dv20,softcap=9,"
        "bias=f32,sinks,grad=q+k+v+bias+sinks";
    const attn_options named = { .size = sizeof named, .variant = "softmax_bwd_math" };
    attn_choice c = plan_with(3, problem, NULL, 0);
    attn_target t = target_of(3);
    attn_problem p;

    (void)state;
    assert_string_equal(c.variant->name, "softmax_bwd_math");
    assert_int_equal(c.n_steps, N);
    for (int i = 0; i < N; i++) {
        assert_string_equal(c.step[i].kernel, kernels[i]);
        assert_int_equal(c.step[i].round_heads, 8);
        assert_int_equal(c.step[i].round_queries, 70);
    }
    assert_int_equal(c.step[4].grad, ATTN_GRAD_BIAS);
    assert_int_equal(c.step[11].over, ATTN_OVER_KEYS);
    assert_int_equal(c.workspace_bytes, 4 * (8 * 70 + 8 * 70 * (3 * 300 + 20 + 2 * 90) +
                                             4 * 90 * (3 * 300 + 2 * 20)) +
                                            (4 << 20) + 256);
    c = plan_with(3, "softmax_bwd:f32,b1,hq4,hkv2,lq50000,lk60000,d300,grad=k", NULL, 0);
    assert_int_equal(c.step[0].round_heads, 2); /* those that share keys */
    assert_true(c.step[0].round_queries < 50000);

    check_ok(attn_problem_parse(&p, problem));
    t.caps.max_group = 128;
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "no group of 256 threads");
    t.caps.blas = 0;
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "softmax_bwd_math: cuBLAS was not found");
    t = target_of(3);
    p.b = 1 << 20;
    p.lq = 50000;
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "more groups than a grid can have, 2^31 - 1");
    p.features |= ATTN_FEAT_DROPOUT;
    check_error(attn_choose(&p, &t, &named, &c), ATTN_ERR_UNSUPPORTED,
                "does not take \"dropout\"");
}

/* Heads and queries of a round: within 256 MiB as long as one query is, 2^31 elements and
 * 65535 pairs. */
static void rounds(void **state)
{
    static const struct {
        const char *problem;
        int64_t heads, queries;
    } cases[] = {
        { "softmax_fwd:f32,b1,hq64,hkv64,lq8192,lk8192,d512", 1, 4096 },
        { "softmax_fwd:f32,b1,hq64,hkv8,lq1024,lk1024,d512", 16, 1024 },
        { "softmax_fwd:f32,b1,hq64,hkv1,lq8192,lk8192,d512", 64, 64 },
        { "softmax_fwd:f32,b1,hq64,hkv1,lq64,lk1000000,d512", 64, 1 },
        { "softmax_fwd:f32,b100000,hq1,hkv1,lq1,lk1,d1,dv257", 50000, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan_with(3, cases[i].problem, NULL, 0);

        for (int k = 0; k < c.n_steps; k++) {
            assert_int_equal(c.step[k].round_heads, cases[i].heads);
            assert_int_equal(c.step[k].round_queries, cases[i].queries);
        }
    }
}

static void what_is_refused(void **state)
{
    static const struct {
        const char *problem, *says;
        int32_t blas;
    } cases[] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk9,d257", "tile: D or Dv is over 256", 0 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk9,d257", "cuBLAS was not found", 0 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk9,d8,dv512", "tile: D or Dv is over 256", 0 },
        { "softmax_fwd:f32,b1000000,hq1000000,hkv1,lq9,lk9,d8", "groups than a grid", 1 },
        { "softmax_fwd:f32,b1000000,hq1000000,hkv1,lq9,lk9,d8", "heads of all batches", 1 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk3000000,d512", "2^31 elements", 1 },
    };
    attn_target t = target_of(3);
    attn_problem p;
    attn_choice c;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        t.caps.blas = cases[i].blas;
        check_ok(attn_problem_parse(&p, cases[i].problem));
        check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED, cases[i].says);
    }
    check_ok(attn_problem_parse(&p, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk9,d64"));
    t.caps.fast_bytes = 16 * 1024;
    t.caps.max_group = 64;
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED, "tile: no tile fits");
    check_error(attn_choose(&p, &t, NULL, &c), ATTN_ERR_UNSUPPORTED,
                "math: the device runs no group of 128 threads");
}

/* Each step is a kernel of the type's image; those that read scores which were copied say
 * so. */
static void naive_steps(void **state)
{
    static const struct {
        const char *kernel;
        int tile_q, piece, copied;
    } steps[] = {
        { "softmax_fwd_naive_bf16_product", 1, 64, 0 },
        { "softmax_fwd_naive_bf16_copy", 1, 64, 0 },
        { "softmax_fwd_naive_bf16_scale", 1, 64, 1 },
        { "softmax_fwd_naive_bf16_mask", 1, 64, 1 },
        { "softmax_fwd_naive_bf16_softmax", 64, 0, 1 },
        { "softmax_fwd_naive_bf16_output", 1, 0, 1 },
    };
    const char *const problem = "softmax_fwd:bf16,b2,hq4,hkv2,lq33,lk777,d80,causal";

    (void)state;
    for (int copy = 0; copy < 2; copy++)
        for (int i = 0; i < N_DEVICES; i++) {
            const attn_choice c = plan_with(
                i, problem, copy ? "softmax_fwd_naive_copy" : "softmax_fwd_naive", 0);
            const attn_step *step = c.step;

            assert_int_equal(c.n_steps, 5 + copy);
            for (int k = 0; k < 6; k++) {
                if (k == 1 && !copy)
                    continue;
                assert_string_equal(step->kernel, steps[k].kernel);
                assert_int_equal(step->tile_q, steps[k].tile_q);
                assert_int_equal(step->piece, steps[k].piece);
                assert_int_equal(define(step, "COPY"), copy && steps[k].copied);
                assert_int_equal(step->block, 64);
                assert_int_equal(step->fast_bytes, 0);
                step++;
            }
            assert_int_equal(c.workspace_bytes, (1 + copy) * 2 * 4 * 33 * 777 * 2);
        }
}

/* Scores beyond 256 MiB are computed in rounds: of whole heads, else of queries of one. */
static void naive_rounds(void **state)
{
    static const struct {
        const char *problem, *variant;
        int64_t heads, queries;
    } cases[] = {
        { "softmax_fwd:f32,b2,hq8,hkv8,lq4096,lk4096,d64", "softmax_fwd_naive", 4, 4096 },
        { "softmax_fwd:f32,b2,hq8,hkv8,lq4096,lk4096,d64", "softmax_fwd_naive_copy", 2,
          4096 },
        { "softmax_fwd:f16,b1,hq2,hkv1,lq65536,lk65536,d64", "softmax_fwd_naive", 1, 2048 },
        { "softmax_fwd:f32,b1,hq2,hkv1,lq9,lk100000000,d64", "softmax_fwd_naive", 1, 1 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_choice c = plan_with(3, cases[i].problem, cases[i].variant, 0);

        for (int k = 0; k < c.n_steps; k++) {
            assert_int_equal(c.step[k].round_heads, cases[i].heads);
            assert_int_equal(c.step[k].round_queries, cases[i].queries);
        }
    }
}

static void what_naive_refuses(void **state)
{
    const attn_options options = { .size = sizeof options, .variant = "softmax_fwd_naive" };
    attn_target t = target_of(3);
    attn_problem p;
    attn_choice c;

    (void)state;
    check_ok(attn_problem_parse(&p, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk1000,d64"));
    t.caps.max_group = 63;
    check_error(attn_choose(&p, &t, &options, &c), ATTN_ERR_UNSUPPORTED, "64 threads");
    t.caps.max_group = 64;
    t.caps.max_alloc_bytes = 3999;
    check_error(attn_choose(&p, &t, &options, &c), ATTN_ERR_UNSUPPORTED, "largest block");
}

/* CUDA's merge has both types in its kernel's name, a warp a row. */
static void merge_kernels(void **state)
{
    static const char *const types[] = { "f32", "f16", "bf16" };
    const attn_target t = target_of(3);

    (void)state;
    for (int o = 0; o < 3; o++)
        for (int part = 0; part < 3; part++) {
            char name[64];
            attn_step step;

            attn_merge_step("cuda", &t.caps, ATTN_F32 + part, ATTN_F32 + o, &step);
            snprintf(name, sizeof name, "softmax_merge_%s_%s", types[o], types[part]);
            assert_string_equal(step.kernel, name);
            assert_int_equal(step.block, 32 * step.tile_q);
            assert_int_equal(step.fast_bytes, 0);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_fits),
        cmocka_unit_test(which_instance),
        cmocka_unit_test(when_tiles_are_cut),
        cmocka_unit_test(wide_rows),
        cmocka_unit_test(plans_do_not_depend_on_batch_or_heads),
        cmocka_unit_test(nodes_of_a_tree),
        cmocka_unit_test(what_is_split),
        cmocka_unit_test(pieces_as_asked),
        cmocka_unit_test(whole_rows),
        cmocka_unit_test(heads_of_any_size),
        cmocka_unit_test(gradients_of_any_size),
        cmocka_unit_test(rounds),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(naive_steps),
        cmocka_unit_test(naive_rounds),
        cmocka_unit_test(what_naive_refuses),
        cmocka_unit_test(merge_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
