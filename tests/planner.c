/* SPDX-License-Identifier: MIT */
/* tests/planner.c: what is planned for devices that nobody here owns. */
#include "tests/check.h"

#include <stdio.h>

#include <attn/attn.h>

#include "core/size.h"
#include "core/text.h"
#include "plan/plan.h"

/* Options that name a variant; for use in one call. */
static const attn_options *named(const char *variant)
{
    static attn_options options = { .size = sizeof options };

    options.variant = variant;
    return &options;
}

static const struct {
    const char *name, *backend;
    attn_caps caps;
} made_up[] = {
    { "32 KiB local, work-groups of 64",
      "opencl",
      { .kind = ATTN_DEVICE_GPU,
        .compute_units = 4,
        .fast_bytes = 32768,
        .max_group = 64,
        .subgroup = 16,
        .vector_width = 1,
        .memory_bytes = 1 << 30,
        .max_alloc_bytes = 1 << 28,
        .clock_mhz = 800 } },
    { "1 MiB local, vectors of 16",
      "opencl",
      { .kind = ATTN_DEVICE_CPU,
        .compute_units = 2,
        .fast_bytes = 1 << 20,
        .max_group = 4096,
        .subgroup = 8,
        .vector_width = 16,
        .memory_bytes = (int64_t)16 << 30,
        .max_alloc_bytes = (int64_t)4 << 30,
        .clock_mhz = 3000 } },
    { "work-groups of 32",
      "opencl",
      { .kind = ATTN_DEVICE_GPU,
        .compute_units = 8,
        .fast_bytes = 32768,
        .max_group = 32,
        .subgroup = 32,
        .vector_width = 1,
        .memory_bytes = (int64_t)2 << 30,
        .max_alloc_bytes = (int64_t)1 << 30 } },
    { "no subgroups",
      "opencl",
      { .kind = ATTN_DEVICE_GPU,
        .compute_units = 20,
        .fast_bytes = 65536,
        .max_group = 256,
        .subgroup = 0,
        .vector_width = 1,
        .memory_bytes = (int64_t)8 << 30,
        .max_alloc_bytes = (int64_t)2 << 30,
        .clock_mhz = 1500 } },
    { "4 GiB of memory",
      "opencl",
      { .kind = ATTN_DEVICE_GPU,
        .compute_units = 16,
        .fast_bytes = 49152,
        .max_group = 1024,
        .subgroup = 32,
        .vector_width = 1,
        .memory_bytes = (int64_t)4 << 30,
        .max_alloc_bytes = (int64_t)1 << 30,
        .clock_mhz = 1700 } },
    { "228 KiB of fast memory",
      "opencl",
      { .kind = ATTN_DEVICE_GPU,
        .compute_units = 132,
        .fast_bytes = 228 * 1024,
        .max_group = 1024,
        .subgroup = 32,
        .vector_width = 1,
        .memory_bytes = (int64_t)141 << 30,
        .max_alloc_bytes = (int64_t)35 << 30,
        .clock_mhz = 1980 } },
    { "one work-item, 16 KiB",
      "opencl",
      { .kind = ATTN_DEVICE_OTHER,
        .compute_units = 1,
        .fast_bytes = 16384,
        .max_group = 1,
        .vector_width = 4,
        .memory_bytes = 1 << 26,
        .max_alloc_bytes = 1 << 24 } },
    { "a processor with a small cache",
      "host",
      { .kind = ATTN_DEVICE_HOST,
        .compute_units = 1,
        .fast_bytes = 65536,
        .max_group = 1,
        .subgroup = 8,
        .vector_width = 4,
        .memory_bytes = 1 << 28,
        .max_alloc_bytes = 1 << 28 } },
    { "a processor of 96 threads",
      "host",
      { .kind = ATTN_DEVICE_HOST,
        .compute_units = 96,
        .fast_bytes = 2 << 20,
        .max_group = 1,
        .subgroup = 48,
        .vector_width = 16,
        .memory_bytes = (int64_t)512 << 30,
        .max_alloc_bytes = (int64_t)512 << 30,
        .clock_mhz = 3500 } },
};

enum { N_DEVICES = sizeof made_up / sizeof made_up[0] };

static attn_target target_of(int i)
{
    attn_target t = { .backend = made_up[i].backend, .caps = made_up[i].caps };

    t.variants = attn_variants_for(t.backend, &t.caps);
    return t;
}

/* NULL: the kernel does not read it. */
static const attn_define *find_define(const attn_step *s, const char *name)
{
    for (int i = 0; i < s->n_defines; i++)
        if (!strcmp(s->define[i].name, name))
            return &s->define[i];
    return NULL;
}

static int64_t define(const attn_step *s, const char *name)
{
    const attn_define *d = find_define(s, name);

    if (!d)
        fail_msg("%s: no %s", s->kernel, name);
    return d ? d->value : 0;
}

/* The place of a variant in the target's list. */
static int place(const attn_target *t, const char *variant)
{
    for (int v = 0; t->variants[v]; v++)
        if (!strcmp(t->variants[v]->name, variant))
            return v;
    fail_msg("%s has no %s", t->backend, variant);
    return 0;
}

/* One step keeps the limits of its device. */
static void step_fits(const attn_step *s, const attn_problem *p, const attn_target *t,
                      const char *text)
{
    assert_true(s->tile_q >= 1 && s->tile_k >= 1 && s->block >= 1);
    assert_true(s->block <= t->caps.max_group);
    if (find_define(s, "D"))
        assert_int_equal(define(s, "D"), p->d);
    if (find_define(s, "DV"))
        assert_int_equal(define(s, "DV"), p->dv);
    if (!strcmp(t->backend, "opencl") && s->fast_bytes > t->caps.fast_bytes)
        fail_msg("%s: %s wants %lld bytes of %lld", text, s->kernel,
                 (long long)s->fast_bytes, (long long)t->caps.fast_bytes);
}

/* Every plan of every variant keeps the limits of its device. */
static void every_plan_fits(void **state)
{
    static const int64_t dims[] = { 1, 3, 8, 40, 64, 80, 96, 128, 192, 255, 256 };
    static const int64_t lens[] = { 1, 7, 64, 1000, 65536 };
    static const char *const types[] = { "f32", "f16", "bf16" };
    int plans = 0;

    (void)state;
    for (int i = 0; i < N_DEVICES; i++)
        for (size_t d = 0; d < 11 * 11; d++)
            for (size_t k = 0; k < 5 * 3 * 2; k++) {
                const attn_target t = target_of(i);
                char text[256];
                attn_problem p;

                snprintf(
                    text, sizeof text,
                    "softmax_fwd:%s,b2,hq4,hkv2,lq%lld,lk777,d%lld,dv%lld,causal,lse%s",
                    types[k / 5 % 3], (long long)lens[k % 5], (long long)dims[d % 11],
                    (long long)dims[d / 11], k / 15 ? ",layout=any" : "");
                check_ok(attn_problem_parse(&p, text));
                for (int v = 0; t.variants[v]; v++) {
                    attn_choice c;
                    const attn_step *s = &c.step[0];

                    if (attn_refusal(&p, &t, v))
                        continue;
                    check_ok(attn_choose(&p, &t, named(t.variants[v]->name), &c));
                    plans++;
                    assert_true(c.n_steps >= 1 && c.n_steps <= ATTN_MAX_STEPS);
                    for (int n = 0; n < c.n_steps; n++)
                        step_fits(&c.step[n], &p, &t, text);
                    assert_true(c.instance[0] &&
                                strlen(c.instance) < sizeof c.instance - 1);
                    assert_true(c.workspace_bytes >= 0 &&
                                c.workspace_bytes <= t.caps.max_alloc_bytes);
                    if (!strcmp(t.backend, "host")) {
                        assert_true(c.workspace_bytes >= s->threads * s->scratch_bytes);
                        assert_int_equal(s->scratch_bytes % 64, 0);
                    }
                }
            }
    assert_true(plans > 5000);
}

/* Any head size to 256 has a plan on each of them but the smallest. */
static void there_is_a_plan(void **state)
{
    (void)state;
    for (int i = 0; i < N_DEVICES; i++)
        for (int d = 1; d <= 256; d++) {
            const attn_target t = target_of(i);
            char text[128];
            attn_problem p;
            attn_choice c;

            snprintf(text, sizeof text, "softmax_fwd:f16,b1,hq1,hkv1,lq99,lk99,d%d", d);
            check_ok(attn_problem_parse(&p, text));
            if (t.caps.fast_bytes >= 32768)
                check_ok(attn_choose(&p, &t, NULL, &c));
        }
}

/* B and H change neither the variant nor the key tile: a row gives the same bits
 * alone and in a batch. */
static void plans_do_not_depend_on_batch_or_heads(void **state)
{
    (void)state;
    for (int i = 0; i < N_DEVICES; i++) {
        const attn_target t = target_of(i);
        attn_problem one, many;
        attn_choice a, b;

        check_ok(attn_problem_parse(&one, "softmax_fwd:f32,b1,hq1,hkv1,lq300,lk300,d64"));
        check_ok(
            attn_problem_parse(&many, "softmax_fwd:f32,b64,hq32,hkv8,lq300,lk300,d64"));
        check_ok(attn_choose(&one, &t, NULL, &a));
        check_ok(attn_choose(&many, &t, NULL, &b));
        assert_ptr_equal(a.variant, b.variant);
        assert_int_equal(a.step[0].tile_k, b.step[0].tile_k);
        if (!strcmp(t.backend, "opencl"))
            assert_string_equal(a.instance, b.instance);
    }
}

static bool same_defines(const attn_step *a, const attn_step *b)
{
    bool same = a->n_defines == b->n_defines && !strcmp(a->kernel, b->kernel);

    for (int i = 0; same && i < a->n_defines; i++)
        same = !strcmp(a->define[i].name, b->define[i].name) &&
               a->define[i].value == b->define[i].value;
    return same;
}

/* A program is compiled anew only where its kernel reads what differs. */
static void steps_define_what_they_read(void **state)
{
    static const char *const variants[] = { "math", "naive_copy", "split" };
    static const char plain[] = "softmax_fwd:f32,b2,hq2,hkv1,lq9,lk700,d16,lse";
    static const struct {
        const char *problem, *same; /* the kernels that do not read it */
    } cases[] = {
        { "softmax_fwd:f32,b2,hq2,hkv1,lq9,lk700,d16,causal,lse",
          " math_product math_unpack naive_copy naive_scale split_merge " },
        { "softmax_fwd:f32,b2,hq2,hkv1,lq9,lk700,d16,mask,lse",
          " math_pack math_product math_unpack naive_product naive_copy naive_scale "
          "naive_softmax naive_output split_merge " },
        { "softmax_fwd:f32,b2,hq2,hkv1,lq9,lk700,d16,softcap=2,lse",
          " math_pack math_product math_unpack naive_product naive_copy naive_mask "
          "naive_softmax naive_output split_merge " },
        { "softmax_fwd:f32,b2,hq2,hkv1,lq9,lk700,d16,sinks,lse",
          " math_pack math_product math_unpack naive_product naive_copy naive_scale "
          "naive_mask naive_output split " },
        { "softmax_fwd:f32,b2,hq2,hkv1,lq9,lk700,d16,lens,lse",
          " math_product math_unpack naive_copy naive_scale split_merge " },
        { "softmax_fwd:f32,b2,hq2,hkv1,lq9,lk700,d16,packed=q,lse", " math_product " },
        { "softmax_fwd:bf16,b2,hq2,hkv1,lq9,lk700,d16,lse", " math_product math_softmax " },
    };

    (void)state;
    for (size_t v = 0; v < sizeof variants / sizeof variants[0]; v++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            const attn_target t = target_of(1);
            attn_problem p, q;
            attn_choice a, b;
            char name[64];

            snprintf(name, sizeof name, "softmax_fwd_%s", variants[v]);
            check_ok(attn_problem_parse(&p, plain));
            check_ok(attn_problem_parse(&q, cases[i].problem));
            check_ok(attn_choose(&p, &t, named(name), &a));
            check_ok(attn_choose(&q, &t, named(name), &b));
            assert_int_equal(a.n_steps, b.n_steps);
            for (int k = 0; k < a.n_steps; k++) {
                snprintf(name, sizeof name, " %s ",
                         a.step[k].kernel + strlen("softmax_fwd_"));
                /* steps that pack Q, K and V are told apart by PACK: Q's reads less */
                if (strstr(name, " math_pack ") && !define(&a.step[k], "PACK"))
                    continue;
                if (same_defines(&a.step[k], &b.step[k]) != !!strstr(cases[i].same, name))
                    fail_msg("%s of %s", name, cases[i].problem);
            }
        }
}

static void the_starting_tile_keeps_its_budget(void **state)
{
    int64_t br, bc;

    (void)state;
    for (int64_t m = 3; m < 300000; m += m / 7 + 1)
        for (int64_t d = 1; d <= 256; d += 5)
            for (int64_t dv = 1; dv <= 256; dv += 17) {
                const bool fits = attn_tile_rule(m, d, dv, &br, &bc);
                assert_true(fits == (2 * (d + dv) + 1 <= m));
                if (!fits)
                    continue;
                assert_true(br >= 1 && bc >= 1);
                assert_true(bc * (d + dv) + br * (d + dv) + br * bc <= m);
            }
    /* the paper's own example: 100 KiB of f32 at d = 64 gives 100 keys, 64 queries;
     * with these the scores no longer fit, so keys make room */
    assert_true(attn_tile_rule(25600, 64, 64, &br, &bc));
    assert_int_equal(br, 64);
    assert_int_equal(bc, 90);
}

static void which_variant_answers(void **state)
{
    static const struct {
        const char *name;
        int device;
        const char *problem, *want;
    } cases[] = {
        { "a GPU takes the GPU family", 3, "softmax_fwd:f16,b1,hq32,hkv8,lq512,lk512,d128",
          "softmax_fwd_tile_gpu" },
        { "a processor takes its own", 1, "softmax_fwd:f16,b1,hq32,hkv8,lq512,lk512,d128",
          "softmax_fwd_tile_cpu" },
        { "the host", 8, "softmax_fwd:f16,b1,hq32,hkv8,lq512,lk512,d128",
          "softmax_fwd_tile" },
        { "large heads on the host", 8, "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk5,d576,dv512",
          "softmax_fwd_tile" },
        { "larger than any cache", 8, "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk5,d5000",
          "softmax_fwd_reference" },
        { "large heads on a GPU", 3, "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk5,d257",
          "softmax_fwd_math" },
        { "scores that fit no block", 6,
          "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk2000000000,d257", NULL },
        { "a feature beside the plain ones", 8,
          "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk5,d8,softcap=2", "softmax_fwd_tile" },
        { "dropout where pieces would be made", 8,
          "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk5000,d8,dropout=0.5", "softmax_fwd_tile" },
        { "... on a GPU", 3, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk5000,d8,dropout=0.5",
          "softmax_fwd_tile_gpu" },
        { "dropout of heads that are too large", 3,
          "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk5,d257,dropout=0.5", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const attn_target t = target_of(cases[i].device);
        attn_problem p;
        attn_choice c;
        attn_status st;

        check_ok(attn_problem_parse(&p, cases[i].problem));
        st = attn_choose(&p, &t, NULL, &c);
        if (!cases[i].want) {
            assert_int_equal(st, ATTN_ERR_UNSUPPORTED);
            for (int v = 0; t.variants[v]; v++) /* every variant's reason */
                if (attn_variant_computes(&p, &t, v))
                    assert_non_null(strstr(attn_last_error(), t.variants[v]->name));
        } else if (st != ATTN_OK || strcmp(c.variant->name, cases[i].want)) {
            fail_msg("%s: want %s, have %s", cases[i].name, cases[i].want,
                     st == ATTN_OK ? c.variant->name : attn_last_error());
        }
    }
}

/* Pieces that the caller fixes are made by a variant that makes pieces, or not at all. */
static void splits_are_kept_or_refused(void **state)
{
    static const int devices[] = { 1, 3, 8 };

    (void)state;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        const attn_target t = target_of(devices[i]);
        attn_options options = { .size = sizeof options, .splits = 7 };
        attn_problem p;
        attn_choice c;

        check_ok(attn_problem_parse(&p, "softmax_fwd:f32,b1,hq2,hkv2,lq999,lk700,d64"));
        check_ok(attn_choose(&p, &t, &options, &c));
        assert_string_equal(c.variant->name, "softmax_fwd_split");
        assert_in_range(c.splits, 2, 7); /* pieces are whole tiles */
        options.variant = t.variants[1]->name;
        check_error(attn_choose(&p, &t, &options, &c), ATTN_ERR_UNSUPPORTED,
                    "does not split the keys");
        options.splits = 1; /* all in one: so does everybody */
        check_ok(attn_choose(&p, &t, &options, &c));
    }
}

/* Window (-1, -1) is no window: the same problem, so the same plan. */
static void no_window_takes_the_same_path(void **state)
{
    const attn_target t = target_of(1);
    attn_problem with, without;
    attn_choice a, b;

    (void)state;
    check_ok(
        attn_problem_parse(&with, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk9,d8,window=-1:-1"));
    check_ok(attn_problem_parse(&without, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk9,d8"));
    assert_memory_equal(&with, &without, sizeof with);
    check_ok(attn_choose(&with, &t, NULL, &a));
    check_ok(attn_choose(&without, &t, NULL, &b));
    assert_memory_equal(&a, &b, sizeof a);
}

/* What is passed over is still there by name, and where nothing else is. */
static void drawbacks_count_unless_named(void **state)
{
    static const struct {
        const char *problem;
        bool split;
    } cases[] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk32768,d64", true },
        { "softmax_fwd:f32,b64,hq32,hkv8,lq8,lk32768,d64", true },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq512,lk32768,d64", false },
        { "softmax_fwd:f32,b64,hq32,hkv8,lq1,lk20,d64", false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int d = 0; d < N_DEVICES; d++) {
            attn_target t = target_of(d);
            const int at = place(&t, "softmax_fwd_split");
            attn_problem p;
            attn_choice c;

            check_ok(attn_problem_parse(&p, cases[i].problem));
            if (strcmp(t.backend, "opencl") || attn_refusal(&p, &t, at))
                continue;
            assert_true(!attn_drawback(&p, &t, at) == cases[i].split);
            check_ok(attn_choose(&p, &t, NULL, &c));
            assert_true((c.index == at) == cases[i].split);
            check_ok(attn_choose(&p, &t, named("softmax_fwd_split"), &c));
            assert_int_equal(c.index, at);
            assert_int_equal(c.splits, attn_ceil_div(p.lk, c.step[0].piece));
            for (int v = 0; t.variants[v]; v++)
                snprintf(t.verdict[v].denial, sizeof t.verdict[v].denial, "%s",
                         v == at ? "" : "x");
            check_ok(attn_choose(&p, &t, NULL, &c));
            assert_int_equal(c.index, at);
        }
}

/* What a device teaches rules a variant out, or makes its groups smaller. */
static void verdicts_count(void **state)
{
    attn_target t = target_of(3);
    attn_verdict *const v = &t.verdict[place(&t, "softmax_fwd_tile_gpu")];
    attn_problem p;
    attn_choice c;

    (void)state;
    check_ok(attn_problem_parse(&p, "softmax_fwd:f32,b1,hq1,hkv1,lq99,lk99,d64"));
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_fwd_tile_gpu");
    v->max_group = c.step[0].block / 4;
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_fwd_tile_gpu");
    assert_true(c.step[0].block <= v->max_group);
    snprintf(v->denial, sizeof v->denial, "failed its self-test here: x");
    check_ok(attn_choose(&p, &t, NULL, &c));
    assert_string_equal(c.variant->name, "softmax_fwd_tile_cpu");
    check_error(attn_choose(&p, &t, named("softmax_fwd_tile_gpu"), &c),
                ATTN_ERR_UNSUPPORTED, "failed its self-test");
    check_ok(attn_problem_parse(&p, "softmax_fwd:f32,b1,hq1,hkv1,lq99,lk99,d257"));
    check_error(attn_choose(&p, &t, named("softmax_fwd_tile_gpu"), &c),
                ATTN_ERR_UNSUPPORTED, "D or Dv is over 256"); /* it would say so anyway */
}

/* A driver that cuts long loops off gets no problem that needs them. */
static void cut_loops_are_refused(void **state)
{
    static const char *const whole[] = { "softmax_fwd_tile_gpu", "softmax_fwd_math" };
    attn_target t = target_of(3);
    attn_problem p;
    attn_choice c;

    (void)state;
    t.caps.max_loops = 65535;
    check_ok(attn_problem_parse(&p, "softmax_fwd:f32,b1,hq1,hkv1,lq9,lk300,d64"));
    check_ok(attn_choose(&p, &t, NULL, &c));
    check_ok(attn_problem_parse(&p, "softmax_fwd:f32,b1,hq1,hkv1,lq1,lk65537,d4"));
    for (int v = 0; v < 2; v++)
        check_error(attn_choose(&p, &t, named(whole[v]), &c), ATTN_ERR_UNSUPPORTED,
                    "cuts loops off");
    t.caps.max_loops = 0;
    for (int v = 0; v < 2; v++)
        check_ok(attn_choose(&p, &t, named(whole[v]), &c));
}

static void explanations_name_what_was_not_chosen(void **state)
{
    char text[4096];
    attn_text out = attn_text_in(text, sizeof text);
    const attn_target t = target_of(1);
    attn_problem p;

    (void)state;
    check_ok(
        attn_problem_parse(&p, "softmax_fwd:f16,b1,hq8,hkv8,lq1024,lk1024,d64,causal"));
    check_ok(attn_explain(&p, &t, NULL, &out));
    assert_true(out.len < sizeof text);
    assert_non_null(strstr(text, "opencl:softmax_fwd_tile_cpu["));
    assert_non_null(strstr(text, "not        softmax_fwd_tile_gpu: "));
    assert_non_null(strstr(text, "q, transposed"));
    assert_non_null(strstr(text, "roofline"));
    check_error(attn_explain(&p, &t, named("fastest"), &out), ATTN_ERR_INVALID, "fastest");
}

static void visible_scores_are_counted(void **state)
{
    static const struct {
        const char *problem;
        double want;
    } cases[] = {
        { "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk7,d8", 35 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk7,d8,causal", 15 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk2,d8,causal", 9 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq2,lk5,d8,causal,align=br", 9 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq5,lk2,d8,causal,align=br", 3 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq6,lk6,d8,window=2:0", 15 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq0,lk6,d8,window=2:0", 0 },
        { "softmax_fwd:f32,b1,hq1,hkv1,lq4,lk9,d8,causal,offset=-9", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attn_problem p;
        check_ok(attn_problem_parse(&p, cases[i].problem));
        assert_true(attn_problem_visible(&p) == cases[i].want);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_plan_fits),
        cmocka_unit_test(there_is_a_plan),
        cmocka_unit_test(plans_do_not_depend_on_batch_or_heads),
        cmocka_unit_test(steps_define_what_they_read),
        cmocka_unit_test(the_starting_tile_keeps_its_budget),
        cmocka_unit_test(which_variant_answers),
        cmocka_unit_test(splits_are_kept_or_refused),
        cmocka_unit_test(no_window_takes_the_same_path),
        cmocka_unit_test(drawbacks_count_unless_named),
        cmocka_unit_test(verdicts_count),
        cmocka_unit_test(cut_loops_are_refused),
        cmocka_unit_test(explanations_name_what_was_not_chosen),
        cmocka_unit_test(visible_scores_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
